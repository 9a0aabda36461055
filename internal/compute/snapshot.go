package compute

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
	"github.com/falaj-ml/falaj/internal/store"
)

// Left is how long a workload probably still runs: of one that waits, once it has
// its place.
type Left struct {
	Time  time.Duration
	Basis replay.Basis
}

// AtPace is what is left by the pace at which a workload tells its steps.
func AtPace(left time.Duration) Left { return Left{left, replay.Pace} }

// AsBefore is what is left if a workload takes as long as earlier ones of its name.
func AsBefore(left time.Duration) Left { return Left{left, replay.History} }

// Viewer says what the caller may know of others.
type Viewer struct {
	// Reads says whether the caller may read a project; of others it learns that
	// there is work, and no names.
	Reads func(ctx context.Context, p project.Name) (bool, error)
	// Left estimates the remaining run time of workloads; those without an estimate are left out.
	Left func(ctx context.Context, ids []WorkloadID) (map[WorkloadID]Left, error)
}

// Snapshot is the scheduler's world as it is now, read whole. Needs queue.read.
func (s *Scheduling) Snapshot(ctx context.Context, v Viewer) (replay.Snapshot, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionQueueRead, policy.Object{Kind: "queue"}); err != nil {
		return replay.Snapshot{}, err
	}
	// 1. What the scheduler would read if it began now.
	n := news{delta: scheduler.Delta{Now: s.now(), Policy: s.cfg.Policy}, narrow: s.bursts.narrow()}
	s.mu.Lock()
	n.idle, n.paces = maps.Clone(s.idle), maps.Clone(s.paces)
	s.mu.Unlock()
	d := &n.delta
	out := replay.Snapshot{At: d.Now, Works: []replay.About{}}
	var ws []Workload
	var leaving map[scheduler.ID]time.Time
	s.deciding.Lock()
	if s.state != nil {
		d.History, d.Turns, leaving = s.state.History(), s.state.Turns(), s.state.Leaving()
	}
	s.deciding.Unlock()
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if s.cfg.Quotas != nil {
			if d.Quotas, err = s.cfg.Quotas(ctx, tx); err != nil {
				return fault.Wrap(err, "reading quotas")
			}
		}
		pools, _, err := s.all(ctx, tx)
		if err != nil {
			return err
		}
		d.Pools, out.Maintenance = nil, map[string]scheduler.Windows{}
		for _, p := range pools {
			if len(p.Maintenance) > 0 { // it is played
				out.Maintenance[string(p.Name)] = p.Maintenance
				for i := range p.Nodes {
					p.Nodes[i].Maintenance, p.Nodes[i].Closes = "", time.Time{}
				}
			}
			d.Pools = append(d.Pools, s.scheduled(p))
		}
		queues, err := s.queueStore.Queues(ctx, tx)
		if err != nil {
			return err
		}
		d.Queues = []scheduler.Queue{}
		for _, q := range queues {
			d.Queues = append(d.Queues, q.scheduled())
		}
		budgets, err := s.spendingIn(ctx, tx)
		if err != nil {
			return fault.Wrap(err, "reading budgets")
		}
		n.usedUp = usedUp(budgets, d.Now)
		ws, err = s.workloadStore.Unsettled(ctx, tx)
		return err
	})
	if err != nil {
		return replay.Snapshot{}, fault.Wrap(err, "reading the scheduler's state")
	}
	// 2. Running and pending workloads.
	masks := &masks{viewer: v, names: map[project.Name]string{}, users: map[string]string{}}
	var ids []WorkloadID
	for _, w := range ws {
		if w.State == Ended && !w.keepsPlace() {
			continue
		}
		n.add(w)
		name, err := masks.name(ctx, w.Project)
		if err != nil {
			return replay.Snapshot{}, err
		}
		about := replay.About{
			ID: scheduler.ID(w.ID), Label: w.Label, Project: name, Queue: w.Queue, Kind: string(w.Kind), State: "waiting",
			Gone: w.Stop != "" && !strings.HasPrefix(w.Stop, preempted) && !strings.HasPrefix(w.Stop, resized),
		}
		switch {
		case w.State == Queued:
		case w.Stop != "":
			about.State = "leaving"
		default:
			about.State = "running"
		}
		ids = append(ids, w.ID)
		out.Works = append(out.Works, about)
	}
	for i := range d.Submitted {
		masks.hide(&d.Submitted[i])
	}
	for i := range d.Started {
		d.Started[i].LeavingSince = leaving[d.Started[i].ID]
		masks.hide(&d.Started[i].Workload)
	}
	// 3. How long still.
	left, err := v.Left(ctx, ids)
	if err != nil {
		return replay.Snapshot{}, fault.Wrap(err, "reading the remaining run times")
	}
	for i := range out.Works {
		if l, known := left[WorkloadID(out.Works[i].ID)]; known {
			seconds := l.Time.Seconds()
			out.Works[i].Left, out.Works[i].Basis = &seconds, l.Basis
		}
	}
	if d.Quotas, err = masks.quotas(ctx, d.Quotas); err != nil {
		return replay.Snapshot{}, err
	}
	out.Scheduler = *d
	return out, nil
}

