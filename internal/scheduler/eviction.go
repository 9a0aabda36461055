package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Workers above the least of a workload with EvictableWorkers are evicted one by one and in place: replicas of
// a service, which lose nothing when there are fewer. Its least is never touched.

// Eviction is a worker that is evicted, while the others continue.
type Eviction struct {
	Worker int       // which of them, as in Running.Nodes
	Since  time.Time // zero is now
	For    ID        // the workload that gets its capacity
}

// surplus is how many of its workers a running workload gives up to others, as it is now.
func (r *run) surplus() int {
	if !r.EvictableWorkers || r.Preemptible || r.Leaving || len(r.Roles) > 0 {
		return 0
	}
	return max(r.placed()-r.least()-len(r.Evicted), 0)
}

// evictableWorkers are its workers, each by itself, but for those told to stop. No more than the
// surplus may go.
func (s *State) evictableWorkers(r *run) (out []*run) {
	for n := range r.placed() {
		if !slices.ContainsFunc(r.Evicted, func(d Eviction) bool { return d.Worker == n }) {
			out = append(out, s.singleWorker(r, n))
		}
	}
	return out
}

// singleWorker is one of its workers by itself.
func (s *State) singleWorker(r *run, n int) *run {
	one := &run{Running: r.Running, request: r.request, total: r.request, queue: r.queue, ceilings: r.ceilings, pool: r.pool, whole: r, worker: n}
	one.ID, one.Label = ID(fmt.Sprintf("%s#%d", r.ID, n)), workersOf(r, 1)
	one.Placed, one.Nodes, one.Evicted = 1, nil, nil
	if n < len(r.Nodes) {
		one.Nodes = r.Nodes[n : n+1]
	}
	s.locate(one)
	return one
}

func workersOf(r *run, n int) string {
	if n == 1 {
		return "a worker of " + r.label()
	}
	return fmt.Sprintf("%d workers of %s", n, r.label())
}

// restoreEvictions restores the evictions of single workers of a workload that is running already.
func (s *State) restoreEvictions(r *run) {
	evictions := r.Evicted
	r.Evicted = nil
	if !r.EvictableWorkers || r.Leaving || len(r.Roles) > 0 {
		return
	}
	for _, d := range evictions {
		if d.Worker < 0 || d.Worker >= r.placed() || slices.ContainsFunc(r.Evicted, func(o Eviction) bool { return o.Worker == d.Worker }) {
			continue
		}
		if d.Since.IsZero() {
			d.Since = s.now
		}
		r.Evicted = append(r.Evicted, d)
		s.recordEviction(s.singleWorker(r, d.Worker), d)
	}
}

// recordEviction records that a worker is being evicted. The pool then lists the worker and the rest
// of the workload separately, because they end at different times.
func (s *State) recordEviction(one *run, d Eviction) {
	r := one.whole
	one.Leaving, one.LeavingSince, one.LeavingFor = true, d.Since, d.For
	r.evictedWorkers = append(r.evictedWorkers, one)
	r.queue.ranked = false
	s.countLeaving(one)
	if r.pool == nil {
		return
	}
	rest := *r
	rest.Placed, rest.Nodes = r.placed()-len(r.evictedWorkers), nil
	rest.total = make(vector, len(r.request)).plus(r.request, int64(rest.Placed))
	for n, name := range r.Nodes {
		if !slices.ContainsFunc(r.evictedWorkers, func(o *run) bool { return o.worker == n }) {
			rest.Nodes = append(rest.Nodes, name)
		}
	}
	s.locate(&rest)
	r.pool.exit(r.ID)
	if rest.Placed > 0 {
		r.pool.enter(&rest)
	}
	r.pool.enter(one)
}

// evictWorker has a part stop for w.
func (s *State) evictWorker(one *run, w *waiter, why string, plan *Plan) {
	r, d := one.whole, Eviction{Worker: one.worker, Since: s.now, For: w.ID}
	r.Evicted = append(r.Evicted, d)
	s.recordEviction(one, d)
	i := slices.IndexFunc(plan.Resize, func(rs Resize) bool { return rs.Workload == r.ID && rs.For == w.ID })
	if i < 0 {
		i, plan.Resize = len(plan.Resize), append(plan.Resize, Resize{Workload: r.ID, For: w.ID, Why: why})
	}
	to := &plan.Resize[i]
	to.Workers, to.Evict = r.placed()-len(r.Evicted), append(to.Evict, one.worker)
	slices.Sort(to.Evict)
}

// setLeavingFor says who gets the place of one that leaves.
func (r *run) setLeavingFor(id ID) {
	r.LeavingFor = id
	if r.whole == nil {
		return
	}
	for i := range r.whole.Evicted {
		if d := &r.whole.Evicted[i]; d.Worker == r.worker {
			d.For = id
		}
	}
}

// byFreedCapacity orders workers that others may have, of like ones, by what their row would hold
// of w had all left it who may: those first that stand where w has most room then.
func (s *State) byFreedCapacity(w *waiter, victims []*run) func(a, b *run) int {
	type row struct {
		pool *pool
		i    int
	}
	if !slices.ContainsFunc(victims, func(r *run) bool { return r.whole != nil }) {
		return nil
	}
	free, spent := map[row]vector{}, map[*run]map[int]int{}
	for _, r := range victims {
		for k, i := range r.rows {
			if r.whole != nil {
				if spent[r.whole] == nil {
					spent[r.whole] = map[int]int{}
				}
				if spent[r.whole][i]++; spent[r.whole][i] > r.whole.surplus() {
					continue
				}
			}
			at := row{r.pool, i}
			if free[at] == nil {
				free[at] = slices.Clone(r.pool.free[i])
			}
			free[at] = free[at].plus(r.of(k), 1)
		}
	}
	each, room := w.known.each(), map[row]int{}
	for at, v := range free {
		p := at.pool
		if !p.open[at.i] || p.closes(&w.Workload, at.i, s.now) {
			continue
		}
		room[at] = each.count(v, w.perNode())
		if p.reserved != nil && p.reserved.owner != w && p.reserved.leftover[at.i] != nil {
			room[at] = each.count(p.reserved.leftover[at.i], room[at])
		}
	}
	return func(a, b *run) int {
		x, y := row{a.pool, -1}, row{b.pool, -1}
		if len(a.rows) > 0 {
			x.i = a.rows[0]
		}
		if len(b.rows) > 0 {
			y.i = b.rows[0]
		}
		return cmp.Or(cmp.Compare(room[y], room[x]), cmp.Compare(a.Pool, b.Pool), cmp.Compare(x.i, y.i), cmp.Compare(a.whole.ID, b.whole.ID), cmp.Compare(b.worker, a.worker))
	}
}
