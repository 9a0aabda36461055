package compute

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// Queues keeps the queues of projects. The API calls it, and metrics of pending workloads.
type Queues struct{ *core }

// The actions on queues.
const (
	ActionQueueRead   policy.Action = "queue.read"
	ActionQueueApply  policy.Action = "queue.apply"
	ActionQueueDelete policy.Action = "queue.delete"
)

// Limits of queues.
const (
	maxQueues     = 10_000
	maxQueueDepth = 10
	maxWeight     = 1e6
)

// QueueSpec is the manifest of kind Queue.
type QueueSpec struct {
	Parent      string           `json:"parent,omitempty" doc:"Parent queue: its other children may borrow what this queue does not use"`
	Quota       resource.Limit   `json:"quota,omitzero" doc:"Guaranteed resources; a resource that no queue of the tree names is unlimited, and 0 allows none"`
	Borrow      *resource.Amount `json:"borrow,omitempty" doc:"Borrowing limit beyond the quota; default all unused quota. Limits only the resources it names"`
	Lend        *resource.Amount `json:"lend,omitempty" doc:"Lending limit of unused quota; default all. Limits only the resources it names"`
	Weight      float64          `json:"weight,omitempty" doc:"Weight for fair sharing with sibling queues; default 1"`
	HalfLife    Duration         `json:"half_life,omitempty" doc:"Half-life of past usage in fair sharing; default only running workloads count"`
	Order       scheduler.Order  `json:"order,omitempty" doc:"best_effort (backfill: later workloads may start if this does not delay the first pending workload) or strict; default best_effort"`
	PerProject  resource.Limit   `json:"per_project,omitzero" doc:"Limit per project"`
	PerUser     resource.Limit   `json:"per_user,omitzero" doc:"Limit per user"`
	MinRuntime  Duration         `json:"min_runtime,omitempty" doc:"Minimum run time before a workload may be preempted"`
	IdleReclaim Duration         `json:"idle_reclaim,omitempty" doc:"Preempts a workload whose accelerators stay idle for this long after the event job.idle_accelerator, if pending workloads need them; default never"`
	IdleEnd     bool             `json:"idle_end,omitempty" doc:"With idle_reclaim: stops workloads that are not preemptible; default they keep running"`
	Preempt     *bool            `json:"preempt,omitempty" doc:"Whether workloads of this queue may preempt others: those of lower priority in it, and those that borrow its quota; default true"`
	Projects    []project.Name   `json:"projects,omitempty" doc:"Projects that may submit to the queue; default all"`
	Default     bool             `json:"default,omitempty" doc:"Whether this is the default queue for jobs of its projects or, if projects is empty, of every project without its own default queue"`
	DelayCost   float64          `json:"delay_cost,omitempty" doc:"Cost of one hour of waiting, which justifies renting nodes for elastic pools; default from the project's budget"`
	// Preemptible overrides what works say.
	Preemptible *bool `json:"preemptible,omitempty" doc:"Overrides whether workloads are preemptible; default each workload's own setting"`
}

// Amounts are all limits of the queue.
func (s QueueSpec) Amounts() []resource.Amount {
	out := []resource.Amount{s.Quota.Amount(), s.PerProject.Amount(), s.PerUser.Amount()}
	for _, a := range []*resource.Amount{s.Borrow, s.Lend} {
		if a != nil {
			out = append(out, *a)
		}
	}
	return out
}

