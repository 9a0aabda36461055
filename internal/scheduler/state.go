package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// State is everything that steps know; it is carried from one step to the next. The zero
// State knows nothing. It is not safe for concurrent use.
type State struct {
	now     time.Time
	policy  Policy
	names   names
	pools   map[string]*pool
	order   []*pool // by name
	total   vector  // of all pools, for shares
	queues  map[string]*queue
	top     *queue // above all trees; its line is of all queues, but under Fair
	quotas  map[string]resource.Limit
	limits  map[string]*ceiling // of projects and users, by kind and name
	waiting map[ID]*waiter
	running map[ID]*run
	leaving map[ID]*run // of running, those that were preempted
	idle    map[ID]bool // those of running whose accelerators are idle
	shapes  map[string]*shape
	demands map[string]*demand // of what waits and runs
	age     int                // grows when what is known of workloads no longer holds

	dated map[ID]bool // those of waiting that have a deadline
	turn  time.Time   // when the next of them becomes urgent, or late; zero is never

	turns []ID // workloads with preempted victims or a reservation from the last step

	// Of a step.
	current              *queue                        // being walked
	keeping              []*queue                      // that reserve quota for their first workload
	searches             map[searchKind]searchResult   // for victims, by kind
	failedSearches       int                           // without victims
	moves                int                           // changes whenever a searchResult may be outdated
	leavingCache         leavingRuns                   // see expectedToLeave
	freeIfPreemptedCache map[*queue]map[*pool][]vector // see freeIfPreempted
	stops                map[*queue][]stoppable        // see stoppables
	seen                 int                           // workloads considered
	step                 int                           // the number of this one
	longest              time.Duration                 // until the latest start of a reservation: a workload that takes longer backfills nowhere
	sizes                map[ID]int                    // see wantedSizes; nil until computed
}

// waiter is a pending workload. The fields that every step reads come first.
type waiter struct {
	known   *known
	age     int  // of the state when known was computed
	hurries bool // it is urgent: it goes first to meet its deadline
	begun   bool // its turn has begun: see State.begun

	// Of the last step.
	order    int    // number of workloads considered before it
	preempts []*run // victims that leave for it
	into     *pool  // where they free capacity
	short    vector // the part of its request that is not free

	Workload
}

// run is a placed workload.
type run struct {
	Running
	request  vector // of each worker, without roles
	total    vector // of all of them
	queue    *queue
	ceilings []*ceiling
	pool     *pool    // nil when it is gone
	rows     []int    // of each worker; nil in a delegated pool
	requests []vector // of each of rows; nil without roles
	nodes    float64  // number of nodes it uses, once computed: see lost
	away     bool     // set while computing what is protected without it

	// With evictable workers: the workers that are being evicted, each as a run of its own that
	// names the whole workload and the worker's number.
	evictedWorkers []*run
	whole          *run
	worker         int
}

func (r *run) placed() int { return max(r.Placed, 1) }

// known is what the state found about a workload that depends on no other workload.
type known struct {
	*shape
	queue    *queue
	ceilings []*ceiling
	never    string // the limit that is smaller than the request, in words
}

// shape is what all workloads that ask for the same have in common.
type shape struct {
	key         string
	request     vector // of each worker, without roles
	roles       []Role
	kinds       []kind   // of workers, with roles, in the order in which they are placed
	total       vector   // of the least gang
	accelerated bool     // it asks for accelerators
	within      string   // see Workload
	pools       []*pool  // that may take it, cheapest first
	refused     []Reason // why the others may not
	windows     bool     // in one of pools nodes will close
	full        int      // the last step in which all were found full, and kept
}

// line is workloads in their order, of a queue or of all.
type line struct {
	works []*waiter
	at    int  // of the next to look at in this step
	stale bool // somebody in it no longer waits
}

