package compute

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Workloads accepts, changes and cancels workloads, and says why they wait. The domains that
// own workloads call it.
type Workloads struct{ *core }

// Submit queues a workload in the caller's transaction. Submitting an
// identifier again is no change. The caller has asked whether it may.
func (s *Workloads) Submit(ctx context.Context, tx *store.Tx, r Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if s.owners[r.Kind] == nil && r.Spec == nil {
		return fault.New(fault.Internal, "workload %s has neither an owner nor a command", r.ID)
	}
	_, err := s.workloadStore.Workload(ctx, tx, r.ID)
	if err == nil {
		return nil
	}
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	if r.Isolation == "" {
		r.Isolation = scheduler.Sandbox
	}
	if r.Grace == 0 {
		r.Grace = 10 * time.Second
	}
	if r.Label == "" {
		r.Label = string(r.ID)
	}
	if err := s.assign(ctx, tx, &r); err != nil {
		return err
	}
	served, submitted, changed := 0.0, s.now().UTC(), []WorkloadID{r.ID}
	if r.After != "" {
		before, err := s.workloadStore.Workload(ctx, tx, r.After)
		if err != nil {
			return fault.Wrap(err, "resuming from %s", r.After)
		}
		served = before.served()
		if stop, kept := strings.CutPrefix(before.Stop, resized); r.InLine && kept {
			// This one stands where that one did, which gives its place up now.
			submitted, before.Stop, changed = before.Submitted, stop, append(changed, before.ID)
			if err := s.workloadStore.UpdateWorkload(ctx, tx, before); err != nil {
				return err
			}
		}
	}
	err = s.workloadStore.InsertWorkload(ctx, tx, Workload{
		ID: r.ID, Project: r.Project, Kind: r.Kind, Label: r.Label, Request: r.Amount, Isolation: r.Isolation,
		Workers: max(r.Workers, 1), MaxWorkers: max(r.MaxWorkers, r.Workers, 1), Roles: r.Roles, InPlace: r.InPlace,
		Residency: r.Residency, Classification: r.Classification, Pools: r.Pools, Priority: r.Priority,
		Queue: r.Queue, User: r.User, Model: r.Model, Preemptible: r.Preemptible, Served: served,
		Timeout: r.Timeout, Grace: r.Grace, Within: r.Within, PerNode: r.PerNode, Due: r.Due, Expected: r.Expected, DelayCost: r.DelayCost, Data: r.Data, Spec: r.Spec,
		Speed: r.Speed, Restart: r.Restart, Target: r.Target,
		State: Queued, Submitted: submitted, NotBefore: r.NotBefore,
	})
	if err != nil {
		return fault.Wrap(err, "queueing %s", r.Label)
	}
	tx.OnCommit(func() { s.touch(changed...) })
	return nil
}

// Outlook is what a workload would get now.
type Outlook struct {
	Runs     bool           `json:"runs" doc:"Whether it would start at once"`
	Pool     PoolName       `json:"pool,omitempty" doc:"Pool in which it would start"`
	Workers  int            `json:"workers,omitempty"`
	Nodes    []string       `json:"nodes,omitempty" doc:"Nodes of each worker; absent when the engine picks them"`
	Possible bool           `json:"possible" doc:"Whether some pool could run it with its current nodes"`
	Reasons  []Reason       `json:"reasons" doc:"Wait reasons, or why pools are excluded"`
	Pools    []PoolForecast `json:"rooms" doc:"Candidate pools by price"`
}

// PoolForecast is what a pool could give a workload.
type PoolForecast struct {
	Pool         PoolName  `json:"pool"`
	Workers      int       `json:"workers" doc:"Workers that fit now, besides reservations"`
	At           time.Time `json:"at,omitzero" doc:"Latest start if the job were first in its queue, from the grace periods of workloads being preempted or the time-outs of running workloads; absent when unknown"`
	PricePerHour float64   `json:"price_per_hour" doc:"Price of all its workers, in the installation's currency"`
}

// Reason is why a workload waits.
type Reason struct {
	Step string         `json:"step" doc:"Scheduling step: admit, rank, fit or preempt"`
	Code scheduler.Code `json:"code" doc:"Machine-readable: residency, isolation, too_large, closed, no_such, over_quota, delayed, quota_used, quota_kept, strict_order, full, kept, preempting, late or demoted"`
	Pool string         `json:"pool,omitempty"`
	Text string         `json:"text"`
}