// masks give projects that the caller may not read, and their users, other names:
// one for each, so that quotas still hold.
type masks struct {
	viewer Viewer
	names  map[project.Name]string
	users  map[string]string
}

func (m *masks) name(ctx context.Context, p project.Name) (string, error) {
	if name, known := m.names[p]; known || p == "" {
		return name, nil
	}
	reads, err := m.viewer.Reads(ctx, p)
	if err != nil {
		return "", fault.Wrap(err, "reading the readable projects")
	}
	name := string(p)
	if !reads {
		name = fmt.Sprintf("(hidden %d)", len(m.names)+1)
	}
	m.names[p] = name
	return name, nil
}

// hide renames what the caller may not read; call name first. Labels stay: they are
// identifiers, and wait reasons show them to everyone anyway.
func (m *masks) hide(w *scheduler.Workload) {
	name := m.names[project.Name(w.Project)]
	if name == w.Project {
		return
	}
	w.Project = name
	if w.User != "" {
		if m.users[w.User] == "" {
			m.users[w.User] = fmt.Sprintf("(hidden %d)", len(m.users)+1)
		}
		w.User = m.users[w.User]
	}
	w.Because = "" // may name the project's budget
}

func (m *masks) quotas(ctx context.Context, of map[string]resource.Limit) (map[string]resource.Limit, error) {
	out := make(map[string]resource.Limit, len(of))
	for p, quota := range of {
		if _, known := m.names[project.Name(p)]; !known {
			// The quota of a project without work is shown only to callers who may read the project.
			reads, err := m.viewer.Reads(ctx, project.Name(p))
			if err != nil {
				return nil, fault.Wrap(err, "reading the readable projects")
			}
			if !reads {
				continue
			}
		}
		name, err := m.name(ctx, project.Name(p))
		if err != nil {
			return nil, err
		}
		out[name] = quota
	}
	return out, nil
}

// Propose is a workload as the scheduler would see it, were it submitted. The caller
// has asked whether it may.
func (s *Workloads) Propose(ctx context.Context, r Request) (scheduler.Workload, error) {
	if err := r.Validate(); err != nil {
		return scheduler.Workload{}, err
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error { return s.assign(ctx, tx, &r) })
	if err != nil {
		return scheduler.Workload{}, err
	}
	w := Workload{
		ID: r.ID, Project: r.Project, Label: r.Label, Request: r.Amount, Isolation: r.Isolation, Workers: max(r.Workers, 1),
		MaxWorkers: max(r.MaxWorkers, r.Workers, 1), Roles: r.Roles, InPlace: r.InPlace, Residency: r.Residency, Pools: r.Pools, Queue: r.Queue, User: r.User,
		Preemptible: r.Preemptible, Priority: r.Priority, Timeout: r.Timeout, Grace: r.Grace, Within: r.Within, PerNode: r.PerNode, Due: r.Due, Expected: r.Expected,
		Speed: r.Speed, Restart: r.Restart, Target: r.Target, Submitted: s.now().UTC(), NotBefore: r.NotBefore,
	}
	if w.Isolation == "" {
		w.Isolation = scheduler.Sandbox
	}
	return w.work(), nil
}
