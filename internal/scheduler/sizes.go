package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// Under Goodput an elastic workload gets the number of workers that goodput.Plan finds worth
// their price, and is resized later if that repays a restart.
const (
	// settle is the minimum time between two resizes of a workload: at most four restarts
	// an hour.
	settle = 15 * time.Minute
	// startup is the assumed cost of a restart if none was measured, besides the work
	// since the last checkpoint.
	startup = time.Minute
	// planned bounds the pending workloads in a plan.
	planned = 256
)

// elastic reports that a workload may have another number of workers.
func (w *Workload) elastic() bool { return len(w.Roles) == 0 && w.most() > w.least() }

// speeds are the speeds of least workers and more, relative to least. Sizes without a known
// speed are not used: without any speeds the workload gets least workers.
func (w *Workload) speeds() []float64 {
	if n := min(len(w.Speed), w.most()-w.least()+1); n > 0 {
		return w.Speed[:n]
	}
	return []float64{1}
}

// speed is the speed of n workers relative to least.
func (w *Workload) speed(n int) float64 {
	all := w.speeds()
	return all[min(max(n-w.least(), 0), len(all)-1)]
}

// sizable reports that a running workload may be resized in this step.
func (s *State) sizable(r *run) bool {
	return r.elastic() && r.Preemptible && !r.Leaving && len(r.Speed) > 0 && r.pool != nil && !r.pool.Delegated && r.pool.Closed == "" &&
		r.together() == "" && r.PerNode == 0 && !r.Started.IsZero() && !r.Started.Add(settle).After(s.now)
}

// restarts is what r loses when it is stopped now.
func (s *State) restarts(r *run) time.Duration {
	since, loss := r.Started, r.Restart
	if r.Saved.After(since) {
		since = r.Saved
	}
	if loss <= 0 {
		loss = startup
	}
	return loss + max(s.now.Sub(since), 0)
}

// repays reports that n workers would do more work than the present ones: as much time as r has
// run already, less the cost of a restart (Pollux, section 4.2).
func (s *State) repays(r *run, n int) bool {
	ran := s.now.Sub(r.Started).Seconds()
	return r.speed(n)*ran/(ran+s.restarts(r).Seconds()) > r.speed(r.placed())
}

// unit is the part of a vector that counts a workload's size: its accelerators, or cores.
func unit(v vector) int {
	for i := accelerators; i < len(v); i++ {
		if v[i] > 0 {
			return i
		}
	}
	return 0
}

// device names a part of a pool, as a device type of package goodput.
func (s *State) device(p *pool, part int) string { return p.Name + "\x00" + s.names.name(part) }

// initialSize is the number of workers that a workload starts with, at most most.
func (s *State) initialSize(w *waiter, most int) int {
	switch {
	case s.policy != Goodput || !w.elastic() || w.EvictableWorkers:
		return most
	case w.Target > 0:
		return min(most, max(w.Target, w.least()))
	}
	return min(most, max(s.wantedSizes()[w.ID], w.least()))
}

// wantedSizes is the planned number of workers by workload, computed once per step.
func (s *State) wantedSizes() map[ID]int {
	if s.sizes == nil {
		s.sizes = s.sizesByPlan()
	}
	return s.sizes
}