// Validate refuses what no queue may be. Error: fault.Invalid.
func (s QueueSpec) Validate() error {
	amounts := map[string]resource.Amount{"quota": s.Quota.Amount(), "per_project": s.PerProject.Amount(), "per_user": s.PerUser.Amount()}
	for name, a := range map[string]*resource.Amount{"borrow": s.Borrow, "lend": s.Lend} {
		if a != nil {
			amounts[name] = *a
		}
	}
	for name, a := range amounts {
		if err := a.Validate(); err != nil {
			return fault.Wrap(err, "%s", name)
		}
		if len(a.Accelerators) > maxSettings {
			return fault.New(fault.Invalid, "%s: %d accelerators exceed the limit of %d", name, len(a.Accelerators), maxSettings)
		}
	}
	if err := cost.Sound("delay_cost", s.DelayCost); err != nil {
		return err
	}
	switch {
	case !(s.Weight >= 0) || s.Weight > maxWeight || math.IsInf(s.Weight, 0):
		return fault.New(fault.Invalid, "weight: must be between 0 and %g", float64(maxWeight))
	case s.HalfLife < 0 || s.MinRuntime < 0 || time.Duration(max(s.HalfLife, s.MinRuntime)) > 10*365*24*time.Hour:
		return fault.New(fault.Invalid, "half_life and min_runtime must be between 0 and ten years")
	case s.IdleReclaim < 0 || time.Duration(s.IdleReclaim) > maxTimeout:
		return fault.New(fault.Invalid, "idle_reclaim %s is not between 0 and %s", time.Duration(s.IdleReclaim), maxTimeout)
	case s.IdleEnd && s.IdleReclaim == 0:
		return fault.New(fault.Invalid, "idle_end: set idle_reclaim as well").WithHint("Set the idle time: idle_reclaim: 30m.")
	case s.Order != "" && s.Order != scheduler.BestEffort && s.Order != scheduler.Strict:
		return fault.New(fault.Invalid, "order: unknown order %.40q", string(s.Order)).WithHint("Use best_effort or strict.")
	case len(s.Projects) > maxSettings:
		return fault.New(fault.Invalid, "projects: at most %d projects can be named, not %d", maxSettings, len(s.Projects))
	}
	for _, p := range s.Projects {
		if err := id.CheckName("project name", string(p)); err != nil {
			return err
		}
	}
	return nil
}

// scheduled is the queue as the scheduler sees it.
func (q Queue) scheduled() scheduler.Queue {
	return scheduler.Queue{
		Name: q.Name, Parent: q.Parent, Quota: q.Quota, Borrow: q.Borrow, Lend: q.Lend, Weight: q.Weight, HalfLife: time.Duration(q.HalfLife),
		Order: q.Order, PerProject: q.PerProject, PerUser: q.PerUser, MinRuntime: time.Duration(q.MinRuntime), NeverPreempts: q.Preempt != nil && !*q.Preempt,
		IdleReclaim: time.Duration(q.IdleReclaim), IdleEnd: q.IdleEnd,
	}
}

// Queue is a share of the pools, with how it stood after the last cycle.
type Queue struct {
	Name string `json:"name"`
	QueueSpec
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Revision  int64     `json:"revision"` // grows with each change; the ETag

	Restricted bool `json:"restricted" doc:"Only some projects may use the queue"`

	Used     resource.Amount `json:"used" doc:"Used by its workloads and those of its child queues"`
	Nominal  resource.Amount `json:"nominal" doc:"Its quota plus what its child queues lend"`
	Left     resource.Amount `json:"left" doc:"Remaining limited resources, borrowing included"`
	Borrowed resource.Amount `json:"borrowed" doc:"Used beyond nominal"`
	Share    float64         `json:"share" doc:"Weighted dominant share of all pools, past usage included by its half-life"`
	Running  int             `json:"running" doc:"Admitted workloads, child queues included"`
	Waiting  int             `json:"waiting"`
	First    string          `json:"first,omitempty" doc:"First pending workload"`
}

// ApplyQueue makes a queue or changes it, and says which. Needs queue.apply.
// Errors: fault.Invalid; fault.Conflict when works wait in what becomes a parent.
func (s *Queues) ApplyQueue(ctx context.Context, name string, spec QueueSpec) (Queue, project.Change, error) {
	return s.applyQueue(ctx, name, spec, false)
}

// PlanQueue is ApplyQueue that changes nothing.
func (s *Queues) PlanQueue(ctx context.Context, name string, spec QueueSpec) (Queue, project.Change, error) {
	return s.applyQueue(ctx, name, spec, true)
}

