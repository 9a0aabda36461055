package replay

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// World is the start of a play and what happens later.
type World struct {
	// Start is the first step: pools, queues, quotas, pending and running workloads.
	Start scheduler.Delta
	// Later are workloads that are submitted after Start.Now, in the order of their
	// submission.
	Later []scheduler.Workload
	// Takes is how long a workload runs from its start; for one that runs at Start.Now,
	// from then on. A negative time counts as zero. A workload does not run longer than
	// its time-out.
	Takes map[scheduler.ID]time.Duration
	// Leave is how long a preempted workload takes to save and stop, at most its grace
	// period. It is then pending again for the rest of its run time.
	Leave time.Duration
	// Maintenance are the maintenance windows by pool. Start describes the nodes as they are
	// outside the windows.
	Maintenance map[string]scheduler.Windows
	// Gone are workloads that were being stopped at the start and are not restarted.
	Gone map[scheduler.ID]bool
}

// Fate is the outcome of a workload.
type Fate struct {
	ID        scheduler.ID
	Work      scheduler.Workload
	Spans     []Span // when it ran; the first that began before the start has From before it
	End       time.Time
	Preempted int
	// Never is why it does not run to its end; nil when it does.
	Never *scheduler.Wait
}

// Span is a time in one placement.
type Span struct {
	From, To time.Time
	Pool     string
	Workers  int
	Nodes    []string // of each worker; none in a delegated pool
}

// Start is when it first ran; zero is never.
func (f Fate) Start() time.Time {
	if len(f.Spans) == 0 {
		return time.Time{}
	}
	return f.Spans[0].From
}

// Played is the result of a play.
type Played struct {
	Fates []Fate // of running and pending workloads at the start, and of Later
	End   time.Time
	Steps int
}

// Bounds of a play.
const (
	maxSteps = 5_000_000
	horizon  = 10 * 365 * 24 * time.Hour
)

type kind int

const (
	ends   kind = iota // it is done
	leaves             // it has saved, and is pending again
	evicts             // some of its workers have stopped; the others run on
	looks              // the scheduler asked for a step
)

type event struct {
	at   time.Time
	kind kind
	id   scheduler.ID
	turn int // turn of the work when the event was scheduled; in another turn the event is void
}

type events []event