// sizesByPlan plans the number of workers of sizable running workloads and of pending ones. The plan
// has the capacity that is free, that leaving workloads will free, and that the sizable ones use.
func (s *State) sizesByPlan() map[ID]int {
	line := s.top.line.works
	sizes := map[ID]int{}
	var jobs []goodput.Job
	var ids []ID
	used := map[string]bool{}
	add := func(w *Workload, request, total vector, j goodput.Job, devices ...string) {
		speeds := []float64{1}
		switch j.Min, j.Each = 1, int(total[unit(total)]); {
		case w.elastic() && (j.Started || w.Target == 0):
			j.Min, j.Each, speeds = w.least(), int(request[unit(request)]), w.speeds()
		case w.elastic():
			j.Each = int(request[unit(request)]) * min(max(w.Target, w.least()), w.most())
		}
		j.ID, j.Max, j.Speed, j.On = len(ids), j.Min+len(speeds)-1, speeds, map[string]goodput.Device{}
		j.Placement[0].GPUs *= j.Each
		for _, d := range devices {
			j.On[d] = goodput.Device{}
			used[d] = true
		}
		ids, jobs = append(ids, w.ID), append(jobs, j)
	}
	changes := map[ID]bool{}
	for _, id := range slices.Sorted(maps.Keys(s.running)) {
		r := s.running[id]
		if !s.sizable(r) || r.request[unit(r.request)] <= 0 {
			continue
		}
		changes[id] = true
		d := s.device(r.pool, unit(r.request))
		add(&r.Workload, r.request, r.total, goodput.Job{
			Placement: goodput.Placement{{GPUs: r.placed()}}, Device: d, Started: true,
			Age: s.now.Sub(r.Started).Seconds(), Service: r.Attained(s.now), Restart: s.restarts(r).Seconds(),
		}, d)
	}
	for _, w := range line[:min(len(line), planned)] {
		k := s.know(w)
		if s.running[w.ID] != nil || len(k.pools) == 0 || k.never != "" || w.NotBefore.After(s.now) || s.allowed(w) < w.least() || k.total[unit(k.total)] <= 0 {
			continue
		}
		var on []string
		for _, p := range k.pools {
			on = append(on, s.device(p, unit(k.total)))
		}
		add(&w.Workload, k.request, k.total, goodput.Job{Placement: goodput.Placement{{}}, Age: max(s.now.Sub(w.Submitted), 0).Seconds(), Service: w.Served}, on...)
	}
	var nodes []goodput.Node
	for _, p := range s.order {
		for part := range s.names.width() {
			if d := s.device(p, part); used[d] {
				nodes = append(nodes, p.freeForPlan(part, d, s, changes)...)
			}
		}
	}
	for i, accelerators := range goodput.Default.Sizes(nodes, jobs) {
		sizes[ids[i]] = accelerators / jobs[i].Each
	}
	return sizes
}

// freeForPlan is what a plan may use of one part of each open row of a pool.
func (p *pool) freeForPlan(part int, device string, s *State, changes map[ID]bool) []goodput.Node {
	free := make([]int64, p.rows)
	for i := range free {
		if p.open[i] {
			free[i] = max(p.free[i].part(part), 0)
		}
	}
	for _, r := range p.runs {
		if !changes[r.ID] && !r.isLeaving(s.now) {
			continue
		}
		if p.Delegated {
			free[0] += r.total.part(part)
		}
		for k, i := range r.rows {
			if p.open[i] {
				free[i] += r.of(k).part(part)
			}
		}
	}
	out := make([]goodput.Node, len(free))
	for i, n := range free {
		out[i] = goodput.Node{GPUs: int(min(n, math.MaxInt32)), Device: device}
	}
	return out
}

// resize plans restarts with another number of workers: fewer, where that makes room for the
// workload with the pool's reservation; more, where capacity is free and no workload is
// pending for it.
func (s *State) resize(plan *Plan) {
	if s.policy != Goodput {
		return
	}
	helped := map[*waiter]bool{}
	for _, p := range s.order {
		if p.reserved != nil && !helped[p.reserved.owner] && s.shrinkOthers(p, plan) {
			helped[p.reserved.owner] = true
		}
	}
	var taken []*run
	for _, id := range slices.Sorted(maps.Keys(s.running)) {
		r := s.running[id]
		if !s.sizable(r) {
			continue
		}
		if s.wantedSizes()[id] <= r.placed() {
			continue
		}
		rows := s.growth(r)
		n := min(s.wantedSizes()[id], r.placed()+len(rows))
		if n <= r.placed() || !s.repays(r, n) {
			continue
		}
		// Hold the added workers, so that no other workload grows into the same capacity.
		t := &run{Running: Running{Workload: r.Workload, Placed: n - r.placed()}, request: r.request, rows: rows[:n-r.placed()], queue: r.queue, ceilings: r.ceilings, pool: r.pool}
		_, t.total = s.asked(&r.Workload, t.Placed)
		s.hold(t, 1)
		t.queue.use(t.total, 1)
		taken = append(taken, t)
		s.resizeTo(r, n, "", fmt.Sprintf("%d workers instead of %d make progress %.1f times as fast, which repays a restart that costs %s",
			n, r.placed(), r.speed(n)/r.speed(r.placed()), s.restarts(r).Round(time.Second)), plan)
	}
	for _, t := range taken {
		s.hold(t, -1)
		t.queue.use(t.total, -1)
	}
}

