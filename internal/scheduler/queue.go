package scheduler

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Order says whether workloads of a queue may pass the first that waits.
type Order string

// The orders. Those behind the first of a strict queue wait with it; in another
// they may use what it could not, and what it needs of the quota is kept for it.
const (
	BestEffort Order = "best_effort"
	Strict     Order = "strict"
)

// Queue is a share of the pools. Queues form trees: what one does not use, others
// below the same parent may borrow, within both sides' limits. A resource that no
// queue of a tree names in its quota has no limit there; one that is named and 0 is a limit.
type Queue struct {
	Name   string
	Parent string         // empty at the top
	Quota  resource.Limit // nominal: its own whenever it wants it
	// Borrow is how much more than nominal it may use, Lend how much of its
	// nominal quota others may use meanwhile; nil is no limit, and where there is
	// one, it allows what it names.
	Borrow, Lend *resource.Amount
	Weight       float64       // of its fair share; 0 is 1
	HalfLife     time.Duration // of what past use counts for its share; 0 counts only what runs
	Order        Order         // empty is BestEffort
	// PerProject and PerUser limit what one of them may use of the queue at once.
	PerProject, PerUser resource.Limit
	// MinRuntime is how long its workloads run before they may be preempted.
	MinRuntime time.Duration
	// NeverPreempts says that its workloads preempt no others, except idle ones.
	NeverPreempts bool `json:"Patient"` // the name in snapshots that people keep
	// IdleReclaim is how long after Running.Idle a workload is preempted for others that
	// wait for its accelerators; 0 is never. With IdleEnd, a workload that is not
	// preemptible is ended too, and not retried.
	IdleReclaim time.Duration
	IdleEnd     bool
}

// Used is what a queue used on average over its half-life, up to a time.
type Used struct {
	Until  time.Time          `json:"until"`
	Amount map[string]float64 `json:"amount"` // by name: "cpu" in thousandths of a core, "memory" in bytes
}

// queue is a Queue with what its workloads use, and its place in the tree.
type queue struct {
	Queue
	up    *queue // the root of all for those at the top
	below []*queue

	// The quota, in Kueue's terms: subtree is its nominal quota with what those
	// below lend it, own the part of that which it lends to nobody.
	subtree, own, borrow vector
	used                 vector // against subtree: of itself, and what those below do not have of their own
	limited              bool   // of those at the top: a quota in the tree names something
	runs                 map[ID]*run
	lowest               int // see weakest, once ranked
	ranked               bool
	all                  vector        // by everything below
	level                int           // how deep in the tree: 1 at the top
	protected            map[*run]bool // see State.protected; nil is to be found
	tally                vector        // of what is protected, while that is found
	past                 []float64
	pastAt               time.Time

	// Of the last step.
	line    line
	open    int     // lines at or below it that are not yet at their end
	mine    vector  // what is kept for first of its nominal quota
	held    vector  // and beyond that
	first   *waiter // who waits for this queue's quota, or first of all in it
	order   int     // of first
	stopped bool    // strict, and first waits

	entitles bool // of the last look: see entitle
}

// ceiling limits what one project or user has at once.
type ceiling struct {
	who   string // in words: "project fraud", "user Alia in queue research"
	most  vector
	used  vector
	held  vector  // for first
	first *waiter // of the last step: who waits for it
}

func (c *ceiling) left(i int) int64 { return c.most.part(i) - c.used.part(i) - c.held.part(i) }

// requeue builds the trees anew.
func (s *State) requeue(queues []Queue) {
	old := s.queues
	s.queues = map[string]*queue{}
	s.top = &queue{}
	add := func(q Queue) {
		n := &queue{Queue: q, runs: map[ID]*run{}}
		if q.HalfLife > 0 {
			n.pastAt = s.now
			if was := old[q.Name]; was != nil && was.HalfLife > 0 {
				n.past, n.pastAt = was.past, was.pastAt
			}
		}
		s.queues[q.Name] = n
	}
	add(Queue{NeverPreempts: true})
	for _, q := range queues {
		add(q)
	}
	for _, q := range s.queues {
		q.up = s.top
		if parent := s.queues[q.Parent]; parent != nil && q.Parent != "" && !s.above(parent, q.Name) {
			q.up = parent
		}
		q.up.below = append(q.up.below, q)
	}
	s.sortQueues(s.top)
	s.walk(s.top, func(q *queue) {
		if q.up != nil {
			q.level = q.up.level + 1
		}
	})
	for _, root := range s.top.below {
		named := resource.Limit{}
		s.walk(root, func(q *queue) { named = named.And(q.Quota) })
		root.limited = !named.IsZero()
		s.quota(root, named)
	}
}

