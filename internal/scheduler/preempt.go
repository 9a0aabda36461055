package scheduler

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// maxTries is how many kinds of workloads may search for victims without success in a step.
// Later kinds search only with a decreasing probability, because a search is expensive.
const maxTries = 16

// searchRetry is the time after which the kinds that may search are drawn again.
const searchRetry = 10 * time.Second

// searchKind is a kind of workloads: workloads with the same request, queue, priority and limits
// may preempt the same victims.
type searchKind struct {
	queue    *queue
	shape    *shape
	priority int
	second   bool
	ceilings [3]*ceiling
	// Set only if nodes close for maintenance: they decide which workloads may start there.
	timeout time.Duration
	saves   bool
}

// searchResult is the result of a kind's search: no victims, or enough workloads are leaving
// already. It is valid until moves changes.
type searchResult struct {
	noVictims bool
	leaving   []*run
	into      *pool
	moves     int
}

func (w *waiter) kindOfSearch() searchKind {
	k := w.known
	out := searchKind{queue: k.queue, shape: k.shape, priority: w.Priority, second: w.second()}
	copy(out.ceilings[:], k.ceilings)
	if k.windows {
		out.timeout, out.saves = w.Timeout, w.Preemptible
	}
	return out
}

// overdueMargin is how long after its grace period a preempted workload still counts as leaving.
const overdueMargin = 2 * time.Minute

// isLeaving reports that r was preempted and is expected to end.
func (r *run) isLeaving(now time.Time) bool {
	return r.Leaving && now.Sub(r.LeavingSince) <= r.Grace+overdueMargin
}

// preempt preempts victims for w, if any are permitted:
//
//   - in w's queue, workloads of lower priority;
//   - in other queues of the tree, workloads whose queues use more than the quotas on the
//     path to the common ancestor, of the scarce resource, while w fits a quota on its path;
//   - under Fair, workloads whose queue exceeds its fair share even without them, while w's
//     queue stays below its share even with w;
//   - under Tiresias, workloads of the second queue for those of the first, never the reverse:
//     within one queue whatever their priorities, and where a queue has borrowed;
//   - before all others, workloads in any queue whose accelerators are idle and requested by w.
//
// A victim is never protected deeper than w would fit a quota: see protect.go. The pool with
// the least lost work is chosen, and no more victims than needed. w then keeps its rank until
// it is placed.
//
// For most workloads enough victims are leaving already, or preemption would not help. Both
// checks come first, once for each kind.
func (s *State) preempt(w *waiter, plan *Plan) {
	kind := w.kindOfSearch()
	was, known := s.searches[kind]
	switch {
	case was.noVictims:
		return
	case known && was.moves == s.moves:
		w.preempts, w.into = was.leaving, was.into
		return
	case !s.preemptionMayHelp(w):
		return
	}
	if e := s.enoughLeaving(w); e != nil {
		for _, r := range e.leaving {
			if s.waiting[r.LeavingFor] == nil {
				r.setLeavingFor(w.ID)
			}
		}
		w.preempts, w.into = e.leaving, e.pool
		s.searches[kind] = searchResult{leaving: e.leaving, into: e.pool, moves: s.moves}
		return
	}
	best := s.searchVictims(w, kind, plan)
	if best == nil {
		s.searches[kind] = searchResult{noVictims: true}
		return
	}
	causes := make([]string, len(best.victims)) // before the first is marked: that changes what is protected
	for i, r := range best.victims {
		causes[i] = s.cause(w, r)
	}
	for i, r := range best.victims {
		if r.whole != nil {
			s.evictWorker(r, w, causes[i], plan)
			continue
		}
		plan.Preempt = append(plan.Preempt, Preemption{Workload: r.ID, For: w.ID, Why: causes[i], Ends: !r.Preemptible})
		s.markPreempted(r, w.ID)
	}
	w.preempts, w.into = slices.Concat(best.leaving, best.victims), best.pool
}

// enoughLeaving returns the leaving workloads that make room for w, in the first of its pools where
// they suffice; nil if there is no such pool.
func (s *State) enoughLeaving(w *waiter) *eviction {
	limited := s.allowed(w) < w.least()
	if limited && !s.fitsAfterLeaving(w) {
		return nil
	}
	for _, p := range w.known.pools {
		if e := s.evict(w, p, limited, nil, nil); e != nil {
			return e
		}
	}
	return nil
}

