package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Decide is the plan for a world given whole, as one delta from nothing, and
// the state that explains it.
func Decide(all Delta) (*State, Plan) {
	s := &State{}
	return s, s.Step(all)
}

// Step is one scheduling cycle. The state takes the plan as done.
func (s *State) Step(d Delta) Plan {
	// 1. Apply what changed.
	s.apply(d)
	s.begin()

	// 2. Rank. Workloads whose turn has begun are considered first, the others in the order
	// of their queues.
	var plan Plan
	s.clear(&plan)
	begun := s.begun()
	for _, w := range begun {
		s.consider(w, &plan)
	}
	for w := s.next(); w != nil; w = s.next() {
		if !w.begun {
			s.consider(w, &plan)
		}
	}
	for _, w := range begun {
		w.begun = false
	}
	if d.Sizes {
		s.resize(&plan)
	}
	s.end()
	if turn := s.nextTurn(); !turn.IsZero() {
		plan.wake(turn)
	}
	return plan
}

// begun are the pending workloads whose turn has begun: victims are leaving for them, or, under Fair,
// the last step reserved nodes for them. Otherwise others would take what is freed for them.
func (s *State) begun() []*waiter {
	var out []*waiter
	for _, id := range s.turns {
		if w := s.waiting[id]; w != nil && !w.begun {
			w.begun = true
			out = append(out, w)
		}
	}
	slices.SortFunc(out, s.rank)
	return out
}

// consider places a workload, or reserves what it will need.
func (s *State) consider(w *waiter, plan *Plan) {
	k := s.know(w)
	s.seen++
	w.order, w.preempts, w.into = s.seen, nil, nil

	// 3. Admit. A workload that can run in no pool, never or not yet reserves nothing.
	if len(k.pools) == 0 || k.never != "" || k.queue.stopped {
		return
	}
	if w.NotBefore.After(s.now) {
		plan.wake(w.NotBefore)
		return
	}
	if k.windows && !slices.ContainsFunc(k.pools, func(p *pool) bool { return !p.shut(w, s.now) }) {
		return
	}

	// 4. Fit: within its limits, in the cheapest pool. Capacity only shrinks within a step: if a
	// workload of the same shape did not fit and all pools are reserved, the search is skipped.
	allowed, most := false, 0
	if k.full != s.step || !s.lasts(w) {
		most = s.allowed(w)
		if allowed = most >= w.least(); allowed {
			most = s.initialSize(w, most)
			if w.begun {
				most = s.owned(w, most)
			}
		}
		if allowed && s.fit(w, most, plan) {
			return
		}
	}

	// 5. Preempt, if victims are permitted.
	s.preempt(w, plan)

	// 6. Submit it early to an engine that queues it itself.
	if allowed && s.queueAhead(w, most, plan) {
		return
	}

	// 7. Reserve what it needs, unless it is reserved for an earlier workload.
	if allowed {
		for _, p := range k.pools {
			if p.reserved == nil && !p.shut(w, s.now) {
				s.reserve(p, w)
			}
		}
		if !k.windows && s.lasts(w) {
			k.full = s.step
		}
	}
	s.keep(w)
}

// lasts reports that w is too long to backfill in any pool: it may not use reserved capacity.
func (s *State) lasts(w *waiter) bool { return w.Timeout <= 0 || w.Timeout > s.longest }

// clear preempts preemptible workloads on nodes with maintenance.
func (s *State) clear(plan *Plan) {
	for _, p := range s.order {
		if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Leave }) || p.Delegated {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(p.runs)) {
			r := p.runs[id]
			i := slices.IndexFunc(r.rows, func(i int) bool { return p.Nodes[i].Leave })
			if i < 0 || !r.Preemptible || r.Leaving {
				continue
			}
			n := p.Nodes[r.rows[i]]
			plan.Preempt = append(plan.Preempt, Preemption{Workload: id, Why: fmt.Sprintf("node %s is unschedulable: %s", n.Name, n.Closed)})
			s.markPreempted(r, "")
		}
	}
}

// begin clears the reservations and caches of the last step.
func (s *State) begin() {
	s.sizes, s.longest = nil, 0
	s.step++
	s.stops, s.freeIfPreemptedCache, s.leavingCache = map[*queue][]stoppable{}, map[*queue]map[*pool][]vector{}, leavingRuns{}
	s.searches, s.failedSearches, s.moves = map[searchKind]searchResult{}, 0, 0
	s.keeping, s.seen = s.keeping[:0], 0
	for _, p := range s.order {
		p.reserved, p.misfit = nil, nil
	}
	for _, q := range s.queues {
		q.mine, q.held, q.first, q.stopped = nil, nil, nil, false
	}
	for _, c := range s.limits {
		c.held, c.first = nil, nil
	}
	s.setTypicalDemands()
	s.top.line.begin(s)
	for _, q := range s.queues {
		q.line.begin(s)
		q.open = 0
	}
	s.top.open = 0
	for _, q := range s.queues {
		if len(q.line.works) > 0 {
			for at := q; at != nil; at = at.up {
				at.open++
			}
		}
	}
}