// above reports that a queue is name or below it, as far as parents are known: a
// ring of parents is cut there.
func (s *State) above(q *queue, name string) bool {
	for range len(s.queues) {
		if q == nil || q.Name == "" {
			return false
		}
		if q.Name == name {
			return true
		}
		q = s.queues[q.Parent]
	}
	return true
}

func (s *State) sortQueues(q *queue) {
	slices.SortFunc(q.below, func(a, b *queue) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range q.below {
		s.sortQueues(c)
	}
}

func (s *State) walk(q *queue, visit func(*queue)) {
	visit(q)
	for _, c := range q.below {
		s.walk(c, visit)
	}
}

// quota fills in subtree, own and borrow, from the leaves up.
func (s *State) quota(q *queue, named resource.Limit) {
	for _, c := range q.below {
		s.quota(c, named)
	}
	limited := s.names.limits(named)
	nominal, _ := s.names.vector(q.Quota.Amount())
	q.subtree, q.own, q.borrow = make(vector, len(limited)), make(vector, len(limited)), s.names.limits(resource.Limit{})
	lend := q.borrow
	if q.Lend != nil {
		lend, _ = s.names.vector(*q.Lend)
	}
	if q.Borrow != nil {
		q.borrow, _ = s.names.vector(*q.Borrow)
	}
	for i := range limited {
		if !s.limitsPart(named, i) {
			q.subtree[i] = unlimited
			continue
		}
		// Sums of quotas beyond any possible usage do not overflow.
		q.subtree[i] = min(nominal[i], unlimited)
		for _, c := range q.below {
			q.subtree[i] = min(q.subtree[i]+c.subtree[i]-c.own[i], unlimited)
		}
		if lend[i] < unlimited && q.up != s.top {
			q.own[i] = max(q.subtree[i]-lend[i], 0)
		}
	}
}

func (s *State) limitsPart(named resource.Limit, i int) bool {
	switch i {
	case 0:
		return named.CPU != nil
	case 1:
		return named.Memory != nil
	case 2:
		return named.MemoryBandwidth != nil
	}
	_, ok := named.Accelerators[s.names.list[i-accelerators]]
	return ok
}

// left is what the queue may still use of one part: of its own, and of what its
// tree has unused, within the limit of what it may borrow.
func (q *queue) left(i int) int64 {
	if q.up == nil || q.up.up == nil { // at the top
		return q.subtree.part(i) - q.used.part(i)
	}
	own := max(q.own.part(i)-q.used.part(i), 0)
	shared := q.up.left(i)
	if q.borrow.part(i) < unlimited {
		lent, taken := q.subtree.part(i)-q.own.part(i), max(q.used.part(i)-q.own.part(i), 0)
		shared = min(shared, lent-taken+q.borrow.part(i))
	}
	return own + shared
}

// ever is what the queue could use were nothing used.
func (q *queue) ever(i int) int64 {
	if q.up == nil || q.up.up == nil {
		return q.subtree.part(i)
	}
	shared := q.up.ever(i)
	if q.borrow.part(i) < unlimited {
		shared = min(shared, q.subtree.part(i)-q.own.part(i)+q.borrow.part(i))
	}
	return q.own.part(i) + shared
}

// use adds n requests to what the queue uses; n is negative for what is given
// back. Its parent sees what is beyond its own.
func (q *queue) use(v vector, n int64) {
	if q.up == nil {
		return
	}
	up := make(vector, len(v))
	for i, x := range v {
		before := max(q.used.part(i)-q.own.part(i), 0)
		after := max(q.used.part(i)+n*x-q.own.part(i), 0)
		up[i] = after - before
	}
	q.used = q.used.plus(v, n)
	q.up.use(up, 1)
}

// account is use, and counts for shares as well.
func (q *queue) account(v vector, n int64) {
	q.use(v, n)
	for ; q != nil; q = q.up {
		q.all = q.all.plus(v, n)
	}
}

// nominal reports that the queue has so much more within its nominal quota.
func (q *queue) nominal(v vector) bool {
	for i, x := range v {
		if x > 0 && q.used.part(i)+x > q.subtree.part(i) {
			return false
		}
	}
	return true
}

// entitled is how much more of a part is within the quota of the queue, or of one above it
// below the top of the tree.
func (q *queue) entitled(i int) int64 {
	most := max(q.subtree.part(i)-q.used.part(i), 0)
	for q = q.up; q != nil && !q.atTop(); q = q.up {
		most = max(most, q.subtree.part(i)-q.used.part(i))
	}
	return most
}

// borrows reports that the queue uses more than its nominal quota of something
// that is asked for.
func (q *queue) borrows(v vector) bool {
	for i, x := range v {
		if x > 0 && q.used.part(i) > q.subtree.part(i) {
			return true
		}
	}
	return false
}

// tree is the queue at the top of q's tree.
func (q *queue) tree() *queue {
	for q.up.up != nil {
		q = q.up
	}
	return q
}

// age brings what past use counts up to now: over a time in which use was
// constant, 2^(−time/half-life) of the old average stays, and the rest of it is
// that use.
func (q *queue) age(now time.Time) {
	if q.HalfLife <= 0 {
		return
	}
	if span := now.Sub(q.pastAt); !q.pastAt.IsZero() && span > 0 {
		keep := math.Exp2(-float64(span) / float64(q.HalfLife))
		for len(q.past) < len(q.all) {
			q.past = append(q.past, 0)
		}
		for i := range q.past {
			q.past[i] = keep*q.past[i] + (1-keep)*float64(q.all.part(i))
		}
	}
	if q.pastAt.Before(now) {
		q.pastAt = now
	}
}

// share is the part of all pools that the queue uses and used, of the resource of
// which that is most, divided by its weight: its dominant share (Ghodsi et al.,
// NSDI 2011). With n more of v.
func (s *State) share(q *queue, v vector, n int64) float64 {
	most := 0.0
	for i, total := range s.total {
		if total <= 0 {
			continue
		}
		x := float64(q.all.part(i) + n*v.part(i))
		if q.HalfLife > 0 {
			past := 0.0
			if i < len(q.past) {
				past = q.past[i]
			}
			x = (x + past) / 2
		}
		most = max(most, x/float64(total))
	}
	if q.Weight > 0 {
		return most / q.Weight
	}
	return most
}

// Turns says for whom others leave, or nodes are kept: they come first in the next
// step, whatever the policy says by then.
func (s *State) Turns() []ID { return slices.Clone(s.turns) }

// Leaving says since when those that were told to stop are leaving.
func (s *State) Leaving() map[ID]time.Time {
	out := make(map[ID]time.Time, len(s.leaving))
	for id, r := range s.leaving {
		if r.whole == nil {
			out[id] = r.LeavingSince
		}
	}
	return out
}

// History is what past use counts of each queue with a half-life: with pools,
// workloads and queues it makes a snapshot whole.
func (s *State) History() map[string]Used {
	out := map[string]Used{}
	for name, q := range s.queues {
		if q.HalfLife <= 0 || q.pastAt.IsZero() {
			continue
		}
		u := Used{Until: q.pastAt, Amount: map[string]float64{}}
		for i, x := range q.past {
			u.Amount[s.names.name(i)] = x
		}
		out[name] = u
	}
	return out
}

func (n *names) name(i int) string {
	switch i {
	case 0:
		return "cpu"
	case 1:
		return "memory"
	case 2:
		return "memory bandwidth"
	}
	return n.list[i-accelerators]
}

func (s *State) remember(history map[string]Used) {
	for name, u := range history {
		q := s.queues[name]
		if q == nil || q.HalfLife <= 0 {
			continue
		}
		q.pastAt, q.past = u.Until, make([]float64, s.names.width())
		for i := range q.past {
			q.past[i] = u.Amount[s.names.name(i)]
		}
	}
}

// least is the queue below q, or q itself, that comes first under fair: where
// workloads are left to look at, and of which the share is smallest.
func (s *State) least(q *queue) *queue {
	for q.line.at == len(q.line.works) {
		var best *queue
		var share float64
		for _, c := range q.below {
			if c.open == 0 {
				continue
			}
			if x := s.share(c, nil, 0); best == nil || cmp.Less(x, share) {
				best, share = c, x
			}
		}
		if best == nil {
			return nil
		}
		q = best
	}
	return q
}
