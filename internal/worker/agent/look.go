package agent

import (
	"context"
	"sync"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// looks are what the server asks to look at, one at a time.
type looks struct {
	take   func(ctx context.Context, r profiler.Request)
	id     string // of the last
	cancel context.CancelFunc
	under  sync.WaitGroup
}

// told is what the server wants now: a look that it has forgotten ends.
func (l *looks) told(ctx context.Context, r *profiler.Request) {
	if r != nil && r.ID == l.id {
		return
	}
	l.end()
	if r == nil {
		return
	}
	l.id = r.ID
	ctx, l.cancel = context.WithCancel(ctx)
	l.under.Go(func() { l.take(ctx, *r) })
}

// end waits for the last to end, which it does at once.
func (l *looks) end() {
	if l.cancel != nil {
		l.cancel()
	}
	l.under.Wait()
}

// look looks at the worker, if it runs, and tells what was seen. The profiler is
// the worker's own or the node's, and runs as this user.
func (a *agent) look(ctx context.Context, r profiler.Request) {
	a.mu.Lock()
	t := a.tree
	a.mu.Unlock()
	var seen profiler.Result
	err := error(fault.New(fault.Conflict, "worker %d is not running yet", a.index).WithHint("Try again later."))
	if t != nil {
		r.Among = false // all below is this worker's
		seen, err = profiler.Take(ctx, r, profiler.Place{Root: t.PID(), Dir: a.dir, Path: a.env["PATH"]})
	}
	if ctx.Err() != nil {
		return // nobody waits
	}
	l := protocol.Look{ID: r.ID, Answer: profiler.Answered(seen, err)}
	if err := a.c.retry(ctx, func(ctx context.Context) error { return a.c.profile(ctx, l) }); err != nil && ctx.Err() == nil {
		a.say("reporting the profile: %v", err)
	}
}
