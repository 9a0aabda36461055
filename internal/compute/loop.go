package compute

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// sweepEvery is how often engines are looked through for what nobody wants
// and for what may be forgotten.
const sweepEvery = 10 * time.Minute

// Wake asks for a scheduling cycle soon. It does not block.
func (s *Service) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Start begins scheduling, and takes up what an earlier process left: placed
// workloads are started, running ones found again, ended ones settled, and
// what the engines hold without being wanted is stopped. Call it once.
func (s *Service) Start(ctx context.Context) {
	ctx, cancel := context.WithCancel(identity.With(context.WithoutCancel(ctx), identity.Loop("compute")))
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	s.running.Go(func() { s.loop(ctx) })
}

// Stop ends scheduling and watching, and waits for both. Workloads go on. It
// may be called twice.
func (s *Service) Stop() {
	s.mu.Lock()
	cancel := s.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	s.running.Wait()
}

func (s *Service) loop(ctx context.Context) {
	recovered := sync.OnceFunc(func() { s.running.Go(func() { s.sweeping(ctx) }) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, err := s.RunOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.ErrorContext(ctx, "scheduling failed", slog.Any("error", err))
			next = time.Second
		default:
			recovered()
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// RunOnce is one cycle: snapshot, decide, record the placements, carry what has
// a place. It returns how long nothing is to be done unless something changes.
func (s *Service) RunOnce(ctx context.Context) (time.Duration, error) {
	// 1. Take a snapshot.
	var world scheduler.Delta
	var unsettled []Workload
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		world, unsettled, err = s.snapshot(ctx, tx)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, w := range unsettled {
		if w.State != Queued {
			s.take(ctx, w.ID)
		}
	}

	// 2. Decide.
	_, plan := scheduler.Decide(world)

	// 3. Record the placements, then act on them.
	placed, err := s.place(ctx, plan.Place)
	if err != nil {
		return 0, err
	}
	for _, id := range placed {
		s.take(ctx, id)
	}
	if plan.Wake.IsZero() {
		return time.Hour, nil
	}
	return max(plan.Wake.Sub(s.now()), time.Millisecond), nil
}

// snapshot is the world as the scheduler sees it, and the workloads behind it.
func (s *Service) snapshot(ctx context.Context, tx *store.Tx) (scheduler.Delta, []Workload, error) {
	d := scheduler.Delta{Now: s.now(), Quotas: map[string]resource.Amount{}}
	pools, err := s.cfg.Store.Pools(ctx, tx)
	if err != nil {
		return d, nil, err
	}
	if s.cfg.Quotas != nil {
		if d.Quotas, err = s.cfg.Quotas(ctx, tx); err != nil {
			return d, nil, fault.Wrap(err, "reading quotas")
		}
	}
	for _, p := range pools {
		sp := scheduler.Pool{
			Name: string(p.Name), Zone: string(p.Zone), Isolation: p.Isolation, Delegated: p.Mode == Delegated,
			PricePerHour: p.PricePerHour, Closed: p.Closed, Remote: s.cfg.Engines[p.Engine].Remote,
		}
		if _, ok := s.cfg.Engines[p.Engine]; !ok && sp.Closed == "" {
			sp.Closed = "its engine " + p.Engine + " is not configured"
		}
		for _, n := range p.Nodes {
			sp.Nodes = append(sp.Nodes, scheduler.Node{Name: n.Name, Amount: n.Amount()})
		}
		d.Pools = append(d.Pools, sp)
	}
	ws, err := s.cfg.Store.Unsettled(ctx, tx)
	if err != nil {
		return d, nil, err
	}
	for _, w := range ws {
		work := scheduler.Work{
			ID: scheduler.ID(w.ID), Label: w.Label, Project: string(w.Project), Request: w.Request, Isolation: w.Isolation,
			Pools: w.Pools, Priority: w.Priority, Submitted: w.Submitted, NotBefore: w.NotBefore,
			Workers: w.Workers, MaxWorkers: w.MaxWorkers, InPlace: w.InPlace,
		}
		for _, z := range w.Residency.Zones() {
			work.Residency = append(work.Residency, string(z))
		}
		switch w.State {
		case Queued:
			d.Submitted = append(d.Submitted, work)
		case Placed, Running:
			r := scheduler.Running{Work: work, Pool: string(w.Pool), Placed: w.Placed, Nodes: w.Nodes}
			if w.Timeout > 0 && !w.StartedAt.IsZero() {
				r.Deadline = w.StartedAt.Add(w.Timeout)
			}
			d.Started = append(d.Started, r)
		case Ended: // it uses nothing any more
		}
	}
	return d, ws, nil
}

// place records placements; what is no longer queued is left out.
func (s *Service) place(ctx context.Context, placements []scheduler.Placement) (placed []WorkloadID, err error) {
	if len(placements) == 0 {
		return nil, nil
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		placed = placed[:0]
		for _, pl := range placements {
			w, err := s.cfg.Store.Workload(ctx, tx, WorkloadID(pl.Work))
			if err != nil {
				return err
			}
			if !w.State.CanBecome(Placed) {
				continue
			}
			w.State, w.Pool, w.Placed, w.Nodes = Placed, PoolName(pl.Pool), pl.Workers, pl.Nodes
			w.PlacedAt, w.Passed = s.now().UTC(), texts(pl.Passed)
			if err := s.save(ctx, tx, &w); err != nil {
				return err
			}
			if err := s.note(ctx, tx, w, "workload.place", nil); err != nil {
				return err
			}
			if err := publish(ctx, tx, EventWorkloadPlaced, w); err != nil {
				return err
			}
			placed = append(placed, w.ID)
		}
		return nil
	})
	return placed, fault.Wrap(err, "recording placements")
}

// save writes a state change and tells the owner, and those who watch once it
// is durable.
func (s *Service) save(ctx context.Context, tx *store.Tx, w *Workload) error {
	if err := s.cfg.Store.UpdateWorkload(ctx, tx, *w); err != nil {
		return err
	}
	w.Revision++
	if o := s.owners[w.Kind]; o != nil {
		if err := o.Changed(ctx, tx, *w); err != nil {
			return err
		}
	}
	tx.OnCommit(s.notify)
	return nil
}

// note appends the audit row of what a loop did.
func (s *Service) note(ctx context.Context, tx *store.Tx, w Workload, action string, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	detail["label"] = w.Label
	if w.Pool != "" {
		detail["pool"] = w.Pool
	}
	return audit.Append(ctx, tx, audit.Entry{
		Actor: identity.Loop("compute"), Project: string(w.Project), Action: action, Object: "workload " + string(w.ID), Detail: detail,
	})
}

// sweeping looks for orphans once all that was placed before the start is
// started again, and then from time to time.
func (s *Service) sweeping(ctx context.Context) {
	s.mu.Lock()
	recovered := make([]*carrier, 0, len(s.carriers))
	for _, c := range s.carriers {
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
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "looking for orphaned workloads failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep stops what engines hold that the database does not know, and forgets
// what ended long ago.
func (s *Service) sweep(ctx context.Context) error {
	orphans := map[string][]engine.Handle{}
	find := func() error {
		s.starts.Lock()
		defer s.starts.Unlock()
		var held map[engine.Handle]WorkloadID
		err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			held, err = s.cfg.Store.Held(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
		for name, e := range s.cfg.Engines {
			handles, err := e.Driver.List(ctx)
			if err != nil {
				return fault.Wrap(err, "listing what engine %s holds", name)
			}
			orphans[name] = slices.DeleteFunc(handles, func(h engine.Handle) bool { _, wanted := held[h]; return wanted })
		}
		return nil
	}
	if err := find(); err != nil {
		return err
	}
	for name, handles := range orphans {
		d := s.cfg.Engines[name].Driver
		for _, h := range handles {
			s.log.WarnContext(ctx, "stopping an orphaned workload", slog.String("engine", name), slog.String("handle", string(h)))
			if err := d.Stop(ctx, h, time.Second); err != nil && !fault.Is(err, fault.NotFound) {
				return fault.Wrap(err, "stopping an orphan on engine %s", name)
			}
			if err := d.Forget(ctx, h); err != nil && !fault.Is(err, fault.NotFound) {
				return fault.Wrap(err, "forgetting an orphan on engine %s", name)
			}
		}
	}
	return s.forget(ctx)
}

// forget removes the traces of what ended before the retention.
func (s *Service) forget(ctx context.Context) error {
	var old []Workload
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		old, err = s.cfg.Store.Forgettable(ctx, tx, s.now().Add(-s.cfg.Retention), 1000)
		return err
	})
	if err != nil {
		return err
	}
	for _, w := range old {
		e, err := s.engineOf(ctx, w.Pool)
		if err != nil {
			continue // its engine may come back
		}
		if err := e.Driver.Forget(ctx, w.Handle); err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "forgetting %s", w.ID)
		}
		if err := s.amend(ctx, w.ID, func(w *Workload) { w.Handle = "" }); err != nil {
			return err
		}
	}
	return nil
}

// amend changes a workload without changing its state.
func (s *Service) amend(ctx context.Context, wid WorkloadID, change func(*Workload)) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		w, err := s.cfg.Store.Workload(ctx, tx, wid)
		if err != nil {
			return err
		}
		change(&w)
		tx.OnCommit(s.notify)
		return s.cfg.Store.UpdateWorkload(ctx, tx, w)
	})
}

// watch gives a channel that is closed at the next change of any workload.
func (s *Service) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Service) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}
