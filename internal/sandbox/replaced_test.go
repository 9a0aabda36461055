package sandbox_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// TestReplacedWorker: a worker whose file has been replaced by a newer one while
// it was starting has no name any more, and starts its program all the same. It is not
// parallel: a fork of another test could hold the copy open for writing.
func TestReplacedWorker(t *testing.T) {
	path := filepath.Join(t.TempDir(), "falaj-worker")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	check(t, err)
	from, err := os.Open(sandboxtest.Worker(t))
	check(t, err)
	defer from.Close()
	_, err = io.Copy(to, from)
	check(t, err)
	check(t, to.Close())
	gone, err := os.Open(path)
	check(t, err)
	defer gone.Close()
	check(t, os.Remove(path))
	worker := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), gone.Fd())
	for name, p := range map[string]sandbox.Policy{
		"sandbox":   {Level: sandbox.Sandbox},
		"container": container(t, sandboxtest.BusyboxRoot(t)),
	} {
		cmd, err := sandbox.Command(t.Context(), worker, p, "sh", "-c", "echo runs; : >/.falaj-worker")
		check(t, err)
		cmd.Stderr = io.Discard
		if out, err := cmd.Output(); string(out) != "runs\n" || err == nil { // and cannot write to the copy
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}