func (e *events) Len() int { return len(*e) }
func (e *events) Less(i, k int) bool {
	a, b := (*e)[i], (*e)[k]
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id)) < 0
}
func (e *events) Swap(i, k int) { (*e)[i], (*e)[k] = (*e)[k], (*e)[i] }
func (e *events) Push(x any)    { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// work is a workload in a play.
type work struct {
	scheduler.Workload
	fate  Fate
	left  time.Duration
	since time.Time // when it was placed, or the play began
	// As the scheduler knows them.
	began, deadline time.Time
	turn            int
	runs            bool
	gone            bool // it is not pending again after it leaves
	evicted         []scheduler.Eviction
}

// player is the state of a play.
type player struct {
	world World
	works map[scheduler.ID]*work
	order []*work
	queue events
	state scheduler.State
	next  time.Time // when a window begins or ends; zero is never
}

// Play plays a world until nothing more happens. Errors: fault.Invalid for workloads
// with one identifier; fault.Exhausted when it does not end.
func Play(ctx context.Context, w World) (Played, error) {
	p := player{world: w, works: map[scheduler.ID]*work{}}
	now := w.Start.Now
	delta := w.Start
	delta.Pools = p.maintain(now)
	for _, r := range w.Start.Started {
		k := p.add(r.Workload)
		k.gone = w.Gone[r.ID]
		p.begin(k, Span{From: r.Started, Pool: r.Pool, Workers: max(r.Placed, 1), Nodes: r.Nodes}, now, r.Deadline)
		if k.evicted = slices.Clone(r.Evicted); r.Leaving {
			p.scheduleLeave(k, leaves, now)
		}
		for i := range k.evicted {
			k.evicted[i].Since = now
			p.scheduleLeave(k, evicts, now)
		}
	}
	for _, s := range slices.Concat(w.Start.Submitted, w.Later) {
		p.add(s)
	}
	if len(p.order) != len(p.works) {
		return Played{}, fault.New(fault.Invalid, "duplicate workload identifier")
	}
	out := Played{}
	later := w.Later
	for {
		if err := ctx.Err(); err != nil {
			return out, fault.New(fault.Unavailable, "the simulation was interrupted: %w", err)
		}
		// 1. Take the events of this instant.
		for len(p.queue) > 0 && !p.queue[0].at.After(now) {
			if p.happen(heap.Pop(&p.queue).(event), &delta) {
				out.End = now
			}
		}
		for len(later) > 0 && !later[0].Submitted.After(now) {
			delta.Submitted, later = append(delta.Submitted, later[0]), later[1:]
		}
		if !p.next.IsZero() && !p.next.After(now) {
			delta.Pools = p.maintain(now)
		}
		// 2. Decide.
		delta.Now = now
		plan := p.state.Step(delta)
		out.Steps++
		for _, at := range plan.Place {
			k := p.works[at.Workload]
			p.begin(k, Span{From: now, Pool: at.Pool, Workers: at.Workers, Nodes: at.Nodes}, now, time.Time{})
		}
		for _, e := range plan.Preempt {
			k := p.works[e.Workload]
			k.gone = k.gone || e.Ends
			p.scheduleLeave(k, leaves, now)
		}
		for _, rs := range plan.Resize {
			k := p.works[rs.Workload]
			for _, n := range rs.Evict {
				k.evicted = append(k.evicted, scheduler.Eviction{Worker: n, Since: now, For: rs.For})
			}
			p.scheduleLeave(k, evicts, now)
		}
		if plan.Wake.After(now) {
			heap.Push(&p.queue, event{at: plan.Wake, kind: looks})
		}
		// 3. Find the next instant.
		delta = scheduler.Delta{}
		for len(p.queue) > 0 && p.void(p.queue[0]) {
			heap.Pop(&p.queue)
		}
		switch {
		case len(later) > 0 && (len(p.queue) == 0 || later[0].Submitted.Before(p.queue[0].at)):
			now = later[0].Submitted
		case len(p.queue) > 0:
			now = p.queue[0].at
		default:
			return p.done(out), nil
		}
		if out.Steps >= maxSteps || now.Sub(w.Start.Now) > horizon {
			return p.done(out), nil
		}
	}
}

func (p *player) add(w scheduler.Workload) *work {
	k := &work{Workload: w, fate: Fate{ID: w.ID, Work: w}, left: max(p.world.Takes[w.ID], 0)}
	p.works[w.ID] = k
	p.order = append(p.order, k)
	return k
}

// maintain returns the pools at a time, with their maintenance.
func (p *player) maintain(now time.Time) []scheduler.Pool {
	p.next = time.Time{}
	pools := slices.Clone(p.world.Start.Pools)
	for i := range pools {
		windows := p.world.Maintenance[pools[i].Name]
		if len(windows) == 0 {
			continue
		}
		pools[i].Nodes = slices.Clone(pools[i].Nodes)
		for k := range pools[i].Nodes {
			n := &pools[i].Nodes[k]
			closed, closes := windows.At(n.Name, now)
			n.Closed, n.Closes, n.Leave = cmp.Or(n.Closed, closed), closes, closed != ""
		}
		if next := windows.Next(now); !next.IsZero() && (p.next.IsZero() || next.Before(p.next)) {
			p.next = next
		}
	}
	if !p.next.IsZero() {
		heap.Push(&p.queue, event{at: p.next, kind: looks})
	}
	return pools
}

// begin starts a workload in a placement, and schedules its end.
func (p *player) begin(k *work, at Span, now, deadline time.Time) {
	k.runs, k.since, k.began, k.evicted = true, now, at.From, nil
	k.turn++
	if at.From.IsZero() {
		at.From = now
	}
	k.fate.Spans = append(k.fate.Spans, at)
	end := now.Add(k.left)
	if deadline.IsZero() && k.Timeout > 0 {
		deadline = now.Add(k.Timeout)
	}
	if k.deadline = deadline; !deadline.IsZero() && end.After(deadline) {
		end = deadline
		if end.Before(now) {
			end = now
		}
	}
	heap.Push(&p.queue, event{end, ends, k.ID, k.turn})
}

// scheduleLeave schedules that a workload has saved and left, or that some of its workers have stopped.
func (p *player) scheduleLeave(k *work, what kind, now time.Time) {
	heap.Push(&p.queue, event{now.Add(p.takes(k)), what, k.ID, k.turn})
}

// takes is how long a workload takes to save and stop.
func (p *player) takes(k *work) time.Duration {
	if k.Grace > 0 {
		return min(p.world.Leave, k.Grace)
	}
	return p.world.Leave
}

func (p *player) void(e event) bool {
	k := p.works[e.id]
	return e.kind != looks && (!k.runs || k.turn != e.turn)
}

// happen applies an event, and reports whether a workload ended.
func (p *player) happen(e event, delta *scheduler.Delta) bool {
	if p.void(e) || e.kind == looks {
		return false
	}
	k := p.works[e.id]
	if e.kind == evicts {
		p.stop(k, e.at, delta)
		return false
	}
	k.runs = false
	k.fate.Spans[len(k.fate.Spans)-1].To = e.at
	delta.Removed = append(delta.Removed, k.ID)
	if e.kind == ends || k.gone {
		k.fate.End = e.at
		return true
	}
	k.left = max(k.left-e.at.Sub(k.since), 0)
	span := k.fate.Spans[len(k.fate.Spans)-1]
	ran := scheduler.Running{Workload: k.Workload, Placed: span.Workers, Started: span.From}
	k.Served, k.Submitted = ran.Attained(e.at), e.at
	k.fate.Preempted++
	delta.Submitted = append(delta.Submitted, k.Workload)
	return false
}

// stop removes the evicted workers of a workload that have stopped by now.
func (p *player) stop(k *work, now time.Time, delta *scheduler.Delta) {
	last := &k.fate.Spans[len(k.fate.Spans)-1]
	next := Span{From: now, Pool: last.Pool}
	var rest []scheduler.Eviction
	for n := range last.Workers {
		i := slices.IndexFunc(k.evicted, func(s scheduler.Eviction) bool { return s.Worker == n })
		if i >= 0 && !k.evicted[i].Since.Add(p.takes(k)).After(now) {
			continue
		}
		if i >= 0 {
			evicted := k.evicted[i]
			evicted.Worker = next.Workers
			rest = append(rest, evicted)
		}
		if n < len(last.Nodes) {
			next.Nodes = append(next.Nodes, last.Nodes[n])
		}
		next.Workers++
	}
	if next.Workers == last.Workers { // the workers were removed by an earlier event
		return
	}
	last.To, k.evicted = now, rest
	k.fate.Spans = append(k.fate.Spans, next)
	r := scheduler.Running{Workload: k.Workload, Pool: next.Pool, Placed: next.Workers, Nodes: next.Nodes, Started: k.began, Deadline: k.deadline, Evicted: rest}
	delta.Started = append(delta.Started, r)
}

// done returns the result.
func (p *player) done(out Played) Played {
	for _, k := range p.order {
		if k.fate.End.IsZero() {
			why, waits := p.state.Why(k.ID)
			if !waits {
				why = scheduler.Wait{Reasons: []scheduler.Reason{{Text: "the simulation ended before it did"}}}
			}
			k.fate.Never = &why
		}
		out.Fates = append(out.Fates, k.fate)
	}
	return out
}
