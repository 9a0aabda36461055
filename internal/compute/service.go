package compute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
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

// Services are the ways to compute, by what their callers do. Safe for concurrent use.
type Services struct {
	Pools      *Pools
	Queues     *Queues
	Costs      *Costs
	Workloads  *Workloads
	Programs   *Programs
	Records    *Records
	Scheduling *Scheduling
}

// core is what all services share: configuration, clock, stored workloads, and the state of the
// scheduler.
type core struct {
	poolStore     PoolStore
	queueStore    QueueStore
	workloadStore WorkloadStore
	usageStore    UsageStore
	budgetStore   BudgetStore
	elasticStore  ElasticStore

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
	cycle       sync.Mutex
	deciding    sync.Mutex
	sized       time.Time                // of a cycle: the last that planned sizes
	reopen      time.Time                // of a cycle: when the next quarantine ends; zero is never
	refusalEnds map[WorkloadID]time.Time // of a cycle: when the refusals of a pending workload end
	state       *scheduler.State         // nil until the first cycle, and while another process schedules
	stale       bool                     // the next cycle reads all of the world into a new state
	// From the previous state: what is stored nowhere else.
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
func New(cfg Config) Services {
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
	s := &core{
		poolStore: cfg.Store, queueStore: cfg.Store, workloadStore: cfg.Store, usageStore: cfg.Store, budgetStore: cfg.Store, elasticStore: cfg.Store,
		cfg: cfg, log: cfg.Log, now: cfg.Now, owners: map[Kind]Owner{}, wake: make(chan struct{}, 1),
		starts: map[string]*sync.RWMutex{}, touched: map[WorkloadID]bool{}, refusalEnds: map[WorkloadID]time.Time{}, idle: map[WorkloadID]time.Time{}, paces: map[WorkloadID]pace{}, cycled: make(chan struct{}),
		reconcilers: map[WorkloadID]*reconciler{}, watchers: map[WorkloadID]*watcher{}, trouble: map[PoolName]string{}, overdue: time.Minute, leaseTime: leaseTime,
	}
	for name := range cfg.Engines {
		s.starts[name] = &sync.RWMutex{}
	}
	records := &Records{s}
	return Services{
		Pools: &Pools{s}, Queues: &Queues{s}, Costs: &Costs{s}, Workloads: &Workloads{s}, Programs: &Programs{s},
		Records: records, Scheduling: &Scheduling{core: s, records: records},
	}
}

// endOrStop ends a workload in the caller's transaction: at once when it is
// queued, otherwise it is asked to stop and killed after its grace. reason is
// for people. Cancelling what has ended is no change. Error: fault.NotFound.
func (s *core) endOrStop(ctx context.Context, tx *store.Tx, wid WorkloadID, reason string) error {
	w, err := s.workloadStore.Workload(ctx, tx, wid)
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
	if err := s.workloadStore.UpdateWorkload(ctx, tx, w); err != nil {
		return err
	}
	tx.OnCommit(func() {
		s.wakeReconciler(wid)
		s.touch(wid)
	})
	return nil
}

// workload gives a workload. Error: fault.NotFound.
func (s *core) workload(ctx context.Context, wid WorkloadID) (w Workload, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		w, err = s.workloadStore.Workload(ctx, tx, wid)
		return err
	})
	return w, err
}

// await returns the workload once it is as wanted.
func (s *core) await(ctx context.Context, wid WorkloadID, wanted func(Workload) bool) (Workload, error) {
	changed := s.watch(wid)
	defer func() { s.unwatch(wid, changed) }()
	for {
		w, err := s.workload(ctx, wid)
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

// wait is why a workload waited in the last cycle, and whether the next one reads all
// anew.
func (s *core) wait(wid WorkloadID) (wait scheduler.Wait, waits, stale bool) {
	s.deciding.Lock()
	defer s.deciding.Unlock()
	if s.state == nil {
		return scheduler.Wait{}, false, false
	}
	wait, waits = s.state.Why(scheduler.ID(wid))
	return wait, waits, s.stale
}

func (s *core) engineOf(ctx context.Context, name PoolName) (Engine, error) {
	var p Pool
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.poolStore.Pool(ctx, tx, name)
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
func (s *core) engineFor(ctx context.Context, w Workload) (Engine, error) {
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
		return fmt.Sprintf("killed for exceeding its memory limit of %s", w.Largest().Memory)
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