// fitsAfterLeaving reports that w is within its limits once all leaving workloads have ended.
func (s *State) fitsAfterLeaving(w *waiter) bool {
	all := s.expectedToLeave().all
	count := func(n int64) {
		for _, r := range all {
			for _, c := range r.ceilings {
				c.used = c.used.plus(r.total, n)
			}
			r.queue.account(r.total, n)
		}
	}
	count(-1)
	defer count(1)
	return s.allowed(w) >= w.least()
}

// searchVictims returns the victims for w in the pool with the least lost work; nil if no victims
// would help, or w may not search in this step.
func (s *State) searchVictims(w *waiter, kind searchKind, plan *Plan) *eviction {
	of := w.known.queue
	if tree := of.tree(); tree.limited {
		of = tree
	}
	w.short = s.short(w)
	if of.limited && !s.preemptionMayFit(w, of) {
		return nil
	}
	if !s.maySearch(kind) {
		plan.wake(s.now.Add(searchRetry))
		return nil
	}
	victims := s.candidates(w, of, plan)
	if len(victims) == 0 {
		return nil
	}
	limited := s.allowed(w) < w.least() // then victims in any pool help that free its quota
	in := map[*pool][]*run{}
	if !limited {
		for _, r := range victims {
			in[r.pool] = append(in[r.pool], r)
		}
	}
	var best *eviction
	for _, p := range w.known.pools {
		some := in[p]
		if limited {
			some = victims
		}
		if e := s.evict(w, p, limited, some, plan); e != nil && (best == nil || e.compare(best) < 0) {
			best = e
		}
	}
	if best == nil {
		s.failedSearches++
	}
	return best
}

// maySearch reports that a kind may search for victims in this step. After maxTries failed
// searches the probability is halved with every eight more. The draw depends only on
// the time and the kind, so each kind searches eventually, and the same snapshot gives the
// same plan.
func (s *State) maySearch(kind searchKind) bool {
	over := s.failedSearches - maxTries
	if over < 0 {
		return true
	}
	lot := sha256.Sum256(fmt.Append(nil, s.now.UnixNano(), kind.queue.Name, kind.priority, kind.shape.key))
	return binary.BigEndian.Uint64(lot[:])>>(63-min(over/8, 62)) == 0
}

// leavingRuns are the leaving workloads that are expected to end.
type leavingRuns struct {
	all []*run // by ID
	of  map[*pool][]*run
}

// expectedToLeave finds them; the result is cached until another workload is preempted.
func (s *State) expectedToLeave() leavingRuns {
	if s.leavingCache.of != nil {
		return s.leavingCache
	}
	out := leavingRuns{of: map[*pool][]*run{}}
	for _, r := range s.leaving {
		if r.pool != nil && r.pool.Closed == "" && r.isLeaving(s.now) {
			out.all = append(out.all, r)
		}
	}
	slices.SortFunc(out.all, func(a, b *run) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range out.all {
		out.of[r.pool] = append(out.of[r.pool], r)
	}
	s.leavingCache = out
	return out
}

// markPreempted marks a running workload as preempted for workload by, or for none if by is empty.
func (s *State) markPreempted(r *run, by ID) {
	r.Leaving, r.LeavingSince, r.LeavingFor = true, s.now, by
	s.countLeaving(r)
	for i := range r.on() {
		r.pool.on[i].order = nil
	}
}

// countLeaving adds a running workload to the leaving ones.
func (s *State) countLeaving(r *run) {
	s.leaving[r.ID], s.leavingCache = r, leavingRuns{}
	s.moves++
	r.queue.unprotect()
	for of, free := range s.freeIfPreemptedCache {
		if r.pool != nil && r.queue.tree() != of { // its own tree has counted it already
			r.addRowsTo(free[r.pool], 1)
		}
	}
}

// patient reports that the workloads of a queue preempt no others. One without a queue has
// no priority over others there, but under Tiresias all are in two queues.
func (s *State) patient(q *queue) bool {
	return q.NeverPreempts && (q.Name != "" || s.policy != Tiresias)
}

// preemptionMayHelp reports that there may be victims for w at all: workloads are leaving already,
// its tree has quotas to reclaim, its queue runs workloads of lower priority, or
// accelerators are idle.
func (s *State) preemptionMayHelp(w *waiter) bool {
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
	return q.weakest() < w.Priority
}

// weakest is the lowest priority of what a queue runs and may be preempted.
func (q *queue) weakest() int {
	if !q.ranked {
		q.ranked, q.lowest = true, math.MaxInt
		for _, r := range q.runs {
			if r.Preemptible || r.surplus() > 0 {
				q.lowest = min(q.lowest, r.Priority)
			}
		}
	}
	return q.lowest
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

// stoppable is a running workload that may be preempted for another, or may give up workers.
type stoppable struct {
	*run
	from   *queue // its own queue, copied here because every search reads it
	second bool
	lost   float64
	evicts bool
}

// stoppable returns r with its order: by the work lost, of which giving up workers costs none.
func (s *State) stoppable(r *run) stoppable {
	if r.surplus() > 0 {
		return stoppable{run: r, from: r.queue, evicts: true}
	}
	return stoppable{run: r, from: r.queue, second: s.second(r), lost: s.lost(r)}
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
	return cmp.Or(cmp.Compare(btoi(b.evicts), btoi(a.evicts)), cmp.Compare(a.ID, b.ID))
}

// reaches reports that a running workload would stop when preempted: one that starts in this
// step cannot, and one in a closed pool may not.
func (s *State) reaches(r *run) bool {
	return r.pool != nil && r.pool.Closed == "" && r.Started.Before(s.now)
}

// stoppables are the possible victims in a queue, or in a tree with quotas, computed once per step.
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
	} else { // no queue borrows there
		look(of)
	}
	slices.SortFunc(out, stoppable.compare)
	s.stops[of] = out
	return out
}

