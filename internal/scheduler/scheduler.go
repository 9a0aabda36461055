// Package scheduler decides which workloads run where, and why the others are pending. It is
// pure: a state goes in, a state and a plan come out; there is no I/O, no clock
// and no randomness, so the same snapshot always gives the same plan.
//
// # Map
//
//   - Pool, Node, Queue and Workload describe the cluster, Delta is a
//     change of it.
//   - State holds the cluster with the caches that make a step cheap (state.go,
//     pool.go, queue.go; vector.go has amounts as bare numbers). roles.go handles
//     gangs with different workers.
//   - State.Step is the cycle: apply the delta, then for each pending workload in order:
//     place it (step.go; State.fit chooses the pool), preempt others for it
//     (State.searchVictims in preempt.go chooses the victims; eviction.go is the simple case
//     of single workers; fitcheck.go),
//     queue it ahead at an engine (queueahead.go) or reserve nodes for it (reserve.go).
//     Decide is a step from nothing, the full recompute that every incremental step
//     must equal.
//   - The nodes: pool.room (pool.go) chooses them, with the least fragmentation
//     (fragmentation.go), for a gang close together (topology.go), not into maintenance
//     (maintenance.go). In a pool that delegates to an engine, the engine chooses.
//   - The order of workloads: queue.go, deadline.go, tiresias.go. Idle accelerators:
//     idle.go. Sizes of elastic workloads under Goodput: sizes.go.
//   - dryrun.go: what a workload would get that has not been submitted.
//   - Plan is the answer: placements and preemptions in order (plan.go).
//     State.Why returns the wait reason of a workload (why.go).
//
// # Guarantees
//
// No node is allocated beyond its capacity; no queue, project or user exceeds its
// limits; no workload is placed in a pool outside its residency, below its isolation or
// without its accelerators. A gang gets all of its workers at once, of all roles, in one
// pool, or none. Every pending workload has at least one reason, and the reasons are true.
//
// The first workload that does not fit a pool gets a reservation there, on the nodes
// where it will fit soonest. Others may use these nodes only if they do not delay it:
// beside it, or if their time-out ends them before (EASY backfilling, Lifka 1995). If
// no time-outs say when it will fit, all that running workloads free for it is reserved.
// So no workload starves, however large, and no capacity is idle that a workload could
// use without a delay for the first. What the workload needs of its queue's quota is
// reserved as well. A workload that can never run reserves nothing.
//
// # Policies
//
// Fifo: higher priority first, then the earlier submission. Fair: first the queue with the
// lowest dominant share over its weight, where past use counts with a half-life; within a
// queue a point of priority counts as much as a minute of waiting, so that no workload
// starves. Tiresias: workloads with less than 16 accelerator-hours first, and they may
// preempt the others; priority as under Fair. Goodput: the order of Fifo, and elastic
// workloads get the number of workers that is worth its price. Under all policies, a
// workload that must start now to meet its deadline counts as submitted a day earlier.
//
// Under all policies, a queue may allow that its workloads are stopped when their accelerators
// are idle and others are pending for them.
package scheduler

import (
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
)

// ID names a workload: compute's workload identifier.
type ID string

// Isolation is how far a pool keeps work apart from everything else.
type Isolation string

// The levels, weakest first.
const (
	None      Isolation = "none"
	Process   Isolation = "process"
	Sandbox   Isolation = "sandbox"
	Container Isolation = "container"
	Dedicated Isolation = "node"
)

var levels = []Isolation{None, Process, Sandbox, Container, Dedicated}

// Known reports whether the level is one of the five.
func (i Isolation) Known() bool { return slices.Contains(levels, i) }

// AtLeast reports whether i is as strong as want. An unknown level is weaker
// than every known one, and none is as strong as an unknown wish.
func (i Isolation) AtLeast(want Isolation) bool {
	return want.Known() && slices.Index(levels, i) >= slices.Index(levels, want)
}

// Policy says who comes first.
type Policy string

