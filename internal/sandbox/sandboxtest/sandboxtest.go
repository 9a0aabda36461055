// Package sandboxtest gives tests the falaj-worker binary and a Python that a
// sandbox can see.
package sandboxtest

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

var build = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	dir := filepath.Join(root, ".tmp", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
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
	// Renamed into place: another test process may be running the one there.
	path := filepath.Join(dir, "falaj-worker")
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

// Python gives the path of a Python interpreter and the directories it needs
// besides the system's.
func Python(tb testing.TB) (path string, mounts []string) {
	tb.Helper()
	found, err := exec.LookPath("python3")
	if err != nil {
		found = "/usr/bin/python3"
	}
	out, err := exec.Command(found, "-c", "import sys; print(sys.executable); print(sys.base_prefix)").Output()
	if err != nil {
		tb.Fatalf("no Python 3 to attack with: %v", err)
	}
	executable, prefix, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if strings.HasPrefix(prefix+"/", "/usr/") {
		return executable, nil
	}
	return executable, []string{prefix}
}
