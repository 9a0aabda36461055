package compute

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Scheduling runs workloads: the loop, its cycles, rented nodes and the reconcilers. The
// application starts and stops it, and registers the owners of workloads.
type Scheduling struct {
	*core
	records *Records
}

// How often engines are searched for unwanted workloads, and for those that may
// be forgotten; with the latter the world is read anew.
const (
	sweepEvery   = time.Minute
	forgetEvery  = 10 * time.Minute
	sweepTimeout = time.Minute
)

// sizesEvery is how often, under goodput, the scheduler plans the number of workers of
// elastic workloads.
const sizesEvery = time.Minute

// leastRest is the minimum time between two cycles: changes in between are decided
// together.
const leastRest = 5 * time.Millisecond

// signal asks for a scheduling cycle soon that reads pools and quotas again.
// It does not block.
func (s *core) signal() {
	s.mu.Lock()
	s.moved = true
	s.mu.Unlock()
	s.hurry()
}

// touch asks for a cycle that reads these workloads again.
func (s *core) touch(wids ...WorkloadID) {
	s.mu.Lock()
	for _, wid := range wids {
		s.touched[wid] = true
	}
	s.mu.Unlock()
	s.hurry()
}

func (s *core) hurry() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Start begins scheduling, and takes up what an earlier process left: placed
// workloads are started, running ones found again, ended ones settled, and
// what the engines hold without being wanted is stopped. Call it once.
func (s *Scheduling) Start(ctx context.Context) {
	ctx, cancel := context.WithCancel(identity.With(context.WithoutCancel(ctx), identity.Loop("compute")))
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	s.running.Go(func() { s.elected(ctx) })
	s.running.Go(func() { s.looking(ctx) })
}

// Stop ends scheduling and watching, and waits for both. Workloads go on. It
// may be called twice.
func (s *Scheduling) Stop() {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	s.running.Wait()
	s.reconciling.Wait()
}

// Where several processes share a database, one of them schedules: leaseTime is
// how long another waits when that one falls silent, and glance how often it looks
// for what the others changed.
const (
	leaseTime = 15 * time.Second
	glance    = 2 * time.Second
)

// elected schedules, as long as no other process does. What a former one still
// writes is refused by its lease's epoch.
func (s *Scheduling) elected(ctx context.Context) {
	if !s.others() {
		s.loop(ctx)
		return
	}
	for ctx.Err() == nil {
		lease, err := s.cfg.DB.Lease(ctx, "compute.schedule", s.cfg.Holder, s.leaseTime)
		if err == nil {
			s.log.InfoContext(ctx, "this process is now the scheduler", slog.Uint64("epoch", lease.Epoch()))
			s.lease.Store(lease)
			err = lease.Keep(ctx, func(ctx context.Context) error {
				s.loop(ctx)
				return nil
			})
			s.lease.Store(nil)
			s.deciding.Lock()
			s.state, s.history, s.turns, s.leaving = nil, nil, nil, nil // another process decides
			s.deciding.Unlock()
		}
		if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Conflict) {
			s.log.ErrorContext(ctx, "electing the scheduler failed", slog.Any("error", err))
		}
		s.mu.Lock()
		clear(s.touched) // all of the world is read when it is this one's turn
		clear(s.idle)
		clear(s.paces)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(s.leaseTime / 3):
		}
	}
}

// others reports that other processes may share the database.
func (s *core) others() bool { return s.cfg.Elect || s.cfg.DB.Shared() }

// fence refuses a transaction of a process that no longer schedules.
func (s *core) fence(ctx context.Context, tx *store.Tx) error {
	if l := s.lease.Load(); l != nil {
		return l.Fence(ctx, tx)
	}
	if s.others() {
		return fault.New(fault.Conflict, "another process is the scheduler")
	}
	return nil
}

