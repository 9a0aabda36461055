package local_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	facts "github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// TestShimsAreUsedAgain: short workloads share a shim, one after the other; one
// that was killed while it was free, and one that was told to stop, do not count.
func TestShimsAreUsedAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	ran := func() shim.Process {
		t.Helper()
		h, st, log := m.run(m.python(`print(os.getcwd())`))
		if st.ExitCode != 0 || log != m.work+"\n" {
			t.Fatalf("%+v %q", st, log)
		}
		return m.status(h).Shim
	}
	last, again := ran(), 0
	for range 20 { // a slow machine may have let some go
		now := ran()
		if now == last {
			again++
		}
		last = now
	}
	if again == 0 {
		t.Error("each workload had its own shim")
	}
	if err := last.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if now := ran(); now == last {
		t.Error("a killed shim ran a workload")
	}

	h, err := m.Start(t.Context(), m.python(`time.sleep(100000)`))
	check(t, err)
	check(t, m.Stop(t.Context(), h, 0))
	stopped := m.status(h)
	if stopped.Reason != shim.Stopped {
		t.Errorf("%+v", stopped)
	}
	if now := ran(); now == stopped.Shim {
		t.Error("a shim that was signalled ran another workload")
	}

	// A new driver finds all of them ended, whatever their shims do.
	all, err := m.List(t.Context())
	check(t, err)
	m.restart()
	for _, h := range all {
		if st, err := m.Wait(t.Context(), h); err != nil || st.State != engine.Ended {
			t.Errorf("%s: %+v %v", h, st, err)
		}
	}
}

// TestMemoryIsBound reads the policy of the workload's memory from the kernel.
func TestMemoryIsBound(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	for _, workers := range []int{1, 2} {
		s := m.python(`print(open('/proc/self/numa_maps').read())`)
		s.Resources, s.Options, s.Workers = resource.Amount{CPU: 500}, map[string]string{"memory": "near"}, workers
		if _, st, log := m.run(s); st.ExitCode != 0 || strings.Count(log, " bind:0") < 5*workers || strings.Contains(log, " default ") {
			t.Errorf("%d workers: %+v\n%.2000s", workers, st, log)
		}
	}
	s := m.python(``)
	m.c.Facts = facts.Read("/")
	m.c.Facts.CPU.NUMA = nil
	m.restart()
	s.Options = map[string]string{"memory": "near"}
	if _, err := m.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "no NUMA nodes") {
		t.Errorf("%v", err)
	}
}

// TestOlderServer: a server of the version before starts `shim DIR` and waits for
// the end of a pipe, which is there long before that of the workload.
func TestOlderServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "until")
	check(t, syscall.Mkfifo(fifo, 0o600))
	check(t, shim.Write(dir, shim.SpecFile, shim.Spec{
		ID: "att_1", Argv: []string{"/bin/cat", fifo},
		Policy: sandbox.Policy{Level: sandbox.Process, Dir: "/", Mounts: []sandbox.Mount{{Path: dir}}},
	}))
	ready, theirs, err := os.Pipe()
	check(t, err)
	defer ready.Close()
	cmd := exec.CommandContext(t.Context(), sandboxtest.Worker(t), "shim", dir)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = []string{}, os.Stderr, []*os.File{theirs}
	check(t, cmd.Start())
	check(t, theirs.Close())
	if _, err := ready.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	st, err := shim.Read[shim.Status](dir, shim.StatusFile)
	if err != nil || st.State == shim.Ended || !shim.Held(dir) {
		t.Errorf("%+v %v", st, err)
	}
	// Its own look at the lock.
	lock, err := os.Open(filepath.Join(dir, shim.OldLockFile))
	check(t, err)
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("%v", err)
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	check(t, err)
	check(t, w.Close())
	check(t, cmd.Wait())
	if st, err = shim.Read[shim.Status](dir, shim.StatusFile); err != nil || st.Reason != shim.Exited || st.ExitCode != 0 || shim.Held(dir) {
		t.Errorf("%+v %v", st, err)
	}
}

// TestOlderWorker: the error names both versions, and what to do.
func TestOlderWorker(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	old := filepath.Join(t.TempDir(), "falaj-worker")
	script := "#!/bin/sh\n[ \"$1 $2\" = \"version \" ] && { echo falaj-worker protocol 2; exit; }\n[ \"$1\" = shim ] && { echo usage >&2; exit 2; }\nexec " + sandboxtest.Worker(t) + ` "$@"` + "\n"
	check(t, os.WriteFile(old, []byte(script), 0o755))
	m.c.Worker, m.c.Level = old, sandbox.None
	m.restart()
	_, err := m.Start(t.Context(), m.python(``))
	if err == nil || !strings.Contains(err.Error(), `shim 2: it reports "falaj-worker protocol 2"`) || !strings.Contains(fault.HintOf(err), "worker.path") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
}

// TestAnOldWorkerGetsNoSecrets: it would start the program without them. It is refused,
// with what to do.
func TestAnOldWorkerGetsNoSecrets(t *testing.T) {
	t.Parallel()
	m := newMachine(t, nil)
	s := m.python(``)
	s.Secrets = true
	old := filepath.Join(t.TempDir(), "falaj-worker")
	script := "#!/bin/sh\n[ \"$1\" = version ] && echo falaj-worker protocol 3, shim 2 && exit\nexec " + m.c.Worker + " \"$@\"\n"
	check(t, os.WriteFile(old, []byte(script), 0o700))
	m.c.Worker = old
	m.restart()
	_, err := m.Start(t.Context(), s)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), `"falaj-worker protocol 3, shim 2"`) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}