// freeIfPreempted returns, by pool and row, what would be free if every possible victim of a
// workload in this tree had left: an upper bound of what preemption can free.
func (s *State) freeIfPreempted(of *queue) map[*pool][]vector {
	if out := s.freeIfPreemptedCache[of]; out != nil {
		return out
	}
	out := make(map[*pool][]vector, len(s.order))
	width := s.names.width()
	for _, p := range s.order {
		rows, all := make([]vector, p.rows), make(vector, width*p.rows)
		for i, free := range p.free {
			if p.open[i] {
				rows[i] = all[i*width : (i+1)*width : (i+1)*width]
				copy(rows[i], free)
			}
		}
		out[p] = rows
	}
	leave := func(r *run) {
		if r.pool != nil {
			r.addRowsTo(out[r.pool], 1)
		}
	}
	for _, r := range s.expectedToLeave().all {
		leave(r)
	}
	for _, r := range s.stoppables(of) {
		leave(r.run)
	}
	for id := range s.idle {
		leave(s.running[id])
	}
	s.freeIfPreemptedCache[of] = out
	return out
}

// preemptionMayFit reports that w would fit some pool if all possible victims had left.
func (s *State) preemptionMayFit(w *waiter, of *queue) bool {
	free := s.freeIfPreempted(of)
	return slices.ContainsFunc(w.known.pools, func(p *pool) bool { return p.wouldFit(w, free[p], s.now) })
}

