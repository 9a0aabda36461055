package profiler

import (
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
