package scheduler

import (
	"cmp"
	"slices"
)

// Protection by quotas in a tree of queues. Every queue below the root of a tree has a quota: its
// own, and what its child queues lend. A running workload is protected at a queue if it fits into
// the queue's quota after the workloads before it: first those protected further down, then those
// that cannot be preempted, then by start time. A waiting workload fits a quota if there is room
// for it beside everything that runs there. It never preempts a workload that is protected deeper
// in the tree than the waiting one fits. So each preemption increases the potential of
// docs/design/scheduler.md, and preemption terminates.

// fork is the lowest queue that is q or above it, and o or above it, and the queue right below
// that on the way to o; nil where o is that queue.
func (q *queue) fork(o *queue) (common, theirs *queue) {
	for q.level > o.level {
		q = q.up
	}
	for o.level > q.level {
		theirs, o = o, o.up
	}
	for q != o {
		theirs, q, o = o, q.up, o.up
	}
	return q, theirs
}

// atTop reports that q is the top of its tree: its quota is a limit, not a share.
func (q *queue) atTop() bool { return q.up == nil || q.up.up == nil }

// lift is what the queue above sees of v more in q, when q uses so much already.
func (q *queue) lift(v, used vector) vector {
	up := make(vector, len(v))
	for i, x := range v {
		up[i] = max(used.part(i)+x-q.own.part(i), 0) - max(used.part(i)-q.own.part(i), 0)
	}
	return up
}

// within is the deepest queue, from q up and below the top of the tree, whose quota holds v
// beside what is used there; nil when none does.
func (q *queue) within(v vector) *queue {
	for !q.atTop() {
		if q.nominal(v) {
			return q
		}
		if q.up.atTop() {
			return nil
		}
		v, q = q.lift(v, q.used), q.up
	}
	return nil
}

// level is how deep in the tree a queue is; that of none is 0.
func level(q *queue) int {
	if q == nil {
		return 0
	}
	return q.level
}

// exceeds reports that o has more than its quota of something that is short, and so has each
// queue above it that is not above q too.
func (q *queue) exceeds(o *queue, short vector) bool {
	_, theirs := q.fork(o)
	if theirs == nil {
		return o.exceedsAlone(short)
	}
	for ; o.borrows(short); o = o.up {
		if o == theirs {
			return true
		}
	}
	return false
}

// exceedsAlone reports that the workloads of q itself, without those of queues below it, use more
// than its own quota of something that is short.
func (q *queue) exceedsAlone(short vector) bool {
	for i, x := range short {
		used, quota := q.used.part(i), q.subtree.part(i)
		for _, c := range q.below {
			used -= max(c.used.part(i)-c.own.part(i), 0)
			quota -= c.subtree.part(i) - c.own.part(i)
		}
		if x > 0 && used > quota && q.subtree.part(i) < unlimited {
			return true
		}
	}
	return false
}

// protector is the deepest queue at which a running workload is protected; nil if none.
func (s *State) protector(r *run) *queue {
	if r.whole != nil {
		r = r.whole
	}
	for q := r.queue; !q.atTop(); q = q.up {
		if s.protected(q)[r] {
			return q
		}
	}
	return nil
}

// protected are the workloads of q, and of the queues below it, that its quota holds. It is kept
// until one of them starts, ends or is preempted.
func (s *State) protected(q *queue) map[*run]bool {
	if q.protected == nil {
		q.protected = s.protect(q)
	}
	return q.protected
}