// loop schedules until ctx is done, and ends with its reconcilers.
func (s *Scheduling) loop(ctx context.Context) {
	var looks sync.WaitGroup
	recovered := sync.OnceFunc(func() {
		looks.Go(func() { s.sweeping(ctx) })
		looks.Go(func() { s.bursting(ctx) })
	})
	defer s.reconciling.Wait()
	defer looks.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	others := s.others()
	glanced := time.Now()
	for {
		began := time.Now()
		if others && began.Sub(glanced) >= glance {
			s.forgetWorld()
			glanced = began
		}
		next, err := s.RunOnce(ctx)
		if ctx.Err() == nil {
			lifecycle.Note("scheduling", err)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.ErrorContext(ctx, "scheduling failed", slog.Any("error", err))
			next = time.Second
		default:
			recovered()
		}
		if others {
			next = min(next, glance)
		}
		// A cycle over many workloads leaves as much time to others.
		rest := max(leastRest, time.Since(began))
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
		timer.Reset(max(next-rest, 0))
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// RunOnce is one cycle: what changed, decide, record the placements, start a
// reconciler for what has a place. It returns how long nothing is to be done unless something
// changes.
func (s *Scheduling) RunOnce(ctx context.Context) (next time.Duration, err error) {
	s.cycle.Lock()
	defer s.cycle.Unlock()
	defer s.endCycle()
	decided := false
	defer func() {
		if err != nil {
			s.forgetWorld()
		}
		if err != nil && decided { // what was taken in may not be what is there
			s.deciding.Lock()
			s.state = nil
			s.deciding.Unlock()
		}
	}()

	// 1. Look at what changed.
	changed, err := s.readChanges(ctx)
	if err != nil {
		return 0, err
	}

	// 2. Decide.
	plan := s.step(changed.delta)
	decided = true

	// 3. Record the placements, then act on them.
	for some := range slices.Chunk(plan.Place, placeAtOnce) {
		placed, err := s.place(ctx, some)
		if err != nil {
			return 0, err
		}
		changed.reconcile = append(changed.reconcile, placed...)
	}
	for _, wid := range changed.reconcile {
		s.startReconciler(ctx, wid)
	}
	if err := s.preempt(ctx, plan.Preempt); err != nil {
		return 0, err
	}
	if err := s.resize(ctx, plan.Resize); err != nil {
		return 0, err
	}
	for _, t := range []time.Time{plan.Wake, changed.next} {
		if wait := t.Sub(s.now()); !t.IsZero() && (next == 0 || wait < next) {
			next = max(wait, time.Millisecond)
		}
	}
	if next == 0 {
		next = time.Hour
	}
	return next, nil
}

// placeAtOnce bounds a transaction that records placements.
const placeAtOnce = 256

func (s *Scheduling) step(d scheduler.Delta) scheduler.Plan {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil || s.stale {
		s.state, s.stale = &scheduler.State{}, false
	}
	return s.state.Step(d)
}

// anew asks for a cycle that reads everything. It waits for the end of the running cycle, which
// must not lose its state after it has read the changes.
func (s *core) anew() {
	s.cycle.Lock()
	s.forgetWorld()
	s.cycle.Unlock()
	s.hurry()
}

// forgetWorld makes the next cycle read everything. Until then readers get the result of the
// last one.
func (s *core) forgetWorld() {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state != nil {
		s.history, s.turns, s.leaving = s.state.History(), s.state.Turns(), s.state.Leaving()
	}
	s.stale = true
}

func (s *Scheduling) endCycle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cycled)
	s.cycled = make(chan struct{})
}

// news is what a cycle finds changed.
type news struct {
	delta     scheduler.Delta
	reconcile []WorkloadID // that need a reconciler
	next      time.Time    // when a quarantine or a refusal ends; zero is never

	idle   map[WorkloadID]time.Time
	paces  map[WorkloadID]pace
	usedUp map[project.Name]barred   // of which nothing new starts
	narrow func(*scheduler.Workload) // to the pools that it may use now
}

