// Package burst decides how many nodes to rent, for whom, and says why: a world
// goes in, a plan comes out. Like package scheduler it is pure: no I/O, no clock,
// no randomness.
//
// # Map
//
//   - World is the snapshot: pools and their prices, running and pending workloads, the
//     remaining limits and budgets. Plan is the result.
//   - Decide goes through the numbered steps of this page. forecast.go has step 1,
//     rule.go steps 2 to 4; roles.go the differences for gangs with roles.
//
// # The rule
//
// A pending workload bursts when waiting costs more than renting:
//
//  1. Forecast its start on permanent capacity, after the workloads before it.
//  2. Permit: the elastic pools in a zone that its data allows, with enough isolation,
//     named by the workload if it names any, which can start its gang, and whose nodes are
//     large enough.
//  3. Price, for each of them, both sides of
//     delay × gain > rent − own
//     delay  what an hour of waiting costs, as a manifest says; 0 when none does
//     gain   (wait + duration) − (start-up + transfer + work) hours
//     rent   nodes × price × (start-up + transfer + work) + GiB × egress
//     own    what the workload costs where it would wait for
//     work   is its duration, longer where nodes are taken away: see rework
//  4. Check the budget, the limits and the pool's maximum, with all nodes
//     of a gang or none.
//  5. Scale down: release nodes that were idle for the pool's idle time and that no pending
//     workload needs.
//
// Without a delay cost, a workload rents only if that is cheaper than its own pool and starts
// it sooner. A workload that fits no other pool does not wait: it rents within its budget.
//
// # Guarantees
//
// No pool exceeds its maximum, no workload gets a pool that is not permitted, and no nodes are
// rented for a workload that can start without them. Nodes that start up count as capacity from
// when they are ready, so the same demand rents once. A node is not released while it is busy,
// starts up, or is needed by a pending workload.
package burst

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// MaxLooked is how many of those who wait are looked at in one decision, fewer in
// worlds of more than a thousand nodes: a decision is to take less than a second.
const (
	MaxLooked = 500
	minLooked = 50
	maxSteps  = MaxLooked * 1000 // workloads times nodes
)

// World is the snapshot that a decision is made from.
type World struct {
	Now      time.Time
	Currency string
	Pools    []Pool
	Running  []scheduler.Running
	Waiting  []Work // in the order of their rank
	// Left is what remains of limits, by the names in Work.Limits. A resource that is 0 or
	// absent is unlimited.
	Left map[string]resource.Amount
	// Money is what projects may still spend; one that is absent has no budget.
	Money map[string]float64
}

// Pool is a pool with the nodes that are there now.
type Pool struct {
	scheduler.Pool
	Elastic *Elastic // nil is always as it is
}

// Elastic describes how a pool's nodes are rented and released. The pool's Nodes are those
// that are ready.
type Elastic struct {
	Min, Max int
	Startup  time.Duration   // until a node that is asked for takes work
	Idle     time.Duration   // how long one without work is kept
	Node     resource.Amount // of one to come
	// Interruptions is how often in an hour a node is taken away.
	Interruptions float64
	GiBPerHour    float64 // at which data gets there; 0 is at once
	Egress        float64 // for a GiB
	Rented        []Node  // those that were asked for and are not gone
	// NotBefore is when nodes may be asked for again, and Because why not before.
	NotBefore time.Time
	Because   string
}

// Node is one that was asked for.
type Node struct {
	Name    string
	Ready   time.Time // when it took work first, or is expected to
	Coming  bool      // it starts up
	Leaving bool      // it is given back
	For     scheduler.ID
	Busy    bool      // work runs there, or has its place there
	Idle    time.Time // since when it has no work; zero while it is not ready
}

// Work is one that waits.
type Work struct {
	scheduler.Workload
	Duration  time.Duration // expected; 0 is unknown
	Saves     time.Duration // between its checkpoints; 0 is never
	DelayCost float64       // of an hour of waiting
	GiB       float64       // of data to take there
	Barred    string        // why more nodes would not help it, in words
	Limits    []string      // in World.Left

	kinds []scheduler.Role // of a decision: see its kinds
}

func (w *Work) least() (n int) {
	for _, p := range w.Parts(max(w.Workers, 1)) {
		n += p.Workers
	}
	return n
}

// onNode is how many of its workers a node of a pool may have.
func (w *Work) onNode(p *pool) int {
	if w.PerNode > 0 && !p.Delegated {
		return w.PerNode
	}
	return w.least()
}

func (w *Work) label() string { return cmp.Or(w.Label, string(w.ID)) }

// Plan is the answer.
type Plan struct {
	Pools []Wish    // one for each elastic pool, by name
	Works []Verdict // one for each that was looked at, in their order
}

// Wish is how many nodes a pool shall have.
type Wish struct {
	Pool    string
	Nodes   int      // without those that are given back
	Rent    []Need   // to ask for now
	Release []string // to give back now
	Why     []string // in words; at least one
}

// Need is nodes for a pending workload, all of them or none.
type Need struct {
	For   scheduler.ID // empty is the pool's minimum
	Nodes int
	Why   string
}

