package sandbox_test

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

func TestHello(t *testing.T) {
	worker := sandboxtest.Worker(t)
	t.Log(sandbox.Probe(t.Context(), worker))
	for _, level := range []sandbox.Level{sandbox.None, sandbox.Process, sandbox.Sandbox} {
		t.Run(level.String(), func(t *testing.T) {
			cmd, err := sandbox.Command(t.Context(), worker, sandbox.Policy{Level: level, Env: map[string]string{"A": "b c"}}, "sh", "-c", "id; ls -la / /dev; env; cat /proc/self/status | grep -i -E 'cap|seccomp|nonew'; ls -l /proc/self/fd; ps ax|tail -5; pwd; ulimit -a | head -30")
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.CombinedOutput()
			t.Logf("%v %+v\n%s", err, cmd.Outcome(), out)
			if err != nil || !strings.Contains(string(out), "A=b c") {
				t.Fail()
			}
		})
	}
}