func (l *line) begin(s *State) {
	if l.stale {
		l.works = slices.DeleteFunc(l.works, func(w *waiter) bool { return s.waiting[w.ID] != w })
		l.stale = false
	}
	l.at = 0
}

// next is whom to look at: first of the line of all, or of the line of the queue
// whose share is least now.
func (s *State) next() *waiter {
	q := s.top
	if s.policy == Fair {
		if s.current == nil || s.current.line.at == len(s.current.line.works) {
			s.current = s.least(s.top)
		}
		q = s.current
	}
	if q == nil || q.line.at == len(q.line.works) {
		return nil
	}
	w := q.line.works[q.line.at]
	q.line.at++
	if q.line.at == len(q.line.works) {
		for at := q; at != nil; at = at.up {
			at.open--
		}
	}
	return w
}

// allowed is how many workers the limits of queue, project and user have room
// for now.
func (s *State) allowed(w *waiter) int {
	n := int64(w.most())
	k := w.known
	if k.kinds != nil {
		return s.allowedRoles(w)
	}
	for i, x := range k.request {
		if x <= 0 {
			continue
		}
		for _, c := range k.ceilings {
			n = min(n, max(c.left(i), 0)/x)
		}
		n = min(n, max(k.queue.left(i)-k.queue.held.part(i), 0)/x)
	}
	return int(n)
}

// fit places a workload in the first of its pools where it fits. known.pools are sorted by price, the
// cheapest first: see shapeOf.
func (s *State) fit(w *waiter, most int, plan *Plan) bool {
	for _, p := range w.known.pools {
		rows := p.rowsFor(w, most, s.now)
		if rows == nil {
			continue
		}
		s.place(w, p, rows, plan)
		return true
	}
	return false
}

// place gives a workload rows of a pool, one for each worker.
func (s *State) place(w *waiter, p *pool, rows []int, plan *Plan) {
	r := &run{Running: Running{Workload: w.Workload, Pool: p.Name, Placed: len(rows), Nodes: p.nodes(rows), Started: s.now}}
	if w.Timeout > 0 {
		r.Deadline = s.now.Add(w.Timeout)
	}
	lasts := p.reserved != nil && !p.brief(&w.Workload, s.now)
	s.start(r)
	if lasts {
		for n, i := range rows {
			if p.reserved.leftover[i] != nil {
				p.reserved.leftover[i] = p.reserved.leftover[i].plus(w.known.of(n), -1)
			}
		}
	}
	s.current = nil // shares have changed
	plan.Place = append(plan.Place, Placement{Workload: w.ID, Pool: p.Name, Workers: len(rows), Nodes: r.Nodes, Passed: w.known.refused})
}

// keep reserves what a workload needs of its limits, unless an earlier workload has reserved them. What
// is within its queue's nominal quota is reserved from all queues; what it would borrow, from its own
// queue only. Nominal is the quota of the queue, or of a queue above it below the top of the tree.
func (s *State) keep(w *waiter) {
	q, total := w.known.queue, w.known.total
	if q.first == nil {
		q.first, q.order, q.stopped = w, w.order, q.Order == Strict
		q.mine, q.held = make(vector, len(total)), make(vector, len(total))
		for i, x := range total {
			q.mine[i] = min(x, q.entitled(i))
			q.held[i] = x - q.mine[i]
		}
		q.use(q.mine, 1)
		s.keeping = append(s.keeping, q)
		s.moves++
	}
	for _, c := range w.known.ceilings {
		if c.first == nil {
			c.first = w
			s.moves++
			c.held = c.held.plus(total, 1)
		}
	}
}

// end releases the reserved quota. Why adds it again for its answers.
func (s *State) end() {
	for _, q := range s.keeping {
		q.use(q.mine, -1)
	}
	s.current, s.freeIfPreemptedCache, s.stops = nil, nil, nil
	turns := map[ID]bool{}
	for _, p := range s.order {
		if p.reserved != nil && s.policy == Fair {
			turns[p.reserved.owner.ID] = true
		}
	}
	for _, r := range s.leaving {
		if r.LeavingFor != "" && s.waiting[r.LeavingFor] != nil {
			turns[r.LeavingFor] = true
		}
	}
	s.turns = slices.Sorted(maps.Keys(turns))
}

// wake asks for a step at a time.
func (p *Plan) wake(at time.Time) {
	if p.Wake.IsZero() || at.Before(p.Wake) {
		p.Wake = at
	}
}