// apply takes in what changed. Where the clock went back, whose deadlines are urgent is found
// anew: nothing else that is kept from step to step depends on it.
func (s *State) apply(d Delta) {
	if d.Now.Before(s.now) {
		s.turn = time.Time{}
	}
	s.now = d.Now
	if s.pools == nil {
		s.pools, s.waiting, s.running = map[string]*pool{}, map[ID]*waiter{}, map[ID]*run{}
		s.leaving, s.idle, s.dated = map[ID]*run{}, map[ID]bool{}, map[ID]bool{}
		s.limits, s.shapes, s.policy = map[string]*ceiling{}, map[string]*shape{}, Fifo
		s.demands = map[string]*demand{}
		s.requeue(nil)
	}
	if d.Turns != nil {
		s.turns = slices.Clone(d.Turns)
	}
	for _, q := range s.queues {
		q.age(s.now)
	}
	for _, id := range d.Removed {
		s.remove(id)
	}
	for i := range d.Submitted {
		s.remove(d.Submitted[i].ID)
	}
	for i := range d.Started {
		r := &d.Started[i]
		if old := s.running[r.ID]; old != nil && r.Leaving && r.LeavingSince.IsZero() {
			r.LeavingSince, r.LeavingFor = old.LeavingSince, old.LeavingFor
		}
		s.remove(r.ID)
	}
	s.remake(d)
	for i := range d.Started {
		s.remove(d.Started[i].ID) // it may be there twice
		s.start(&run{Running: d.Started[i]})
	}
	for i := range d.Submitted {
		if s.running[d.Submitted[i].ID] == nil {
			w := &waiter{Workload: d.Submitted[i]}
			s.leave(w.ID) // it may be there twice
			s.waiting[w.ID] = w
			s.countDemand(&w.Workload, w.least(), 1)
			if !w.Due.IsZero() {
				s.dated[w.ID], s.turn = true, time.Time{}
			}
		}
	}
	s.reline(d.Submitted)
	s.reline(s.hasten())
}

// remake takes in other pools, queues, quotas and policies: what was found of
// workloads is forgotten, and what running ones use is counted anew.
func (s *State) remake(d Delta) {
	pools := len(d.Pools)+len(d.RemovedPools) > 0
	policy := d.Policy != "" && d.Policy != s.policy
	quotas := d.Quotas != nil && !maps.EqualFunc(d.Quotas, s.quotas, resource.Limit.Equal)
	if !pools && d.Queues == nil && !quotas && !policy && !s.unnamed(d.Started) {
		return
	}
	s.age++
	clear(s.shapes)
	clear(s.limits)
	if d.Quotas != nil {
		s.quotas = d.Quotas
	}
	for _, name := range d.RemovedPools {
		delete(s.pools, name)
	}
	for _, p := range d.Pools {
		s.pools[p.Name] = &pool{Pool: p}
	}
	queues := d.Queues
	if queues == nil {
		for _, q := range s.queues {
			if q.Name != "" {
				queues = append(queues, q.Queue)
			}
		}
	}
	s.rename(queues, d.Started)
	s.requeue(queues)
	s.remember(d.History)
	for name, p := range s.pools {
		s.pools[name] = s.newPool(p.Pool)
	}
	s.order = slices.SortedFunc(maps.Values(s.pools), func(a, b *pool) int { return cmp.Compare(a.Name, b.Name) })
	s.total = nil
	for _, p := range s.order {
		for i := range p.rows {
			if p.open[i] {
				s.total = s.total.plus(p.has[i], 1)
			}
		}
	}
	running := s.running
	clear(s.demands)
	s.running, s.leaving, s.idle = make(map[ID]*run, len(running)), map[ID]*run{}, map[ID]bool{}
	for _, r := range running {
		s.start(r)
	}
	if policy {
		s.policy = d.Policy
	}
	works := slices.Collect(maps.Values(s.waiting))
	slices.SortFunc(works, s.rank)
	for _, w := range works {
		l := s.lineOf(&w.Workload)
		l.works = append(l.works, w)
		s.countDemand(&w.Workload, w.least(), 1)
	}
}

// unnamed reports that one of them holds accelerators that have no part yet.
func (s *State) unnamed(started []Running) bool {
	return slices.ContainsFunc(started, func(r Running) bool {
		return slices.ContainsFunc(r.Parts(1), func(p Role) bool {
			_, ok := s.names.vector(p.Request)
			return !ok
		})
	})
}

// rename gives a part of vectors to each accelerator that there is, in the order
// of their names.
func (s *State) rename(queues []Queue, started []Running) {
	all := map[string]bool{}
	add := func(a resource.Amount) {
		for name := range a.Accelerators {
			all[name] = true
		}
	}
	for _, p := range s.pools {
		for _, n := range p.Nodes {
			add(n.Amount)
		}
	}
	for _, q := range queues {
		add(q.Quota.Amount())
		add(q.PerProject.Amount())
		add(q.PerUser.Amount())
		for _, limit := range []*resource.Amount{q.Borrow, q.Lend} {
			if limit != nil {
				add(*limit)
			}
		}
	}
	for _, quota := range s.quotas {
		add(quota.Amount())
	}
	for _, r := range s.running {
		add(r.Amount(1))
	}
	for i := range started {
		add(started[i].Amount(1))
	}
	for _, q := range s.queues { // past use is by number
		q.past = s.moved(q.past, all)
	}
	s.names = named(all)
}

