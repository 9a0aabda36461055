package archive_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// TestRemove: a program that made its directories read-only does not keep them.
// Root may do everything, so the test's thread is somebody else to the file system.
func TestRemove(t *testing.T) {
	top, err := os.MkdirTemp("", "falaj-remove-*") //nolint:usetesting // The parent of t.TempDir is for root only.
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	if err := os.Chmod(top, 0o777); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }()
	}
	dir := filepath.Join(top, "scratch")
	inner := filepath.Join(dir, "a", "b")
	err = errors.Join(os.MkdirAll(inner, 0o700), os.WriteFile(filepath.Join(inner, "file"), nil, 0o400),
		os.Chmod(inner, 0o500), os.Chmod(filepath.Dir(inner), 0o100))
	if err != nil {
		t.Fatal(err)
	}
	if os.RemoveAll(dir) == nil {
		t.Fatal("it is no obstacle, so this test tests nothing")
	}
	if err := archive.Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if err := archive.Remove(dir); err != nil {
		t.Errorf("again: %v", err)
	}
}
