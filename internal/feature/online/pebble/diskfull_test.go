package pebble

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/onlinetest"
)

var fullDisk = flag.String("pebble.full", "", "be the process that TestDiskFull starts: the directory to mount a small disk on")

// TestDiskFull fills a real file system, which a child process mounts in a namespace of
// its own: writes are refused, nothing that was acknowledged is lost, reading goes on,
// and so does writing when there is space, without a restart.
func TestDiskFull(t *testing.T) {
	if *fullDisk == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDiskFull$", "-pebble.full="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("this machine permits no user namespaces (%v)", err)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	if err := syscall.Mount("tmpfs", *fullDisk, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	db, err := Open(Config{Dir: filepath.Join(*fullDisk, "online")})
	if err != nil {
		t.Fatal(err)
	}
	s := online.New(db, &onlinetest.Keys{}, clock)
	entity := func(n int) online.Row {
		return row(fmt.Sprint("e", n), onlinetest.Clock.Add(-time.Minute), fmt.Sprintf("%0100000d", n))
	}
	written := 0
	write := func() error {
		err := s.Write(t.Context(), table, []online.Row{entity(written)})
		if err == nil {
			written++
		}
		return err
	}
	there := func() {
		t.Helper()
		for n := range written {
			r := entity(n)
			got, err := s.Read(t.Context(), table, online.Query{Keys: [][]byte{r.Key}, At: onlinetest.Clock})
			if err != nil || string(got[0].Packed) != string(r.Packed) {
				t.Fatalf("row %d of %d is lost: %v", n, written, err)
			}
		}
	}
	filler := filepath.Join(*fullDisk, "filler")
	for round := range 2 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, 64<<10))
		}
		_ = f.Close()
		for err = nil; err == nil; { // the log that was begun has space of its own
			err = write()
		}
		if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
			t.Fatalf("round %d, on a full disk: %v", round, err)
		}
		if err := s.Drop(t.Context(), table); !fault.Is(err, fault.Exhausted) {
			t.Errorf("dropping on a full disk: %v", err)
		}
		there()
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, written, "rows were written") // for the parent
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(Config{Dir: filepath.Join(*fullDisk, "online")}); err != nil {
		t.Fatal(err)
	}
	s = online.New(db, &onlinetest.Keys{}, clock)
	there()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
