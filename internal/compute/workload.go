package compute

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// WorkloadID names a workload; the owner makes it: "att_01J…", "bld_01J…".
type WorkloadID string

// Kind of workload.
type Kind string

// The kinds.
const (
	JobAttempt Kind = "job"
	Build      Kind = "build"
	Query      Kind = "query"
	Replica    Kind = "replica" // of a served model; in place its process is the server's own
)

// Kinds are all of them; replicas, which are forgotten first, come last.
var Kinds = []Kind{JobAttempt, Build, Query, Replica}

// State of a workload.
type State string

// The states. The diagram is checked by TestTransitions.
//
//	stateDiagram-v2
//	    [*] --> queued: submitted
//	    queued --> placed: the scheduler gave it a pool
//	    queued --> ended: cancelled
//	    placed --> queued: the pool may not take it any more
//	    placed --> running: the engine started it
//	    placed --> ended: not started, or cancelled
//	    running --> ended: exited, stopped, timed out, lost
//	    ended --> [*]
const (
	Queued  State = "queued"
	Placed  State = "placed"
	Running State = "running"
	Ended   State = "ended"
)

var transitions = map[State][]State{
	Queued:  {Placed, Ended},
	Placed:  {Queued, Running, Ended},
	Running: {Ended},
	Ended:   nil,
}

// CanBecome reports whether the transition exists.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }

// Workload is something that runs once on a pool.
type Workload struct {
	ID      WorkloadID
	Project project.Name
	Kind    Kind
	Label   string          // what people call it: "job_01J…"
	Request resource.Amount // of each worker, without Roles
	// Workers is the size of the gang, and MaxWorkers what it can use: it gets
	// as many as fit when it is placed. 0 is one, and Workers.
	Workers, MaxWorkers int
	// Roles are the gang where its workers differ; it has all of them, or none.
	Roles []scheduler.Role
	// Within is the level of its pool's topology of which the gang is in one domain,
	// and PerNode how many of its workers a node has at most; empty and 0 are any.
	Within  string
	PerNode int
	// InPlace wants the files of the server, so no pool on other machines.
	InPlace        bool
	Isolation      scheduler.Isolation // at least
	Residency      residency.Label
	Classification project.Classification
	Pools          []string // only these; empty is any
	Queue          string   // whose quota it uses; empty is none
	User           string   // who asked for it
	Model          string   // that it is to make
	Preemptible    bool     // it saves and waits again when it is stopped for another
	Served         float64  // accelerator-seconds of those that it goes on from: see scheduler.Running.Attained
	Priority       int      // higher first
	Timeout, Grace time.Duration
	Due            time.Time      // when it should have ended; zero is whenever
	Expected       time.Duration  // how long it runs, with what is uncertain of that; 0 is unknown
	DelayCost      float64        // of an hour in which it waits; 0 is what its queue or project says
	Data           resource.Bytes // that it needs where it runs
	// Speed, Restart and Target are for goodput: see scheduler.Workload.
	Speed   []float64
	Restart time.Duration
	Target  int
	// Spec is what to run, for kinds without an Owner that prepares it.
	Spec *engine.Spec

	State     State
	Submitted time.Time
	NotBefore time.Time
	PlacedAt  time.Time
	StartedAt time.Time
	EndedAt   time.Time

	// Refusals are of pools whose engines refused to start it, until it has started.
	Refusals []Refusal

	// Since placed.
	Pool   PoolName
	Placed int      // how many workers
	Nodes  []string // of each worker; empty where the engine picks
	// Machine is what the machines are called that have its workers, as records say it;
	// empty where the engine picks, until it has ended. Zone is theirs.
	Machine string
	Zone    residency.Zone
	Passed  []string // why the pools that may not take it were passed by
	// Since running.
	Handle  engine.Handle
	SavedAt time.Time // when it last saved what it did
	// Stop says why the workload is to end; empty while it is wanted.
	Stop string
	// Status is final once the state is Ended.
	Status engine.Status
	// Failure is the kind of error that kept the workload from starting.
	Failure string
	Hint    string
	// Settled is true when the owner has taken note of the end.
	Settled  bool
	Denials  int // refused attempts recorded in the audit journal
	Revision int64
}

// Refusal says that an engine refused to start a workload on a pool.
type Refusal struct {
	Pool  PoolName
	Why   string
	Times int
	Until time.Time // the pool is not tried again before
}

// The wait after a refusal, which doubles with each of one pool.
const (
	firstRefusal = time.Minute
	lastRefusal  = time.Hour
)

