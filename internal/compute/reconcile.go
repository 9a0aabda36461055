package compute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// reconciler brings one workload from placed to settled. It reads the row, does
// what that state asks for, and reads again, so it may begin at any state.
type reconciler struct {
	wake        chan struct{} // the row changed; holds one
	started     chan struct{} // closed once the workload is past its start
	once        sync.Once
	denied      map[engine.Denial]bool
	seenDenials int                    // denials of the engine looked at
	trouble     atomic.Pointer[string] // why the last try failed, and when the next is; nil when it did not
}

func (c *reconciler) markStarted() { c.once.Do(func() { close(c.started) }) }

// The waits of a reconciler.
const (
	firstRetry  = 100 * time.Millisecond
	lastRetry   = time.Minute
	denialEvery = time.Second
	// maxDenials is how many different refused attempts of one workload are
	// written to the journal; one more entry says that there were more.
	maxDenials = 200
)

// startReconciler starts the reconciler of a workload unless one runs already.
func (s *Scheduling) startReconciler(ctx context.Context, wid WorkloadID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconcilers[wid] != nil {
		return
	}
	c := &reconciler{wake: make(chan struct{}, 1), started: make(chan struct{}), denied: map[engine.Denial]bool{}}
	s.reconcilers[wid] = c
	s.reconciling.Go(func() {
		s.reconcile(ctx, wid, c)
		c.markStarted()
		s.mu.Lock()
		delete(s.reconcilers, wid)
		s.mu.Unlock()
		s.touch(wid) // it may have been queued again meanwhile
	})
}

func (s *core) wakeReconciler(wid WorkloadID) {
	s.notify(wid)
	s.mu.Lock()
	c := s.reconcilers[wid]
	s.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (s *Scheduling) reconcile(ctx context.Context, wid WorkloadID, c *reconciler) {
	retry := firstRetry
	for {
		w, err := s.workload(ctx, wid)
		if err == nil {
			switch {
			case w.State == Queued || w.Settled:
				return
			case w.State == Placed:
				err = s.start(ctx, w, c)
			case w.State == Running:
				c.markStarted()
				err = s.awaitEnd(ctx, w, c)
			default:
				c.markStarted()
				err = s.settle(ctx, w)
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			retry = firstRetry
			c.trouble.Store(nil)
			continue
		}
		words := fmt.Sprintf("the last attempt failed: %v; retried at %s", err, s.now().UTC().Add(retry).Format(time.RFC3339))
		c.trouble.Store(&words)
		s.log.ErrorContext(ctx, "reconciling a workload failed and is retried", slog.String("workload", string(wid)), slog.Duration("after", retry), slog.Any("error", err))
		select {
		case <-time.After(retry):
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		retry = min(2*retry, lastRetry)
	}
}

// start checks once more that the workload may run in its pool and has the engine start it.
func (s *Scheduling) start(ctx context.Context, w Workload, c *reconciler) error {
	if w.Stop != "" {
		if e, err := s.engineOf(ctx, w.Pool); err == nil {
			if err := withdraw(ctx, s.driverOf(w, e), w); err != nil {
				return err
			}
		}
		return s.end(ctx, w, engine.Status{State: engine.Ended, Reason: engine.Stopped, ExitCode: -1, Message: w.Stop}, nil)
	}
	var p Pool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.pool(ctx, tx, w.Pool)
		return err
	})
	if err != nil {
		return err
	}
	e, ok := s.cfg.Engines[p.Engine]
	turnBack := func(why error) error {
		if ok { // an earlier process may have started it and died: it would run twice
			if err := withdraw(ctx, s.driverOf(w, e), w); err != nil {
				return err
			}
		}
		return s.requeue(ctx, w, why)
	}
	// The door: the pool may have changed since the plan.
	if p.Misplaced != "" {
		return turnBack(fault.New(fault.Conflict, "pool %s: %s", p.Name, p.Misplaced))
	}
	for _, z := range p.Zones() {
		if err := s.cfg.Guard.Pass(identity.With(ctx, identity.Loop("compute")), residency.Transfer{
			Project: string(w.Project), What: "the data of " + w.Label, Label: w.Residency, Where: "pool " + string(p.Name), Zone: z, Machine: w.Machine,
			Action: "workload.place",
		}); err != nil {
			return turnBack(err)
		}
	}
	if !ok {
		return turnBack(fault.New(fault.Unavailable, "engine %s is not configured", p.Engine))
	}
	spec, err := s.prepare(ctx, w, p, c)
	if errors.Is(err, errStopRequested) || ctx.Err() != nil {
		return nil // the row says what to do
	}
	if err != nil {
		return s.end(ctx, w, engine.Status{State: engine.Ended, Reason: engine.NotStarted, ExitCode: -1, Message: err.Error()}, err)
	}

	starts := s.starts[p.Engine]
	starts.RLock()
	defer starts.RUnlock()
	h, err := s.driverOf(w, e).Start(ctx, spec)
	if ctx.Err() != nil || fault.Is(err, fault.Unavailable) && s.now().Sub(w.PlacedAt) < s.cfg.PrepareTimeout {
		return err
	}
	if engine.Refused(err) {
		return s.requeue(ctx, w, err)
	}
	if err != nil {
		return s.end(ctx, w, engine.Status{State: engine.Ended, Reason: engine.NotStarted, ExitCode: -1, Message: err.Error()}, err)
	}
	return s.change(ctx, w.ID, Running, func(ctx context.Context, tx *store.Tx, w *Workload) error {
		w.Handle, w.StartedAt, w.Refusals = h, s.now().UTC(), nil
		w.Status = engine.Status{State: engine.Running, Started: w.StartedAt}
		return s.save(ctx, tx, w)
	})
}

// driverOf is who runs a workload: the engine of its pool, or its owner.
func (s *Scheduling) driverOf(w Workload, e Engine) engine.Driver {
	if r, ok := s.owners[w.Kind].(Runner); ok {
		if own := r.Driver(w); own != nil {
			return own
		}
	}
	return e.Driver
}

var errStopRequested = errors.New("the workload is being stopped")

// prepare asks the owner what to run, and gives up when the workload is
// cancelled meanwhile.
func (s *Scheduling) prepare(ctx context.Context, w Workload, p Pool, c *reconciler) (engine.Spec, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.PrepareTimeout,
		fault.New(fault.Timeout, "the preparation took longer than %s", s.cfg.PrepareTimeout))
	defer cancel()
	ctx, unwanted := context.WithCancelCause(ctx)
	defer unwanted(nil)
	go func() {
		for {
			select {
			case <-c.wake:
			case <-ctx.Done():
				return
			}
			if now, err := s.workload(ctx, w.ID); err == nil && now.Stop != "" {
				unwanted(errStopRequested)
				return
			}
		}
	}()
	var spec engine.Spec
	if o := s.owners[w.Kind]; o != nil {
		var err error
		if spec, err = o.Prepare(ctx, w, p); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return spec, cause
			}
			return spec, err
		}
	} else {
		spec = *w.Spec
	}
	spec.ID, spec.Project, spec.Resources = string(w.ID), string(w.Project), w.Request
	spec.Name, spec.User = cmp.Or(spec.Name, w.Label), cmp.Or(spec.User, w.User)
	spec.Isolation, spec.Timeout, spec.Grace = string(w.Isolation), w.Timeout, w.Grace
	spec.Workers, spec.Nodes, spec.Options = max(w.Placed, 1), w.Nodes, engineOptions(p, spec.Options)
	for _, r := range w.Roles {
		spec.Roles = append(spec.Roles, engine.Role{Name: r.Name, Workers: r.Workers, Resources: r.Request})
	}
	if simulates(p.Elastic) {
		spec.Nodes = nil // all of them are this machine
	}
	return spec, nil
}

