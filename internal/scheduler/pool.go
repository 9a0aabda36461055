package scheduler

import (
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// pool is a Pool with what running workloads use of it. Its rows are its nodes; a
// delegated pool has one row, the sum of its open nodes.
type pool struct {
	Pool
	index map[string]int // row of a node by its name
	rows  int
	open  []bool
	has   []vector
	free  []vector
	load  []float64 // how full the row is: only to compare
	worth []float64 // how many of its free accelerators are usable; NaN is to be found
	runs  map[ID]*run
	on    []rowRuns // of each row

	every   []int // all rows
	domains domains

	largest      vector // of each part the most that a row has
	accelerators bool   // it has some
	windows      bool   // some of its nodes will close

	typical      []typical       // of this step
	left         []float64       // of one sum, kept for the next
	queueScratch vector          // the same: see behind
	counting     []int           // see counted
	fitScratch   [][]int         // see fitCounts
	demands      map[string]bool // by key: see fits

	// Of the last step.
	reserved *reservation
	misfit   misfits // for those who may use all that is free
}

func (s *State) newPool(p Pool) *pool {
	out := &pool{Pool: p, index: make(map[string]int, len(p.Nodes)), runs: map[ID]*run{}, demands: map[string]bool{}}
	row := func(a resource.Amount, open bool) {
		v, _ := s.names.vector(a)
		out.has, out.free = append(out.has, v), append(out.free, nil)
		out.open, out.load = append(out.open, open), append(out.load, 0)
		out.worth = append(out.worth, math.NaN())
		out.rows++
		out.accelerators = out.accelerators || slices.ContainsFunc(v[accelerators:], func(n int64) bool { return n > 0 })
	}
	total := resource.Amount{}
	for i, n := range p.Nodes {
		out.index[n.Name] = i
		if n.Closed == "" {
			total = total.Plus(n.Amount)
		}
		if !p.Delegated {
			row(n.Amount, n.Closed == "")
		}
	}
	if p.Delegated {
		row(total, true)
	}
	// What is free is in one piece: all of it is looked at often.
	width := s.names.width()
	all := make(vector, width*out.rows)
	for i, has := range out.has {
		out.free[i] = all[i*width : (i+1)*width : (i+1)*width]
		copy(out.free[i], has)
	}
	out.largest = make(vector, width)
	for _, has := range out.has {
		for d, x := range has {
			out.largest[d] = max(out.largest[d], x)
		}
	}
	out.on = make([]rowRuns, out.rows)
	out.domains, out.every = newDomains(p), make([]int, out.rows)
	for i := range out.every {
		out.every[i] = i
		out.weigh(i)
	}
	out.windows = slices.ContainsFunc(p.Nodes, func(n Node) bool { return !n.Closes.IsZero() })
	return out
}

func (p *pool) anyOpen() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Closed == "" })
}

// take counts n workers of a running workload on each of its rows; negative n gives
// them back.
func (p *pool) take(r *run, n int64) {
	if p.Delegated {
		p.takeRow(0, r.total, n)
		return
	}
	for k, i := range r.rows {
		p.takeRow(i, r.of(k), n)
	}
}

// enter and exit say who is on which rows.
func (p *pool) enter(r *run) {
	p.runs[r.ID] = r
	for i := range r.on() {
		p.on[i].runs, p.on[i].order = append(p.on[i].runs, r), nil
	}
}

func (p *pool) exit(id ID) {
	r := p.runs[id]
	if r == nil {
		return
	}
	delete(p.runs, id)
	for i := range r.on() {
		d := &p.on[i]
		at := slices.Index(d.runs, r)
		last := len(d.runs) - 1
		d.runs[at], d.runs[last] = d.runs[last], nil
		d.runs, d.order = d.runs[:last], nil
	}
}

func (p *pool) takeRow(i int, v vector, n int64) {
	p.free[i] = p.free[i].plus(v, -n)
	p.weigh(i)
}

// weigh finds how full a row is: the part in use of the resource of which that is
// most. In a pool with accelerators, where CPU and memory are needed beside them, a
// row is the fuller the less it has left, in parts of the largest row's.
func (p *pool) weigh(i int) {
	load := 0.0
	for d, has := range p.has[i] {
		switch {
		case has <= 0:
		case p.accelerators:
			load -= float64(p.free[i][d]) / float64(p.largest[d])
		default:
			load = max(load, 1-float64(p.free[i][d])/float64(has))
		}
	}
	p.load[i], p.worth[i] = load, math.NaN()
}