func (s *Queues) applyQueue(ctx context.Context, name string, spec QueueSpec, dryRun bool) (q Queue, change project.Change, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionQueueApply, policy.Object{Kind: "queue", Name: name}); err != nil {
		return q, "", err
	}
	if err := id.CheckName("queue name", name); err != nil {
		return q, "", err
	}
	if err := spec.Validate(); err != nil {
		return q, "", fault.Wrap(err, "queue %s", name)
	}
	if spec.Order == "" {
		spec.Order = scheduler.BestEffort
	}
	apply := func(ctx context.Context, tx *store.Tx) error {
		all, err := s.queueStore.Queues(ctx, tx)
		if err != nil {
			return err
		}
		q = Queue{Name: name, QueueSpec: spec, CreatedAt: s.now().UTC(), UpdatedAt: s.now().UTC(), Revision: 1}
		change = project.Created
		if i := slices.IndexFunc(all, func(o Queue) bool { return o.Name == name }); i >= 0 {
			q.CreatedAt, q.Revision, change = all[i].CreatedAt, all[i].Revision+1, project.Updated
			if reflect.DeepEqual(all[i].QueueSpec, spec) {
				q, change = all[i], project.Unchanged
				return nil
			}
		} else if len(all) >= maxQueues {
			return fault.New(fault.Exhausted, "the limit of %d queues is reached", len(all))
		}
		if spec.Parent != "" {
			if err := s.empty(ctx, tx, spec.Parent); err != nil {
				return err
			}
		}
		if err := holdsWorks(all, q); err != nil {
			return err
		}
		// A plan may hold the queue above, too.
		if err := inTree(all, q); err != nil && (!dryRun || !fault.Is(err, fault.NotFound)) {
			return err
		}
		if dryRun {
			return nil
		}
		if err := s.queueStore.SaveQueue(ctx, tx, q); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Action: string(ActionQueueApply), Object: "queue " + name,
			Detail: map[string]any{"change": change, "parent": spec.Parent, "quota": spec.Quota.String(), "weight": spec.Weight},
		})
		if err != nil {
			return err
		}
		tx.OnCommit(s.signal)
		return event.Publish(ctx, tx, "", EventQueueApplied, QueueEvent{Queue: name})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, "", apply)
	}
	return q, change, fault.Wrap(err, "applying queue %s", name)
}

// holdsWorks refuses a default that has, or would have, queues below it: works are
// in those that have none.
func holdsWorks(all []Queue, q Queue) error {
	for _, o := range all {
		if q.Default && o.Parent == q.Name {
			return fault.New(fault.Invalid, "queue %s has child queues, so it cannot be a default", q.Name).WithHint("Make a child queue the default, such as %s.", o.Name)
		}
		if o.Default && q.Parent == o.Name {
			return fault.New(fault.Invalid, "queue %s is a default, so it cannot have child queues", o.Name).WithHint("Apply %s without default first.", o.Name)
		}
	}
	return nil
}

// DefaultOf is a project, or all of them, in words.
func DefaultOf(p project.Name) string {
	if p == "" {
		return "every project"
	}
	return "project " + string(p)
}

// assign puts a job that names no queue into that of its project, and asks its
// queue whether it may be preempted.
func (s *Workloads) assign(ctx context.Context, tx *store.Tx, r *Request) (err error) {
	if r.Queue == "" && r.Kind == JobAttempt {
		if r.Queue, err = s.queueStore.DefaultQueue(ctx, tx, r.Project); err != nil {
			return err
		}
	}
	if r.Queue == "" {
		return nil
	}
	q, err := s.queueStore.Queue(ctx, tx, r.Queue)
	if fault.Is(err, fault.NotFound) {
		return nil // deleted since it was submitted: it belongs to none
	}
	if err == nil && q.Preemptible != nil {
		r.Preemptible = *q.Preemptible
	}
	return err
}

// inTree refuses a parent that is not there, a ring of parents, and trees that are
// too deep.
func inTree(all []Queue, q Queue) error {
	parents := make(map[string]string, len(all))
	for _, o := range all {
		parents[o.Name] = o.Parent
	}
	parents[q.Name] = q.Parent
	path := []string{q.Name}
	for at := q.Parent; at != ""; at = parents[at] {
		if _, ok := parents[at]; !ok {
			return fault.New(fault.NotFound, "parent: queue %.64q of queue %s not found", at, q.Name).WithHint("Apply the parent first, or earlier in the same file.")
		}
		if slices.Contains(path, at) {
			return fault.New(fault.Invalid, "parent: cycle of queues: %s", strings.Join(append(path, at), " below "))
		}
		if path = append(path, at); len(path) > maxQueueDepth {
			return fault.New(fault.Invalid, "parent: queues are at most %d levels deep: %s", maxQueueDepth, strings.Join(path, " below "))
		}
	}
	return nil
}

// DeleteQueue removes a queue. Needs queue.delete. Errors: fault.NotFound;
// fault.Conflict while works or queues are in it.
func (s *Queues) DeleteQueue(ctx context.Context, name string) error {
	if err := s.cfg.Authorizer.Allow(ctx, ActionQueueDelete, policy.Object{Kind: "queue", Name: name}); err != nil {
		return err
	}
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		all, err := s.queueStore.Queues(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := queueNamed(all, name); err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(o Queue) bool { return o.Parent == name }); i >= 0 {
			return fault.New(fault.Conflict, "queue %s is the parent of queue %s", name, all[i].Name).WithHint("Move or delete its child queues first.")
		}
		if err := s.empty(ctx, tx, name); err != nil {
			return err
		}
		if err := s.queueStore.DeleteQueue(ctx, tx, name); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{Action: string(ActionQueueDelete), Object: "queue " + name}); err != nil {
			return err
		}
		tx.OnCommit(s.signal)
		return event.Publish(ctx, tx, "", EventQueueDeleted, QueueEvent{Queue: name})
	})
	return fault.Wrap(err, "deleting queue %s", name)
}

