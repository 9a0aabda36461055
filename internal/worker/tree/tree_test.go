package tree_test

import (
	"bufio"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// stray leaves processes that left the session and ignore what they can.
const stray = `trap '' TERM HUP; (setsid sh -c '(sleep 100000 & sleep 100000) & sleep 100000' &); setsid sleep 100000 & echo ready; `

func start(t *testing.T, script string) (*tree.Tree, *bufio.Reader) {
	t.Helper()
	worker := sandboxtest.Worker(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	x, err := tree.Start(tree.Program{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: t.TempDir(), Output: w, Worker: worker})
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return x, bufio.NewReader(r)
}

// TestTree: however it ends, nothing of it is left: the pipe ends when the last
// process that holds it is gone. Not in parallel: orphans of this process are
// taken for the tree's.
func TestTree(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		end    func(*tree.Tree)
		code   int
		signal syscall.Signal
	}{
		"ends":                       {stray + "exit 3", nil, 3, 0},
		"is killed":                  {stray + "wait", (*tree.Tree).Kill, -1, syscall.SIGKILL},
		"the one between is killed":  {stray + "wait", func(x *tree.Tree) { _ = syscall.Kill(x.PID(), syscall.SIGKILL) }, -1, syscall.SIGKILL},
		"is asked":                   {`trap 'exit 75' TERM; echo ready; sleep 100000 & wait`, (*tree.Tree).Terminate, 75, 0},
		"kills itself":               {stray + "kill -SEGV $$", nil, -1, syscall.SIGSEGV},
		"ends after a stopped child": {stray + "sleep 100000 & kill -STOP $!; exit 4", nil, 4, 0},
	} {
		x, r := start(t, c.script)
		if line, err := r.ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%s: %q %v", name, line, err)
		}
		if c.end != nil {
			if u := x.Usage(); u.RSS <= 0 {
				t.Errorf("%s: uses %+v", name, u)
			}
			c.end(x)
		}
		if rest, err := io.ReadAll(r); err != nil || strings.Trim(string(rest), "\n") != "" {
			t.Errorf("%s: %q %v", name, rest, err)
		}
		if e := x.Exit(); e.Code != c.code || e.Signal != c.signal || e.Failed != "" {
			t.Errorf("%s: %+v", name, e)
		}
		x.Kill() // it has ended: no error
	}
}

func TestNotThere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := tree.Start(tree.Program{Argv: []string{"/no/such/program"}, Output: w, Worker: sandboxtest.Worker(t)})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if e := x.Exit(); !strings.Contains(e.Failed, "no such file") {
		t.Errorf("%+v", e)
	}
}