// readChanges reads what changed since the last cycle; the first time that is everything.
func (s *Scheduling) readChanges(ctx context.Context) (news, error) {
	s.deciding.Lock()
	all := s.state == nil || s.stale
	s.deciding.Unlock()
	s.mu.Lock()
	for wid, t := range s.refusalEnds {
		if !t.After(s.now()) {
			s.touched[wid] = true
			delete(s.refusalEnds, wid)
		}
	}
	touched, moved := slices.Collect(maps.Keys(s.touched)), s.moved
	clear(s.touched)
	s.moved = false
	n := news{delta: scheduler.Delta{Now: s.now(), Policy: s.cfg.Policy}, usedUp: s.usedUp, idle: maps.Clone(s.idle), paces: maps.Clone(s.paces)}
	s.mu.Unlock()
	if now := n.delta.Now; s.cfg.Policy == scheduler.Goodput && !now.Before(s.sized.Add(sizesEvery)) {
		n.delta.Sizes, s.sized = true, now
	}
	if n.delta.Now.After(s.reopen) {
		moved = moved || !s.reopen.IsZero()
	}
	renamed := false // there are other pools than before, elastic ones among them
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if s.cfg.Quotas != nil {
			if n.delta.Quotas, err = s.cfg.Quotas(ctx, tx); err != nil {
				return fault.Wrap(err, "reading quotas")
			}
		}
		if all || moved {
			pools, reopen, err := s.all(ctx, tx)
			if err != nil {
				return err
			}
			for _, p := range pools {
				n.delta.Pools = append(n.delta.Pools, s.scheduled(p))
			}
			renamed = s.bursts.know(pools)
			s.reopen = reopen
			queues, err := s.queueStore.Queues(ctx, tx)
			if err != nil {
				return err
			}
			n.delta.Queues = make([]scheduler.Queue, len(queues))
			for i, q := range queues {
				n.delta.Queues[i] = q.scheduled()
			}
		}
		if all {
			if s.history == nil { // of an earlier process
				if s.history, err = s.queueStore.Past(ctx, tx); err != nil {
					return err
				}
			}
			n.delta.History, n.delta.Turns = s.history, s.turns
			budgets, err := s.spendingIn(ctx, tx)
			if err != nil {
				return fault.Wrap(err, "reading budgets")
			}
			n.usedUp = usedUp(budgets, n.delta.Now)
			s.mu.Lock()
			s.usedUp = n.usedUp
			s.mu.Unlock()
		}
		n.narrow = s.bursts.narrow()
		var ws []Workload
		if all || renamed {
			if ws, err = s.workloadStore.Unsettled(ctx, tx); err == nil {
				s.outlived(n, ws)
			}
		} else {
			ws, err = s.workloadStore.Workloads(ctx, tx, touched)
		}
		for _, w := range ws {
			n.add(w)
			if _, until := w.refusals(n.delta.Now); w.State == Queued && !until.IsZero() {
				s.refusalEnds[w.ID] = until
			}
			if w.Settled {
				s.settled(w.ID)
			}
		}
		for i := range n.delta.Started {
			if r := &n.delta.Started[i]; all && r.Leaving {
				r.LeavingSince = s.leaving[r.ID]
			}
		}
		return err
	})
	n.next = s.reopen
	for _, t := range s.refusalEnds {
		if n.next.IsZero() || t.Before(n.next) {
			n.next = t
		}
	}
	if next := s.sized.Add(sizesEvery); s.cfg.Policy == scheduler.Goodput && (n.next.IsZero() || next.Before(n.next)) {
		n.next = next
	}
	return n, err
}

// work is the workload as the scheduler sees it.
func (w Workload) work() scheduler.Workload {
	work := scheduler.Workload{
		ID: scheduler.ID(w.ID), Label: w.Label, Project: string(w.Project), Request: w.Request, Isolation: w.Isolation,
		Pools: w.Pools, Priority: w.Priority, Submitted: w.Submitted, NotBefore: w.NotBefore,
		Workers: w.Workers, MaxWorkers: w.MaxWorkers, Roles: w.Roles, InPlace: w.InPlace, Queue: w.Queue, User: w.User, Preemptible: w.Preemptible, Served: w.Served,
		Speed: w.Speed, Restart: w.Restart, Target: w.Target,
		Within: w.Within, PerNode: w.PerNode, Due: w.Due, Expected: w.Expected,
	}
	for _, z := range w.Residency.Zones() {
		work.Residency = append(work.Residency, string(z))
	}
	if work.Grace = w.Grace; w.Timeout > 0 {
		work.Timeout = w.Timeout + w.Grace
	}
	return work
}

// keepsPlace reports that w has ended for a resize. Its place is reserved until the workload that
// continues it, with another number of workers, is queued.
func (w Workload) keepsPlace() bool {
	return w.State == Ended && !w.Settled && strings.HasPrefix(w.Stop, resized)
}