func reasons(of []scheduler.Reason) []Reason {
	out := make([]Reason, len(of))
	for i, r := range of {
		out[i] = Reason(r)
	}
	return out
}

// DryRun says what a workload would get now, and takes nothing. The caller has asked
// whether it may. Error: fault.Unavailable before the first cycle.
func (s *Workloads) DryRun(ctx context.Context, r Request) (Outlook, error) {
	work, err := s.Propose(ctx, r)
	if err != nil {
		return Outlook{}, err
	}
	s.mu.Lock()
	next := news{delta: scheduler.Delta{Now: s.now()}, usedUp: s.usedUp}
	s.mu.Unlock()
	s.deciding.Lock()
	if s.state == nil {
		s.deciding.Unlock()
		return Outlook{}, fault.New(fault.Unavailable, "the scheduler is starting").WithHint("Try again in a moment.")
	}
	world := s.state.World()
	s.deciding.Unlock()
	// What the next cycle would see and decide, were this submitted.
	world.Now = next.delta.Now
	next.hold(&work, r.Kind)
	elastic := s.bursts.apart(&work)
	got := scheduler.DryRun(world, work)
	f := Outlook{Possible: got.Wait.Possible, Reasons: reasons(got.Wait.Reasons), Pools: []PoolForecast{}}
	if p := got.Place; p != nil {
		f.Runs, f.Possible, f.Pool, f.Workers, f.Nodes, f.Reasons = true, true, PoolName(p.Pool), p.Workers, p.Nodes, reasons(p.Passed)
	}
	if !f.Runs {
		f.Reasons = append(f.Reasons, elastic...)
	}
	for _, room := range got.Pools {
		f.Pools = append(f.Pools, PoolForecast{Pool: PoolName(room.Pool), Workers: room.Workers, At: room.At.UTC(), PricePerHour: room.Price})
	}
	return f, nil
}

// Saved records, in the caller's transaction, that a running workload had saved its progress at a
// time: a preemption loses only the work since then. A workload that no longer runs is not
// changed.
func (s *Workloads) Saved(ctx context.Context, tx *store.Tx, wid WorkloadID, at time.Time) error {
	w, err := s.workloadStore.Workload(ctx, tx, wid)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || w.State != Running || !at.After(w.SavedAt) {
		return err
	}
	w.SavedAt = at.UTC()
	tx.OnCommit(func() { s.touch(wid) })
	return s.workloadStore.UpdateWorkload(ctx, tx, w)
}

// Idle sets since when a running workload's accelerators are idle without interruption, as far as its
// owner knows; zero means that they are not, or that it is unknown. It is not stored: after a restart
// the owner sets it again.
func (s *Workloads) Idle(wid WorkloadID, since time.Time) {
	s.mu.Lock()
	same := s.idle[wid].Equal(since)
	s.idle[wid] = since
	if since.IsZero() {
		delete(s.idle, wid)
	}
	s.mu.Unlock()
	if !same {
		s.touch(wid)
	}
}

// pace is the speed of a workload by number of workers: see scheduler.Workload. It is valid while
// least is the workload's minimum.
type pace struct {
	least   int
	speed   []float64
	restart time.Duration
}

// Pace sets the speed of a workload with its minimum of workers, with one more, and so on, relative to
// the minimum, and the cost of a restart. Without speeds, those of its submission are used. Speeds for
// another minimum than the present one are ignored. They are not stored: after a restart the owner sets
// them again.
func (s *Workloads) Pace(wid WorkloadID, least int, speed []float64, restart time.Duration) {
	s.mu.Lock()
	was := s.paces[wid]
	s.paces[wid] = pace{least, speed, restart}
	if len(speed) == 0 {
		delete(s.paces, wid)
	}
	s.mu.Unlock()
	if was.least != least || !slices.Equal(was.speed, speed) {
		s.touch(wid)
	}
}

// Bound gives a workload that keeps its place other bounds of its size, and says how
// fast it is within them, as Pace does. One that has ended, or is to, stays as it is.
// Error: fault.NotFound.
func (s *Workloads) Bound(ctx context.Context, tx *store.Tx, wid WorkloadID, least, most int, speed []float64) error {
	w, err := s.workloadStore.Workload(ctx, tx, wid)
	if err != nil || w.State == Ended || w.Stop != "" {
		return err
	}
	w.Workers, w.MaxWorkers, w.Speed = least, most, speed
	tx.OnCommit(func() { s.touch(wid) })
	return s.workloadStore.UpdateWorkload(ctx, tx, w)
}

