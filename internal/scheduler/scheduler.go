// Package scheduler decides what runs where, and says why the rest waits. It is
// pure: a state goes in, a state and a plan come out; there is no I/O, no clock
// and no randomness, so the same snapshot always gives the same plan.
//
// # Map
//
//   - Pool, Node, Queue and Workload are what it knows of the world, Delta is what
//     changed.
//   - State holds the world with the caches that make a step cheap (state.go,
//     pool.go, queue.go; vector.go has amounts as bare numbers). roles.go has
//     what is otherwise for gangs whose workers differ.
//   - State.Step is the cycle: apply the delta, then go along the line and give
//     each its place (step.go), take places back from others for it (preempt.go,
//     eviction.go, fitcheck.go), queue it ahead at an engine (queueahead.go) or keep nodes for it (reserve.go). Decide is a step from nothing, the full
//     recompute that every incremental step must equal.
//   - Where in a pool: close together (topology.go), where others lose least
//     (fragmentation.go), not into maintenance (maintenance.go).
//   - Whose turn it is: queue.go, deadline.go, tiresias.go. Who has too much: idle.go
//     and, under Goodput, sizes.go.
//   - dryrun.go: what a workload that is not submitted would get.
//   - Plan is the answer: placements and preemptions in order (plan.go).
//     State.Why explains in words, when asked, why a work still waits (why.go).
//
// # Guarantees
//
// No node is given more than it has; no queue, project or user more than its
// limits; no work to a pool outside its residency, below its isolation or without
// its accelerators. A gang gets all of its workers at once, in one pool, or none,
// those of all its roles.
// Every waiting work has at least one reason, and the reasons are true.
//
// Who comes first among those that find no room in a pool has nodes kept for it:
// those on which there will be room soonest. Others may use them only as long as
// that does not hold it up: beside it, or when their time-out ends them before
// (EASY backfilling, Lifka 1995). Where no time-out says when it has room, all is kept
// that those leave who must leave for it. So no work starves, however large, and nothing
// idles that no work could use. What it needs of its queue's quota is kept for it
// as well. A work that nothing can help keeps nothing from others.
//
// # Policies
//
// Fifo: higher priority first, then the earlier. Fair: of each queue the one whose
// dominant share over its weight is least, now and in the past that its half-life
// remembers; within a queue a point of priority counts as much as a minute of
// waiting, so that everybody's turn comes. Tiresias: who had less than 16
// accelerator-hours first, and the others leave for them; priority as under Fair.
// Goodput: in line as under Fifo, and elastic works get as many workers as pay. Under
// all, a work that must begin now to meet its deadline counts as submitted a day before.
//
// Under all, a queue may say that its works leave when they leave accelerators idle
// and others wait for them.
package scheduler

import (
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
)

// ID names a work: compute's workload identifier.
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
	Closed string          // why nothing may start here now, in words; empty is open
	// Where it stands, for each level of the pool: the names of the domains that it
	// is in, outermost first. Empty is unknown.
	Where []string
	// Closes is when its next maintenance begins; zero is never. What would run
	// longer does not start, unless it saves and leaves. Leave is true in one.
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
	// PricePerHour is for a whole node; a work pays the share that Share gives.
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
	// Refusals are pools that refused to start it, which are left alone for a while, with
	// what they said.
	Refusals  map[string]string `json:",omitempty"`
	Priority  int               // higher first
	Submitted time.Time
	NotBefore time.Time     // the zero time is at once
	Because   string        // why not before, in words; empty is that it failed and is tried again
	Timeout   time.Duration // it has ended so long after its start; 0 is unknown
	Grace     time.Duration // it has ended so long after it was told to
	Due       time.Time     // it should have ended by then; zero is whenever
	Expected  time.Duration // it will probably have ended so long after its start, with what is uncertain of that
	// Workers is the size of the gang, and MaxWorkers what it can use; as many
	// as fit now get a place. 0 is one, and at least Workers.
	Workers, MaxWorkers int
	// Roles are the gang where its workers differ, in place of Request, Workers and
	// MaxWorkers.
	Roles []Role `json:",omitempty"`
	// Within is the level of which the gang has to be in one domain: "rack", or
	// OnNode; empty is as close together as it can be. PerNode is how many of its
	// workers one node may have; 0 is as many as it holds.
	Within  string
	PerNode int
	InPlace bool // wants the files of the server: no remote pool
	// Preemptible works save what they did and wait again when they are stopped.
	Preemptible bool
	// EvictableWorkers marks workloads that give up workers above their least to others that may have
	// them, one by one, while the rest go on: replicas of a service. They keep the least.
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

// Running is a work that has its place.
type Running struct {
	Workload
	Pool     string
	Placed   int       // how many workers; 0 is one
	Nodes    []string  // one for each worker, role by role; empty in a delegated pool
	Started  time.Time // zero is not known
	Saved    time.Time // of its last checkpoint; zero is never
	Deadline time.Time // when its time-out ends it; zero is unknown
	Idle     time.Time // since when its accelerators are idle, and its owner was told; zero is that they are not
	Leaving  bool      // it was told to stop
	// LeavingSince is when the state first saw that; zero is now.
	LeavingSince time.Time
	LeavingFor   ID // who gets its place
	// Evicted are those of its workers that were told to stop while the others go on, as
	// plans said, until they have.
	Evicted []Eviction `json:"Shed,omitempty"`
}

// amount is what all workers together hold.
func (r *Running) amount() resource.Amount { return r.Amount(max(r.Placed, 1)) }

// Delta is what changed since the last step. A pool or work that is already
// known is replaced.
type Delta struct {
	Now          time.Time
	Policy       Policy // empty leaves it; at first that is Fifo
	Sizes        bool   // under Goodput: look in this step who should have another size
	Pools        []Pool
	RemovedPools []string
	Queues       []Queue // all of them; nil leaves them as they are
	// For a first step: what past use of queues counts, and whose turn it is, as
	// History and Turns gave them.
	History map[string]Used
	Turns   []ID
	// Quotas are what a project may use at once. Nil leaves them as they are.
	Quotas    map[string]resource.Limit
	Submitted []Workload
	Started   []Running // placed by somebody, found running after a restart
	Removed   []ID      // ended or cancelled, waiting or running
}

// Share is the part of a node that a request takes, by its largest part:
// between 0 and 1 for what fits. A node without amounts is taken whole.
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
