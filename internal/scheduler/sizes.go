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

// Under Goodput an elastic work gets as many workers as pay, by goodput.Plan, and
// another number later where that repays a restart.
const (
	// settle is the least time between two sizes of a workload: it restarts at most four
	// times an hour for another one.
	settle = 15 * time.Minute
	// startup is what a restart is taken to cost of which nothing is known, besides
	// what was done since it saved.
	startup = time.Minute
	// planned bounds how many of those who wait a plan looks at.
	planned = 256
)

// elastic reports that a workload may have another number of workers.
func (w *Workload) elastic() bool { return len(w.Roles) == 0 && w.most() > w.least() }

// speeds are those of least workers and more, in terms of least. What nothing is
// known of is not tried: who gives no speeds gets the least.
func (w *Workload) speeds() []float64 {
	if n := min(len(w.Speed), w.most()-w.least()+1); n > 0 {
		return w.Speed[:n]
	}
	return []float64{1}
}

// speed is that of n workers.
func (w *Workload) speed(n int) float64 {
	all := w.speeds()
	return all[min(max(n-w.least(), 0), len(all)-1)]
}

// sizable reports that a running workload may get another number of workers in this step.
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

// repays reports that n workers do more than those that r has, once it has run for as
// long as it did with these: what a restart costs taken off (Pollux, section 4.2).
func (s *State) repays(r *run, n int) bool {
	ran := s.now.Sub(r.Started).Seconds()
	return r.speed(n)*ran/(ran+s.restarts(r).Seconds()) > r.speed(r.placed())
}

// unit is the part of a vector that a workload is divided by: its accelerators, or cores.
func unit(v vector) int {
	for i := accelerators; i < len(v); i++ {
		if v[i] > 0 {
			return i
		}
	}
	return 0
}

// device names a part of a pool: what goodput takes for a device.
func (s *State) device(p *pool, part int) string { return p.Name + "\x00" + s.names.name(part) }

// sized is how many workers, of those that it may have, a workload gets when it starts.
func (s *State) sized(w *waiter, most int) int {
	switch {
	case s.policy != Goodput || !w.elastic() || w.EvictableWorkers:
		return most
	case w.Target > 0:
		return min(most, max(w.Target, w.least()))
	}
	return min(most, max(s.wanted()[w.ID], w.least()))
}

// wanted is how many workers workloads should have, found once in a step.
func (s *State) wanted() map[ID]int {
	if s.sizes == nil {
		s.sizes = s.sizesByPlan()
	}
	return s.sizes
}

// sizesByPlan is how many workers workloads should have, by a plan over what pools have free,
// what those hold that may change, and what is about to be free; of those who run and
// may change, and those who wait.
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
				nodes = append(nodes, p.spare(part, d, s, changes)...)
			}
		}
	}
	for i, accelerators := range goodput.Default.Sizes(nodes, jobs) {
		sizes[ids[i]] = accelerators / jobs[i].Each
	}
	return sizes
}

