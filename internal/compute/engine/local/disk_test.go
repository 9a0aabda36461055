package local_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/local"
	"github.com/falaj-ml/falaj/internal/resource"
)

// fills writes to the working directory until it cannot; each is what is done with the file f.
func fills(each string) string {
	return `
import itertools
kept = []
try:
    for n in itertools.count():
        with open(f'f{n}', 'wb') as f:
            ` + each + `
except OSError as e: print(e.strerror, flush=True)
time.sleep(300)`
}

// What fills does with each file.
const (
	megabyte = "f.write(b'x' * 1048576)"
	quarter  = "f.write(b'x' * 262144)"
	nothing  = "pass"
	beyond   = "f.seek(1 << 30); f.write(b'x' * 1048576)"
	nameless = "f.write(b'x' * 1048576); f.flush(); os.remove(f.name); kept.append(os.dup(f.fileno()))"
)

// TestDiskLimits: a workload that keeps more than it may is ended with a reason, and what
// it wrote is removed.
func TestDiskLimits(t *testing.T) {
	m := newMachine(t, nil)
	for name, c := range map[string]struct {
		disk engine.Disk
		each string
		want string
	}{
		"bytes":    {engine.Disk{Scratch: 8 * resource.MiB}, megabyte, "of its disk limit of 8MiB (scratch)"},
		"files":    {engine.Disk{Files: 300}, nothing, "files of its limit of 300"},
		"holes":    {engine.Disk{Scratch: 8 * resource.MiB}, beyond, "of its disk limit of 8MiB (scratch)"},
		"nameless": {engine.Disk{Scratch: 8 * resource.MiB}, nameless, "of its disk limit of 8MiB (scratch)"},
	} {
		t.Run(name, func(t *testing.T) {
			m := *m
			m.t, m.work = t, t.TempDir()
			s := m.python(fills(c.each))
			s.Disk = c.disk
			_, st, log := m.run(s)
			if st.Reason != engine.OutOfDisk || !strings.Contains(st.Message, c.want) {
				t.Errorf("%+v %q", st, log)
			}
			if left, err := os.ReadDir(m.work); err != nil || len(left) > 0 {
				t.Errorf("%d files are left, %v", len(left), err)
			}
		})
	}
}

// TestSmallDisk fills the disk that the workloads' records are on, too: of the server's
// machine nothing else is harmed. It runs in a mount namespace of its own.
func TestSmallDisk(t *testing.T) {
	dir := os.Getenv("FALAJ_TEST_SMALL_DISK") //nolint:forbidigo // How this test calls itself.
	if dir == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"-test.run=^TestSmallDisk$"}, workerFlag()...)...)
		cmd.Env = append(os.Environ(), "FALAJ_TEST_SMALL_DISK="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			if os.Getenv("CI") == "true" && os.Getuid() == 0 { //nolint:forbidigo // CI must not skip it.
				t.Fatal("this machine permits root no mount namespace")
			}
			t.Skip("a file system is mounted by root only")
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	for name, c := range map[string]struct {
		options string
		each    string
		project local.Room // that nothing limits otherwise
		cancel  bool
	}{
		"bytes, by its share":   {options: "size=64m", each: megabyte},
		"files, by its share":   {options: "size=64m,nr_inodes=3000", each: nothing},
		"bytes, and cancelled":  {options: "size=24m", each: quarter, cancel: true},
		"bytes, by its project": {options: "size=64m", each: quarter, project: local.Room{Bytes: 4 * resource.MiB}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, c.options+",mode=0700"))
			m := newMachine(t, func(cfg *local.Config) {
				cfg.Dir = filepath.Join(dir, "workloads")
				cfg.Disk = local.Disk{Reserve: local.Room{Bytes: 8 * resource.MiB, Files: 500}, Project: c.project}
			})
			defer func() { check(t, errors.Join(m.Close(), syscall.Unmount(dir, syscall.MNT_DETACH))) }()
			m.work = filepath.Join(dir, "work")
			check(t, os.Mkdir(m.work, 0o700))
			if c.cancel { // the disk is full, of something else
				s := m.python("print('runs', flush=True); time.sleep(300)")
				h, err := m.Start(t.Context(), s)
				check(t, err)
				for i := 0; err == nil; i++ {
					err = os.WriteFile(filepath.Join(dir, "filler"+strings.Repeat("r", i%200)+string(rune('a'+i/200))), make([]byte, 128<<10), 0o600)
				}
				check(t, m.Stop(t.Context(), h, 0))
				st, err := m.Wait(t.Context(), h)
				check(t, err)
				if st.State != engine.Ended || st.Reason != engine.Stopped {
					t.Errorf("%+v", st)
				}
				return
			}
			s := m.python(fills(c.each))
			s.Project = "north"
			_, st, log := m.run(s)
			if st.State != engine.Ended || st.Reason != engine.OutOfDisk || st.Message == "" {
				t.Errorf("%+v %q", st, log)
			}
			if left, err := os.ReadDir(m.work); err != nil || len(left) > 0 {
				t.Errorf("%d files are left, %v", len(left), err)
			}
		})
	}
}

// workerFlag passes the flag of this test on.
func workerFlag() (flags []string) {
	for _, a := range os.Args[1:] {
		if strings.HasPrefix(a, "-falaj-worker") {
			flags = append(flags, a)
		}
	}
	return flags
}

// TestTasks: a workload's processes and threads end at its limit, which is the kernel's.
func TestTasks(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(c *local.Config) { c.Limits.Processes = 40 })
	_, st, log := m.run(m.python(`
import threading
threading.stack_size(65536)
n = 0
try:
    while n < 1000:
        threading.Thread(target=time.sleep, args=(300,), daemon=True).start(); n += 1
except RuntimeError: print('stopped')
print(n < 80, flush=True)
os._exit(0)`))
	if log != "stopped\nTrue\n" {
		t.Errorf("%+v %q", st, log)
	}
}
