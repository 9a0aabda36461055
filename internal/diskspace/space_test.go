package diskspace

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestRoom: bytes and inodes are held against the reserve alike.
func TestRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	free, err := Free(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		least Space
		says  string
	}{
		"no reserve":     {Space{}, ""},
		"enough":         {Space{1, 1}, ""},
		"too few bytes":  {Space{Bytes: math.MaxInt64, Files: 1}, "limits.free"},
		"too few inodes": {Space{Bytes: 1, Files: math.MaxInt64}, "limits.free_files"},
	} {
		if name == "too few inodes" && free.Files == math.MaxInt64 {
			continue // this file system makes inodes as they are needed
		}
		err := Check("the test", dir, c.least)
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Exhausted) || !strings.Contains(fault.HintOf(err), c.says)) {
			t.Errorf("%s: %v (%s)", name, err, fault.HintOf(err))
		}
	}
}

// TestBallastFiles: inodes are taken while there are enough, once, and not out of the reserve.
func TestBallastFiles(t *testing.T) {
	t.Parallel()
	b := &Reserve{path: filepath.Join(t.TempDir(), "ballast"), size: Space{Files: 20}, log: slog.New(slog.DiscardHandler)}
	for range 2 {
		if err := b.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if made, err := os.ReadDir(b.dir()); err != nil || len(made) != 20 {
		t.Fatalf("%d files, %v", len(made), err)
	}
	b.least = Space{Files: math.MaxInt64 / 2}
	if free, err := Free(b.path[:len(b.path)-len("/ballast")]); err != nil || free.Files == math.MaxInt64 {
		t.Skip("this file system makes inodes as they are needed")
	}
	if err := os.RemoveAll(b.dir()); err != nil {
		t.Fatal(err)
	}
	if err := b.Look(t.Context()); err != nil || exists(b.dir()) {
		t.Errorf("it is taken out of the reserve, %v", err)
	}
}

// TestNoSpaceIsExhausted: a disk without room is no defect of ours, whatever failed for it.
func TestNoSpaceIsExhausted(t *testing.T) {
	t.Parallel()
	for _, errno := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err := fault.Wrap(&os.PathError{Op: "mkdir", Path: "/x", Err: errno}, "making a directory")
		if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
			t.Errorf("%v is %s", err, fault.KindOf(err))
		}
	}
	if fault.Is(&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EIO}, fault.Exhausted) {
		t.Error("an error of the disk is taken for a full one")
	}
}
