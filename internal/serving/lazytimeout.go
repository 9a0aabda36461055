package serving

import (
	"context"
	"sync"
	"time"
)

// lazyTimeout is a context that ends after a time, as context.WithTimeout's does. Its timer is
// made by the first who waits for its end: a request that runs at once, as most do, needs
// none. Who asks for Err alone is told by the clock.
type lazyTimeout struct {
	context.Context // what it is within
	end             time.Time

	mu    sync.Mutex
	timed context.Context // nil: nobody waits
	stop  context.CancelFunc
}

// withLazyTimeout makes one. It ends with cancel at the latest, which must be called.
func withLazyTimeout(ctx context.Context, from time.Time, limit time.Duration) *lazyTimeout {
	return &lazyTimeout{Context: ctx, end: from.Add(limit)}
}

// ended is a context that is over.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (w *lazyTimeout) cancel() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
	if w.timed == nil {
		w.timed = ended
	}
}

func (w *lazyTimeout) Deadline() (time.Time, bool) {
	if sooner, ok := w.Context.Deadline(); ok && sooner.Before(w.end) {
		return sooner, true
	}
	return w.end, true
}

func (w *lazyTimeout) Done() <-chan struct{} { return w.wait().Done() }

// wait is a context with a timer.
func (w *lazyTimeout) wait() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timed == nil {
		w.timed, w.stop = context.WithDeadline(w.Context, w.end)
	}
	return w.timed
}

func (w *lazyTimeout) Err() error {
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
func (w *lazyTimeout) Value(key any) any {
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