// The policies.
const (
	Fifo     Policy = "fifo"
	Fair     Policy = "fair"
	Tiresias Policy = "tiresias"
	Goodput  Policy = "goodput"
)

// Policies are all of them.
var Policies = []Policy{Fifo, Fair, Tiresias, Goodput}

// Node is one machine of a pool.
type Node struct {
	Name   string
	Amount resource.Amount // what Falaj may use of it
	Closed string          // why nothing may start here now; empty if it is open
	// Where is its position in the topology: the name of its domain at each level of the
	// pool, outermost first. Empty is unknown.
	Where []string
	// Closes is when its next maintenance begins; zero is never. What would run
	// longer does not start, unless it is preemptible. Leave is true during maintenance.
	Closes time.Time
	Leave  bool
}

// Pool is a set of like nodes in one zone.
type Pool struct {
	Name string
	Zone string
	// MachineZone is the zone of the machines that run the work, where that is another
	// one: a simulated cloud in DE runs it on the server. Its data must be permitted in both.
	MachineZone string    `json:",omitempty"`
	Isolation   Isolation // the strongest it offers
	// Delegated pools choose the node themselves: only the sum of the nodes
	// counts for what is free, and placements name no node. What no node holds is refused.
	Delegated bool
	// Ahead is how much more than its nodes hold its engine is given, to wait in the
	// engine's own queue, as a share of each node; of all, in a delegated pool.
	Ahead float64
	Nodes []Node
	// Levels name where nodes stand, outermost first: "fabric", "rack".
	Levels []string
	// PricePerHour is for a whole node; a workload pays the share that Share gives.
	PricePerHour float64
	// Closed says in words why nothing may start here now; empty is open.
	Closed string
	// Remote pools run work elsewhere than on the machine of the server.
	Remote bool
	// Alike pools start gangs only whose workers ask for the same.
	Alike bool
}

// Forbids is the first of the pool's zones where data of these zones is not allowed; empty
// when it is allowed in the pool.
func (p Pool) Forbids(allowed []string) string {
	zones := slices.DeleteFunc([]string{p.Zone, p.MachineZone}, func(z string) bool { return z == "" })
	z, _ := residency.Outside(allowed, zones...)
	return z
}

// Workload is something that wants to run once.
type Workload struct {
	ID        ID
	Label     string // what people call it, for reasons: "job_01J…"; the ID if empty
	Project   string
	User      string
	Queue     string          // empty is that of all who name none, without a quota
	Request   resource.Amount // of each worker, without Roles
	Residency []string        // zones where it may be; never empty
	Isolation Isolation       // at least
	Pools     []string        // only these pools; empty is any
	// Refusals are the messages of pools that refused to start it. These pools are not tried
	// for a while.
	Refusals  map[string]string `json:",omitempty"`
	Priority  int               // higher first
	Submitted time.Time
	NotBefore time.Time     // the zero time is at once
	Because   string        // why not before; empty if it failed and is retried
	Timeout   time.Duration // maximum run time; 0 is unknown
	Grace     time.Duration // maximum time from the request to stop to the end
	Due       time.Time     // deadline for its end; zero is none
	Expected  time.Duration // expected run time, an upper estimate; 0 is unknown
	// Workers is the minimum size of the gang, MaxWorkers the maximum; as many
	// as fit now are placed. 0 Workers means one, 0 MaxWorkers means Workers.
	Workers, MaxWorkers int
	// Roles describe a gang with different workers, in place of Request, Workers and
	// MaxWorkers.
	Roles []Role `json:",omitempty"`
	// Within is the topology level at which the gang must be in one domain: "rack", or
	// OnNode; empty places it as close together as possible. PerNode is the maximum of its
	// workers on one node; 0 is no maximum.
	Within  string
	PerNode int
	InPlace bool // it needs files of the server: no remote pool
	// Preemptible workloads save their progress when they are stopped, and are then pending again.
	Preemptible bool
	// EvictableWorkers marks workloads with workers that may be evicted one by one, down to the
	// minimum, while the others run on: replicas of a service.
	EvictableWorkers bool `json:"Sheds,omitempty"`
	// Served is the service that it attained before it was submitted: see Attained.
	Served float64
	// Under Goodput: how fast least workers are, one more, and so on, in terms of
	// least; it gets no more than these. Restart is what one costs it besides what it
	// did since it saved; 0 is unknown. Target is how many it gets, whatever the plan
	// says; 0 is what that says.
	Speed   []float64     `json:",omitempty"`
	Restart time.Duration `json:",omitempty"`
	Target  int           `json:",omitempty"`
}

