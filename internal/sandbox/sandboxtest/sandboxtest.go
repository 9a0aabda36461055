// Package sandboxtest gives tests the falaj-worker binary and a Python that a
// sandbox can see.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/repotest"
)

var build = sync.OnceValues(func() (string, error) {
	root, err := repotest.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".tmp", "test")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, "worker.*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", f.Name(), "./cmd/falaj-worker")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", err
	}
	// Renamed into place, and only when it is another one: a test process beside
	// us may be running the one there.
	path := filepath.Join(dir, "falaj-worker")
	made, err := os.ReadFile(f.Name())
	if err != nil {
		return "", err
	}
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, made) {
		return path, nil
	}
	return path, os.Rename(f.Name(), path)
})

var given = flag.String("falaj-worker", "", "the falaj-worker binary to test with, instead of building it")

// Worker builds falaj-worker, once per test process, and gives its path.
func Worker(tb testing.TB) string {
	tb.Helper()
	if *given != "" {
		return *given
	}
	path, err := build()
	if err != nil {
		tb.Fatalf("building falaj-worker: %v", err)
	}
	return path
}

type interpreter struct {
	path   string
	mounts []string
}

// python asks once: the one that is found may be a slow wrapper.
var python = sync.OnceValues(func() (interpreter, error) {
	found, err := exec.LookPath("python3")
	if err != nil {
		found = "/usr/bin/python3"
	}
	out, err := exec.CommandContext(context.Background(), found, "-c", "import sys; print(sys.executable); print(sys.base_prefix)").Output()
	if err != nil {
		return interpreter{}, err
	}
	executable, prefix, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if strings.HasPrefix(prefix+"/", "/usr/") {
		return interpreter{executable, nil}, nil
	}
	return interpreter{executable, []string{prefix}}, nil
})

// Python gives the path of a Python interpreter and the directories it needs
// besides the system's.
func Python(tb testing.TB) (path string, mounts []string) {
	tb.Helper()
	p, err := python()
	if err != nil {
		tb.Fatalf("no Python 3 to test with: %v", err)
	}
	return p.path, p.mounts
}

// Unprivileged runs the tests of this binary that match the pattern again, as a
// user who is not root. It does nothing when we are not root.
func Unprivileged(t *testing.T, pattern string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return // they ran without root already
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "nobody") //nolint:usetesting // Another user must reach it.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	tmp := filepath.Join(dir, "tmp")
	err = errors.Join(err, os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, nobody, nobody)) //nolint:gosec // As above.
	for name, from := range map[string]string{"tests": self, "falaj-worker": Worker(t)} {
		b, rerr := os.ReadFile(from)
		err = errors.Join(err, rerr, os.WriteFile(filepath.Join(dir, name), b, 0o755)) //nolint:gosec // As above.
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "tests"), "-test.run="+pattern, "-falaj-worker="+filepath.Join(dir, "falaj-worker"))
	cmd.Env, cmd.Dir = []string{"TMPDIR=" + tmp, "PATH=/usr/bin:/bin"}, tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