// add adds a workload's present state to the changes.
func (n *news) add(w Workload) {
	if w.State != Queued && !w.Settled {
		n.reconcile = append(n.reconcile, w.ID)
	}
	work := w.work()
	if p, known := n.paces[w.ID]; known && p.least == w.Workers {
		work.Speed, work.Restart = p.speed, p.restart
	}
	state := w.State
	if w.keepsPlace() {
		state = Running
	}
	switch state {
	case Queued:
		work.Refusals, _ = w.refusals(n.delta.Now)
		n.hold(&work, w.Kind)
		n.narrow(&work)
		n.delta.Submitted = append(n.delta.Submitted, work)
	case Placed, Running:
		r := scheduler.Running{
			Workload: work, Pool: string(w.Pool), Placed: w.Placed, Nodes: w.Nodes, Started: w.StartedAt, Saved: w.SavedAt, Leaving: w.Stop != "", Idle: n.idle[w.ID],
		}
		if r.Started.IsZero() {
			r.Started = w.PlacedAt
		}
		if work.Timeout > 0 {
			r.Deadline = r.Started.Add(work.Timeout)
		}
		n.delta.Started = append(n.delta.Started, r)
	case Ended: // it uses nothing any more
		n.delta.Removed = append(n.delta.Removed, work.ID)
	}
}

// place records placements; what is no longer queued is left out.
func (s *Scheduling) place(ctx context.Context, placements []scheduler.Placement) (placed []WorkloadID, err error) {
	if len(placements) == 0 {
		return nil, nil
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		placed = placed[:0]
		pools := map[PoolName]Pool{}
		for _, pl := range placements {
			w, err := s.workloadStore.Workload(ctx, tx, WorkloadID(pl.Workload))
			if err != nil {
				return err
			}
			if !w.State.CanBecome(Placed) {
				continue
			}
			w.State, w.Pool, w.Placed, w.Nodes = Placed, PoolName(pl.Pool), pl.Workers, pl.Nodes
			p, known := pools[w.Pool]
			if !known {
				if p, err = s.poolStore.Pool(ctx, tx, w.Pool); err != nil {
					return err
				}
				s.locate(&p)
				pools[w.Pool] = p
			}
			w.Machine, w.Zone = s.machine(p, w.Nodes), p.MachineZone
			w.PlacedAt, w.Passed = s.now().UTC(), texts(pl.Passed)
			if err := s.save(ctx, tx, &w); err != nil {
				return err
			}
			if err := s.note(ctx, tx, w, "workload.place", nil); err != nil {
				return err
			}
			if err := publish(ctx, tx, EventWorkloadPlaced, w.event()); err != nil {
				return err
			}
			placed = append(placed, w.ID)
		}
		return nil
	})
	return placed, fault.Wrap(err, "recording placements")
}

// Prefixes of Workload.Stop: of a preempted workload, of one that is stopped because its
// accelerators are idle, and of one that is stopped to run with another number of workers.
const (
	preempted = "preempted: "
	reclaimed = "reclaimed: "
	resized   = "resized: "
)

// preempt asks workloads to save and stop, because others need their place. Workloads that were
// cancelled or have ended meanwhile are skipped.
func (s *Scheduling) preempt(ctx context.Context, all []scheduler.Preemption) error {
	if len(all) == 0 {
		return nil
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		for _, p := range all {
			w, err := s.workloadStore.Workload(ctx, tx, WorkloadID(p.Workload))
			if err != nil {
				return err
			}
			if w.Stop != "" || w.State != Placed && w.State != Running {
				continue
			}
			action, event, stop := "workload.preempt", EventPreempted, preempted+p.Why
			if p.Ends {
				action, event, stop = "workload.reclaim", EventReclaimed, reclaimed+p.Why
			}
			if err := s.endOrStop(ctx, tx, w.ID, stop); err != nil {
				return err
			}
			w.Stop = stop
			if err := s.note(ctx, tx, w, action, map[string]any{"for": p.For, "why": p.Why}); err != nil {
				return err
			}
			if err := publish(ctx, tx, event, w.leaves(p.For, 0, p.Why)); err != nil {
				return err
			}
		}
		return nil
	})
	return fault.Wrap(err, "recording preemptions")
}

