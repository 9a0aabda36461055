package compute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Authorizer is the question this package asks before it acts.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Engine is a configured driver.
type Engine struct {
	Driver engine.Driver
	// Isolation is the strongest that the engine reaches on its nodes.
	Isolation scheduler.Isolation
	// Kind of engine: "local", "slurm", "kube", "ray".
	Kind string
	// Remote engines run work on other machines than the server's.
	Remote bool
	// Alike says of a pool's options that it starts gangs only whose workers have the
	// same; nil is never.
	Alike func(options map[string]string) bool
	// Check refuses a pool's options that the engine does not have; nil takes all.
	Check func(options map[string]string) error
	// Machine is what the engine's one machine has; zero for engines whose
	// pools must list their nodes.
	Machine resource.Amount
	// Labels are what that machine is like.
	Labels map[string]string
	// Provisioners rent nodes for elastic pools, by name.
	Provisioners map[string]provisioner.Provisioner
}

// Config is what the service needs.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	Guard      residency.Guard
	Journal    audit.Journal
	Engines    map[string]Engine
	// Zone is where the server's machine is; empty is home. Machine is what records call
	// that machine; empty is local.
	Zone    residency.Zone
	Machine string
	// Quotas gives what each project may use at once; nil is no quotas. It is
	// asked inside a read transaction.
	Quotas func(ctx context.Context, tx *store.Tx) (map[string]resource.Limit, error)
	// Project says that there is a project; nil takes every one. Error:
	// fault.NotFound.
	Project func(ctx context.Context, tx *store.Tx, p project.Name) error
	// Holder names this process where several share a database and one of them
	// schedules; Elect has it elected in any case.
	Holder string
	Elect  bool
	// Currency is what all amounts of money are in; the default is AED.
	Currency string
	// Policy says who comes first; empty is first in, first out.
	Policy scheduler.Policy
	// Retention is how long an engine keeps traces and logs of what has
	// ended, but for replicas; the default is seven days.
	Retention time.Duration
	// Records is how long the records of builds, queries and replicas are kept once they
	// have ended; 0 is for ever. Their owners keep those of attempts.
	Records time.Duration
	// PrepareTimeout bounds an owner's Prepare, and how long an engine that does
	// not answer is asked to start a workload; the default is an hour.
	PrepareTimeout time.Duration
	Log            *slog.Logger     // nil discards
	Now            func() time.Time // nil is time.Now
}

// Service is the way to pools and workloads. Safe for concurrent use.
type Service struct {
	cfg    Config
	log    *slog.Logger
	now    func() time.Time
	owners map[Kind]Owner
	wake   chan struct{} // of the loop; holds one

	// starts is, for each engine, held for reading from a driver's start to the
	// record of its handle, and for writing while orphans are looked for.
	starts map[string]*sync.RWMutex

	// cycle is held for a whole scheduling cycle, deciding only while the state
	// is read or stepped. Lock order: cycle, deciding, mu.
	cycle    sync.Mutex
	deciding sync.Mutex
	sized    time.Time                // of a cycle: the last that looked at sizes
	reopen   time.Time                // of a cycle: when the next quarantine ends; zero is never
	again    map[WorkloadID]time.Time // of a cycle: when a refusal ends of one that waits
	state    *scheduler.State         // nil until the world was read, and while another process decides
	stale    bool                     // the next cycle reads all of the world into a new state
	// Of the state before it was forgotten: what it knew that is nowhere else.
	history map[string]scheduler.Used
	turns   []scheduler.ID
	leaving map[scheduler.ID]time.Time

	// lease makes this the process that schedules; nil when no other can, or
	// another does.
	lease       atomic.Pointer[store.Lease]
	reconciling sync.WaitGroup // the goroutines of the reconcilers

	mu          sync.Mutex
	usedUp      map[project.Name]barred  // of which nothing new starts, by the last cycle that read everything
	idle        map[WorkloadID]time.Time // since when their owners know that their accelerators are idle
	paces       map[WorkloadID]pace      // of those whose owners told it
	touched     map[WorkloadID]bool      // changed since the last cycle
	moved       bool                     // pools or quotas changed since
	cycled      chan struct{}            // closed at the end of the next cycle
	reconcilers map[WorkloadID]*reconciler
	watchers    map[WorkloadID]*watcher
	trouble     map[PoolName]string // why an engine could not tell a pool's nodes
	bursts      bursts
	cancel      context.CancelFunc // of the running loop
	running     sync.WaitGroup

	// overdue is how long past its time-out and grace a workload may run before
	// compute stops it, should the engine not have done so.
	overdue   time.Duration
	leaseTime time.Duration
}