// moved is past use of parts as they were, as the parts will be.
func (s *State) moved(past []float64, all map[string]bool) []float64 {
	if len(past) == 0 {
		return nil
	}
	next := named(all)
	out := make([]float64, next.width())
	copy(out, past[:min(accelerators, len(past))])
	for i := accelerators; i < len(past); i++ {
		if at, ok := next.at[s.names.list[i-accelerators]]; ok {
			out[at] = past[i]
		}
	}
	return out
}

func named(all map[string]bool) names {
	n := names{list: slices.Sorted(maps.Keys(all)), at: make(map[string]int, len(all))}
	for i, name := range n.list {
		n.at[name] = i + accelerators
	}
	return n
}

// lineOf is where a workload waits: in one line for all, or in that of its queue.
func (s *State) lineOf(w *Workload) *line {
	if s.policy != Fair {
		return &s.top.line
	}
	return &s.queueOf(w).line
}

// queueOf is the queue of a workload; one that names none, or one that is gone,
// belongs to that of all.
func (s *State) queueOf(w *Workload) *queue {
	if q := s.queues[w.Queue]; q != nil {
		return q
	}
	return s.queues[""]
}

// reline puts workloads into their lines.
func (s *State) reline(submitted []Workload) {
	added := map[*line][]*waiter{}
	for i := range submitted {
		if w := s.waiting[submitted[i].ID]; w != nil {
			l := s.lineOf(&w.Workload)
			added[l] = append(added[l], w)
		}
	}
	for l, works := range added {
		slices.SortFunc(works, s.rank)
		l.add(slices.Compact(works), s.rank) // it may be there twice
	}
}

// add merges workloads into a line.
func (l *line) add(works []*waiter, rank func(a, b *waiter) int) {
	old := l.works
	if len(old) == 0 || rank(old[len(old)-1], works[0]) < 0 {
		l.works = append(l.works, works...)
		return
	}
	l.works = make([]*waiter, 0, 2*(len(old)+len(works)))
	for len(old) > 0 && len(works) > 0 {
		from := &old
		if rank(works[0], old[0]) < 0 {
			from = &works
		}
		l.works, *from = append(l.works, (*from)[0]), (*from)[1:]
	}
	l.works = append(append(l.works, old...), works...)
}

// aging is how much later a workload may be submitted for each point of priority and
// still come first, under Fair and Tiresias.
const aging = time.Minute

// rank says who of a line comes first.
func (s *State) rank(a, b *waiter) int {
	x, y := s.standing(a), s.standing(b)
	if s.policy == Fifo || s.policy == Goodput {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), x.Compare(y), cmp.Compare(a.ID, b.ID))
	}
	return cmp.Or(x.Compare(y), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID))
}

func (s *State) remove(id ID) {
	s.leave(id)
	r := s.running[id]
	if r == nil {
		return
	}
	delete(s.running, id)
	s.countDemand(&r.Workload, r.placed(), -1)
	delete(s.idle, id)
	delete(r.queue.runs, id)
	r.queue.ranked = false
	r.queue.unprotect()
	s.hold(r, -1)
	r.queue.account(r.total, -1)
	for _, one := range append(r.evictedWorkers, r) {
		delete(s.leaving, one.ID)
		if r.pool != nil {
			r.pool.exit(one.ID)
		}
	}
}

func (s *State) leave(id ID) {
	if w := s.waiting[id]; w != nil {
		delete(s.waiting, id)
		s.countDemand(&w.Workload, w.least(), -1)
		if s.dated[id] {
			delete(s.dated, id)
			s.turn = time.Time{}
		}
		s.lineOf(&w.Workload).stale = true
	}
}

// start gives a workload its place.
func (s *State) start(r *run) {
	s.moves++
	s.leave(r.ID)
	s.running[r.ID] = r
	if !r.Idle.IsZero() {
		s.idle[r.ID] = true
	}
	s.countDemand(&r.Workload, r.placed(), 1)
	if r.Leaving {
		s.leaving[r.ID] = r
		if r.LeavingSince.IsZero() {
			r.LeavingSince = s.now
		}
	}
	r.request, r.total = s.asked(&r.Workload, r.placed())
	r.queue = s.queueOf(&r.Workload)
	r.queue.runs[r.ID] = r
	r.queue.ranked = false
	r.queue.unprotect()
	r.ceilings = s.ceilings(&r.Workload, r.queue)
	r.pool, r.evictedWorkers, r.nodes = s.pools[r.Pool], nil, 0
	s.locate(r)
	if r.pool != nil {
		r.pool.enter(r)
	}
	s.hold(r, 1)
	r.queue.account(r.total, 1)
	s.restoreEvictions(r)
}

