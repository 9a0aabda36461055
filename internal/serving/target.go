package serving

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// target is a version of a deployment in memory. It is closed when its last use has left.
type target struct {
	model   Model // without its file
	how     how
	session runtime.Session // asked through queue only
	// replicas are those of the model: the session, or what the session's steps surround;
	// nil when the model has a single process.
	replicas *replicas
	queue    *batching.Queue
	meta     runtime.Metadata
	outputs  []string       // the names of all
	chain    *chain.Session // the session, when there are steps
	score    score
	names    map[string][]string // of the columns of its inputs
	tally    *tally
	steps    []StepModel
	zone     residency.Zone // where it runs
	machine  string         // what records call the machine of this process
	since    time.Time      // it is in memory
	uses     atomic.Int64
	closed   func() // called when the session is closed

	environment string // of a Python model
	health      *health
}

// newTarget makes a target of a session, which it owns, and tests whether the model may
// be batched. Error: fault.Unavailable when serving is closed.
func (s *core) newTarget(ctx context.Context, project string, m Model, how how, session runtime.Session, tally *tally) (*target, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = session.Close()
		return nil, fault.New(fault.Unavailable, "the server stops")
	}
	s.sessions.Add(1)
	s.mu.Unlock()
	t := &target{model: m, how: how, session: session, meta: session.Metadata(), names: inputNames(session.Metadata()), tally: tally, since: time.Now(), closed: s.sessions.Done}
	t.outputs = namesOf(t.meta.Outputs)
	var verdict batching.Verdict
	options, cores := bounded(how.batching, session), s.coresOf(how)
	options.Project = project
	if options.MaxRows != 1 {
		ctx, cancel := context.WithTimeout(ctx, min(maxTry, s.cfg.LoadTime))
		defer cancel()
		verdict = batching.Try(ctx, cores, session, options)
	}
	t.queue = batching.New(cores, session, options, verdict, tally.ran)
	t.uses.Store(1)
	return t, nil
}

func namesOf(all []runtime.Spec) []string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return names
}

// unavailable is why the version does not answer at the moment; nil when it does.
func (t *target) unavailable() error { return runtime.Unavailable(t.session) }

// maxTry bounds the test whether a model may be batched; the time to load bounds it, too.
const maxTry = 10 * time.Second

// where adds to a record where the model runs: the machine and its zone, or the remote and
// the zone in which the operator says that it is.
func (t *target) where(detail map[string]any) map[string]any {
	detail["zone"] = t.zone
	if r := t.how.runtime.Remote.Name; r != "" {
		detail["remote"] = r
	} else {
		detail["machine"] = t.machine
	}
	return detail
}

func (t *target) is(w wanting) bool {
	return t != nil && t.model.Version == w.version && t.model.Digest == w.digest && t.how == w.how
}

// enter begins a use; false when the target is being closed.
func (t *target) enter() bool {
	for {
		n := t.uses.Load()
		if n == 0 {
			return false
		}
		if t.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave ends a use. The last one closes the session, beside the caller.
func (t *target) leave() {
	if t != nil && t.uses.Add(-1) == 0 {
		go func() {
			_ = t.session.Close()
			t.closed()
		}()
	}
}

// ask queues a request, runs it and counts it.
func (t *target) ask(ctx context.Context, r batching.Request) ([]runtime.Tensor, error) {
	a, err := t.queue.Infer(ctx, r)
	if err != nil {
		if chain.Refused(err) {
			return nil, err // the model never saw it
		}
		return nil, modelError{err}
	}
	t.tally.answered(a)
	return a.Outputs, nil
}

// batches says whether requests of a version run together, or why not.
func (t *target) batches() (together bool, why string) {
	v := t.queue.Verdict()
	if v.May == batching.Untried {
		return false, "not yet: " + v.Why + ", so the first batches of real requests are compared with the answers to each request alone"
	}
	return v.May == batching.Yes, v.Why
}

// modelError is a failure of the model, or of waiting for it, with inputs that match its
// metadata.
type modelError struct{ error }

func (e modelError) Unwrap() error { return e.error }
