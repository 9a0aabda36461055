package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/bench/harness"
)

// TestQuick runs every measurement once, short, against the built binaries.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	for _, name := range []string{"falaj", "falaj-worker"} {
		if _, err := os.Stat(filepath.Join("../../bin", name)); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("bin/%s is not built", name)
			}
			t.Skipf("bin/%s is not built; run: make build", name)
		}
	}
	out := filepath.Join(t.TempDir(), "monitoring.json")
	if err := harness.Measure(t.Context(), "monitoring", []string{"-quick", "-root", "../..", "-out", out}, t.Output(), t.Output(), steps); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var got harness.Result
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	names := map[string]harness.Row{}
	for _, r := range got.Rows {
		if r.Ours == nil && r.Note == "" {
			t.Errorf("%s has no value and does not say why", r.Name)
		}
		if r.Better != harness.Lower && r.Better != harness.Higher {
			t.Errorf("%s: better is %q", r.Name, r.Better)
		}
		if _, twice := names[r.Name]; twice {
			t.Errorf("%s is there twice", r.Name)
		}
		names[r.Name] = r
	}
	for _, name := range []string{
		"window from rows to verdict", "records into judged windows", "rollout.Decide",
		"drift of 1 SD to its event, windows of 1,000 rows, any input",
		"prediction logging, features looked up by key, added CPU", "prediction log, bytes of a record", "labels over HTTP",
	} {
		if _, ok := names[name]; !ok {
			t.Errorf("%s was not measured", name)
		}
	}
	_, quiet := names["false alarms, share of windows, default monitor"]
	if _, missing := names["false alarms"]; quiet == missing {
		t.Error("false alarms were not measured")
	}
	// A change of a standard deviation is told of at the end of its window or the next.
	if r := names["drift of 1 SD to its event, windows of 1,000 rows, any input"]; r.Ours == nil || *r.Ours > 2000 {
		t.Errorf("%+v", r)
	}
}