// New makes the service. Owners follow with RegisterOwner before Start.
func New(cfg Config) *Service {
	if cfg.Currency == "" {
		cfg.Currency = "AED"
	}
	if cfg.Retention == 0 {
		cfg.Retention = 7 * 24 * time.Hour
	}
	if cfg.PrepareTimeout == 0 {
		cfg.PrepareTimeout = time.Hour
	}
	cfg.Zone, cfg.Machine = cmp.Or(cfg.Zone, residency.Home), cmp.Or(cfg.Machine, machineNode)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{
		cfg: cfg, log: cfg.Log, now: cfg.Now, owners: map[Kind]Owner{}, wake: make(chan struct{}, 1),
		starts: map[string]*sync.RWMutex{}, touched: map[WorkloadID]bool{}, again: map[WorkloadID]time.Time{}, idle: map[WorkloadID]time.Time{}, paces: map[WorkloadID]pace{}, cycled: make(chan struct{}),
		reconcilers: map[WorkloadID]*reconciler{}, watchers: map[WorkloadID]*watcher{}, trouble: map[PoolName]string{}, overdue: time.Minute, leaseTime: leaseTime,
	}
	for name := range cfg.Engines {
		s.starts[name] = &sync.RWMutex{}
	}
	return s
}

// RegisterOwner makes o the owner of a kind of workload. Call it before Start.
func (s *Service) RegisterOwner(kind Kind, o Owner) { s.owners[kind] = o }

// ApplyPool makes a pool or changes it, and says which. Only what changed is
// written; applying the same again is no change. Needs pool.apply. Errors:
// fault.Invalid; fault.Conflict when zone or engine change under running work.
func (s *Service) ApplyPool(ctx context.Context, name PoolName, spec PoolSpec) (Pool, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolApply, policy.Object{Kind: "pool", Name: string(name)}); err != nil {
		return Pool{}, "", err
	}
	return s.applyPool(ctx, name, spec, false)
}

// PlanPool is ApplyPool that changes nothing: the pool is as it would be.
func (s *Service) PlanPool(ctx context.Context, name PoolName, spec PoolSpec) (Pool, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolApply, policy.Object{Kind: "pool", Name: string(name)}); err != nil {
		return Pool{}, "", err
	}
	return s.applyPool(ctx, name, spec, true)
}

// EnsureHome makes the pool of this machine if there is none, and otherwise
// brings its zone, nodes and isolation up to those of the machine now.
// It is for the start of Falaj, before any principal.
func (s *Service) EnsureHome(ctx context.Context, engineName string) (Pool, error) {
	if identity.From(ctx).Kind == "" {
		ctx = identity.With(ctx, identity.Loop("compute"))
	}
	spec := PoolSpec{Zone: s.cfg.Zone, Engine: engineName}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		p, err := s.cfg.Store.Pool(ctx, tx, Home)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		spec = p.Spec()
		if len(spec.Nodes) == 1 && spec.Nodes[0].Name == machineNode {
			spec.Nodes = nil // as detected before, and so again
		}
		spec.Isolation = ""
		if s.misplaced(spec.Zone, spec.Engine, spec.Elastic) != "" {
			s.log.WarnContext(ctx, "the zone of the local pool is set to the server's", slog.String("pool", string(Home)), slog.String("was", string(spec.Zone)), slog.String("zone", string(s.cfg.Zone)))
			spec.Zone = s.cfg.Zone
		}
		return nil
	})
	if err != nil {
		return Pool{}, err
	}
	p, _, err := s.applyPool(ctx, Home, spec, false)
	return p, err
}

// machineNode names the only node of a pool that lists none.
const machineNode = "local"

