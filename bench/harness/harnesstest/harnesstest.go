// Package harnesstest runs the measurements of an area in a test.
package harnesstest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/bench/harness"
)

// Quick runs every measurement once, short, against the built binaries. It gives
// the rows by name, which are well-formed; those that are named must be there.
func Quick(t *testing.T, area string, steps func(*harness.Run) []harness.Step, names ...string) map[string]harness.Row {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	for _, name := range []string{"falaj", "falaj-worker"} {
		if _, err := os.Stat(filepath.Join("../../bin", name)); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("bin/%s is not built", name)
			}
			t.Skipf("bin/%s is not built; run: make build", name)
		}
	}
	out := filepath.Join(t.TempDir(), area+".json")
	if err := harness.Measure(t.Context(), area, []string{"-quick", "-root", "../..", "-out", out}, t.Output(), t.Output(), steps); err != nil {
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
	rows := map[string]harness.Row{}
	for _, r := range got.Rows {
		if r.Ours == nil && r.Note == "" {
			t.Errorf("%s has no value and does not say why", r.Name)
		}
		if r.Better != harness.Lower && r.Better != harness.Higher {
			t.Errorf("%s: better is %q", r.Name, r.Better)
		}
		if _, twice := rows[r.Name]; twice {
			t.Errorf("%s appears twice", r.Name)
		}
		rows[r.Name] = r
	}
	for _, name := range names {
		if _, ok := rows[name]; !ok {
			t.Errorf("%s was not measured", name)
		}
	}
	return rows
}