// least and most are the bounds of the gang's size.
func (w *Workload) least() int {
	if len(w.Roles) > 0 {
		return w.inRoles()
	}
	return max(w.Workers, 1)
}

func (w *Workload) most() int {
	if len(w.Roles) > 0 {
		return w.inRoles()
	}
	return max(w.MaxWorkers, w.least())
}

// perNode is how many of the least one node may have.
func (w *Workload) perNode() int {
	if w.PerNode > 0 {
		return min(w.PerNode, w.least())
	}
	return w.least()
}

// together is Within of a gang; of a single worker there is nothing to say.
func (w *Workload) together() string {
	if w.most() == 1 {
		return ""
	}
	return w.Within
}

func (w *Workload) label() string {
	if w.Label != "" {
		return w.Label
	}
	return string(w.ID)
}

// Running is a workload that has its place.
type Running struct {
	Workload
	Pool     string
	Placed   int       // number of workers; 0 is one
	Nodes    []string  // one for each worker, role by role; empty in a delegated pool
	Started  time.Time // zero is not known
	Saved    time.Time // of its last checkpoint; zero is never
	Deadline time.Time // when its time-out ends it; zero is unknown
	Idle     time.Time // since when its accelerators are idle and its owner knows it; zero if they are not
	Leaving  bool      // it was preempted and has not ended
	// LeavingSince is when it was preempted; zero is now.
	LeavingSince time.Time
	LeavingFor   ID // the workload that it was preempted for
	// Evicted are its workers that plans have evicted and that have not stopped yet; the others
	// run on.
	Evicted []Eviction `json:"Shed,omitempty"`
}

// amount is the request of all placed workers together.
func (r *Running) amount() resource.Amount { return r.Amount(max(r.Placed, 1)) }

// Delta is what changed since the last step. A pool or workload that is already
// known is replaced.
type Delta struct {
	Now          time.Time
	Policy       Policy // empty keeps it; Fifo at first
	Sizes        bool   // under Goodput: resize workloads in this step
	Pools        []Pool
	RemovedPools []string
	Queues       []Queue // all of them; nil keeps them
	// For a first step: the past use of queues, and the workloads whose turn has begun, as
	// State.History and State.Turns returned them.
	History map[string]Used
	Turns   []ID
	// Quotas are the limits of projects. Nil keeps them.
	Quotas    map[string]resource.Limit
	Submitted []Workload
	Started   []Running // running workloads that this state did not place, such as after a restart
	Removed   []ID      // workloads that ended or were cancelled
}

// Share is a request's dominant share of a node:
// between 0 and 1 if it fits. A node of unknown size counts as used whole.
func Share(request, node resource.Amount) float64 {
	share := 0.0
	if node.CPU > 0 {
		share = max(share, float64(request.CPU)/float64(node.CPU))
	}
	if node.Memory > 0 {
		share = max(share, float64(request.Memory)/float64(node.Memory))
	}
	if node.MemoryBandwidth > 0 {
		share = max(share, float64(request.MemoryBandwidth)/float64(node.MemoryBandwidth))
	}
	for name, n := range request.Accelerators {
		if have := node.Accelerators[name]; have > 0 {
			share = max(share, float64(n)/float64(have))
		}
	}
	if node.CPU == 0 && node.Memory == 0 {
		return 1
	}
	return share
}
