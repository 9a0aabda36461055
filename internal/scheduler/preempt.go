package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// maxTries bounds the kinds of works for which a step looks for others to preempt
// in vain: it is dear.
const maxTries = 64

// try is a kind of works: who asks for the same, in one queue and with one
// priority, may preempt the same.
type try struct {
	queue    *queue
	shape    *shape
	priority int
	second   bool
}

// stuck is how long after its grace one that was told to leave counts as leaving.
const stuck = 2 * time.Minute

// leaves reports that r was told to leave and can be expected to.
func (r *run) leaves(now time.Time) bool {
	return r.Leaving && now.Sub(r.LeavingSince) <= r.Grace+stuck
}

// preempt has others leave for w, where they may be: of one queue those of lower
// priority, of other queues of its tree those that use more than their nominal
// quota of what is short while w is within its own, and under Fair those whose
// queue has more than its fair share even without them, while w's has less even
// with it. Under Tiresias who had enough leaves for who had not, and never the other
// way round: in one queue whatever their priorities, and where its queue has borrowed.
// Whoever leaves idle what w asks for does, wherever it is, before all others. Of the pools the one is taken where least work is lost, of the works in
// it no more than are needed. It is w's turn then until it has its place.
func (s *State) preempt(w *waiter, plan *Plan) {
	if len(s.tries) >= maxTries {
		return
	}
	kind := try{w.known.queue, w.known.shape, w.Priority, w.second()}
	if s.tries[kind] || !s.helped(w) {
		return
	}
	w.short = s.short(w)
	victims, leaving := s.candidates(w, plan)
	var best *eviction
	for _, p := range w.known.pools {
		e := s.evict(w, p, victims, leaving, plan)
		if e != nil && len(e.victims) == 0 { // enough are leaving already
			for _, r := range e.leaving {
				if s.waiting[r.LeavingFor] == nil {
					r.leaveFor(w.ID)
				}
			}
			w.preempts = e.leaving
			return
		}
		if e != nil && (best == nil || e.compare(best) < 0) {
			best = e
		}
	}
	if best == nil {
		s.tries[kind] = true
		return
	}
	for _, r := range best.victims {
		why := s.cause(w, r)
		if r.whole != nil {
			s.shed(r, w, why, plan)
			continue
		}
		plan.Preempt = append(plan.Preempt, Preemption{Work: r.ID, For: w.ID, Why: why, Ends: !r.Preemptible})
		s.tell(r, w.ID)
	}
	w.preempts = slices.Concat(best.leaving, best.victims)
}

// tell has a running work leave for another; for nobody when by is empty.
func (s *State) tell(r *run, by ID) {
	r.Leaving, r.LeavingSince, r.LeavingFor = true, s.now, by
	s.leaving[r.ID] = r
	for i := range r.on() {
		r.pool.on[i].order = nil
	}
}

// patient reports that nobody leaves for the works of a queue. Who names none has
// no priority over others there, but under Tiresias all are in two queues.
func (s *State) patient(q *queue) bool {
	return q.Patient && (q.Name != "" || s.policy != Tiresias)
}

// helped reports that somebody could leave for w at all: somebody does already, or
// its tree has quotas to take back, its queue runs what has a lower priority, or
// somebody leaves accelerators idle.
func (s *State) helped(w *waiter) bool {
	q := w.known.queue
	for id := range s.idle {
		if w.known.wants(s.running[id]) {
			return true
		}
	}
	if s.patient(q) {
		return false
	}
	if len(s.leaving) > 0 || q.tree().limited || s.policy == Tiresias && !w.second() {
		return true
	}
	if !q.ranked {
		q.ranked, q.lowest = true, math.MaxInt
		for _, r := range q.runs {
			if r.Preemptible || r.surplus() > 0 {
				q.lowest = min(q.lowest, r.Priority)
			}
		}
	}
	return q.lowest < w.Priority
}

// short is the part of what w asks for of which there is too little: of its
// queue's quota, else of room.
func (s *State) short(w *waiter) vector {
	k := w.known
	out, some := make(vector, len(k.total)), false
	each := k.each()
	lack := func(of func(i int) bool) {
		for i, x := range k.total {
			if x > 0 && of(i) {
				out[i], some = x, true
			}
		}
	}
	lack(func(i int) bool { return k.queue.left(i)-k.queue.held.part(i) < k.total[i] })
	if some {
		return out
	}
	lack(func(i int) bool {
		return !slices.ContainsFunc(k.pools, func(p *pool) bool {
			return slices.ContainsFunc(p.free, func(free vector) bool { return free.part(i) >= each[i] })
		})
	})
	if some {
		return out
	}
	return k.total
}

