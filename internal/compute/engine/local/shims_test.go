package local_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	facts "github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
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