// candidates are the workloads that w may preempt: those with idle accelerators first, then
// by the work lost.
func (s *State) candidates(w *waiter, of *queue, plan *Plan) (victims []*run) {
	add := func(r *run) {
		switch {
		case r.surplus() > 0:
			victims = append(victims, slices.DeleteFunc(s.evictableWorkers(r), func(one *run) bool { return s.may(w, one) == "" })...)
		case s.may(w, r) != "":
			victims = append(victims, r)
		case s.policy == Tiresias && !w.second():
			if at, ok := r.demoted(); ok && at.After(s.now) {
				plan.wake(at)
			}
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
	busy := len(victims)
	if s.entitle(w, of) {
		reach := s.reach(w, of)
		for _, r := range s.stoppables(of) {
			if !r.from.entitles || r.Leaving || s.idles(w, r.run) || !r.Preemptible && r.surplus() == 0 {
				continue
			}
			if r.from != w.known.queue || level(s.protector(r.run)) <= reach {
				add(r.run)
			}
		}
	}

	// Of workers that may go as well as each other, those first that stand where they help.
	useful := s.byFreedCapacity(w, victims)
	for from := 0; useful != nil && from < len(victims); {
		to := from + 1
		for ; to < len(victims) && to != busy && victims[from].whole != nil && victims[to].whole != nil && victims[from].Priority == victims[to].Priority; to++ {
		}
		slices.SortFunc(victims[from:to], useful)
		from = to
	}
	return victims
}

// reach is how deep w would be within a quota had all left of its queue who might for it.
func (s *State) reach(w *waiter, of *queue) int {
	q := w.known.queue
	if !of.limited || q.atTop() {
		return math.MaxInt
	}
	count := func(n int64) {
		for _, r := range s.stoppables(of) {
			if r.from == q && !r.Leaving && s.may(w, r.run) != "" {
				q.use(r.total, n)
			}
		}
	}
	count(-1)
	defer count(1)
	return level(q.within(w.known.total))
}

// eviction is a set of victims in a pool.
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

// evict finds the victims that make room for w in p; nil if no victims would help. It removes
// them tentatively and restores them all. limited says that w waits because of a limit, not
// because there is no room.
func (s *State) evict(w *waiter, p *pool, limited bool, victims []*run, plan *Plan) *eviction {
	leaving := s.expectedToLeave().of[p]
	if limited {
		leaving = s.expectedToLeave().all
	}
	if len(leaving)+len(victims) == 0 {
		return nil
	}
	e := &eviction{pool: p, priority: math.MinInt}
	room, at := p.newFitCheck(w, s.now, !limited), protectionCheck{s: s, w: w}
	put := func(r *run, n int64) {
		s.hold(r, n)
		r.queue.account(r.total, n)
		room.update(r)
	}
	leave := func(r *run, n int64) {
		put(r, n)
		at.addVictim(r, int(-n))
	}
	enough := func() bool { return s.allowed(w) >= w.least() && room.fits() && at.permitted() }
	defer func() {
		for _, r := range e.leaving {
			put(r, 1)
		}
		for _, r := range e.victims {
			put(r, 1)
		}
	}()
	// without restores victims that turn out not to be needed, the most expensive first.
	without := func(all []*run, put func(*run, int64)) []*run {
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

	// 1. Workloads that are leaving already.
	for _, r := range leaving {
		put(r, -1)
		e.leaving = append(e.leaving, r)
	}
	if enough() {
		e.leaving = without(e.leaving, put)
		return e
	}
	at.begin()

	// 2. Others, until there is room.
	scattered := false // they are enough, but not on rows where that helps
	take := func(all []*run, may func(*run) bool) bool {
		some := map[*run]int{} // of those whose workers are evicted one by one
		for _, r := range all {
			if !may(r) { // its queue may have no more than its own now
				continue
			}
			if r.whole != nil && some[r.whole] == r.whole.surplus() {
				continue
			}
			if until := r.Started.Add(r.queue.MinRuntime); until.After(s.now) {
				plan.wake(until)
				continue
			}
			leave(r, -1)
			if r.whole != nil {
				some[r.whole]++
			}
			if e.victims = append(e.victims, r); enough() {
				return true
			}
		}
		scattered = len(e.victims) > 0 && s.allowed(w) >= w.least()
		for _, r := range e.victims {
			leave(r, 1)
		}
		e.victims = nil
		return false
	}
	ok, swapped := take(victims, func(r *run) bool { return s.may(w, r) != "" }), false
	if !ok && scattered && p.rows > 1 && s.maySearchRows(w, plan) {
		ok = s.rowwise(w, p, victims, take)
		swapped = ok
	}
	if !ok {
		return nil
	}

	// 3. Without those that are not needed.
	e.victims = without(e.victims, leave)
	e.leaving = without(e.leaving, put)
	if swapped && !s.spares(w.known.queue, e.victims) {
		return nil
	}
	for _, r := range e.victims {
		if !s.idles(w, r) {
			e.lost += s.lost(r)
			e.priority = max(e.priority, r.Priority)
		}
	}
	return e
}

// protectionCheck counts the protection of the victims for w.
type protectionCheck struct {
	s     *State
	w     *waiter
	base  float64     // the share of w's queue while they run, under Fair
	own   map[int]int // how many of w's queue, by how deep they are protected
	peers map[int]int // and of other queues, under Fair
}

// begin records the usage of w's queue before a victim is removed for w.
func (a *protectionCheck) begin() {
	if a.s.policy == Fair {
		a.base = a.s.share(a.w.known.queue, nil, 0)
	}
}

// addVictim counts a victim n times; n is negative to take it back.
func (a *protectionCheck) addVictim(r *run, n int) {
	q := a.w.known.queue
	if !q.tree().limited || q.atTop() || a.s.idles(a.w, r) {
		return
	}
	if a.own == nil {
		a.own, a.peers = map[int]int{}, map[int]int{}
	}
	if r.queue == q {
		a.own[level(a.s.protector(r))] += n
	} else if a.s.policy == Fair {
		a.peers[level(a.s.protector(r))] += n
	}
}

// permitted reports that w fits a quota at least as deep as the protection of any victim of its
// own queue. Under Fair, w beyond its quotas must not decrease the share of its queue, and
// within the same quota one victim is replaced by one workload.
func (a *protectionCheck) permitted() bool {
	if a.own == nil {
		return true
	}
	mine, own := level(a.w.known.queue.within(a.w.known.total)), 0
	for deep, n := range a.own {
		if n > 0 && deep > mine {
			return false
		}
		own += n
	}
	if a.s.policy != Fair {
		return true
	}
	if mine == 0 {
		return own == 0 || a.s.share(a.w.known.queue, a.w.known.total, 1) >= a.base
	}
	return a.peers[mine] == 0 || a.peers[mine] == 1 && a.own[mine] == 0
}

// maxRowTries bounds the rows, or domains, that are searched one by one.
const maxRowTries = 16

// maySearchRows reports that a workload may search row by row: after some searches without success,
// each may with a probability of a quarter, which depends on the time as in maySearch.
func (s *State) maySearchRows(w *waiter, plan *Plan) bool {
	if s.failedSearches < maxTries/4 {
		return true
	}
	plan.wake(s.now.Add(searchRetry))
	lot := sha256.Sum256(fmt.Append(nil, "rows", s.now.UnixNano(), w.known.queue.Name, w.Priority, w.known.key))
	return lot[0] < 64
}

// victimKind is a set of interchangeable victims: preempting one or another leaves the same protection.
type victimKind struct {
	queue *queue
	standard
	total string
}

// rowwise searches for room row by row, or domain by domain, if the victims with the least
// loss are spread over too many: a queue gives back no more than it borrowed. A protected
// workload may be preempted if an equal unprotected one remains, which is protected from then on.
func (s *State) rowwise(w *waiter, p *pool, victims []*run, take func([]*run, func(*run) bool) bool) bool {
	// 1. Victims, and victims in place of an equal one.
	k, spare, reclaims := w.known, map[victimKind]int{}, false
	of := func(r *run) victimKind {
		var total []byte
		for _, x := range r.total {
			total = strconv.AppendInt(append(total, ' '), x, 36)
		}
		return victimKind{r.queue, standard{!s.second(r), r.Priority}, string(total)}
	}
	known := map[*run]bool{}
	for _, r := range victims {
		known[r] = true
		if r.queue != k.queue && r.whole == nil && s.may(w, r) == byReclaim {
			spare[of(r)]++
			reclaims = true
		}
	}
	all := slices.Clone(victims)
	if reclaims {
		for _, r := range s.stoppables(k.queue.tree()) {
			if r.pool == p && r.Preemptible && !r.Leaving && !known[r.run] && r.from != k.queue && spare[of(r.run)] > 0 {
				all = append(all, r.run)
			}
		}
	}
	// 2. Where they are, the rows with least loss first, of a gang those with most room.
	type row struct {
		i, room int
		lost    float64
		runs    []*run
	}
	each, rows := k.each(), map[int]*row{}
	for _, r := range all {
		if r.pool != p {
			continue
		}
		for i := range r.on() {
			if rows[i] == nil {
				rows[i] = &row{i: i}
			}
			rows[i].runs, rows[i].lost = append(rows[i].runs, r), rows[i].lost+s.lost(r)
		}
	}
	room := 0
	for i, at := range rows {
		free := slices.Clone(p.free[i])
		for _, r := range at.runs {
			free = free.plus(r.has(i), 1)
		}
		if p.open[i] && !p.closes(&w.Workload, i, s.now) {
			at.room = each.count(free, w.perNode())
			room += at.room
		}
	}
	if room == 0 {
		return false
	}
	order := func(some []int) (out [][]*run) {
		var best []*row
		for _, i := range some {
			if at := rows[i]; at != nil && at.room > 0 {
				best = append(best, at)
			}
		}
		slices.SortFunc(best, func(a, b *row) int {
			return cmp.Or(cmp.Compare(b.room, a.room), cmp.Compare(a.lost, b.lost), cmp.Compare(a.i, b.i))
		})
		if w.least() == 1 {
			for _, at := range best[:min(len(best), maxRowTries)] {
				out = append(out, at.runs)
			}
			return out
		}
		var gang []*run
		seen := map[*run]bool{}
		for _, at := range best {
			for _, r := range at.runs {
				if !seen[r] {
					seen[r] = true
					gang = append(gang, r)
				}
			}
		}
		return [][]*run{gang}
	}
	// 3. One after the other, until there is room.
	sets := p.within(k)
	for _, set := range sets[:min(len(sets), maxRowTries)] {
		for _, some := range order(set) {
			gone := map[victimKind]int{}
			may := func(r *run) bool {
				switch {
				case r.queue == k.queue || r.whole != nil || !reclaims:
					return s.may(w, r) != ""
				case !r.Preemptible || !k.queue.exceeds(r.queue, w.short):
					return false
				}
				t := of(r)
				if spare[t] <= gone[t] {
					return s.may(w, r) != ""
				}
				gone[t]++
				return true
			}
			if take(some, may) {
				return true
			}
		}
	}
	return false
}

// right is why one workload may preempt another.
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
	case q == k.queue || q.tree() != k.queue.tree() || !k.queue.exceeds(q, w.short):
		return ""
	}
	common, _ := k.queue.fork(q)
	mine, theirs := level(k.queue.within(k.total)), level(s.protector(r))
	switch {
	case mine > common.level && theirs <= common.level:
		return byReclaim
	case theirs > mine || theirs > 0 && theirs == mine && r.Priority > w.Priority:
		return ""
	case s.policy == Fair && s.share(k.queue, k.total, 1) < s.share(q, r.total, -1):
		return byShare
	case first && s.second(r):
		return byService
	}
	return ""
}

// entitle notes of the queues of a tree whether w may preempt some of theirs, as far as
// their use and priorities say: see may. It reports whether there is one.
func (s *State) entitle(w *waiter, of *queue) (some bool) {
	k := w.known
	first := s.policy == Tiresias && !w.second()
	mine := level(k.queue.within(k.total))
	share := 0.0
	if s.policy == Fair {
		share = s.share(k.queue, k.total, 1)
	}
	note := func(q *queue) {
		switch {
		case s.patient(k.queue):
			q.entitles = false
		case q == k.queue:
			q.entitles = first || q.weakest() < w.Priority
		default:
			common, _ := k.queue.fork(q)
			right := first || mine > common.level || s.policy == Fair && share < s.share(q, nil, 0)
			q.entitles = right && k.queue.exceeds(q, w.short)
		}
		some = some || q.entitles
	}
	if of.limited {
		s.walk(of, note)
	} else {
		note(of)
	}
	return some
}

// second reports that a running workload is in the second queue of Tiresias.
func (s *State) second(r *run) bool { return s.policy == Tiresias && r.whole == nil && r.second(s.now) }

// cause is may in words.
func (s *State) cause(w *waiter, r *run) string {
	k, q := w.known, r.queue
	why := s.may(w, r)
	if why == "" && r.queue != k.queue { // another like it stays, and is protected in its place
		why = byReclaim
	}
	switch why {
	case byIdle:
		return fmt.Sprintf("%s waits for accelerators, and the accelerators of this workload have been idle for %s since its owner was notified", w.label(), s.now.Sub(r.Idle).Round(time.Second))
	case byPriority:
		return fmt.Sprintf("%s has priority %d, this workload %d", w.label(), w.Priority, r.Priority)
	case byReclaim:
		_, theirs := k.queue.fork(q)
		if theirs == nil {
			theirs = q
		}
		mine := k.queue.within(k.total)
		if mine == nil {
			mine = k.queue
		}
		return fmt.Sprintf("queue %s reclaims for %s what queue %s has borrowed", mine.Name, w.label(), theirs.Name)
	case byShare:
		return fmt.Sprintf("queue %s of %s has %.2f of its fair share, queue %s %.2f without this workload", k.queue.Name, w.label(),
			s.share(k.queue, k.total, 1), q.Name, s.share(q, r.total, -1))
	case byService:
		return fmt.Sprintf("%s had less than %g hours of service, this workload %s", w.label(), enough/3600, r.service(r.Attained(s.now)))
	}
	return ""
}

// lost is the work that is repeated when r is preempted: node hours since its last checkpoint.
func (s *State) lost(r *run) float64 {
	since := r.Started
	if r.Saved.After(since) {
		since = r.Saved
	}
	if since.IsZero() || r.whole != nil || r.pool == nil || len(r.pool.Nodes) == 0 {
		return 0
	}
	if r.nodes == 0 {
		r.nodes = r.Share(r.pool.Nodes[0].Amount, r.placed())
	}
	return max(s.now.Sub(since), 0).Hours() * r.nodes
}