// Verdict is the decision for a pending workload.
type Verdict struct {
	Work scheduler.ID
	// Pools are the elastic pools that it may use now, those of nodes already
	// there too. It may use every other pool anyway.
	Pools []string
	Rents int    // nodes that are asked for now, in the last of Pools
	Ever  bool   // some elastic pool could take it, worth it now or not
	Why   string // with numbers
}

// Decide is the plan for a world.
func Decide(w World) Plan {
	d := &decision{World: w, promised: map[string]resource.Amount{}, money: maps.Clone(w.Money)}
	for _, p := range w.Pools {
		d.pools = append(d.pools, newPool(p, w))
		for _, n := range p.Nodes {
			if n.Closed == "" {
				d.total = d.total.Plus(n.Amount)
			}
		}
	}
	slices.SortStableFunc(d.pools, func(a, b *pool) int { return cmp.Compare(a.Name, b.Name) })
	var plan Plan
	rows := 1
	for _, p := range d.pools {
		rows += len(p.rows)
	}
	for i := range min(len(w.Waiting), MaxLooked, max(maxSteps/rows, minLooked)) {
		x := w.Waiting[i]
		x.kinds = d.kinds(&x)
		plan.Works = append(plan.Works, d.consider(&x))
	}
	for _, p := range d.pools {
		if p.Elastic != nil {
			plan.Pools = append(plan.Pools, d.scale(p))
		}
	}
	return plan
}

// decision is one call of Decide.
type decision struct {
	World
	pools    []*pool
	total    resource.Amount            // that all nodes have
	promised map[string]resource.Amount // to those before, of limits
	money    map[string]float64         // that is left beside what they cost
}

// pool is a Pool with what the decision finds.
type pool struct {
	Pool
	rows  []row
	nodes []resource.Amount // of a delegated pool, those that are there or come
	rows0 int               // of nodes that are there or come, before those wished now
	wish  Wish              // so far
	found []vacancy         // of the last search, for the next
	kept  map[string]bool   // nodes that somebody needs; the empty name is all of a delegated pool
}

// rented is how many nodes there are or will be, those that leave among them.
func (p *pool) rented() int {
	n := len(p.Elastic.Rented)
	for _, need := range p.wish.Rent {
		n += need.Nodes
	}
	return n
}

// scale is step 5: what of an elastic pool is given back, and its wish in words.
func (d *decision) scale(p *pool) Wish {
	e, wish := p.Elastic, p.wish
	wish.Pool = p.Name
	stay := 0
	var idle []Node
	for _, n := range e.Rented {
		switch {
		case n.Leaving:
			continue
		case n.Busy, n.Coming, p.kept[n.Name], p.kept[""], n.Idle.IsZero():
		case d.Now.Sub(n.Idle) >= e.Idle:
			idle = append(idle, n)
			continue
		}
		stay++
	}
	least := e.Min
	if p.Closed != "" {
		least = 0
	}
	for _, need := range wish.Rent {
		stay += need.Nodes
		wish.Why = append(wish.Why, need.Why)
	}
	// The one that was idle longest goes first.
	slices.SortFunc(idle, func(a, b Node) int { return cmp.Or(a.Idle.Compare(b.Idle), cmp.Compare(b.Name, a.Name)) })
	for i, n := range idle {
		if stay+len(idle)-i <= least {
			stay += len(idle) - i
			break
		}
		wish.Release = append(wish.Release, n.Name)
		wish.Why = append(wish.Why, fmt.Sprintf("%s was idle for %s", n.Name, words(d.Now.Sub(n.Idle))))
	}
	if more := min(least-stay, e.Max-p.rented()); more > 0 && !e.NotBefore.After(d.Now) {
		why := fmt.Sprintf("the minimum is %d nodes", least)
		wish.Rent = append(wish.Rent, Need{Nodes: more, Why: why})
		wish.Why = append(wish.Why, why)
		stay += more
	}
	wish.Nodes = stay
	if e.NotBefore.After(d.Now) {
		wish.Why = append(wish.Why, fmt.Sprintf("requests are suspended until %s: %s", at(e.NotBefore), e.Because))
	}
	if len(wish.Why) == 0 {
		wish.Why = []string{p.standing()}
	}
	return wish
}

// standing says in words why a pool stays as it is.
func (p *pool) standing() string {
	var busy, coming, kept, idle int
	for _, n := range p.Elastic.Rented {
		switch {
		case n.Leaving:
		case n.Busy:
			busy++
		case n.Coming:
			coming++
		case p.kept[n.Name], p.kept[""]:
			kept++
		default:
			idle++
		}
	}
	switch {
	case busy+coming+kept+idle == 0:
		return "no demand"
	case idle > 0 && busy+coming+kept >= p.Elastic.Min:
		return fmt.Sprintf("%d busy, %d starting, %d reserved for pending workloads, %d idle for less than %s", busy, coming, kept, idle, words(p.Elastic.Idle))
	case idle > 0:
		return fmt.Sprintf("%d busy, %d starting, %d reserved for pending workloads; the minimum is %d", busy, coming, kept, p.Elastic.Min)
	}
	return fmt.Sprintf("%d busy, %d starting, %d reserved for pending workloads", busy, coming, kept)
}

// at is an instant in words.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// words is a duration in words: 2h5m0s, 90s as 1m30s.
func words(d time.Duration) string { return d.Round(time.Second).String() }
