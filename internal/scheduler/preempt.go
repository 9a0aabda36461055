package scheduler

import (
	"cmp"
	"fmt"
	"slices"
)

// maxTries bounds the works for which a step looks for others to preempt: it is
// dear, and the next step looks on.
const maxTries = 8

// preempt has others leave for w, where they may be: of one queue those of lower
// priority, of other queues of its tree those that use more than their nominal
// quota while w is within its own, and under Fair those whose queue has more than
// its fair share even without them, while w's has less even with it. Of the pools
// the one is taken where least work is lost, of the works in it no more than are
// needed.
func (s *State) preempt(w *waiter, plan *Plan) {
	if s.tries == maxTries || w.known.queue.Patient {
		return
	}
	s.tries++
	var best *eviction
	for _, p := range w.known.pools {
		if p.kept != nil {
			continue // what leaves there is for another
		}
		e := s.evict(w, p, plan)
		if e != nil && len(e.victims) == 0 {
			w.preempts = e.leaving
			return // enough are leaving already
		}
		if e != nil && (best == nil || e.compare(best) < 0) {
			best = e
		}
	}
	if best == nil {
		return
	}
	for _, r := range best.victims {
		plan.Preempt = append(plan.Preempt, Preemption{Work: r.ID, For: w.ID, Why: s.cause(w, r)})
	}
	for _, r := range best.victims {
		r.Leaving = true
	}
	w.preempts = slices.Concat(best.leaving, best.victims)
}

// eviction is who would have to leave a pool.
type eviction struct {
	pool     *pool
	leaving  []*run // already
	victims  []*run
	priority int     // the highest of theirs
	lost     float64 // node hours since they saved
}

func (e *eviction) compare(o *eviction) int {
	return cmp.Or(cmp.Compare(e.priority, o.priority), cmp.Compare(e.lost, o.lost))
}

// evict finds who would have to leave for w to have room in p; nil when nobody
// could help. It takes them away to see, and puts all back.
func (s *State) evict(w *waiter, p *pool, plan *Plan) *eviction {
	e := &eviction{pool: p}
	put := func(r *run, n int64) {
		s.hold(r, n)
		r.queue.account(r.request, n*int64(r.placed()))
	}
	enough := func() bool { return s.allowed(w) >= w.least() && p.holds(w) }

	// 1. Those that leave anyway.
	from := p.runs
	if s.allowed(w) < w.least() {
		from = s.running // wherever they are, they hold its quota
	}
	var candidates []*run
	for _, r := range from {
		switch {
		case r.Leaving:
			e.leaving = append(e.leaving, r)
		case r.Preemptible && s.may(w, r) != "":
			candidates = append(candidates, r)
		}
	}
	slices.SortFunc(e.leaving, func(a, b *run) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range e.leaving {
		put(r, -1)
	}
	defer func() {
		for _, r := range slices.Concat(e.leaving, e.victims) {
			put(r, 1)
		}
	}()
	if enough() {
		return e
	}

	// 2. Others, who lose least first, until there is room.
	lost := make(map[*run]float64, len(candidates))
	for _, r := range candidates {
		lost[r] = s.lost(r)
	}
	slices.SortFunc(candidates, func(a, b *run) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(lost[a], lost[b]), cmp.Compare(a.ID, b.ID))
	})
	found := false
	for _, r := range candidates {
		if s.may(w, r) == "" {
			continue // not any more: its queue has no more than its own now
		}
		if !r.Started.Before(s.now) {
			continue // it was placed just now
		}
		if until := r.Started.Add(r.queue.MinRuntime); until.After(s.now) {
			plan.wake(until)
			continue
		}
		put(r, -1)
		e.victims = append(e.victims, r)
		if found = enough(); found {
			break
		}
	}
	if !found {
		return nil
	}

	// 3. Without those that turn out not to be needed, dearest first.
	for _, r := range slices.Backward(slices.Clone(e.victims)) {
		put(r, 1)
		if enough() {
			e.victims = slices.DeleteFunc(e.victims, func(o *run) bool { return o == r })
			continue
		}
		put(r, -1)
	}
	for _, r := range e.victims {
		e.lost += lost[r]
		e.priority = max(e.priority, r.Priority)
	}
	return e
}

// holds reports that the pool has room for the least that w needs, were nothing
// kept for others.
func (p *pool) holds(w *waiter) bool {
	n := 0
	for i := range p.rows {
		if n += p.counts(w.known, i, true, w.least()); n >= w.least() {
			return true
		}
	}
	return false
}

// right is why one work may preempt another.
type right string

const (
	byPriority right = "priority"
	byReclaim  right = "reclaim"
	byShare    right = "share"
)

// may says why w may preempt r; empty when it may not.
func (s *State) may(w *waiter, r *run) right {
	k, q := w.known, r.queue
	switch {
	case q == k.queue && w.Priority > r.Priority:
		return byPriority
	case q == k.queue || q.tree() != k.queue.tree() || !q.borrows(k.request):
		return ""
	case k.queue.nominal(k.request, int64(w.least())):
		return byReclaim
	case s.policy == Fair && s.share(k.queue, k.request, int64(w.least())) < s.share(q, r.request, -int64(r.placed())):
		return byShare
	}
	return ""
}

// cause is may in words.
func (s *State) cause(w *waiter, r *run) string {
	k, q := w.known, r.queue
	switch s.may(w, r) {
	case byPriority:
		return fmt.Sprintf("%s has priority %d, this has %d", w.label(), w.Priority, r.Priority)
	case byReclaim:
		return fmt.Sprintf("queue %s takes back for %s what queue %s has borrowed", k.queue.Name, w.label(), q.Name)
	case byShare:
		return fmt.Sprintf("queue %s of %s has %.2f of its fair share, queue %s %.2f without this", k.queue.Name, w.label(),
			s.share(k.queue, k.request, int64(w.least())), q.Name, s.share(q, r.request, -int64(r.placed())))
	}
	return ""
}

// lost is what is done again when r is preempted: node hours since it saved.
func (s *State) lost(r *run) float64 {
	since := r.Started
	if r.Saved.After(since) {
		since = r.Saved
	}
	if since.IsZero() || r.pool == nil || len(r.pool.Nodes) == 0 {
		return 0
	}
	return max(s.now.Sub(since), 0).Hours() * float64(r.placed()) * Share(r.Request, r.pool.Nodes[0].Amount)
}
