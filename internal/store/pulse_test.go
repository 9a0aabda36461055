package store

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// heart is a server that can be away: it refuses, or hangs.
type heart struct{ refuses, hangs atomic.Bool }

func (h *heart) ping(ctx context.Context) error {
	if h.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if h.refuses.Load() {
		return syscall.ECONNREFUSED
	}
	return nil
}

func (h *heart) query(ctx context.Context) error { return h.ping(ctx) }

// beating runs a pulse in a bubble of time.
func beating(t *testing.T, test func(t *testing.T, h *heart, p *pulse)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var h heart
		p := newPulse(h.ping, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.run(ctx) }()
		test(t, &h, p)
		stop()
		<-done
	})
}

// TestPulseBoundsAHang: what a server leaves unanswered ends within seconds, what comes
// later fails at once, and all goes on when it answers again.
func TestPulseBoundsAHang(t *testing.T) {
	beating(t, func(t *testing.T, h *heart, p *pulse) {
		t.Helper()
		if err := p.through(t.Context(), h.query); err != nil || p.outage() != nil {
			t.Fatalf("while it is there: %v", err)
		}
		h.hangs.Store(true)
		began := time.Now()
		err := p.through(t.Context(), h.query)
		if took := time.Since(began); !errors.Is(err, errAway) || took > beatEvery+maxOutage || fault.RetryOf(err) == 0 {
			t.Errorf("a hang: %v after %s", err, took)
		}
		if !fault.Is(p.outage(), fault.Unavailable) {
			t.Errorf("the outage is not known: %v", p.outage())
		}
		began = time.Now()
		if err := p.through(t.Context(), h.query); !errors.Is(err, errAway) || time.Since(began) != 0 {
			t.Errorf("later in the outage: %v after %s", err, time.Since(began))
		}
		h.hangs.Store(false)
		<-time.After(beatEvery + beatTime)
		if err := p.through(t.Context(), h.query); err != nil || p.outage() != nil {
			t.Errorf("after the outage: %v", err)
		}
	})
}

// TestPulseSurvivesARestart: transactions wait for a server that comes back soon.
func TestPulseSurvivesARestart(t *testing.T) {
	beating(t, func(t *testing.T, h *heart, p *pulse) {
		t.Helper()
		h.refuses.Store(true)
		time.AfterFunc(2*time.Second, func() { h.refuses.Store(false) })
		if err := p.through(t.Context(), h.query); err != nil {
			t.Errorf("over a restart of 2 s: %v", err)
		}
		h.refuses.Store(true)
		began := time.Now()
		if err := p.through(t.Context(), h.query); !errors.Is(err, errAway) || !errors.Is(err, syscall.ECONNREFUSED) && time.Since(began) > 2*maxOutage {
			t.Errorf("over an outage: %v", err)
		}
	})
}

// TestPulseLeavesOtherErrors: what is no outage is the caller's, and a commit whose answer
// was lost is never repeated.
func TestPulseLeavesOtherErrors(t *testing.T) {
	beating(t, func(t *testing.T, _ *heart, p *pulse) {
		t.Helper()
		for _, want := range []error{
			fault.New(fault.Conflict, "it is there"),
			&fault.Error{Kind: fault.Unavailable, Message: "in doubt", Err: inDoubtError{syscall.ECONNRESET}},
		} {
			runs := 0
			err := p.through(t.Context(), func(context.Context) error { runs++; return want })
			if !errors.Is(err, want) || runs != 1 {
				t.Errorf("%v after %d runs, want %v", err, runs, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.through(ctx, func(ctx context.Context) error { return ctx.Err() }); !errors.Is(err, context.Canceled) {
			t.Errorf("of a caller who went away: %v", err)
		}
	})
}