// spare is what a plan may use of one part of each open row of a pool.
func (p *pool) spare(part int, device string, s *State, changes map[ID]bool) []goodput.Node {
	free := make([]int64, p.rows)
	for i := range free {
		if p.open[i] {
			free[i] = max(p.free[i].part(part), 0)
		}
	}
	for _, r := range p.runs {
		if !changes[r.ID] && !r.leaves(s.now) {
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

// resize has workloads restart with another number of workers: with fewer where that
// makes room for the first that waits in their pool and is worth more, with more
// where there is capacity without pending workloads.
func (s *State) resize(plan *Plan) {
	if s.policy != Goodput {
		return
	}
	helped := map[*waiter]bool{}
	for _, p := range s.order {
		if p.kept != nil && !helped[p.kept.owner] && s.yields(p, plan) {
			helped[p.kept.owner] = true
		}
	}
	var taken []*run
	for _, id := range slices.Sorted(maps.Keys(s.running)) {
		r := s.running[id]
		if !s.sizable(r) {
			continue
		}
		if s.wanted()[id] <= r.placed() {
			continue
		}
		rows := s.growth(r)
		n := min(s.wanted()[id], r.placed()+len(rows))
		if n <= r.placed() || !s.repays(r, n) {
			continue
		}
		// No other workload may grow into the same.
		t := &run{Running: Running{Workload: r.Workload, Placed: n - r.placed()}, request: r.request, rows: rows[:n-r.placed()], queue: r.queue, ceilings: r.ceilings, pool: r.pool}
		_, t.total = s.asked(&r.Workload, t.Placed)
		s.hold(t, 1)
		t.queue.use(t.total, 1)
		taken = append(taken, t)
		s.change(r, n, "", fmt.Sprintf("%d workers instead of %d make progress %.1f times as fast, which repays a restart that costs %s",
			n, r.placed(), r.speed(n)/r.speed(r.placed()), s.restarts(r).Round(time.Second)), plan)
	}
	for _, t := range taken {
		s.hold(t, -1)
		t.queue.use(t.total, -1)
	}
}

// change has a workload restart with n workers.
func (s *State) change(r *run, n int, by ID, why string, plan *Plan) {
	plan.Resize = append(plan.Resize, Resize{Workload: r.ID, For: by, Workers: n, Why: why})
	s.tell(r, by)
}

// yields has workloads of a pool go on with fewer workers, so that the one for which it
// keeps nodes has its place beside them; false when the plan or the nodes do not
// give that, or others leave for it already.
func (s *State) yields(p *pool, plan *Plan) bool {
	w := p.kept.owner
	sizes := s.wanted()
	if sizes[w.ID] == 0 || p.Delegated || s.allowed(w) < w.least() {
		return false
	}
	var all []*run
	for _, r := range p.runs {
		if r.LeavingFor == w.ID && r.leaves(s.now) {
			return false
		}
		if s.sizable(r) && s.sizeOf(r) < r.placed() {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *run) int {
		return cmp.Or(cmp.Compare(b.placed()-s.sizeOf(b), a.placed()-s.sizeOf(a)), cmp.Compare(a.ID, b.ID))
	})
	// They go, w comes, and they come back smaller: to see, and all is put back.
	kept, misfit := p.kept, p.misfit
	p.kept, p.misfit = nil, nil
	gone := 0
	fits := false
	for gone < len(all) && !fits {
		p.take(all[gone], -1)
		gone++
		p.misfit = nil // there is more room
		fits = s.beside(p, w, all[:gone])
	}
	all = all[:gone]
	for _, r := range slices.Clone(all) {
		p.take(r, 1)
		p.misfit = nil
		if rest := slices.DeleteFunc(slices.Clone(all), func(o *run) bool { return o == r }); fits && s.beside(p, w, rest) {
			all = rest // it need not go
			continue
		}
		p.take(r, -1)
	}
	for _, r := range all {
		p.take(r, 1)
	}
	p.kept, p.misfit = kept, misfit
	if !fits {
		return false
	}
	for _, r := range all {
		n := s.sizeOf(r)
		s.change(r, n, w.ID, fmt.Sprintf("%s needs the capacity of %d of its workers; with %d it runs at %.2f of its speed", w.label(), r.placed()-n, n, r.speed(n)/r.speed(r.placed())), plan)
	}
	return true
}

// sizeOf is the size that the plan gives a running workload: at least its least.
func (s *State) sizeOf(r *run) int { return max(s.wanted()[r.ID], r.least()) }

// beside reports that w, and then others at their new sizes, have room in a pool.
func (s *State) beside(p *pool, w *waiter, others []*run) bool {
	var placed []*run
	defer func() {
		for _, r := range placed {
			p.take(r, -1)
		}
	}()
	place := func(w *waiter, n int) bool {
		rows := p.room(w, n, s.now)
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
