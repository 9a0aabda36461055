package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// deaths keeps what Died was notified of, and lets so many processes be started again.
type deaths struct {
	again int

	mu   sync.Mutex
	all  []runtime.Death
	more chan struct{} // closed at the first
}

func newDeaths(again int) *deaths { return &deaths{again: again, more: make(chan struct{})} }

func (d *deaths) died(one runtime.Death) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all = append(d.all, one); len(d.all) == 1 {
		close(d.more)
	}
	return len(d.all) <= d.again
}

func (d *deaths) reasons() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		out = append(out, one.Reason)
	}
	return out
}

// TestDeath: why a process died is known and said, in words that the process did not
// choose.
func TestDeath(t *testing.T) {
	t.Parallel()
	kill := func(signal syscall.Signal) func(t *testing.T, l *launcher, s runtime.Session) {
		return func(t *testing.T, l *launcher, _ runtime.Session) {
			t.Helper()
			cmd, _ := l.newest()
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
		}
	}
	ask := func(v int64) func(t *testing.T, l *launcher, s runtime.Session) {
		return func(t *testing.T, _ *launcher, s runtime.Session) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := s.Infer(ctx, x(v), []string{"x"}); err == nil {
				t.Error("it is answered")
			}
		}
	}
	half := say(func(w *writer) { w.answer(1, x(1)) })
	for name, c := range map[string]struct {
		what, model string
		do          func(t *testing.T, l *launcher, s runtime.Session)
		reason      string
	}{
		"crash":        {"fragile", "", ask(13), "killed by SIGSEGV (segmentation fault)"},
		"kill":         {"fragile", "", kill(syscall.SIGKILL), "killed by SIGKILL (killed) from outside"},
		"bus error":    {"fragile", "", kill(syscall.SIGBUS), "killed by SIGBUS"},
		"deadline":     {"fragile", "", ask(15), "killed: it did not end a run"},
		"garbage":      {"hostile", "garbage", ask(1), "violated the protocol"},
		"another's":    {"hostile", say(func(w *writer) { w.answer(7, x(1)) }), ask(1), "violated the protocol"},
		"half a frame": {"hostile", half[:len(half)/2], ask(1), "killed: it did not end a run"}, // it says no more
		"stopped": {"fragile", "", func(t *testing.T, l *launcher, s runtime.Session) {
			t.Helper()
			kill(syscall.SIGSTOP)(t, l, s)
			cmd, _ := l.newest()
			for !stopped(t, cmd.Process.Pid) {
				goruntime.Gosched()
			}
			ask(1)(t, l, s)
		}, "killed: it did not end a run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, d := &launcher{what: c.what}, newDeaths(0)
			r := New(l, nil)
			defer r.Close()
			s, err := r.Load(t.Context(), []byte(c.model), runtime.Options{Died: d.died})
			if err != nil {
				t.Fatal(err)
			}
			p := s.(*session).process
			c.do(t, l, s)
			within(t, p.gone, "it lives")
			within(t, d.more, "nobody hears of it")
			if got := d.reasons(); len(got) != 1 || !strings.Contains(got[0], c.reason) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// stopped reports whether each thread of a process has stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("%d threads, %v", len(stats), err)
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			return false // it has ended meanwhile
		}
		if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// TestDeadLoad: the error of a load says how its process died, and nothing is left of it.
func TestDeadLoad(t *testing.T) {
	for name, c := range map[string]struct {
		what, model, reason string
		kind                fault.Kind
	}{
		"crash":   {"fragile", "crash", "killed by SIGSEGV", fault.Invalid},
		"hang":    {"fragile", "hang", "killed: it did not load the model within 100ms", fault.Timeout},
		"garbage": {"liar", "garbage", "violated the protocol", fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			l, d := &launcher{what: c.what}, newDeaths(0)
			limit := time.Duration(0)
			if c.model == "hang" {
				limit = 100 * time.Millisecond
			}
			_, err := New(l, nil).Load(t.Context(), []byte(c.model), runtime.Options{Time: limit, Died: d.died})
			dead, ok := errors.AsType[runtime.DeathError](err)
			if !ok || !fault.Is(err, c.kind) || !strings.Contains(dead.Reason, c.reason) || dead.At.IsZero() {
				t.Errorf("got %v, %q", err, dead.Reason)
			}
			if cmd, n := l.newest(); n != 1 || cmd.ProcessState == nil {
				t.Errorf("%d processes, %v", n, cmd.ProcessState)
			}
			if len(d.reasons()) > 0 {
				t.Error("whoever loads it hears of it twice")
			}
		})
	}
	// A caller who goes away ends the load, and that says nothing of the model.
	l := &launcher{what: "fragile"}
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	go func() {
		<-started
		cancel()
	}()
	_, err := New(notifying{l, started}, nil).Load(ctx, []byte("hang"), runtime.Options{})
	if _, dead := errors.AsType[runtime.DeathError](err); dead || !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	if cmd, _ := l.newest(); cmd.ProcessState == nil {
		t.Error("a process is left that nobody waits for")
	}
}

// notifying closes a channel when its process was started.
type notifying struct {
	*launcher
	started chan struct{}
}

type started struct {
	Process
	when chan struct{}
}

func (s started) Start() error {
	defer close(s.when)
	return s.Process.Start()
}

func (n notifying) Launch(ctx context.Context, o runtime.Options) (Process, error) {
	p, err := n.launcher.Launch(ctx, o)
	return started{p, n.started}, err
}

// TestAside: when Died says so, no other process is started, requests and the state say
// that there is none, and the session can be closed.
func TestAside(t *testing.T) {
	l, d := &launcher{what: "fragile"}, newDeaths(2)
	s, err := New(l, nil).Load(t.Context(), nil, runtime.Options{Died: d.died})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := asks(t, s, 13); !fault.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
		if i < 2 {
			recovers(t, s)
		}
	}
	s.(*session).watcher.Wait()
	if _, n := l.newest(); n != 3 || len(d.reasons()) != 3 {
		t.Errorf("%d processes, %d deaths", n, len(d.reasons()))
	}
	if err := asks(t, s, 1); !fault.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	if err := runtime.Unavailable(s); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not restarted") || !strings.Contains(err.Error(), "SIGSEGV") {
		t.Errorf("the state: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDeadRestart: a process that dies while it loads the model again is a death, and a
// failure to start one is not.
func TestDeadRestart(t *testing.T) {
	l, d := &launcher{what: "fragile"}, newDeaths(1)
	tries := 0
	s, err := New(l, nil).Load(t.Context(), nil, runtime.Options{Died: d.died, Again: func(context.Context) ([]byte, error) {
		if tries++; tries == 1 {
			return nil, errors.New("the disk is full")
		}
		return []byte("crash"), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := asks(t, s, 13); !fault.Is(err, fault.Unavailable) {
		t.Fatal(err)
	}
	s.(*session).watcher.Wait()
	if got := d.reasons(); len(got) != 2 || tries != 2 {
		t.Errorf("%d tries, deaths %q", tries, got)
	}
}

// TestSignalOf: a sandbox reports a signal as a shell does.
func TestSignalOf(t *testing.T) {
	exits := func(script string) error { return exec.CommandContext(t.Context(), "/bin/sh", "-c", script).Run() }
	for script, want := range map[string]syscall.Signal{
		"exit 0": 0, "exit 2": 0, "exit 139": syscall.SIGSEGV, "kill -ABRT $$": syscall.SIGABRT, "exit 255": 0, "exit 128": 0,
	} {
		if got := signalOf(exits(script)); got != want {
			t.Errorf("%s: %v", script, got)
		}
	}
}
