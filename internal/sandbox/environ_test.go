package sandbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// TestOwnEnvironment: a program gets the policy's variables and no other, at each
// level.
func TestOwnEnvironment(t *testing.T) {
	t.Parallel()
	policies := map[string]sandbox.Policy{"container": container(t, sandboxtest.BusyboxRoot(t))}
	for _, level := range []sandbox.Level{sandbox.None, sandbox.Process, sandbox.Sandbox} {
		policies[level.String()] = sandbox.Policy{Level: level, Env: map[string]string{"PATH": "/bin"}}
	}
	for name, p := range policies {
		cmd, err := sandbox.Command(t.Context(), sandboxtest.Worker(t), p, "/bin/sh", "-c", "cat /proc/self/environ")
		check(t, err)
		out, err := cmd.Output()
		var names []string
		for kv := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
			if name, _, _ := strings.Cut(kv, "="); name != "PWD" && name != "_" && name != "SHLVL" && name != "OLDPWD" { // the shell's
				names = append(names, name)
			}
		}
		if err != nil || !slices.Equal(names, []string{"PATH"}) {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
}