// stoppable is a running work that may have to leave for another, or give up workers.
type stoppable struct {
	*run
	second bool
	lost   float64
	sheds  bool
}

// stoppable orders one by who loses least; those that give up workers lose nothing.
func (s *State) stoppable(r *run) stoppable {
	if r.surplus() > 0 {
		return stoppable{run: r, sheds: true}
	}
	return stoppable{run: r, second: s.second(r), lost: s.lost(r)}
}

func (a stoppable) compare(b stoppable) int {
	switch {
	case a.second != b.second:
		return cmp.Compare(btoi(b.second), btoi(a.second))
	case a.Priority != b.Priority:
		return cmp.Compare(a.Priority, b.Priority)
	case a.lost != b.lost:
		return cmp.Compare(a.lost, b.lost)
	}
	return cmp.Or(cmp.Compare(btoi(b.sheds), btoi(a.sheds)), cmp.Compare(a.ID, b.ID))
}

// reaches reports that a running work that is told to stop can be expected to: one that
// starts now cannot yet, and a pool that is closed cannot be relied on.
func (s *State) reaches(r *run) bool {
	return r.pool != nil && r.pool.Closed == "" && r.Started.Before(s.now)
}

// stoppables are those of a queue, or of a tree with quotas, found once in a step.
func (s *State) stoppables(of *queue) []stoppable {
	if out, known := s.stops[of]; known {
		return out
	}
	out := []stoppable{}
	look := func(q *queue) {
		for _, r := range q.runs {
			if (r.Preemptible || r.surplus() > 0) && s.reaches(r) {
				out = append(out, s.stoppable(r))
			}
		}
	}
	if of.limited {
		s.walk(of, look)
	} else { // nobody borrows there
		look(of)
	}
	slices.SortFunc(out, stoppable.compare)
	s.stops[of] = out
	return out
}

// candidates are those that w may preempt, and those that leave anyway; who leaves
// accelerators idle first, then who loses least.
func (s *State) candidates(w *waiter, plan *Plan) (victims, leaving []*run) {
	for _, r := range s.leaving {
		if r.pool != nil && r.pool.Closed == "" && r.leaves(s.now) {
			leaving = append(leaving, r)
		}
	}
	slices.SortFunc(leaving, func(a, b *run) int { return cmp.Compare(a.ID, b.ID) })

	add := func(r *run) {
		if r.surplus() > 0 {
			victims = append(victims, slices.DeleteFunc(s.parts(r), func(one *run) bool { return s.may(w, one) == "" })...)
		} else if s.may(w, r) != "" {
			victims = append(victims, r)
		} else if at, ok := r.demoted(); ok && s.policy == Tiresias && !w.second() && at.After(s.now) {
			plan.wake(at)
		}
	}
	var idle []stoppable
	for _, r := range s.idlers(w, plan) {
		if s.reaches(r) {
			idle = append(idle, s.stoppable(r))
		}
	}
	slices.SortFunc(idle, stoppable.compare)
	for _, r := range idle {
		add(r.run)
	}
	busy, of := len(victims), w.known.queue
	if tree := of.tree(); tree.limited {
		of = tree
	}
	for _, r := range s.stoppables(of) {
		if !r.Leaving && !s.idles(w, r.run) && (r.Preemptible || r.surplus() > 0) {
			add(r.run)
		}
	}

	// Of workers that may go as well as each other, those first that stand where they help.
	useful := s.useful(w, victims)
	for from := 0; useful != nil && from < len(victims); {
		to := from + 1
		for ; to < len(victims) && to != busy && victims[from].whole != nil && victims[to].whole != nil && victims[from].Priority == victims[to].Priority; to++ {
		}
		slices.SortFunc(victims[from:to], useful)
		from = to
	}
	return victims, leaving
}

// eviction is who would have to leave a pool.
type eviction struct {
	pool     *pool
	leaving  []*run // already, and needed
	victims  []*run
	priority int     // the highest of those that are not idle
	lost     float64 // node hours since those saved
}

func (e *eviction) compare(o *eviction) int {
	return cmp.Or(cmp.Compare(e.priority, o.priority), cmp.Compare(e.lost, o.lost))
}

