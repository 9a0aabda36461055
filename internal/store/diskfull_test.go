package store

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/falaj-ml/falaj/internal/fault"
)

var fullDisk = flag.String("store.full", "", "be the process that a test starts: the directory to mount a small disk on")

// smallDisk mounts a real file system of 3 MiB, in a child process with a namespace of its
// own, which runs this test again and gets the directory. The parent gets "".
func smallDisk(t *testing.T) string {
	t.Helper()
	if *fullDisk == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-store.full="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("this machine permits no user namespaces: %v", err)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return ""
	}
	if err := syscall.Mount("tmpfs", *fullDisk, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	return *fullDisk
}

// TestDiskFull fills a small disk; after space is freed, writing goes on. Where there are no
// user namespaces, TestDatabaseFull still fills a database.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t)
	if dir == "" {
		return
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	db := openFile(t, filepath.Join(dir, "a.db"))
	fillUp(t, db)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := insert(t.Context(), db, "space again", ""); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

// TestUpgradeWithoutRoom: an upgrade that the disk has no room for is refused before it
// changes anything: the version that wrote the database goes on.
func TestUpgradeWithoutRoom(t *testing.T) {
	dir := smallDisk(t)
	if dir == "" {
		return
	}
	older := Config{URL: "sqlite://" + filepath.Join(dir, "a.db"), Migrations: []Migrations{rowSchema}}
	open := func(cfg Config) error {
		db, err := Open(t.Context(), cfg)
		if err == nil {
			err = db.Close()
		}
		return err
	}
	db, err := Open(t.Context(), older)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(insert(t.Context(), db, "large", strings.Repeat("x", 500<<10)), db.Close()); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1700<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := older
	newer.Migrations = []Migrations{rowSchema, {Name: "more", FS: fstest.MapFS{"00001_more.sql": {Data: []byte("-- +goose Up\nCREATE TABLE more (id BIGINT);\n")}}}}
	newer.Upgrading = func(u Upgrade) error { t.Errorf("%v begins", u); return nil }
	err = open(newer)
	if !fault.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "bytes of free space") {
		t.Errorf("%v", err)
	}
	if err := open(older); err != nil {
		t.Errorf("the former version: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	newer.Upgrading = nil
	if err := open(newer); err != nil {
		t.Errorf("with space again: %v", err)
	}
}
