// Package scheduler decides what runs where, and says why the rest waits. It is
// pure: a state goes in, a state and a plan come out; there is no I/O, no clock
// and no randomness, so the same snapshot always gives the same plan.
//
// # Map
//
//   - Pool, Node and Work are what it knows of the world, Delta is what changed.
//   - State holds the world with the caches that make a step cheap (state.go).
//   - State.Step is the cycle: apply the delta, then give places along the line
//     (step.go). Decide is a step from nothing, the full recompute that every
//     incremental step must equal.
//   - Plan is the answer: placements in order (plan.go). State.Why explains in
//     words, when asked, why a work still waits (why.go).
//
// # Guarantees
//
// No node is given more than it has, no work more than its project's quota, no
// work to a pool outside its residency, below its isolation or without its
// accelerators. A gang gets all of its workers at once, in one pool, or none.
// Every waiting work has at least one reason. Among the permitted pools with
// room the cheapest for that work is taken, by name where equal.
//
// The policy is first in, first out, higher priority first. A work that could
// run in a pool but does not fit keeps that pool from those behind it, so that
// it cannot starve; a work that no pool can take keeps nothing from anybody.
package scheduler

import (
	"slices"
	"time"

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

// Node is one machine of a pool.
type Node struct {
	Name   string
	Amount resource.Amount // what Falaj may use of it
	Closed string          // why nothing may start here now, in words; empty is open
}

// Pool is a set of like nodes in one zone.
type Pool struct {
	Name      string
	Zone      string
	Isolation Isolation // the strongest it offers
	// Delegated pools choose the node themselves: only the sum of the nodes
	// counts, and placements name no node.
	Delegated bool
	Nodes     []Node
	// PricePerHour is for a whole node; a work pays the share that Share gives.
	PricePerHour float64
	// Closed says in words why nothing may start here now; empty is open.
	Closed string
	// Remote pools run work elsewhere than on the machine of the server.
	Remote bool
}

// Work is something that wants to run once.
type Work struct {
	ID        ID
	Label     string // what people call it, for reasons: "job_01J…"; the ID if empty
	Project   string
	Request   resource.Amount // of each worker
	Residency []string        // zones where it may be; never empty
	Isolation Isolation       // at least
	Pools     []string        // only these pools; empty is any
	Priority  int             // higher first
	Submitted time.Time
	NotBefore time.Time // the zero time is at once
	// Workers is the size of the gang, and MaxWorkers what it can use; as many
	// as fit now get a place. 0 is one, and at least Workers.
	Workers, MaxWorkers int
	InPlace             bool // wants the files of the server: no remote pool
}

// least and most are the bounds of the gang's size.
func (w Work) least() int { return max(w.Workers, 1) }
func (w Work) most() int  { return max(w.MaxWorkers, w.least()) }

func (w Work) label() string {
	if w.Label != "" {
		return w.Label
	}
	return string(w.ID)
}

// Running is a work that has its place.
type Running struct {
	Work
	Pool     string
	Placed   int       // how many workers; 0 is one
	Nodes    []string  // one for each worker; empty in a delegated pool
	Deadline time.Time // when its time-out ends it; zero is unknown
}

// amount is what all workers together hold.
func (r Running) amount() resource.Amount { return r.Request.Times(max(r.Placed, 1)) }

// Delta is what changed since the last step. A pool or work that is already
// known is replaced.
type Delta struct {
	Now          time.Time
	Pools        []Pool
	RemovedPools []string
	// Quotas are what a project may use at once; a zero part is no limit on
	// that part. Nil leaves them as they are.
	Quotas    map[string]resource.Amount
	Submitted []Work
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