// complete fills in the defaults of a pool's manifest.
func (s *Service) complete(spec PoolSpec) (PoolSpec, error) {
	if err := spec.Validate(); err != nil {
		return spec, err
	}
	if spec.Cost != nil {
		if err := spec.Cost.Validate(s.cfg.Currency); err != nil {
			return spec, fault.Wrap(err, "cost")
		}
	}
	if spec.Engine == "" {
		spec.Engine = "local"
	}
	if spec.Zone == "" {
		spec.Zone = s.cfg.Zone
	}
	if spec.Mode == "" {
		spec.Mode = Exclusive
	}
	e, ok := s.cfg.Engines[spec.Engine]
	if !ok {
		return spec, fault.New(fault.Invalid, "engine: %.64q is not configured", spec.Engine).
			WithHint("Configured engines: %s.", strings.Join(slices.Sorted(maps.Keys(s.cfg.Engines)), ", "))
	}
	if err := s.checkZone(spec); err != nil {
		return spec, err
	}
	if e.Check != nil {
		if err := e.Check(spec.Options); err != nil {
			return spec, err
		}
	}
	if spec.Ahead > 0 && !e.Remote {
		return spec, fault.New(fault.Invalid, "ahead: engine %s has no queue of its own, so ahead must be 0", spec.Engine)
	}
	if spec.Isolation == "" {
		spec.Isolation = e.Isolation
	}
	if !e.Isolation.AtLeast(spec.Isolation) {
		return spec, fault.New(fault.Invalid, "isolation: engine %s isolates by %s here, less than the pool's %s", spec.Engine, e.Isolation, spec.Isolation).
			WithHint("Set isolation to %s or weaker.", e.Isolation)
	}
	if spec.Elastic != nil {
		return spec, spec.Elastic.provided(spec.Engine, e)
	}
	if _, tells := e.Driver.(engine.Inventory); len(spec.Nodes) == 0 && !tells {
		if e.Machine.CPU == 0 {
			return spec, fault.New(fault.Invalid, "nodes: a pool of engine %s must list its nodes", spec.Engine)
		}
		spec.Nodes = []Node{{Name: machineNode, CPU: e.Machine.CPU, Memory: e.Machine.Memory, Accelerators: e.Machine.Accelerators, Labels: e.Labels}}
	}
	return spec, nil
}

func (s *Service) applyPool(ctx context.Context, name PoolName, spec PoolSpec, dryRun bool) (Pool, project.Change, error) {
	if err := id.CheckName("pool name", string(name)); err != nil {
		return Pool{}, "", err
	}
	spec, err := s.complete(spec)
	if err != nil {
		return Pool{}, "", err
	}
	// What the engine cannot say now it is asked again later.
	seen, trouble := s.inventory(ctx, spec.Engine, spec.Options)
	if fault.Is(trouble, fault.Invalid) {
		return Pool{}, "", fault.Wrap(trouble, "applying pool %s", name)
	}
	var p Pool
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) error {
		old, err := s.cfg.Store.Pool(ctx, tx, name)
		switch {
		case fault.Is(err, fault.NotFound):
			change = project.Created
			old = Pool{Name: name, CreatedAt: s.now().UTC()}
			all, err := s.cfg.Store.Pools(ctx, tx)
			if err != nil {
				return err
			}
			if len(all) >= maxPools {
				return fault.New(fault.Exhausted, "the limit of %d pools is reached", len(all))
			}
		case err != nil:
			return err
		case sameSpec(old.Spec(), spec):
			p, change = old, project.Unchanged
			return nil
		default:
			change = project.Updated
			if err := s.mayMove(ctx, tx, old, spec); err != nil {
				return err
			}
			if err := s.mayStay(ctx, tx, old, spec); err != nil {
				return err
			}
		}
		if trouble != nil && old.Engine == spec.Engine {
			seen = old.Seen
		}
		p = Pool{
			Name: name, Zone: spec.Zone, Engine: spec.Engine, Mode: spec.Mode, Listed: spec.Nodes, Seen: seen, Isolation: spec.Isolation,
			PricePerHour: spec.PricePerHour, PowerWatts: spec.PowerWatts, Cost: spec.Cost, Closed: spec.Closed, Options: spec.Options, Env: spec.Env, Elastic: spec.Elastic,
			Ahead: spec.Ahead, Topology: spec.Topology, Maintenance: spec.Maintenance, Hardware: spec.Hardware, Warned: old.Warned,
			CreatedAt: old.CreatedAt, UpdatedAt: s.now().UTC(), Revision: old.Revision + 1,
		}
		if dryRun {
			return nil
		}
		if err := s.cfg.Store.SavePool(ctx, tx, p); err != nil {
			return err
		}
		if err := s.reprice(ctx, tx, old, p); err != nil {
			return err
		}
		err = audit.Append(ctx, tx, audit.Entry{
			Action: string(ActionPoolApply), Object: "pool " + string(name),
			Detail: map[string]any{"change": change, "zone": p.Zone, "engine": p.Engine, "isolation": p.Isolation, "nodes": len(p.Listed)},
		})
		if err != nil {
			return err
		}
		tx.OnCommit(s.Wake)
		return event.Publish(ctx, tx, "", EventPoolApplied, PoolEvent{Pool: name})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, "", apply)
	}
	if err != nil {
		return Pool{}, "", fault.Wrap(err, "applying pool %s", name)
	}
	if !dryRun {
		s.troubled(name, trouble)
	}
	return s.current(p, nil, nil), change, nil
}

