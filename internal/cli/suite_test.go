package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSuite: a suite is taken whole or, unless one says so, not at all; it needs no
// server.
func TestSuite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.json")
	if err := os.WriteFile(file, []byte(`{"expectations": [
		{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
		{"type": "expect_column_mean_to_be_between", "kwargs": {"column": "price", "min_value": 1}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line      string
		code      int
		out, said string
	}{
		{"dataset suite " + file, 1, "", "1 of 2 expectations cannot be taken"},
		{"dataset suite --skip-unsupported " + file, 0, "expectations:\n- check: not_null\n  column: id\n", "expect_column_mean_to_be_between(price)"},
		{"dataset suite --skip-unsupported -o json " + file, 0, `"check": "not_null"`, "expect_column_mean_to_be_between(price)"},
		{"dataset suite " + file + "x", 2, "", "no such file"},
	} {
		var out, said strings.Builder
		code := Run(t.Context(), World{Args: strings.Fields(c.line), Stdout: &out, Stderr: &said})
		if code != c.code || !strings.Contains(out.String(), c.out) || c.out == "" && out.Len() > 0 || !strings.Contains(said.String(), c.said) {
			t.Errorf("%s: exit code %d\n%s%s", c.line, code, &out, &said)
		}
	}
}
