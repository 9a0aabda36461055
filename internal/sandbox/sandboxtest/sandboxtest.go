// Package sandboxtest gives tests the falaj-worker binary.
package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// Worker builds falaj-worker, once per test process, and gives its path.
func Worker(tb testing.TB) string {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatalf("building falaj-worker: %v", err)
	}
	return path
}
