package lifecycle

import (
	"context"
	"time"
)

// passTime bounds a pass: others wait for it, such as budgets and the other tasks of
// housekeeping.
const passTime = 10 * time.Minute

// Pass is one round of removing what is due, batch after batch. It ends in good time also
// where much is due: what is left over goes with the next.
type Pass struct {
	now   func() time.Time
	until time.Time
}

// NewPass begins a pass; now is the clock that ends it.
func NewPass(now func() time.Time) Pass { return Pass{now: now, until: now().Add(passTime)} }

// Over reports whether the pass begins no further batch.
func (p Pass) Over() bool { return !p.now().Before(p.until) }

// Repeat calls step once, and again while it says that there is more, until the pass is over
// or ctx ends.
func (p Pass) Repeat(ctx context.Context, step func(ctx context.Context) (more bool, err error)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if more, err := step(ctx); err != nil || !more || p.Over() {
			return err
		}
	}
}
