package share

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Heavy is the least work that takes a turn, in bytes of memory that a body takes once it
// is decoded, or of an answer before it is encoded: about a millisecond of a processor.
const Heavy = 1 << 20

// processors are the turns at heavy work of this process: one less than there are
// processors, so that one is free for small requests at any time. Go interrupts work that
// calculates after 10 ms only, and a small request would wait behind all of it.
var processors = sync.OnceValue(func() *Pool {
	return New(Limits{Name: "heavy_work", What: "pieces of heavy work", Slots: max(1, runtime.GOMAXPROCS(0)-1), Wait: time.Minute})
})

// Turn is one request's, or one loop's, turn at a processor for heavy work: parsing a large
// body, decompressing, encoding a large answer. Nil takes none. Safe for concurrent use.
//
// Who holds a turn waits for nobody: the body is read before, and the answer is written, a
// database asked and another process waited for after End.
type Turn struct {
	owner Owner

	mu        sync.Mutex
	release   func()        // nil: it is not held
	beginning chan struct{} // closed when who waits for a processor does no more; nil: nobody does
}

// NewTurn makes a turn, which is not taken yet.
func NewTurn(o Owner) *Turn { return &Turn{owner: o} }

// Another is a turn of its own, for work that goes on beside that of t.
func (t *Turn) Another() *Turn {
	if t == nil {
		return nil
	}
	return NewTurn(t.owner)
}

// Begin waits for a processor, unless the turn is held already. End meanwhile ends nothing:
// whoever begins ends. Errors: those of Pool.Take.
func (t *Turn) Begin(ctx context.Context) error {
	if t == nil {
		return nil
	}
	for {
		t.mu.Lock()
		if t.release != nil {
			t.mu.Unlock()
			return nil
		}
		other := t.beginning
		if other == nil {
			mine := make(chan struct{})
			t.beginning = mine
			t.mu.Unlock()
			release, err := processors().Take(ctx, t.owner) // without mu: End waits for nobody
			t.mu.Lock()
			if t.beginning = nil; err == nil {
				t.release = release
			}
			t.mu.Unlock()
			close(mine)
			return err
		}
		t.mu.Unlock()
		select { // two begin at once: a second processor would never come to one with a share of one
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// End gives the processor back, if it is held; Begin may follow.
func (t *Turn) End() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.release != nil {
		t.release()
		t.release = nil
	}
}

type turnKey struct{}

// WithTurn puts the turn of a request into its context.
func WithTurn(ctx context.Context, t *Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, t)
}

// TurnOf is the turn of the context's request, nil where there is none.
func TurnOf(ctx context.Context) *Turn {
	t, _ := ctx.Value(turnKey{}).(*Turn)
	return t
}