// resizeTo plans a restart of a workload with n workers.
func (s *State) resizeTo(r *run, n int, by ID, why string, plan *Plan) {
	plan.Resize = append(plan.Resize, Resize{Workload: r.ID, For: by, Workers: n, Why: why})
	s.markPreempted(r, by)
}

// shrinkOthers shrinks running workloads of a pool so that the owner of its reservation fits beside
// them. It returns false if the plan or the nodes do not allow that, or if victims leave for the
// owner already.
func (s *State) shrinkOthers(p *pool, plan *Plan) bool {
	w := p.reserved.owner
	sizes := s.wantedSizes()
	if sizes[w.ID] == 0 || p.Delegated || s.allowed(w) < w.least() {
		return false
	}
	var all []*run
	for _, r := range p.runs {
		if r.LeavingFor == w.ID && r.isLeaving(s.now) {
			return false
		}
		if s.sizable(r) && s.sizeOf(r) < r.placed() {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *run) int {
		return cmp.Or(cmp.Compare(b.placed()-s.sizeOf(b), a.placed()-s.sizeOf(a)), cmp.Compare(a.ID, b.ID))
	})
	// Try it: remove them, place w, and place them again with fewer workers; then undo all.
	kept, misfit := p.reserved, p.misfit
	p.reserved, p.misfit = nil, nil
	gone := 0
	fits := false
	for gone < len(all) && !fits {
		p.take(all[gone], -1)
		gone++
		p.misfit = nil // more is free now
		fits = s.fitsWithOthers(p, w, all[:gone])
	}
	all = all[:gone]
	for _, r := range slices.Clone(all) {
		p.take(r, 1)
		p.misfit = nil
		if rest := slices.DeleteFunc(slices.Clone(all), func(o *run) bool { return o == r }); fits && s.fitsWithOthers(p, w, rest) {
			all = rest // w fits without shrinking it
			continue
		}
		p.take(r, -1)
	}
	for _, r := range all {
		p.take(r, 1)
	}
	p.reserved, p.misfit = kept, misfit
	if !fits {
		return false
	}
	for _, r := range all {
		n := s.sizeOf(r)
		s.resizeTo(r, n, w.ID, fmt.Sprintf("%s needs the capacity of %d of its workers; with %d it runs at %.2f of its speed", w.label(), r.placed()-n, n, r.speed(n)/r.speed(r.placed())), plan)
	}
	return true
}

// sizeOf is the planned number of workers of a running workload, at least its minimum.
func (s *State) sizeOf(r *run) int { return max(s.wantedSizes()[r.ID], r.least()) }

// fitsWithOthers reports that w and then the others, at their new sizes, fit a pool.
func (s *State) fitsWithOthers(p *pool, w *waiter, others []*run) bool {
	var placed []*run
	defer func() {
		for _, r := range placed {
			p.take(r, -1)
		}
	}()
	place := func(w *waiter, n int) bool {
		rows := p.rowsFor(w, n, s.now)
		if len(rows) < n {
			return false
		}
		r := &run{Running: Running{Workload: w.Workload, Placed: n}, pool: p, rows: rows}
		for k := range rows {
			r.requests = append(r.requests, w.known.of(k))
		}
		placed = append(placed, r)
		p.take(r, 1)
		return true
	}
	if !place(w, w.least()) {
		return false
	}
	for _, r := range others {
		back := &waiter{Workload: r.Workload}
		s.know(back)
		if !place(back, s.sizeOf(r)) {
			return false
		}
	}
	return true
}
