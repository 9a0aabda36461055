package serving

import (
	"context"
	"sync"
	"time"
)

// within is a context that ends after a time, as context.WithTimeout's does. Its timer is
// made by the first who waits for its end: a request that runs at once, as most do, needs
// none. Who asks for Err alone is told by the clock.
type within struct {
	context.Context // what it is within
	end             time.Time

	mu    sync.Mutex
	timed context.Context // nil: nobody waits
	stop  context.CancelFunc
}

// newWithin makes one. It ends with cancel at the latest, which must be called.
func newWithin(ctx context.Context, from time.Time, limit time.Duration) *within {
	return &within{Context: ctx, end: from.Add(limit)}
}

// ended is a context that is over.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (w *within) cancel() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
	if w.timed == nil {
		w.timed = ended
	}
}

func (w *within) Deadline() (time.Time, bool) {
	if sooner, ok := w.Context.Deadline(); ok && sooner.Before(w.end) {
		return sooner, true
	}
	return w.end, true
}

func (w *within) Done() <-chan struct{} { return w.wait().Done() }

// wait is a context with a timer.
func (w *within) wait() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timed == nil {
		w.timed, w.stop = context.WithDeadline(w.Context, w.end)
	}
	return w.timed
}

func (w *within) Err() error {
	w.mu.Lock()
	timed := w.timed
	w.mu.Unlock()
	if timed == nil && w.Context.Err() == nil && time.Now().Before(w.end) {
		return nil
	}
	return w.wait().Err()
}

// Value lets contexts that are made of this one end with the timed one, where there is
// one, without a goroutine for each.
func (w *within) Value(key any) any {
	w.mu.Lock()
	timed := w.timed
	w.mu.Unlock()
	if timed != nil {
		if v := timed.Value(key); v != nil {
			return v
		}
	}
	return w.Context.Value(key)
}