// resize asks those to save and leave that go on with another number of workers, and
// tells their owners.
func (s *Scheduling) resize(ctx context.Context, all []scheduler.Resize) error {
	if len(all) == 0 {
		return nil
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		for _, r := range all {
			w, err := s.workloadStore.Workload(ctx, tx, WorkloadID(r.Workload))
			if err != nil {
				return err
			}
			owner, can := s.owners[w.Kind].(Resizer)
			bounded := w.Workers <= r.Workers && r.Workers <= w.MaxWorkers // still: see Bound
			if !can || w.Stop != "" || w.State != Running || !bounded {
				tx.OnCommit(func() { s.touch(WorkloadID(r.Workload)) }) // it does not leave
				continue
			}
			if err := s.endOrStop(ctx, tx, w.ID, resized+r.Why); err != nil {
				return err
			}
			if err := owner.Resized(ctx, tx, w, r.Workers, r.Why); err != nil {
				return err
			}
			if err := s.note(ctx, tx, w, "workload.resize", map[string]any{"for": r.For, "why": r.Why, "workers": r.Workers, "was": w.Placed}); err != nil {
				return err
			}
			if err := publish(ctx, tx, EventResized, w.leaves(r.For, r.Workers, r.Why)); err != nil {
				return err
			}
		}
		return nil
	})
	return fault.Wrap(err, "recording new sizes")
}

// save writes a state change and notifies the owner in the same transaction, and watchers after
// the commit.
func (s *core) save(ctx context.Context, tx *store.Tx, w *Workload) error {
	if err := s.workloadStore.UpdateWorkload(ctx, tx, *w); err != nil {
		return err
	}
	w.Revision++
	if o := s.owners[w.Kind]; o != nil {
		if err := o.Changed(ctx, tx, *w); err != nil {
			return err
		}
	}
	wid := w.ID
	tx.OnCommit(func() {
		s.touch(wid)
		s.notify(wid)
	})
	return nil
}

// machineUnknown stands in records for the node of a workload when the engine picks the nodes and
// has not reported them.
const machineUnknown = "picked by the engine"

// note appends the audit row of what a loop did.
func (s *core) note(ctx context.Context, tx *store.Tx, w Workload, action string, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	detail["label"] = w.Label
	if w.Pool != "" {
		detail["pool"], detail["zone"], detail["machine"] = w.Pool, w.Zone, cmp.Or(w.Machine, machineUnknown)
	}
	return audit.Append(ctx, tx, audit.Entry{
		Actor: identity.Loop("compute"), Project: string(w.Project), Action: action, Object: "workload " + string(w.ID), Detail: detail,
	})
}