// evict finds who would have to leave for w to have room in p; nil when nobody
// could help. It takes them away to see, and puts all back.
func (s *State) evict(w *waiter, p *pool, victims, leaving []*run, plan *Plan) *eviction {
	e := &eviction{pool: p, priority: math.MinInt}
	limited := s.allowed(w) < w.least() // then whoever has its quota helps, wherever it is
	room := p.gauge(w, s.now)
	put := func(r *run, n int64) {
		s.hold(r, n)
		r.queue.account(r.total, n)
		room.put(r)
	}
	enough := func() bool { return s.allowed(w) >= w.least() && room.enough() }
	defer func() {
		for _, r := range e.leaving {
			put(r, 1)
		}
		for _, r := range e.victims {
			put(r, 1)
		}
	}()
	// without puts back those that turn out not to be needed, dearest first.
	without := func(all []*run) []*run {
		var out []*run
		for _, r := range slices.Backward(all) {
			if put(r, 1); !enough() {
				put(r, -1)
				out = append(out, r)
			}
		}
		slices.Reverse(out)
		return out
	}

	// 1. Those that leave anyway.
	for _, r := range leaving {
		if r.pool == p || limited {
			put(r, -1)
			e.leaving = append(e.leaving, r)
		}
	}
	if enough() {
		e.leaving = without(e.leaving)
		return e
	}

	// 2. Others, until there is room.
	some, ok := map[*run]int{}, false // of those that shed
	for _, r := range victims {
		if r.pool != p && !limited || s.may(w, r) == "" { // its queue may have no more than its own now
			continue
		}
		if r.whole != nil && some[r.whole] == r.whole.surplus() {
			continue
		}
		if until := r.Started.Add(r.queue.MinRuntime); until.After(s.now) {
			plan.wake(until)
			continue
		}
		put(r, -1)
		if r.whole != nil {
			some[r.whole]++
		}
		e.victims = append(e.victims, r)
		if ok = enough(); ok {
			break
		}
	}
	if !ok {
		return nil
	}

	// 3. Without those that are not needed.
	e.victims = without(e.victims)
	e.leaving = without(e.leaving)
	for _, r := range e.victims {
		if !s.idles(w, r) {
			e.lost += s.lost(r)
			e.priority = max(e.priority, r.Priority)
		}
	}
	return e
}

// right is why one work may preempt another.
type right string

const (
	byPriority right = "priority"
	byReclaim  right = "reclaim"
	byShare    right = "share"
	byService  right = "service"
	byIdle     right = "idle"
)

// may says why w may preempt r; empty when it may not.
func (s *State) may(w *waiter, r *run) right {
	k, q := w.known, r.queue
	first := s.policy == Tiresias && !w.second() // of the two queues
	switch {
	case s.idles(w, r):
		return byIdle
	case !r.Preemptible && r.whole == nil || s.patient(k.queue):
		return ""
	case q == k.queue && r.whole != nil: // what service it had says nothing of a service
		if w.Priority > r.Priority {
			return byPriority
		}
		return ""
	case q == k.queue && first && s.second(r):
		return byService
	case q == k.queue && w.Priority > r.Priority && (s.policy != Tiresias || first || s.second(r)):
		return byPriority
	case q == k.queue || q.tree() != k.queue.tree() || !q.borrows(w.short):
		return ""
	case k.queue.nominal(k.total):
		return byReclaim
	case s.policy == Fair && s.share(k.queue, k.total, 1) < s.share(q, r.total, -1):
		return byShare
	case first && s.second(r):
		return byService
	}
	return ""
}

// second reports that a running work is in the second queue of Tiresias.
func (s *State) second(r *run) bool { return s.policy == Tiresias && r.whole == nil && r.second(s.now) }

// cause is may in words.
func (s *State) cause(w *waiter, r *run) string {
	k, q := w.known, r.queue
	switch s.may(w, r) {
	case byIdle:
		return fmt.Sprintf("%s waits for accelerators, and those of this have done nothing for %s since its owner was told", w.label(), s.now.Sub(r.Idle).Round(time.Second))
	case byPriority:
		return fmt.Sprintf("%s has priority %d, this has %d", w.label(), w.Priority, r.Priority)
	case byReclaim:
		return fmt.Sprintf("queue %s takes back for %s what queue %s has borrowed", k.queue.Name, w.label(), q.Name)
	case byShare:
		return fmt.Sprintf("queue %s of %s has %.2f of its fair share, queue %s %.2f without this", k.queue.Name, w.label(),
			s.share(k.queue, k.total, 1), q.Name, s.share(q, r.total, -1))
	case byService:
		return fmt.Sprintf("%s had less than %g hours of service, this %s", w.label(), enough/3600, r.service(r.Attained(s.now)))
	}
	return ""
}

// lost is what is done again when r is preempted: node hours since it saved.
func (s *State) lost(r *run) float64 {
	since := r.Started
	if r.Saved.After(since) {
		since = r.Saved
	}
	if since.IsZero() || r.whole != nil || r.pool == nil || len(r.pool.Nodes) == 0 {
		return 0
	}
	return max(s.now.Sub(since), 0).Hours() * r.Share(r.pool.Nodes[0].Amount, r.placed())
}