// mayMove refuses to move a pool under work that runs on it.
func (s *Service) mayMove(ctx context.Context, tx *store.Tx, old Pool, spec PoolSpec) error {
	if old.Zone == spec.Zone && old.Engine == spec.Engine && old.Mode == spec.Mode {
		return nil
	}
	if s.misplaced(old.Zone, old.Engine, old.Elastic) != "" && old.Engine == spec.Engine && old.Mode == spec.Mode {
		return nil // its machine does not move: the zone was wrong, and is corrected
	}
	ws, err := s.cfg.Store.Active(ctx, tx)
	if err != nil {
		return err
	}
	for _, w := range ws {
		if w.Pool == old.Name {
			return fault.New(fault.Conflict, "zone, engine and mode of pool %s cannot change while %s runs on it", old.Name, w.Label).
				WithHint("Close the pool, wait until it is empty, then change it.")
		}
	}
	return nil
}

func sameSpec(a, b PoolSpec) bool {
	same := slices.EqualFunc(a.Nodes, b.Nodes, Node.equal) && maps.Equal(a.Options, b.Options) && maps.Equal(a.Env, b.Env) && reflect.DeepEqual(a.Cost, b.Cost) &&
		reflect.DeepEqual(a.Elastic, b.Elastic)
	a.Nodes, b.Nodes, a.Options, b.Options, a.Env, b.Env, a.Cost, b.Cost, a.Elastic, b.Elastic = nil, nil, nil, nil, nil, nil, nil, nil, nil, nil
	return same && fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// Pools lists all pools by name, with what they have, use and run. Needs
// pool.read.
func (s *Service) Pools(ctx context.Context) ([]Pool, error) {
	if err := s.cfg.Authorizer.Allow(ctx, ActionPoolRead, policy.Object{Kind: "pool"}); err != nil {
		return nil, err
	}
	var pools []Pool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if pools, _, err = s.all(ctx, tx); err != nil {
			return err
		}
		if err := s.renting(ctx, tx, pools); err != nil {
			return err
		}
		index := make(map[PoolName]*Pool, len(pools))
		for i := range pools {
			index[pools[i].Name] = &pools[i]
		}
		active, err := s.cfg.Store.Active(ctx, tx)
		if err != nil {
			return err
		}
		for _, w := range active {
			if p := index[w.Pool]; p != nil {
				p.Used = p.Used.Plus(w.Amount())
				p.Running++
			}
		}
		return nil
	})
	return pools, err
}

// Pool is one of Pools. Needs pool.read. Error: fault.NotFound.
func (s *Service) Pool(ctx context.Context, name PoolName) (Pool, error) {
	pools, err := s.Pools(ctx)
	if err != nil {
		return Pool{}, err
	}
	i := slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
	if i < 0 {
		return Pool{}, fault.New(fault.NotFound, "pool %.64q not found", string(name)).WithHint("List pools with `falaj pool list`.")
	}
	return pools[i], nil
}