// locate finds the rows of a running workload's nodes.
func (s *State) locate(r *run) {
	r.rows, r.requests = nil, nil
	if r.pool == nil || r.pool.Delegated {
		return
	}
	r.rows = make([]int, 0, len(r.Nodes))
	for n, name := range r.Nodes {
		i, ok := r.pool.index[name]
		if !ok {
			continue
		}
		r.rows = append(r.rows, i)
		if len(r.Roles) > 0 {
			v, _ := s.names.vector(r.Of(n))
			r.requests = append(r.requests, v)
		}
	}
}

// hold counts what a running workload has against everything that limits others, but
// shares; n is 1, or −1 to give it back.
func (s *State) hold(r *run, n int64) {
	if r.pool != nil {
		r.pool.take(r, n)
	}
	for _, c := range r.ceilings {
		c.used = c.used.plus(r.total, n)
	}
}

// ceilings are the limits on a workload's project and user.
func (s *State) ceilings(w *Workload, q *queue) []*ceiling {
	var out []*ceiling
	limit := func(key, who string, most resource.Limit) {
		c := s.limits[key]
		if c == nil {
			c = &ceiling{who: who, most: s.names.limits(most)}
			s.limits[key] = c
		}
		out = append(out, c)
	}
	if quota, ok := s.quotas[w.Project]; ok {
		limit("p\x00"+w.Project, "project "+w.Project, quota)
	}
	if !q.PerProject.IsZero() {
		limit("q\x00"+q.Name+"\x00"+w.Project, "project "+w.Project+" in queue "+q.Name, q.PerProject)
	}
	if !q.PerUser.IsZero() {
		limit("u\x00"+q.Name+"\x00"+w.User, "user "+w.User+" in queue "+q.Name, q.PerUser)
	}
	return out
}

// know finds what pools, queues and limits have to say of a workload, once.
func (s *State) know(w *waiter) *known {
	if w.known != nil && w.age == s.age {
		return w.known
	}
	q := s.queueOf(&w.Workload)
	w.age, w.known = s.age, &known{shape: s.shapeOf(&w.Workload), queue: q, ceilings: s.ceilings(&w.Workload, q)}
	w.known.never = s.never(w)
	return w.known
}

// shapeOf finds the pools that can take a workload, the cheapest first, and why the others refuse it. It is
// computed once for all workloads with the same request.
func (s *State) shapeOf(w *Workload) *shape {
	key := shapeKey(w)
	if known := s.shapes[key]; known != nil {
		return known
	}
	if len(s.shapes) > 2*len(s.waiting)+16 {
		clear(s.shapes) // most of them are of workloads long gone
	}
	out := &shape{key: key, within: w.together()}
	out.request, out.total = s.asked(w, w.least())
	for _, n := range w.Amount(1).Accelerators {
		out.accelerated = out.accelerated || n > 0
	}
	if len(w.Roles) > 0 {
		out.roles, out.kinds = w.Roles, s.kinds(w)
	}
	for _, p := range s.order {
		if len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Name) {
			continue // the workload names its pools, and this is none of them
		}
		if why, ok := s.refusal(w, p, out); !ok {
			out.refused = append(out.refused, why)
			continue
		}
		out.pools = append(out.pools, p)
		out.windows = out.windows || p.windows
	}
	slices.SortStableFunc(out.pools, func(a, b *pool) int { return cmp.Compare(price(w, a, 1), price(w, b, 1)) })
	s.shapes[key] = out
	return out
}

func shapeKey(w *Workload) string {
	b := make([]byte, 0, 128)
	number := func(n int64) { b = append(strconv.AppendInt(b, n, 36), ' ') }
	number(int64(w.least()))
	number(int64(btoi(w.InPlace)))
	number(int64(w.PerNode))
	asks := func(a resource.Amount) {
		number(int64(a.CPU))
		number(int64(a.Memory))
		number(int64(a.MemoryBandwidth))
		number(int64(len(a.Accelerators)))
		for _, name := range slices.Sorted(maps.Keys(a.Accelerators)) {
			b = strconv.AppendQuote(b, name)
			number(a.Accelerators[name])
		}
	}
	asks(w.Request)
	number(int64(len(w.Roles)))
	for _, r := range w.Roles {
		b = strconv.AppendQuote(b, r.Name) // reasons say it
		number(int64(r.Workers))
		asks(r.Request)
	}
	texts := func(list []string) {
		number(int64(len(list)))
		for _, t := range list {
			b = append(strconv.AppendQuote(b, t), ' ')
		}
	}
	texts(w.Residency)
	texts(w.Pools)
	for _, name := range slices.Sorted(maps.Keys(w.Refusals)) {
		texts([]string{name, w.Refusals[name]})
	}
	texts([]string{w.together()})
	return string(append(b, w.Isolation...))
}
