package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Loop is background work that compares wanted with actual state and acts. Run
// is called once after Start, then Every interval, and soon after each Wake;
// never twice at a time. An error or a panic is logged, and the next call comes
// after a pause that doubles from 100 ms to a minute until a call succeeds.
//
//	          Start                    Wake, Every
//	(stopped) ─────▶ running ──ok──▶ waiting ─────▶ running …
//	                    └─error──▶ pausing ──time──▶ running
//
// The exported fields are set before Start. Safe for concurrent use.
type Loop struct {
	Name  string
	Every time.Duration // at the latest; zero means only when woken
	// Run does what is to do now and returns. It must be idempotent.
	Run     func(ctx context.Context) error
	Timeout time.Duration // of one Run; zero means ten minutes
	Logger  *slog.Logger  // nil means slog.Default()

	mu     sync.Mutex
	status Status
	wake   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}
}

// Status is what a loop did last.
type Status struct {
	Runs     int       // completed
	Failures int       // in a row, up to now
	Failed   int       // since the start
	Err      error     // of the last run
	Ended    time.Time // of the last run; zero before the first
	Worked   time.Time // when one last ended without an error
}

// after is the status after another run.
func (s Status) after(err error, at time.Time) Status {
	s.Runs++
	s.Err, s.Ended = err, at
	if err != nil {
		s.Failures++
		s.Failed++
		return s
	}
	s.Failures, s.Worked = 0, at
	return s
}

// Start begins to run; ctx's values reach Run, its end does not.
func (l *Loop) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		return fault.New(fault.Internal, "lifecycle: the loop %s starts once", l.Name)
	}
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.done = make(chan struct{})
	watched.add(l)
	go l.loop(ctx, l.wakes(), l.done)
	return nil
}

// Stop cancels the run under way and returns when it has ended, or with ctx's
// error when ctx ends before. It may be called twice, and without Start.
func (l *Loop) Stop(ctx context.Context) error {
	l.mu.Lock()
	cancel, done := l.cancel, l.done
	l.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), "loop %s", l.Name)
	}
}

// Wake asks for a run. It never blocks; wakes during a run become one run after
// it, so nothing that happened before Wake is missed.
func (l *Loop) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wakes() <- struct{}{}:
	default:
	}
}

// Status is what the loop did last.
func (l *Loop) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Service is the loop as a part of a Group.
func (l *Loop) Service() Service {
	return Service{Name: l.Name, Start: l.Start, Stop: l.Stop}
}

// wakes is called with the lock held.
func (l *Loop) wakes() chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{}, 1)
	}
	return l.wake
}

func (l *Loop) loop(ctx context.Context, wake <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	defer watched.remove(l)
	var b Backoff
	for {
		err := l.RunOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			logger := l.Logger
			if logger == nil {
				logger = slog.Default()
			}
			pause := b.Next()
			logger.WarnContext(ctx, "background loop failed", slog.String("loop", l.Name),
				slog.Any("error", err), slog.String("hint", fault.HintOf(err)), slog.Duration("pause", pause))
			if !pauseFor(ctx, pause) {
				return
			}
			continue
		}
		b.Reset()
		var tick <-chan time.Time
		stop := func() bool { return true }
		if l.Every > 0 {
			// A tenth of jitter keeps loops of many processes apart.
			t := time.NewTimer(l.Every - l.Every/20 + rand.N(max(l.Every/10, 1))) //nolint:gosec // G404: jitter, not a secret
			tick, stop = t.C, t.Stop
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-tick:
		}
		stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// RunOnce is one run, with its time limit and with panics turned into errors. A
// test may call it instead of Start.
func (l *Loop) RunOnce(ctx context.Context) error {
	timeout := l.Timeout
	if timeout == 0 {
		timeout = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := Recover(func() error { return l.Run(ctx) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = l.status.after(err, time.Now())
	return err
}

// Recover runs f and turns a panic into an error that shows its stack.
func Recover(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.New(fault.Internal, "panic: %s", fmt.Sprint(r)+"\n"+string(debug.Stack()))
		}
	}()
	return f()
}

// Backoff is the pauses between attempts: they double from 100 ms to a minute,
// with a quarter of jitter. The zero Backoff is ready to use.
type Backoff struct{ failures int }

// Next counts a failure and is the pause after it.
func (b *Backoff) Next() time.Duration {
	pause := min(100*time.Millisecond<<min(b.failures, 20), time.Minute)
	b.failures++
	return pause - rand.N(pause/4) //nolint:gosec // G404: jitter, not a secret
}

// Reset begins anew after a success.
func (b *Backoff) Reset() { b.failures = 0 }

// pauseFor waits and reports whether ctx still lives.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