// engineOptions are the pool's for its engine, and over them the workload's own. Where
// the engine picks the nodes, those in quarantine are named as "exclude".
func engineOptions(p Pool, own map[string]string) map[string]string {
	out := maps.Clone(p.Options)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, own)
	if p.Mode != Delegated {
		return out
	}
	exclude := strings.FieldsFunc(out["exclude"], func(r rune) bool { return r == ',' })
	for _, n := range p.Nodes {
		if n.Quarantine != nil {
			exclude = append(exclude, n.Name)
		}
	}
	if len(exclude) > 0 {
		out["exclude"] = strings.Join(exclude, ",")
	}
	return out
}

// withdraw ends what an engine may have of a workload that is not started there after all.
func withdraw(ctx context.Context, d engine.Driver, w Workload) error {
	h := engine.Handle(w.ID)
	_, err := d.Status(ctx, h)
	if err == nil {
		err = d.Stop(ctx, h, w.Grace)
	}
	if err == nil {
		err = d.Forget(ctx, h)
	}
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return fault.Wrap(err, "stopping a leftover of %s from an earlier process", w.ID)
}

// requeue queues a placed workload again and logs why. A pool whose engine refused it is
// left alone for a while.
func (s *Scheduling) requeue(ctx context.Context, w Workload, why error) error {
	s.cfg.Log.WarnContext(ctx, "a placed workload is queued again", slog.String("workload", string(w.ID)), slog.String("why", why.Error()))
	return s.change(ctx, w.ID, Queued, func(ctx context.Context, tx *store.Tx, w *Workload) error {
		if engine.Refused(why) {
			w.Refusals = w.refusedBy(why, s.now())
		}
		w.Pool, w.Placed, w.Nodes, w.Machine, w.Zone, w.Passed, w.PlacedAt = "", 0, nil, "", "", nil, time.Time{}
		return s.save(ctx, tx, w)
	})
}

