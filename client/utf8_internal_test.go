package client

import (
	"encoding/json"
	"testing"
)

func TestReplaced(t *testing.T) {
	for text, want := range map[string]bool{
		"SELECT 'caf\xe9'": true, "café": false, "\ufffd": false, `\ufffd`: false, `\\` + "\xff": true, "": false, `\ufffd` + "\xff": true,
	} {
		j, err := json.Marshal(map[string]string{"sql": text})
		if err != nil || replaced(j) != want {
			t.Errorf("%q: %v, want %t", text, replaced(j), want)
		}
	}
}
