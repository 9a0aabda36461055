package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

func TestGroupOrder(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name        string
		failStart   string
		failStop    string
		want        string
		start, stop error
	}{
		{"all well", "", "", "+a +b +c -c -b -a", nil, nil},
		{"a start fails", "c", "", "+a +b +c! -b -a", broken, nil},
		{"a stop fails", "", "b", "+a +b +c -c -b! -a", nil, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log []string
			var g lifecycle.Group
			for _, name := range []string{"a", "b", "c"} {
				act := func(sign, fails string) func(context.Context) error {
					return func(context.Context) error {
						if name == fails {
							log = append(log, sign+name+"!")
							return broken
						}
						log = append(log, sign+name)
						return nil
					}
				}
				g.Add(lifecycle.Service{Name: name, Start: act("+", c.failStart), Stop: act("-", c.failStop)})
			}
			g.Add(lifecycle.Service{Name: "nothing to do"})
			if err := g.Start(t.Context()); !errors.Is(err, c.start) {
				t.Errorf("start: %v", err)
			}
			if err := g.Stop(t.Context()); !errors.Is(err, c.stop) {
				t.Errorf("stop: %v", err)
			}
			if err := g.Stop(t.Context()); err != nil {
				t.Errorf("second stop: %v", err)
			}
			if got := strings.Join(log, " "); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if err := g.Start(t.Context()); err == nil {
				t.Error("a stopped group started again")
			}
		})
	}
}

func TestGroupTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		defer close(forever)
		stuck := func(context.Context) error { <-forever; return nil } // does not even look at its context
		stopped := false
		var g lifecycle.Group
		g.Add(lifecycle.Service{Name: "first", Stop: func(context.Context) error { stopped = true; return nil }})
		g.Add(lifecycle.Service{Name: "stuck", Start: stuck})
		err := g.Start(t.Context())
		if !fault.Is(err, fault.Timeout) && !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "start stuck") {
			t.Errorf("start: %v", err)
		}
		if !stopped {
			t.Error("the service before was not stopped")
		}
		stopped = false
		var h lifecycle.Group
		h.Add(lifecycle.Service{Name: "first", Stop: func(context.Context) error { stopped = true; return nil }})
		h.Add(lifecycle.Service{Name: "stuck", Stop: stuck, StopTimeout: time.Second})
		if err := h.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "stop stuck: not done within 1s") {
			t.Errorf("stop: %v", err)
		}
		if !stopped {
			t.Error("one that does not stop kept the other from being stopped")
		}
	})
}

// pass lets a bubble's time pass.
func pass(d time.Duration) { <-time.After(d) }

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var all []time.Duration
		var failure error
		runs := func() []time.Duration {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		fail := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failure = err
		}
		begin := time.Now()
		l := &lifecycle.Loop{Name: "l", Every: time.Hour, Logger: slog.New(slog.DiscardHandler), Run: func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, time.Since(begin))
			if failure != nil && failure.Error() == "panic" {
				panic(failure)
			}
			return failure
		}}
		l.Wake() // before Start
		if err := l.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Start(t.Context()); err == nil {
			t.Error("a loop started twice")
		}
		synctest.Wait()
		at := func(n int, from, to time.Duration) {
			t.Helper()
			ran := runs()
			if len(ran) != n || ran[n-1] < from || ran[n-1] > to {
				t.Fatalf("ran at %v, want run %d between %v and %v", ran, n, from, to)
			}
		}
		at(2, 0, 0) // at once, and for the wake
		l.Wake()
		at(3, 0, 0)
		pass(66 * time.Minute)
		at(4, 57*time.Minute, 63*time.Minute)
		// Failing, it pauses longer and longer, whoever wakes it.
		fail(errors.New("no"))
		l.Wake()
		synctest.Wait()
		for range 1000 {
			l.Wake()
			pass(time.Millisecond)
		}
		synctest.Wait()
		ran := runs()
		if n := len(ran) - 4; n < 3 || n > 5 {
			t.Errorf("%d runs in the second after the first failure: %v", n, ran[4:])
		}
		fail(errors.New("panic"))
		pass(5 * time.Minute)
		ran = runs()
		s := l.Status()
		if s.Failures < 5 || s.Err == nil || !strings.Contains(s.Err.Error(), "panic: panic") {
			t.Errorf("status %+v", s)
		}
		if gap := ran[len(ran)-1] - ran[len(ran)-2]; gap > time.Minute || gap < 30*time.Second {
			t.Errorf("the pause has become %v", gap)
		}
		fail(nil)
		pass(2 * time.Minute)
		ran = runs()
		if s := l.Status(); s.Failures != 0 || s.Err != nil || s.Runs != len(ran) {
			t.Errorf("status %+v after %d runs", s, len(ran))
		}
		for range 2 {
			if err := l.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		n := len(runs())
		l.Wake()
		pass(2 * time.Hour)
		if len(runs()) != n {
			t.Error("it ran after Stop")
		}
	})
}

func TestLoopStopCancelsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lifecycle.Loop{Name: "l", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		if err := l.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		// A run that does not end is named.
		gate := make(chan struct{})
		stuck := &lifecycle.Loop{Name: "stuck", Run: func(context.Context) error { <-gate; return nil }}
		if err := stuck.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := stuck.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "stuck") {
			t.Errorf("stop: %v", err)
		}
		close(gate)
	})
}

func TestLoopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lifecycle.Loop{Name: "l", Timeout: time.Second, Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		if err := l.RunOnce(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run: %v", err)
		}
	})
}

// TestLockDir has another process hold the lock, and dies with it.
// TestLockDirOfKilled has the lock of a killed server live on for a moment, in a
// child that it was just starting.
func TestLockDirOfKilled(t *testing.T) {
	dir := t.TempDir()
	server := exec.CommandContext(t.Context(), "true")
	if err := server.Run(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "falaj.lock")
	if err := os.WriteFile(path, []byte(strconv.Itoa(server.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "flock", "--no-fork", path, "sh", "-c", "echo locked; exec sleep 0.3")
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 7))
	}
	if err != nil {
		t.Fatal(err)
	}
	lock, err := lifecycle.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lock.Unlock(), child.Wait()); err != nil {
		t.Error(err)
	}
}

func TestLockDir(t *testing.T) {
	dir := t.TempDir()
	lock, err := lifecycle.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lifecycle.LockDir(dir)
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || fault.HintOf(err) == "" {
		t.Errorf("a second lock: %v (%s)", err, fault.HintOf(err))
	}
	for range 2 {
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
	}
	flock, err := exec.LookPath("flock") // of util-linux, the same lock by another program
	if err != nil {
		t.Fatal("flock of util-linux is missing: ", err)
	}
	other := exec.CommandContext(t.Context(), flock, "--no-fork", filepath.Join(dir, "falaj.lock"), "sh", "-c", "echo locked; read x")
	in, _ := other.StdinPipe()
	out, _ := other.StdoutPipe()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if _, err := lifecycle.LockDir(dir); !fault.Is(err, fault.Conflict) {
		t.Errorf("while another process holds it: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	_ = in.Close()
	again, err := lifecycle.LockDir(dir)
	if err != nil {
		t.Fatalf("after the other was killed: %v", err)
	}
	// The lock follows the name: whoever removes the file does not get two owners.
	if err := os.Remove(filepath.Join(dir, "falaj.lock")); err != nil {
		t.Fatal(err)
	}
	_ = again.Unlock()
	if _, err := lifecycle.LockDir(filepath.Join(dir, "missing")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a missing directory: %v", err)
	}
}

func TestClock(t *testing.T) {
	var wall time.Time
	var elapsed time.Duration
	var told []time.Duration
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func(last time.Time) *lifecycle.Clock {
		wall, elapsed, told = start, time.Hour, nil
		return &lifecycle.Clock{
			Last: last, Back: func(by time.Duration) { told = append(told, by) },
			Now: func() (time.Time, time.Duration) { return wall, elapsed },
		}
	}
	c := clock(time.Time{})
	for _, step := range []struct{ wall, elapsed, want time.Duration }{
		{0, 0, 0},
		{10 * time.Second, 10 * time.Second, 0},
		{9 * time.Second, 10 * time.Second, 0}, // within tolerance
		{-time.Hour, 10 * time.Second, time.Hour + 10*time.Second},
		{10 * time.Second, 10 * time.Second, 0}, // told once
		{time.Hour, 10 * time.Second, 0},        // forward: the machine slept, or the clock was set right
	} {
		wall, elapsed = wall.Add(step.wall), elapsed+step.elapsed
		if got := c.Look(); got != step.want {
			t.Errorf("wall %v, elapsed %v: went back by %v, want %v", step.wall, step.elapsed, got, step.want)
		}
	}
	if !slices.Equal(told, []time.Duration{time.Hour + 10*time.Second}) {
		t.Errorf("told %v", told)
	}
	if got := clock(start.Add(time.Minute)).Look(); got != time.Minute {
		t.Errorf("since the last run it went back by %v", got)
	}
	if got := clock(start.Add(-time.Minute)).Look(); got != 0 {
		t.Errorf("it did not go back since the last run, yet %v", got)
	}
}

func TestClockRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &lifecycle.Clock{Back: func(by time.Duration) { t.Errorf("the clock went back by %v", by) }}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOwner: who has a directory is known without taking it.
func TestOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if pid := lifecycle.Owner(dir); pid != 0 {
		t.Errorf("of an empty directory: %d", pid)
	}
	lock, err := lifecycle.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid := lifecycle.Owner(dir); pid != os.Getpid() {
		t.Errorf("locked: %d", pid)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if pid := lifecycle.Owner(dir); pid != 0 { // the file still has our number
		t.Errorf("unlocked: %d", pid)
	}
}