// refusedBy is Refusals with one of the workload's pool.
func (w Workload) refusedBy(why error, now time.Time) (all []Refusal) {
	text := why.Error()
	if hint := fault.HintOf(why); hint != "" {
		text += " (" + hint + ")"
	}
	r := Refusal{Pool: w.Pool}
	for _, was := range w.Refusals {
		if was.Pool == w.Pool {
			r = was
		} else {
			all = append(all, was)
		}
	}
	r.Why, r.Until = text, now.Add(min(firstRefusal<<min(r.Times, 10), lastRefusal))
	r.Times++
	return append(all, r)
}

// refusals are those that hold now, for the scheduler, and when the first of them ends.
func (w Workload) refusals(now time.Time) (all map[string]string, until time.Time) {
	for _, r := range w.Refusals {
		if !r.Until.After(now) {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[string(r.Pool)] = fmt.Sprintf("did not start it and is retried after %s: %s", r.Until.UTC().Format(time.RFC3339), r.Why)
		if until.IsZero() || r.Until.Before(until) {
			until = r.Until
		}
	}
	return all, until
}

// Request describes a workload to submit.
type Request struct {
	ID             WorkloadID
	Project        project.Name
	Kind           Kind
	Label          string
	Amount         resource.Amount     // of each worker, without Roles
	Workers        int                 // size of the gang; 0 is one
	MaxWorkers     int                 // as many as fit, up to this; 0 is Workers
	Roles          []scheduler.Role    // the gang where its workers differ, in place of Amount and Workers
	Within         string              // level of topology of which the gang is in one domain; empty is any
	PerNode        int                 // how many of its workers a node has at most; 0 is any number
	InPlace        bool                // only where the files of the server are
	Isolation      scheduler.Isolation // empty is sandbox
	Residency      residency.Label     // nil is home
	Classification project.Classification
	Pools          []string
	Queue          string // see CheckQueue; of a job, empty is that of its project
	User           string
	Model          string // that it is to make, for who pays
	Preemptible    bool
	After          WorkloadID // that has ended, and this goes on from; empty is none
	InLine         bool       // in the place in line of that
	Speed          []float64  // see Pace
	Restart        time.Duration
	Target         int // how many workers it gets, of those that it may have; 0 is what the policy says
	Priority       int
	NotBefore      time.Time
	Timeout        time.Duration  // 0 is no limit
	Grace          time.Duration  // 0 is ten seconds
	Due            time.Time      // when it should have ended; zero is whenever
	Expected       time.Duration  // how long it runs, with what is uncertain of that; 0 is unknown
	DelayCost      float64        // of an hour in which it waits; 0 is what its queue or project says
	Data           resource.Bytes // that it needs where it runs
	Spec           *engine.Spec   // for kinds without an Owner; no secrets, it is kept in the database
}

// Limits of a request.
const (
	MaxPriority = 1000
	maxTimeout  = 90 * 24 * time.Hour
	maxGrace    = time.Hour
	MaxWorkers  = 1024
)

// Validate refuses what cannot be a workload. Error: fault.Invalid.
func (r Request) Validate() error {
	switch {
	case r.ID == "" || len(r.ID) > 100 || r.Kind == "":
		return fault.New(fault.Invalid, "a workload needs an identifier and a kind")
	case r.Isolation != "" && !r.Isolation.Known():
		return fault.New(fault.Invalid, "isolation: unknown isolation %.40q", string(r.Isolation)).
			WithHint("Use none, process, sandbox, container or node.")
	case r.Priority < -MaxPriority || r.Priority > MaxPriority:
		return fault.New(fault.Invalid, "priority: %d is not between -%d and %d", r.Priority, MaxPriority, MaxPriority)
	case r.Timeout < 0 || r.Timeout > maxTimeout:
		return fault.New(fault.Invalid, "timeout: %s is not between 0 and %s", r.Timeout, maxTimeout)
	case r.Grace < 0 || r.Grace > maxGrace:
		return fault.New(fault.Invalid, "grace: %s is not between 0 and %s", r.Grace, maxGrace)
	case r.PerNode < 0 || len(r.Within) > 128:
		return fault.New(fault.Invalid, "per_node is negative, or within is longer than 128 bytes")
	case r.Expected < 0 || r.Expected > maxTimeout:
		return fault.New(fault.Invalid, "expected: %s is not between 0 and %s", r.Expected, maxTimeout)
	case r.Workers < 0 || r.MaxWorkers < 0 || max(r.Workers, r.MaxWorkers) > MaxWorkers:
		return fault.New(fault.Invalid, "workers: %d to %d is outside the range 1 to %d", r.Workers, r.MaxWorkers, MaxWorkers)
	case r.MaxWorkers > 0 && r.MaxWorkers < max(r.Workers, 1):
		return fault.New(fault.Invalid, "workers: the maximum %d is less than the minimum %d", r.MaxWorkers, max(r.Workers, 1))
	case r.Data < 0:
		return fault.New(fault.Invalid, "data: invalid size of %d bytes", r.Data)
	case len(r.Pools) > maxPools:
		return fault.New(fault.Invalid, "pools: at most %d pools can be named", maxPools)
	}
	if err := cost.Sound("delay_cost", r.DelayCost); err != nil {
		return err
	}
	workers := 0
	for _, role := range r.Roles {
		if workers += role.Workers; role.Workers < 1 || workers > MaxWorkers || r.MaxWorkers > 0 {
			return fault.New(fault.Invalid, "a gang with roles has a fixed number of workers, between 1 and %d", MaxWorkers)
		}
		if err := role.Request.Validate(); err != nil {
			return fault.Wrap(err, "role %s", role.Name)
		}
	}
	if err := r.Amount.Validate(); err != nil {
		return err
	}
	return r.Residency.Validate()
}

// Amount is what all workers that have their place, or wait for it, have together.
func (w Workload) Amount() resource.Amount {
	work := scheduler.Workload{Request: w.Request, Roles: w.Roles}
	return work.Amount(max(w.Placed, 1))
}

// Of is what a worker has.
func (w Workload) Of(index int) resource.Amount {
	work := scheduler.Workload{Request: w.Request, Roles: w.Roles}
	return work.Of(index)
}

// role is the name of a worker's role; empty without roles.
func (w Workload) role(index int) string {
	for _, r := range w.Roles {
		if index < r.Workers {
			return r.Name
		}
		index -= r.Workers
	}
	return ""
}

// Largest is the most of each part that a worker has.
func (w Workload) Largest() resource.Amount {
	work := scheduler.Workload{Request: w.Request, Roles: w.Roles}
	return work.Largest()
}

// Usage is what a workload used, written when it ends; of one that runs, what it
// used until now.
type Usage struct {
	Workload WorkloadID     `json:"workload"`
	Project  project.Name   `json:"project"`
	Kind     Kind           `json:"kind"`
	Label    string         `json:"label"`
	User     string         `json:"user,omitempty"`
	Queue    string         `json:"queue,omitempty"`
	Model    string         `json:"model,omitempty"`
	Pool     PoolName       `json:"pool"`
	Workers  int            `json:"workers"`
	Started  time.Time      `json:"started_at"`
	Ended    time.Time      `json:"ended_at"`
	Running  bool           `json:"running,omitempty"`
	Wall     time.Duration  `json:"wall_ns"`
	CPU      time.Duration  `json:"cpu_ns"`
	PeakRSS  resource.Bytes `json:"peak_rss"`
	// NodeHours are the share of a node that was asked for, times the workers,
	// times the hours.
	NodeHours float64 `json:"node_hours"`
	// Accelerators are hours by resource name.
	Accelerators map[string]float64 `json:"accelerator_hours,omitempty"`
	EnergyKWh    float64            `json:"energy_kwh"` // estimated from the node's power
	// Cost is that of the pool's nodes, by the prices of the time, for its share.
	Cost     float64 `json:"cost"`
	Currency string  `json:"currency"`

	// Sum says that this is a day of Workloads whose records are gone; no list has it.
	Sum       bool `json:"-"`
	Workloads int  `json:"-"`
}

// Resizer is an owner of workloads that can go on with another number of workers.
type Resizer interface {
	// Resized is told, in the transaction in which a workload is asked to save and stop,
	// with how many workers the next one shall go on: its Target.
	Resized(ctx context.Context, tx *store.Tx, w Workload, workers int, why string) error
}

// Runner is an owner that runs workloads itself, whatever the engine of their pool:
// they take their place there and are no engine's. What its driver does not know, as
// after a restart, is lost, and ends.
type Runner interface {
	// Driver runs a workload; nil: the engine of its pool does.
	Driver(w Workload) engine.Driver
}

// Owner is the domain behind a kind of workload. Methods may be called again
// after a restart and must then do nothing twice.
type Owner interface {
	// Prepare makes what the workload needs on its place and says what to run.
	// ID, Project, Resources, Workers, Roles, Nodes, Isolation, Timeout and Grace of the
	// answer are filled in by compute, and Options over those of the pool. An error ends the workload as not started.
	Prepare(ctx context.Context, w Workload, p Pool) (engine.Spec, error)
	// Changed is told of each new state in the transaction of the change.
	Changed(ctx context.Context, tx *store.Tx, w Workload) error
	// Finish takes what the ended workload left behind. It is called until it
	// returns nil; then the workload is settled.
	Finish(ctx context.Context, w Workload) error
}
