package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestQuick runs every measurement once, short.
func TestQuick(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick", "-root", "../.."}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var got result
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != 3 {
		t.Errorf("%d rows", len(got.Rows))
	}
	for _, r := range got.Rows {
		if r.Ours == nil || *r.Ours <= 0 {
			t.Errorf("%s has no value", r.Name)
		}
	}
}