// sweeping looks for orphans once all that was placed before the start is
// started again, and then from time to time.
func (s *Scheduling) sweeping(ctx context.Context) {
	s.mu.Lock()
	recovered := make([]*reconciler, 0, len(s.reconcilers))
	for _, c := range s.reconcilers {
		recovered = append(recovered, c)
	}
	s.mu.Unlock()
	for _, c := range recovered {
		select {
		case <-c.started:
		case <-ctx.Done():
			return
		}
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		whole := n%int(forgetEvery/sweepEvery) == 0
		err := errors.Join(s.sweep(ctx, whole), s.CheckBudgets(ctx), s.keepPast(ctx))
		if whole && ctx.Err() == nil {
			err = errors.Join(err, s.forget(ctx), s.forgetRecords(ctx))
			s.anew()
		}
		if err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "watching the engines failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// keepPast saves what past use of queues counts, for the process after this one.
func (s *Scheduling) keepPast(ctx context.Context) error {
	s.deciding.Lock()
	var past map[string]scheduler.Used
	if s.state != nil {
		past = s.state.History()
	}
	s.deciding.Unlock()
	if len(past) == 0 {
		return nil
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		return s.queueStore.SavePast(ctx, tx, past)
	})
	return fault.Wrap(err, "storing the past use of queues")
}

// looking keeps the nodes of pools as their engines tell them.
func (s *Scheduling) looking(ctx context.Context) {
	tick := time.NewTicker(inventoryEvery)
	defer tick.Stop()
	for {
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "reading the nodes of the engines failed", slog.Any("error", err))
		}
		if err := s.warnOfSupport(ctx); err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "checking hardware for its end of support failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep stops unwanted workloads of engines: those that the database does not
// know, such as a start that was given up because the engine did not answer,
// and what counts as lost. An engine that does not answer is left for the next
// time. Ended workloads are inspected only in a whole sweep, if the engine lists them separately:
// there may be a million of them.
func (s *Scheduling) sweep(ctx context.Context, whole bool) error {
	var errs []error
	for name, e := range s.cfg.Engines {
		if err := s.sweepEngine(ctx, name, e.Driver, whole); err != nil {
			errs = append(errs, fault.Wrap(err, "listing orphans on engine %s", name))
		}
	}
	return errors.Join(errs...)
}

func (s *Scheduling) sweepEngine(ctx context.Context, name string, d engine.Driver, whole bool) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	var unknown, lost []engine.Handle
	find := func() error {
		s.starts[name].Lock()
		defer s.starts[name].Unlock()
		list := d.List
		if l, can := d.(engine.Liver); can && !whole {
			list = l.Live
		}
		handles, err := list(ctx)
		if err != nil || len(handles) == 0 {
			return err
		}
		var held map[engine.Handle]Held
		starting := map[engine.Handle]bool{}
		err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			if held, err = s.workloadStore.Held(ctx, tx, handles); err != nil {
				return err
			}
			active, err := s.workloadStore.Active(ctx, tx)
			for _, w := range active {
				// The engine may have started it without an answer: it is asked again.
				starting[engine.Handle(w.ID)] = w.State == Placed
			}
			return err
		})
		for _, h := range handles {
			switch of, wanted := held[h]; {
			case starting[h]:
			case !wanted:
				unknown = append(unknown, h)
			case of.Lost:
				lost = append(lost, h)
			}
		}
		return err
	}
	if err := find(); err != nil {
		return err
	}
	stop := func(h engine.Handle) error {
		s.log.WarnContext(ctx, "stopping an orphaned workload", slog.String("engine", name), slog.String("handle", string(h)))
		if err := d.Stop(ctx, h, time.Second); err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "stopping an orphan")
		}
		return nil
	}
	for _, h := range lost {
		// It keeps its output until it is forgotten.
		if st, err := d.Status(ctx, h); err == nil && (st.State == engine.Running || st.State == engine.Pending) {
			if err := stop(h); err != nil {
				return err
			}
		}
	}
	for _, h := range unknown {
		if err := stop(h); err != nil {
			return err
		}
		if err := d.Forget(ctx, h); err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "deleting the record of an orphan")
		}
	}
	return nil
}

// briefly is how long the traces of replicas are kept. They come and go with the requests,
// leave nothing worth reading, and would be pods by the hundred.
const briefly = 10 * time.Minute

// forgetBatch bounds how many ended workloads are read at a time, and recorded as
// forgotten in one transaction.
var forgetBatch = 1000

// forget removes the traces of what ended before the retention, a batch at a time, until
// none is left or the pass is over.
func (s *Scheduling) forget(ctx context.Context) error {
	var errs []error
	var silent []PoolName // whose engines do not answer, or are not configured any more
	failed := map[WorkloadID]bool{}
	for pass := lifecycle.NewPass(s.now); ctx.Err() == nil; {
		var old []Workload
		limit := len(failed) + forgetBatch
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			now := s.now()
			old, err = s.workloadStore.Forgettable(ctx, tx, now.Add(-s.cfg.Retention), now.Add(-min(briefly, s.cfg.Retention)), silent, limit)
			return err
		})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		var done []WorkloadID
		for _, w := range old {
			if failed[w.ID] || slices.Contains(silent, w.Pool) {
				continue
			}
			e, err := s.engineOf(ctx, w.Pool)
			if err != nil {
				silent = append(silent, w.Pool) // its engine may come back
				continue
			}
			switch err := e.Driver.Forget(ctx, w.Handle); {
			case err == nil, fault.Is(err, fault.NotFound):
				done = append(done, w.ID)
			case fault.Is(err, fault.Unavailable):
				silent = append(silent, w.Pool)
				errs = append(errs, fault.Wrap(err, "forgetting %s", w.ID))
			default:
				failed[w.ID] = true
				errs = append(errs, fault.Wrap(err, "forgetting %s", w.ID))
			}
		}
		if err := s.forgotten(ctx, done); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(old) < limit || len(failed) >= forgetBatch || pass.Over() {
			break
		}
	}
	return errors.Join(errs...)
}

