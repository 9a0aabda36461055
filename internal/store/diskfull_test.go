package store

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

var fullDisk = flag.String("store.full", "", "be the process that TestDiskFull starts: the directory to mount a small disk on")

// TestDiskFull fills a real file system of 3 MiB, which a child process mounts in
// a namespace of its own; after space is freed, writing goes on.
func TestDiskFull(t *testing.T) {
	if *fullDisk == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDiskFull$", "-store.full="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("this machine permits no user namespaces (%v); TestDatabaseFull still fills a database", err)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := syscall.Mount("tmpfs", *fullDisk, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	ballast := filepath.Join(*fullDisk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	db := openFile(t, filepath.Join(*fullDisk, "a.db"))
	fillUp(t, db)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := insert(t.Context(), db, "space again", ""); err != nil {
		t.Errorf("with space again: %v", err)
	}
}