func (s *State) protect(q *queue) map[*run]bool {
	type item struct {
		*run
		deeper bool
	}
	var all []item
	add := func(o *queue, deeper map[*run]bool) {
		o.tally = o.tally[:0]
		for _, r := range o.runs {
			if !r.Leaving && !r.away {
				all = append(all, item{r, deeper[r]})
			}
		}
	}
	add(q, nil)
	for _, c := range q.below {
		deeper := s.protected(c)
		s.walk(c, func(o *queue) { add(o, deeper) })
	}
	slices.SortFunc(all, func(a, b item) int {
		return cmp.Or(cmp.Compare(btoi(b.deeper), btoi(a.deeper)), cmp.Compare(btoi(a.interruptible()), btoi(b.interruptible())), a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	out := make(map[*run]bool, len(all))
	for _, r := range all {
		if q.holds(r.run, r.deeper) {
			out[r.run] = true
		}
	}
	return out
}

// holds counts a running workload among what q's quota holds, if it does. What is protected
// further down always is: the quotas there are part of this one.
func (q *queue) holds(r *run, deeper bool) bool {
	v := r.stays()
	up := v
	for o := r.queue; o != q; o = o.up {
		up = o.lift(up, o.tally)
	}
	for i, x := range up {
		if !deeper && x > 0 && q.tally.part(i)+x > q.subtree.part(i) {
			return false
		}
	}
	for o := r.queue; o != q; o = o.up {
		up = o.lift(v, o.tally)
		o.tally, v = o.tally.plus(v, 1), up
	}
	q.tally = q.tally.plus(v, 1)
	return true
}

// interruptible reports that a running workload may be preempted, or may give up workers.
func (r *run) interruptible() bool { return r.Preemptible || r.EvictableWorkers }

// stays is what a running workload uses without its workers that are being evicted.
func (r *run) stays() vector {
	if len(r.evictedWorkers) == 0 {
		return r.total
	}
	v := slices.Clone(r.total)
	for _, one := range r.evictedWorkers {
		v = v.plus(one.total, -1)
	}
	return v
}

// unprotect discards the protected workloads of a queue and of its ancestors.
func (q *queue) unprotect() {
	for ; q != nil; q = q.up {
		q.protected = nil
	}
}

// standard is what workloads are compared by where one takes the place of another: under Tiresias
// who had less service counts more, then a higher priority.
type standard struct {
	first    bool
	priority int
}

func (a standard) compare(b standard) int {
	return cmp.Or(cmp.Compare(btoi(a.first), btoi(b.first)), cmp.Compare(a.priority, b.priority))
}

// worth is what is protected at a queue, the highest standards first. More of it is worth
// more, and one of a higher standard is worth more than any number of lower ones.
func (s *State) worth(q *queue) []standard {
	out := make([]standard, 0, len(q.runs))
	for r := range s.protected(q) {
		out = append(out, standard{!s.second(r), r.Priority})
	}
	slices.SortFunc(out, func(a, b standard) int { return b.compare(a) })
	return out
}

// spares reports that the quotas of the queues of some workloads, below those that are above q
// too, still protect as much as before when these leave.
func (s *State) spares(q *queue, leave []*run) bool {
	var paths []*queue
	for _, r := range leave {
		common, _ := q.fork(r.queue)
		for o := r.queue; o != common; o = o.up {
			if !slices.Contains(paths, o) {
				paths = append(paths, o)
			}
		}
	}
	before := make([][]standard, len(paths))
	for i, o := range paths {
		before[i] = s.worth(o)
	}
	away := func(yes bool) {
		for _, r := range leave {
			r.away = yes
			r.queue.unprotect()
		}
	}
	away(true)
	defer away(false)
	for i, o := range paths {
		if slices.CompareFunc(s.worth(o), before[i], standard.compare) < 0 {
			return false
		}
	}
	return true
}

// owned is how many workers a workload gets for which others left: it takes from them what is
// within the quota for which it could, and what it must have.
func (s *State) owned(w *waiter, most int) int {
	q := w.known.queue
	if !q.tree().limited || q.atTop() || most <= w.least() || len(w.Roles) > 0 {
		return most
	}
	total := slices.Clone(w.known.total)
	deepest := level(q.within(total))
	if deepest == 0 {
		return w.least()
	}
	for n := w.least(); n < most; n++ {
		if total = total.plus(w.known.request, 1); level(q.within(total)) < deepest {
			return n
		}
	}
	return most
}