// counts is how many of w's workers a row has room for now, at most most.
func (p *pool) counts(w *waiter, i int, now time.Time, brief bool, most int) int {
	if !p.open[i] || p.closes(&w.Workload, i, now) {
		return 0
	}
	if w.PerNode > 0 {
		most = min(most, w.PerNode)
	}
	n := w.known.request.count(p.free[i], most)
	if n > 0 && p.reserved != nil && !brief && p.reserved.leftover[i] != nil {
		n = w.known.request.count(p.reserved.leftover[i], n)
	}
	return n
}

// closes reports that a row closes before a workload that starts now has ended, and it
// is not one that saves and leaves.
func (p *pool) closes(w *Workload, i int, now time.Time) bool {
	if !p.windows || p.Delegated || w.Preemptible {
		return false
	}
	at := p.Nodes[i].Closes
	return !at.IsZero() && (w.Timeout == 0 || now.Add(w.Timeout).After(at))
}

// shut reports that a workload could not start even were the pool empty, because its
// nodes close before it would have ended.
func (p *pool) shut(w *waiter, now time.Time) bool {
	if !p.windows || p.Delegated || w.Preemptible {
		return false
	}
	if w.known.kinds != nil {
		has := make([]vector, p.rows)
		for i := range has {
			if p.open[i] && !p.closes(&w.Workload, i, now) {
				has[i] = p.has[i]
			}
		}
		return p.packed(w, has) < w.least()
	}
	counts := make([]int, p.rows)
	for i := range counts {
		if p.open[i] && !p.closes(&w.Workload, i, now) {
			counts[i] = w.known.request.count(p.has[i], w.perNode())
		}
	}
	return p.most(w.known, counts) < w.least()
}

// brief reports that a workload that starts now has ended before the one for whom
// nodes are kept gets them.
func (p *pool) brief(w *Workload, now time.Time) bool {
	return p.reserved != nil && !p.reserved.at.IsZero() && w.Timeout > 0 && !now.Add(w.Timeout).After(p.reserved.at)
}

// rowsFor finds rows for least to most workers: nil when there are too few. One worker
// gets the row with room where the least of what others could use is lost, of those
// the fullest, so that large requests keep finding whole nodes; a gang as few nodes
// as it can, that stand as close together as they can. What asks for no accelerator
// goes where none is left, if it can.
func (p *pool) rowsFor(w *waiter, most int, now time.Time) []int {
	k, brief := w.known, p.brief(&w.Workload, now)
	if k.kinds != nil {
		return p.rowsForRoles(w, now, brief)
	}
	failed := &p.misfit
	if p.reserved != nil && !brief {
		failed = &p.reserved.misfit
	}
	if failed.cover(k.request) {
		return nil
	}
	misfits := func() {
		if !p.windows { // else it may be that it only takes too long
			*failed = failed.with(k.request)
		}
	}
	if most == 1 && k.within == "" {
		i := p.best(w, now, brief)
		if i < 0 {
			misfits()
			return nil
		}
		return []int{i}
	}
	counts, n := make([]int, p.rows), 0
	for i := range p.rows {
		counts[i] = p.counts(w, i, now, brief, most)
		n += counts[i]
	}
	if n == 0 {
		misfits()
		return nil
	}
	if n = min(p.most(k, counts), most); n < w.least() {
		return nil
	}
	return gather(p.closest(k, counts, n), counts, n, p.load)
}

// best is the row with room for one that has the most merit; -1 when none has room.
func (p *pool) best(w *waiter, now time.Time, brief bool) int {
	best, last, most := -1, -1, merit{}
	for i := range p.rows {
		if !w.known.request.fits(p.free[i]) || last >= 0 && p.load[i] == p.load[last] && slices.Equal(p.free[i], p.free[last]) {
			continue // or as good as the last
		}
		if p.counts(w, i, now, brief, 1) == 0 {
			continue
		}
		last = i
		if m := p.merit(w.known, i, w.known.request, 1); best < 0 || m.better(most) {
			best, most = i, m
		}
	}
	return best
}

// nodes names the nodes of rows; nil in a delegated pool.
func (p *pool) nodes(rows []int) []string {
	if p.Delegated {
		return nil
	}
	out := make([]string, len(rows))
	for i, row := range rows {
		out[i] = p.Nodes[row].Name
	}
	return out
}

// price is what an hour of n workers costs in a pool; of a gang with roles, all.
func price(w *Workload, p *pool, n int) float64 {
	if len(p.Nodes) == 0 {
		return p.PricePerHour * float64(n)
	}
	return p.PricePerHour * w.Share(p.Nodes[0].Amount, n)
}
