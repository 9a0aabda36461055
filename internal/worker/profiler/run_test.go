package profiler

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRunEnvironment: the agent's token is not for programs of the user's.
func TestRunEnvironment(t *testing.T) {
	t.Setenv("FALAJ_WORKER_TOKEN", "secret")
	b, err := run(t.Context(), "/somewhere", "/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(b))
	slices.Sort(names)
	if len(names) != 2 || !strings.HasPrefix(names[0], "PATH=") || names[1] != "TMPDIR=/somewhere" {
		t.Errorf("%q", names)
	}
}

// TestLookFor: the worker's own tool goes before the node's; a name that is not a
// program's is passed over.
func TestLookFor(t *testing.T) {
	t.Parallel()
	venv, path, node := t.TempDir(), t.TempDir(), t.TempDir()
	p := python{bin: venv, env: map[string]string{"PATH": "relative:" + path}}
	put := func(dir string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, "tool-of-falaj"), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(venv, 0o600)
	if found, err := p.look("tool-of-falaj", node); err == nil {
		t.Error(found)
	}
	for _, dir := range []string{node, path} {
		put(dir, 0o700)
		if found, err := p.look("tool-of-falaj", node); err != nil || filepath.Dir(found) != dir {
			t.Errorf("%s, want it of %s: %v", found, dir, err)
		}
	}
}
