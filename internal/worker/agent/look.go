package agent

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/worker/tree"
)

// look looks at the worker and tells what was seen; t is nil while it does not
// run. The profiler is the worker's own or the node's, and runs as this user.
func (a *agent) look(ctx context.Context, r profiler.Request, t *tree.Tree) {
	var seen profiler.Result
	err := error(fault.New(fault.Conflict, "worker %d does not run yet", a.index).WithHint("Ask again later."))
	if t != nil {
		r.Among = false // all below is this worker's
		seen, err = profiler.Take(ctx, r, t.PID())
	}
	l := protocol.Look{ID: r.ID, Answer: profiler.Answered(seen, err)}
	if err := a.c.retry(ctx, func(ctx context.Context) error { return a.c.profile(ctx, l) }); err != nil && ctx.Err() == nil {
		a.say("telling what was seen: %v", err)
	}
}