// awaitEnd watches a running workload until it has ended.
func (s *Scheduling) awaitEnd(ctx context.Context, w Workload, c *reconciler) error {
	e, err := s.engineOf(ctx, w.Pool)
	if errors.Is(err, errUnconfigured) && w.Stop != "" { // nobody can stop it, nor wait for it
		return s.end(ctx, w, engine.Status{State: engine.Lost, Message: err.Error()}, nil)
	}
	if err != nil {
		return err
	}
	e.Driver = s.driverOf(w, e)
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()

	type result struct {
		status engine.Status
		err    error
	}
	ended := make(chan result, 1)
	helpers.Go(func() {
		st, err := e.Driver.Wait(ctx, w.Handle)
		ended <- result{st, err}
	})
	stopping := false
	stop := func() {
		if stopping {
			return
		}
		stopping = true
		as := w // which changes once it has ended
		helpers.Go(func() { s.stop(ctx, e.Driver, as) })
	}
	if w.Stop != "" {
		stop()
	}
	late := false
	overdue := time.NewTimer(w.StartedAt.Add(w.Timeout + w.Grace + s.overdue).Sub(s.now()))
	defer overdue.Stop()
	if w.Timeout == 0 {
		overdue.Stop()
	}
	var look <-chan time.Time
	if _, ok := e.Driver.(engine.Denials); ok {
		t := time.NewTicker(denialEvery)
		defer t.Stop()
		look = t.C
	}
	for {
		select {
		case r := <-ended:
			if fault.Is(r.err, fault.NotFound) {
				r.status, r.err = engine.Status{State: engine.Lost, Message: "unknown to the engine"}, nil
			}
			if r.err != nil {
				return r.err
			}
			if err := s.recordDenials(ctx, e.Driver, w, c); err != nil {
				return err
			}
			if late {
				r.status.Reason = engine.TimedOut
			}
			w.Machine = s.ranOn(ctx, e.Driver, w)
			return s.end(ctx, w, r.status, nil)
		case <-c.wake:
			now, err := s.workload(ctx, w.ID)
			if err != nil {
				return err
			}
			if now.Stop != "" {
				stop()
			}
		case <-overdue.C:
			if left := s.remainingTime(ctx, e.Driver, w); left > 0 {
				overdue.Reset(left)
				continue
			}
			late = true
			stop()
		case <-look:
			if err := s.recordDenials(ctx, e.Driver, w, c); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remainingTime is how long a workload may go on before compute stops it: its time-out
// counts from when the engine really started it, which may be long after the
// engine took it.
func (s *Scheduling) remainingTime(ctx context.Context, d engine.Driver, w Workload) time.Duration {
	all := w.Timeout + w.Grace + s.overdue
	st, err := d.Status(ctx, w.Handle)
	switch {
	case err != nil && !fault.Is(err, fault.NotFound):
		return time.Minute // an engine that does not answer stops nothing either
	case st.State == engine.Pending:
		return all
	case st.Started.IsZero():
		return 0
	}
	return st.Started.Add(all).Sub(s.now())
}

// stop asks the engine until it has stopped the workload.
func (s *Scheduling) stop(ctx context.Context, d engine.Driver, w Workload) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		err := d.Stop(ctx, w.Handle, w.Grace)
		if err == nil || fault.Is(err, fault.NotFound) || ctx.Err() != nil {
			return
		}
		s.log.ErrorContext(ctx, "stopping a workload failed and is retried", slog.String("workload", string(w.ID)), slog.Any("error", err))
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// recordDenials writes what the workload tried and may not into the journal: each
// different attempt once.
func (s *Scheduling) recordDenials(ctx context.Context, d engine.Driver, w Workload, c *reconciler) error {
	power, ok := d.(engine.Denials)
	if !ok {
		return nil
	}
	denials, err := power.Denials(ctx, w.Handle, c.seenDenials)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "reading the refused attempts of %s", w.ID)
	}
	written := 0
	for _, den := range denials {
		key := engine.Denial{Kind: den.Kind, Target: den.Target}
		if c.denied[key] || len(c.denied) > maxDenials {
			continue
		}
		entry := audit.Entry{
			Actor: identity.Principal{Kind: identity.Attempt, ID: string(w.ID), Name: w.Label, Project: w.Project}, Project: string(w.Project),
			Action: "workload." + den.Kind, Object: den.Target, Outcome: audit.Refused,
			Reason: "the sandbox of " + w.Label + " does not allow it", Detail: map[string]any{"pid": den.PID, "at": den.Time.UTC().Format(time.RFC3339Nano)},
		}
		if len(c.denied) == maxDenials {
			entry.Object, entry.Detail = "further attempts are not listed", nil
		}
		if err := s.cfg.Journal.Record(ctx, entry); err != nil {
			return fault.Wrap(err, "recording a refused attempt of %s", w.ID)
		}
		c.denied[key] = true
		written++
	}
	c.seenDenials += len(denials)
	if written > 0 {
		return s.amend(ctx, w.ID, func(w *Workload) { w.Denials += written })
	}
	return nil
}

// ranOn is what the machines of an ended workload are called: as when it was placed, or
// where the engine picked them, as it tells them now. One that does not answer tells
// none: an end is recorded in any case.
func (s *Scheduling) ranOn(ctx context.Context, d engine.Driver, w Workload) string {
	power, ok := d.(engine.Members)
	if w.Machine != "" || !ok {
		return w.Machine
	}
	ctx, cancel := context.WithTimeout(ctx, whyEngine)
	defer cancel()
	members, err := power.Members(ctx, w.Handle)
	if err != nil {
		s.log.WarnContext(ctx, "reading the nodes of an ended workload failed", slog.String("workload", string(w.ID)), slog.Any("error", err))
	}
	nodes := make([]string, len(members))
	for i, m := range members {
		nodes[i] = m.Node
	}
	return machines(nodes)
}

// end records how a workload ended, with what it used.
func (s *Scheduling) end(ctx context.Context, w Workload, st engine.Status, failure error) error {
	machine := w.Machine
	return s.change(ctx, w.ID, Ended, func(ctx context.Context, tx *store.Tx, w *Workload) error {
		w.Machine = machine
		return s.endIn(ctx, tx, *w, st, failure)
	})
}

// ended is a status as the workload's owner takes it. What the program did decides before
// what asked it to stop: one that ended with 0 within its grace has exited with 0. That
// a user cancelled it is left to the owner.
func (w Workload) ended(st engine.Status) engine.Status {
	preempt, forAnother := strings.CutPrefix(w.Stop, preempted)
	reclaim, idle := strings.CutPrefix(w.Stop, reclaimed)
	switch {
	case st.Finished() && (w.Stop == "" || forAnother || idle || strings.HasPrefix(w.Stop, resized)):
		st.Reason = engine.Exited
	case st.State != engine.Ended:
	case forAnother:
		st.Reason, st.Message = engine.Preempted, preempt
	case idle:
		st.Reason, st.Message = engine.Reclaimed, reclaim
	}
	return st
}

// endedAt is when a workload ended: as its engine says, which is earlier than when this
// process heard of it where one of them was away meanwhile. A clock that was set makes no
// end before the start, nor one that is yet to come.
func (w Workload) endedAt(st engine.Status, now time.Time) time.Time {
	if st.Ended.IsZero() || st.Ended.Before(w.StartedAt) || st.Ended.After(now) {
		return now
	}
	return st.Ended
}

// endIn is end within a transaction.
func (s *core) endIn(ctx context.Context, tx *store.Tx, w Workload, st engine.Status, failure error) error {
	st = w.ended(st)
	w.State, w.EndedAt, w.Status = Ended, w.endedAt(st, s.now()).UTC(), st
	if failure != nil {
		w.Failure, w.Hint = fault.KindOf(failure).String(), fault.HintOf(failure)
	}
	w.Settled = s.owners[w.Kind] == nil
	if !w.StartedAt.IsZero() {
		l, err := s.ledger(ctx, tx, w.Pool)
		if err != nil {
			return err
		}
		u := l.meter(w, w.EndedAt)
		if err := s.usageStore.InsertUsage(ctx, tx, u); err != nil {
			return err
		}
	}
	if err := s.note(ctx, tx, w, "workload.end", map[string]any{"outcome": w.Outcome()}); err != nil {
		return err
	}
	if err := publish(ctx, tx, EventWorkloadEnded, w.event()); err != nil {
		return err
	}
	// Who was cancelled in the queue has no reconciler yet: the next cycle, which
	// save asks for, finds one for settling it.
	return s.save(ctx, tx, &w)
}

// settle lets the owner take what the workload left behind.
func (s *Scheduling) settle(ctx context.Context, w Workload) error {
	if o := s.owners[w.Kind]; o != nil {
		if err := o.Finish(ctx, w); err != nil {
			return fault.Wrap(err, "finishing %s", w.ID)
		}
	}
	return s.amend(ctx, w.ID, func(w *Workload) { w.Settled = true })
}

// change makes a state transition; one that no longer applies is left out,
// because the row was changed meanwhile and will be read again.
func (s *Scheduling) change(ctx context.Context, wid WorkloadID, next State, act func(context.Context, *store.Tx, *Workload) error) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		w, err := s.workloadStore.Workload(ctx, tx, wid)
		if err != nil {
			return err
		}
		if !w.State.CanBecome(next) {
			return nil
		}
		w.State = next
		return act(ctx, tx, &w)
	})
}