// forgotten records what engines hold no more.
func (s *Scheduling) forgotten(ctx context.Context, ids []WorkloadID) error {
	if len(ids) == 0 {
		return nil
	}
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		tx.OnCommit(func() {
			for _, id := range ids {
				s.notify(id)
			}
		})
		return s.workloadStore.Forgotten(ctx, tx, ids)
	})
}

// settling is how long an end may take to be settled.
const settling = 10 * time.Second

// DropOutput removes what an engine keeps of a workload that has ended, before its time.
// That there is nothing is no error. Error: fault.Conflict while it has not ended.
func (s *Programs) DropOutput(ctx context.Context, wid WorkloadID) error {
	w, err := s.workload(ctx, wid)
	if fault.Is(err, fault.NotFound) || err == nil && w.Handle == "" {
		return nil
	}
	if err != nil {
		return err
	}
	// Its owner may be about to take note of the end.
	soon, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	if w, err = s.await(soon, wid, func(w Workload) bool { return w.Settled || w.State != Ended }); err != nil && ctx.Err() != nil {
		return err
	}
	if !w.Settled {
		return fault.New(fault.Conflict, "%s has not ended", w.Label).WithHint("Wait until it has ended, or cancel it.")
	}
	e, err := s.engineFor(ctx, w)
	if err != nil {
		return err
	}
	if err := e.Driver.Forget(ctx, w.Handle); err != nil && !fault.Is(err, fault.NotFound) {
		return fault.Wrap(err, "removing the output of %s", w.Label)
	}
	return s.amend(ctx, wid, func(w *Workload) { w.Handle = "" })
}

// amend changes a workload without changing its state.
func (s *core) amend(ctx context.Context, wid WorkloadID, change func(*Workload)) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.fence(ctx, tx); err != nil {
			return err
		}
		w, err := s.workloadStore.Workload(ctx, tx, wid)
		if err != nil {
			return err
		}
		change(&w)
		tx.OnCommit(func() { s.notify(wid) })
		return s.workloadStore.UpdateWorkload(ctx, tx, w)
	})
}

// watcher notifies callers that wait for a change of one workload.
type watcher struct {
	ch    chan struct{} // closed at the next change
	count int           // waiting callers
}

func (s *core) watch(wid WorkloadID) *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watchers[wid]
	if w == nil {
		w = &watcher{ch: make(chan struct{})}
		s.watchers[wid] = w
	}
	w.count++
	return w
}

// unwatch ends a watch that may have been notified.
func (s *core) unwatch(wid WorkloadID, w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.count--; w.count == 0 && s.watchers[wid] == w {
		delete(s.watchers, wid)
	}
}

func (s *core) notify(wid WorkloadID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watchers[wid]; w != nil {
		delete(s.watchers, wid)
		close(w.ch)
	}
}

// RegisterOwner makes o the owner of a kind of workload. Call it before Start.
func (s *Scheduling) RegisterOwner(kind Kind, o Owner) { s.owners[kind] = o }

// settled deletes what Idle and Pace set for a workload that is over.
func (s *Scheduling) settled(wid WorkloadID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, wid)
	delete(s.paces, wid)
}

// outlived deletes what Idle and Pace set for workloads that are over: they were known to a cycle, and
// are not among the unsettled ones that it read.
func (s *Scheduling) outlived(n news, unsettled []Workload) {
	there := make(map[WorkloadID]bool, len(unsettled))
	for _, w := range unsettled {
		there[w.ID] = true
	}
	for wid := range n.idle {
		if !there[wid] {
			s.settled(wid)
		}
	}
	for wid := range n.paces {
		if !there[wid] {
			s.settled(wid)
		}
	}
}

// Schedules reports whether this process schedules, of several that share a database.
func (s *Scheduling) Schedules() bool { return !s.others() || s.lease.Load() != nil }

// Wake asks for a scheduling cycle soon that looks at pools and quotas again.
// It does not block.
func (s *Scheduling) Wake() { s.signal() }