// Wait returns the workload once it is settled.
func (s *Workloads) Wait(ctx context.Context, wid WorkloadID) (Workload, error) {
	return s.await(ctx, wid, func(w Workload) bool { return w.Settled })
}

// Why says in words why a workload is where it is. Error: fault.NotFound.
func (s *Workloads) Why(ctx context.Context, wid WorkloadID) ([]string, error) {
	waiting, cancel := context.WithTimeout(ctx, whyCycle)
	defer cancel()
	var w Workload
	for {
		s.mu.Lock()
		cycled, touched, loops := s.cycled, s.touched[wid], s.cancel != nil
		s.mu.Unlock()
		var err error
		if w, err = s.workload(ctx, wid); err != nil {
			return nil, err
		}
		if w.State != Queued {
			break
		}
		if wait, waits, stale := s.wait(wid); waits && !touched && !stale {
			return s.bursts.words(wid, texts(wait.Reasons)), nil
		}
		if !loops {
			return []string{"about to be scheduled"}, nil
		}
		select {
		case <-cycled:
			continue
		case <-waiting.Done():
		}
		return []string{"about to be scheduled"}, ctx.Err()
	}
	s.mu.Lock()
	r := s.reconcilers[wid]
	s.mu.Unlock()
	if r != nil {
		if trouble := r.trouble.Load(); trouble != nil {
			w.Passed = append([]string{*trouble}, w.Passed...)
		}
	}
	switch w.State {
	case Placed:
		return append([]string{"starting on pool " + string(w.Pool)}, w.Passed...), nil
	case Running:
		words := s.explain(ctx, w)
		first := fmt.Sprintf("running on pool %s since %s", w.Pool, w.StartedAt.UTC().Format(time.RFC3339))
		switch {
		case w.Stop != "":
			first = "stopping: " + w.Stop
		case len(words) > 0:
			first = fmt.Sprintf("placed on pool %s since %s, and its program has not started", w.Pool, w.StartedAt.UTC().Format(time.RFC3339))
		}
		if idle := s.notice(wid); idle != "" && w.Stop == "" {
			words = append(words, idle)
		}
		return slices.Concat([]string{first}, words, w.Passed), nil
	default:
		return append([]string{w.Outcome()}, w.Passed...), nil
	}
}

// Waits says why a workload waited in the last cycle, for programs; nothing when it
// does not wait, or another process schedules. It is possible unless it waits for
// what no pool has, and none could rent: until the configuration changes.
func (s *Workloads) Waits(wid WorkloadID) (of []Reason, possible bool) {
	wait, waits, _ := s.wait(wid)
	return reasons(wait.Reasons), !waits || wait.Possible || s.bursts.ever(wid)
}

// Growth is how many workers more a running workload could have where it is, by
// the last cycle.
func (s *Workloads) Growth(wid WorkloadID) int {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return 0
	}
	return s.state.Growth(scheduler.ID(wid))
}

// notice says what will happen to a workload with idle accelerators.
func (s *Workloads) notice(wid WorkloadID) string {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return ""
	}
	return s.state.Idle(scheduler.ID(wid))
}

// explain asks the engine why a workload that was submitted to it does not run yet.
func (s *Workloads) explain(ctx context.Context, w Workload) []string {
	ctx, cancel := context.WithTimeout(ctx, whyEngine)
	defer cancel()
	e, err := s.engineOf(ctx, w.Pool)
	if err != nil {
		return []string{err.Error()}
	}
	power, ok := e.Driver.(engine.Explainer)
	if !ok {
		return nil
	}
	words, err := power.Explain(ctx, w.Handle)
	if err != nil {
		return []string{fmt.Sprintf("reading details from pool %s failed: %v", w.Pool, err)}
	}
	return words
}

func texts(reasons []scheduler.Reason) []string {
	out := make([]string, len(reasons))
	for i, r := range reasons {
		out[i] = r.Text
	}
	return out
}

// Cancel ends a workload in the caller's transaction: at once when it is
// queued, otherwise it is asked to stop and killed after its grace. reason is
// for people. Cancelling what has ended is no change. Error: fault.NotFound.
func (s *Workloads) Cancel(ctx context.Context, tx *store.Tx, wid WorkloadID, reason string) error {
	return s.endOrStop(ctx, tx, wid, reason)
}

// Workload gives a workload. Error: fault.NotFound.
func (s *Workloads) Workload(ctx context.Context, wid WorkloadID) (Workload, error) {
	return s.workload(ctx, wid)
}