// empty refuses when works are in a queue.
func (s *Queues) empty(ctx context.Context, tx *store.Tx, name string) error {
	ws, err := s.workloadStore.Unsettled(ctx, tx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(ws, func(w Workload) bool { return w.Queue == name && w.State != Ended }); i >= 0 {
		return fault.New(fault.Conflict, "%s is in queue %s", ws[i].Label, name).WithHint("Wait until the queue is empty, or cancel its workloads.")
	}
	return nil
}

func queueNamed(all []Queue, name string) (Queue, error) {
	if i := slices.IndexFunc(all, func(q Queue) bool { return q.Name == name }); i >= 0 {
		return all[i], nil
	}
	have := make([]string, len(all))
	for i, q := range all {
		have[i] = q.Name
	}
	hint := "No queues exist; an administrator creates them with `falaj apply`."
	if len(have) > 0 {
		hint = "There are " + strings.Join(have[:min(len(have), 20)], ", ") + "."
	}
	return Queue{}, fault.New(fault.NotFound, "queue %.64q not found", name).WithHint("%s", hint)
}

// ListQueues lists all queues, those above before those below, with how they stood
// after the last cycle. Needs queue.read.
func (s *Queues) ListQueues(ctx context.Context) ([]Queue, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionQueueRead, policy.Object{Kind: "queue"}); err != nil {
		return nil, err
	}
	var all []Queue
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		all, err = s.queueStore.Queues(ctx, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var stand []scheduler.QueueStatus
	s.deciding.Lock()
	if s.state != nil {
		stand = s.state.Queues()
	}
	s.deciding.Unlock()
	order, index := map[string]int{}, make(map[string]*Queue, len(all))
	for i := range all {
		q := &all[i]
		// Who else may use it is not for every member of a project to know.
		q.Restricted, q.Projects = len(q.Projects) > 0, nil
		index[q.Name] = q
	}
	for i, st := range stand {
		order[st.Name] = i
		if q := index[st.Name]; q != nil {
			q.Used, q.Nominal, q.Left, q.Borrowed, q.Share = st.Used, st.Nominal, st.Left, st.Borrowed, st.Share
			q.Running, q.Waiting, q.First = st.Running, st.Waiting, st.First
		}
	}
	slices.SortStableFunc(all, func(a, b Queue) int { return order[a.Name] - order[b.Name] })
	return all, nil
}

// Queue is one of Queues. Needs queue.read. Error: fault.NotFound.
func (s *Queues) Queue(ctx context.Context, name string) (Queue, error) {
	all, err := s.ListQueues(ctx)
	if err != nil {
		return Queue{}, err
	}
	return queueNamed(all, name)
}

// CheckQueue refuses a queue that is not there, that has queues below it, or that
// is not for the project.
func (s *Queues) CheckQueue(ctx context.Context, p project.Name, name string) error {
	if name == "" {
		return nil
	}
	return s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.queueStore.Queues(ctx, tx)
		if err != nil {
			return err
		}
		q, err := queueNamed(all, name)
		if err != nil {
			return fault.New(fault.Invalid, "%s", err.Error()).WithHint("%s", fault.HintOf(err))
		}
		if i := slices.IndexFunc(all, func(o Queue) bool { return o.Parent == name }); i >= 0 {
			return fault.New(fault.Invalid, "queue %s has child queues", name).WithHint("Name a child queue, such as %s.", all[i].Name)
		}
		if len(q.Projects) > 0 && !slices.Contains(q.Projects, p) {
			return fault.New(fault.PermissionDenied, "queue %s does not admit project %s", name, p).WithHint("Ask an administrator to add the project to the queue, or name another queue.")
		}
		return nil
	})
}

// Waiting counts the workloads that waited in the last cycle by the code of the first
// reason, of some thousand at most; nothing where another process schedules.
func (s *Queues) Waiting() map[scheduler.Code]int {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return nil
	}
	return s.state.WaitCodes(maxWaiting)
}

// maxWaiting is how many waits are explained for the metrics: cycles wait meanwhile.
const maxWaiting = 2000