// CheckPools refuses names of pools that there are not, and pools of which none
// isolates as much as is demanded in a zone that the data allow.
func (s *Service) CheckPools(ctx context.Context, names []string, least scheduler.Isolation, label residency.Label) error {
	if len(names) == 0 {
		return nil
	}
	var why []string
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		why = nil
		for _, name := range names {
			p, err := s.cfg.Store.Pool(ctx, tx, PoolName(name))
			s.locate(&p)
			switch {
			case fault.Is(err, fault.NotFound):
				return s.noPool(ctx, tx, name)
			case err != nil:
				return err
			case p.Misplaced != "":
				why = append(why, fmt.Sprintf("pool %s accepts no workloads: %s", name, p.Misplaced))
			case !label.Allows(p.Zone):
				why = append(why, fmt.Sprintf("pool %s is in %s, outside the data's residency %s", name, p.Zone, label))
			case !p.Allows(label):
				why = append(why, fmt.Sprintf("pool %s runs its workloads on a machine in %s, outside the data's residency %s", name, p.MachineZone, label))
			case !p.Isolation.AtLeast(least):
				why = append(why, fmt.Sprintf("pool %s provides isolation %s, weaker than the required %s", name, p.Isolation, least))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(why) == len(names) {
		err := fault.New(fault.Invalid, "%s", strings.Join(why, "; ")).
			WithHint("Name another pool. Jobs submitted without isolation accept the isolation of the pools they name.")
		return audit.Refuse(err, audit.Entry{})
	}
	return nil
}

// noPool is the error of a name that no pool has.
func (s *Service) noPool(ctx context.Context, tx *store.Tx, name string) error {
	pools, err := s.cfg.Store.Pools(ctx, tx)
	if err != nil {
		return err
	}
	have := make([]string, len(pools))
	for i, p := range pools {
		have[i] = string(p.Name)
	}
	return fault.New(fault.Invalid, "pool %.64q not found", name).WithHint("Pools: %s.", strings.Join(have, ", "))
}

// Submit queues a workload in the caller's transaction. Submitting an
// identifier again is no change. The caller has asked whether it may.
func (s *Service) Submit(ctx context.Context, tx *store.Tx, r Request) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if s.owners[r.Kind] == nil && r.Spec == nil {
		return fault.New(fault.Internal, "workload %s has neither an owner nor a command", r.ID)
	}
	_, err := s.cfg.Store.Workload(ctx, tx, r.ID)
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
		before, err := s.cfg.Store.Workload(ctx, tx, r.After)
		if err != nil {
			return fault.Wrap(err, "resuming from %s", r.After)
		}
		served = before.served()
		if stop, kept := strings.CutPrefix(before.Stop, resized); r.InLine && kept {
			// This one stands where that one did, which gives its place up now.
			submitted, before.Stop, changed = before.Submitted, stop, append(changed, before.ID)
			if err := s.cfg.Store.UpdateWorkload(ctx, tx, before); err != nil {
				return err
			}
		}
	}
	err = s.cfg.Store.InsertWorkload(ctx, tx, Workload{
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
	At           time.Time `json:"at,omitzero" doc:"Latest start: by the grace of workloads being preempted, or the time-outs of running ones, if the job were first; absent when unknown"`
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
func (s *Service) DryRun(ctx context.Context, r Request) (Outlook, error) {
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

// Saved is told of a running workload that has saved, by a time, what it did: only
// what it does after that is lost with it. It is recorded in the caller's
// transaction; what no longer runs is left as it is.
func (s *Service) Saved(ctx context.Context, tx *store.Tx, wid WorkloadID, at time.Time) error {
	w, err := s.cfg.Store.Workload(ctx, tx, wid)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil || w.State != Running || !at.After(w.SavedAt) {
		return err
	}
	w.SavedAt = at.UTC()
	tx.OnCommit(func() { s.touch(wid) })
	return s.cfg.Store.UpdateWorkload(ctx, tx, w)
}

// Idle is told since when the owner of a running workload has known, without a busier
// moment, that its accelerators are idle; zero is that they are not, or it is unknown.
// It is not kept: after a restart it is told anew.
func (s *Service) Idle(wid WorkloadID, since time.Time) {
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

// pace is how fast a workload is with some workers: see scheduler.Workload. It holds as
// long as least is the least that the workload may have.
type pace struct {
	least   int
	speed   []float64
	restart time.Duration
}

// Pace is told how fast a workload is with its least workers, with one more, and so
// on, in terms of the least, and what a restart costs it; no speeds is what was said
// when it was submitted. What was found for another least than it has now counts for
// nothing. It is not kept: after a restart it is told anew.
func (s *Service) Pace(wid WorkloadID, least int, speed []float64, restart time.Duration) {
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
func (s *Service) Bound(ctx context.Context, tx *store.Tx, wid WorkloadID, least, most int, speed []float64) error {
	w, err := s.cfg.Store.Workload(ctx, tx, wid)
	if err != nil || w.State == Ended || w.Stop != "" {
		return err
	}
	w.Workers, w.MaxWorkers, w.Speed = least, most, speed
	tx.OnCommit(func() { s.touch(wid) })
	return s.cfg.Store.UpdateWorkload(ctx, tx, w)
}

// settled forgets what was told of a workload that is over.
func (s *Service) settled(wid WorkloadID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, wid)
	delete(s.paces, wid)
}

// outlived forgets what was told of workloads that are over: of those that were known
// to a cycle and are not among the unsettled that it read.
func (s *Service) outlived(n news, unsettled []Workload) {
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

// Cancel ends a workload in the caller's transaction: at once when it is
// queued, otherwise it is asked to stop and killed after its grace. reason is
// for people. Cancelling what has ended is no change. Error: fault.NotFound.
func (s *Service) Cancel(ctx context.Context, tx *store.Tx, wid WorkloadID, reason string) error {
	w, err := s.cfg.Store.Workload(ctx, tx, wid)
	if err != nil {
		return err
	}
	switch {
	case w.State == Ended || w.Stop != "":
		return nil
	case w.State == Queued:
		w.Stop = reason
		return s.endIn(ctx, tx, w, engine.Status{State: engine.Ended, Reason: engine.Stopped, ExitCode: -1, Message: reason}, nil)
	}
	w.Stop = reason
	if err := s.cfg.Store.UpdateWorkload(ctx, tx, w); err != nil {
		return err
	}
	tx.OnCommit(func() {
		s.wakeReconciler(wid)
		s.touch(wid)
	})
	return nil
}

// Workload gives a workload. Error: fault.NotFound.
func (s *Service) Workload(ctx context.Context, wid WorkloadID) (w Workload, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		w, err = s.cfg.Store.Workload(ctx, tx, wid)
		return err
	})
	return w, err
}

// Wait returns the workload once it is settled.
func (s *Service) Wait(ctx context.Context, wid WorkloadID) (Workload, error) {
	return s.await(ctx, wid, func(w Workload) bool { return w.Settled })
}

// await returns the workload once it is as wanted.
func (s *Service) await(ctx context.Context, wid WorkloadID, wanted func(Workload) bool) (Workload, error) {
	changed := s.watch(wid)
	defer func() { s.unwatch(wid, changed) }()
	for {
		w, err := s.Workload(ctx, wid)
		if err != nil || wanted(w) {
			return w, err
		}
		var glanced <-chan time.Time
		if s.others() {
			glanced = time.After(glance) // another process changes it
		}
		select {
		case <-changed.ch:
			changed = s.watch(wid)
		case <-glanced:
		case <-ctx.Done():
			return w, ctx.Err()
		}
	}
}

// The waits of Why: for the cycle that looks at what was just submitted, and
// for an engine's own words.
const (
	whyCycle  = 2 * time.Second
	whyEngine = 5 * time.Second
)

// Why says in words why a workload is where it is. Error: fault.NotFound.
func (s *Service) Why(ctx context.Context, wid WorkloadID) ([]string, error) {
	waiting, cancel := context.WithTimeout(ctx, whyCycle)
	defer cancel()
	var w Workload
	for {
		s.mu.Lock()
		cycled, touched, loops := s.cycled, s.touched[wid], s.cancel != nil
		s.mu.Unlock()
		var err error
		if w, err = s.Workload(ctx, wid); err != nil {
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
func (s *Service) Waits(wid WorkloadID) (of []Reason, possible bool) {
	wait, waits, _ := s.wait(wid)
	return reasons(wait.Reasons), !waits || wait.Possible || s.bursts.ever(wid)
}

// Waiting counts the workloads that waited in the last cycle by the code of the first
// reason, of some thousand at most; nothing where another process schedules.
func (s *Service) Waiting() map[scheduler.Code]int {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return nil
	}
	return s.state.WaitCodes(maxWaiting)
}

// maxWaiting is how many waits are explained for the metrics: cycles wait meanwhile.
const maxWaiting = 2000

// Schedules reports whether this process schedules, of several that share a database.
func (s *Service) Schedules() bool { return !s.others() || s.lease.Load() != nil }

// Growth is how many workers more a running workload could have where it is, by
// the last cycle.
func (s *Service) Growth(wid WorkloadID) int {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return 0
	}
	return s.state.Growth(scheduler.ID(wid))
}

// wait is why a workload waited in the last cycle, and whether the next one reads all
// anew.
func (s *Service) wait(wid WorkloadID) (wait scheduler.Wait, waits, stale bool) {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return scheduler.Wait{}, false, false
	}
	wait, waits = s.state.Why(scheduler.ID(wid))
	return wait, waits, s.stale
}

// notice is what a workload whose accelerators are idle has to expect.
func (s *Service) notice(wid WorkloadID) string {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return ""
	}
	return s.state.Idle(scheduler.ID(wid))
}

// explain asks the engine why what it was given does not run yet.
func (s *Service) explain(ctx context.Context, w Workload) []string {
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

// Profile looks for a while at what a worker of a running workload does. Errors:
// fault.NotFound; fault.Conflict when it does not run, or there is nothing to see;
// fault.Unsupported when its engine cannot, or its node.
func (s *Service) Profile(ctx context.Context, wid WorkloadID, r profiler.Request) (profiler.Result, error) {
	w, err := s.Workload(ctx, wid)
	if err != nil {
		return profiler.Result{}, err
	}
	if w.Handle == "" {
		return profiler.Result{}, fault.New(fault.Conflict, "workload %s has not started", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	if err != nil {
		return profiler.Result{}, err
	}
	power, ok := e.Driver.(engine.Profiler)
	if !ok {
		return profiler.Result{}, fault.New(fault.Unsupported, "the engine of pool %s does not support profiling", w.Pool)
	}
	return power.Profile(ctx, w.Handle, r)
}

// outputs is the power of a workload's engine to read what its workers have written.
func (s *Service) outputs(ctx context.Context, wid WorkloadID) (engine.OutputFiles, engine.Handle, error) {
	w, err := s.Workload(ctx, wid)
	if err != nil {
		return nil, "", err
	}
	if w.Handle == "" {
		return nil, "", fault.New(fault.Conflict, "workload %s has not started", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	if err != nil {
		return nil, "", err
	}
	power, ok := e.Driver.(engine.OutputFiles)
	if !ok {
		return nil, "", fault.New(fault.Unsupported, "the files of workload %s stay on the nodes of pool %s until it ends", wid, w.Pool).
			WithHint("To see a file earlier, log it with mlflow.log_artifact: it becomes an artifact of the run at once.")
	}
	return power, w.Handle, nil
}

// ListOutput lists what the workers of a running workload have written below their output
// directories on the nodes of its engine, at and below a path. Errors: fault.NotFound;
// fault.Conflict when it does not run; fault.Timeout; fault.Unsupported.
func (s *Service) ListOutput(ctx context.Context, wid WorkloadID, below string) (outputdir.Listing, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return outputdir.Listing{}, err
	}
	return power.ListOutput(ctx, h, below)
}

// OpenOutput opens a file that ListOutput lists, if it has no more than most bytes: as long
// as it is now. It must be closed. Errors as of ListOutput; fault.TooLarge.
func (s *Service) OpenOutput(ctx context.Context, wid WorkloadID, path string, most int64) (io.ReadCloser, error) {
	power, h, err := s.outputs(ctx, wid)
	if err != nil {
		return nil, err
	}
	return power.OpenOutput(ctx, h, path, most)
}

// Members gives what is known of each worker of a workload, in order; nothing
// before it was started. Errors: fault.NotFound; fault.Unavailable when its
// engine does not answer.
func (s *Service) Members(ctx context.Context, wid WorkloadID) ([]engine.Member, error) {
	w, err := s.Workload(ctx, wid)
	if err != nil || w.Handle == "" {
		return nil, err
	}
	e, err := s.engineFor(ctx, w)
	if err != nil {
		return nil, err
	}
	if power, ok := e.Driver.(engine.Members); ok {
		members, err := power.Members(ctx, w.Handle)
		for i := range members {
			members[i].Role = w.role(members[i].Index)
		}
		return members, err
	}
	st, err := e.Driver.Status(ctx, w.Handle)
	if err != nil {
		return nil, err
	}
	m := engine.Member{
		Role: w.role(0), State: st.State, Reason: st.Reason, ExitCode: st.ExitCode, Signal: st.Signal, Message: st.Message,
		Started: st.Started, Ended: st.Ended, CPU: st.CPU, PeakRSS: st.PeakRSS,
	}
	if len(w.Nodes) > 0 {
		m.Node = w.Nodes[0]
	}
	return []engine.Member{m}, nil
}

// Driver gives the engine that has a workload, for those who speak for it: the
// agents on its nodes. Errors: fault.NotFound; fault.Conflict before it has its
// place; fault.Unavailable when the engine is not configured.
func (s *Service) Driver(ctx context.Context, wid WorkloadID) (engine.Driver, error) {
	w, err := s.Workload(ctx, wid)
	if err != nil {
		return nil, err
	}
	if w.Pool == "" {
		return nil, fault.New(fault.Conflict, "workload %s is not placed", wid)
	}
	e, err := s.engineOf(ctx, w.Pool)
	return e.Driver, err
}

func texts(reasons []scheduler.Reason) []string {
	out := make([]string, len(reasons))
	for i, r := range reasons {
		out[i] = r.Text
	}
	return out
}

// Logs reads a workload's combined output from a byte offset. With follow it
// waits for the start and goes on until the end or until ctx is done. Without
// output the reader is empty. Errors: fault.NotFound; fault.Gone when the
// output was forgotten, or is with an engine that is no longer configured.
func (s *Service) Logs(ctx context.Context, wid WorkloadID, offset int64, follow bool) (io.ReadCloser, error) {
	w, err := s.Workload(ctx, wid)
	if err != nil {
		return nil, err
	}
	if follow && w.State != Running && w.State != Ended {
		w, err = s.await(ctx, wid, func(w Workload) bool { return w.State == Running || w.State == Ended })
		if err != nil {
			return nil, err
		}
	}
	if w.Handle == "" {
		if w.Settled && w.Status.Reason != engine.NotStarted && !w.StartedAt.IsZero() {
			kept := s.cfg.Retention
			if w.Kind == Replica {
				kept = min(briefly, kept)
			}
			return nil, fault.New(fault.Gone, "the output of %s was removed after %s", w.Label, kept)
		}
		return io.NopCloser(strings.NewReader("")), nil
	}
	e, err := s.engineFor(ctx, w)
	if err != nil {
		return nil, err
	}
	return e.Driver.Logs(ctx, w.Handle, offset, follow)
}

// Usage lists what a project used since t, newest first, at most limit rows.
// Needs job.read.
func (s *Service) Usage(ctx context.Context, p project.Name, since time.Time, limit int) (u []Usage, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, "job.read", policy.Object{Project: string(p), Kind: "usage"}); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		u, err = s.cfg.Store.Usages(ctx, tx, p, since, min(max(limit, 1), 1000))
		return err
	})
	return u, err
}

func (s *Service) engineOf(ctx context.Context, name PoolName) (Engine, error) {
	var p Pool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.cfg.Store.Pool(ctx, tx, name)
		return err
	})
	if err != nil {
		return Engine{}, err
	}
	e, ok := s.cfg.Engines[p.Engine]
	if !ok {
		return Engine{}, fault.New(fault.Unavailable, "engine %s of pool %s is %w", p.Engine, name, errUnconfigured)
	}
	return e, nil
}

// errUnconfigured is of an engine that the configuration does not have, any more
// or for a while.
var errUnconfigured = errors.New("not configured")

// engineFor is engineOf for who asks what a workload says or has left: once it
// has ended, an engine that is not configured is fault.Gone.
func (s *Service) engineFor(ctx context.Context, w Workload) (Engine, error) {
	e, err := s.engineOf(ctx, w.Pool)
	if w.State == Ended && errors.Is(err, errUnconfigured) {
		err = fault.New(fault.Gone, "the output of %s is unavailable: the engine of pool %s is %w", w.Label, w.Pool, errUnconfigured)
	}
	return e, err
}

// Outcome says in words how a workload ended; empty before.
func (w Workload) Outcome() string {
	if w.State != Ended {
		return ""
	}
	st := w.Status
	if st.State == engine.Lost {
		words := "lost: pool " + string(w.Pool) + " does not know its exit state any more"
		if st.Message != "" {
			words += ": " + st.Message
		}
		return words
	}
	switch st.Reason {
	case engine.NodeFailed:
		return strings.TrimSuffix("its node failed: "+st.Message, ": ")
	case engine.Preempted:
		return strings.TrimSuffix("preempted by its engine: "+st.Message, ": ")
	case engine.Reclaimed:
		return "ended because its accelerators were idle: " + st.Message
	case engine.Exited:
		return fmt.Sprintf("exited with code %d", st.ExitCode)
	case engine.Signalled:
		return "killed by " + st.Signal
	case engine.TimedOut:
		return fmt.Sprintf("stopped after its time-out of %s", w.Timeout)
	case engine.OutOfMemory:
		return fmt.Sprintf("killed for exceeding its %s of memory", w.Largest().Memory)
	case engine.OutOfDisk, engine.OutOfTasks:
		words, _, _ := strings.Cut(st.Message, "\n") // then, what limits could not be set
		return words
	case engine.NotStarted:
		return "not started: " + st.Message
	case engine.Stopped:
		if w.Stop != "" {
			return w.Stop
		}
		return "stopped externally"
	}
	return string(st.Reason)
}
