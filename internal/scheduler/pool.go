package scheduler

import (
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// pool is a Pool with what running works use of it. Its rows are its nodes; a
// delegated pool has one row, the sum of its open nodes.
type pool struct {
	Pool
	index map[string]int // row of a node by its name
	rows  int
	open  []bool
	has   []vector
	free  []vector
	load  []float64 // the part of the row in use, of the resource of which that is most
	runs  map[ID]*run

	every   []int // all rows
	domains domains

	accelerators bool // it has some
	windows      bool // some of its nodes will close

	// Of the last step.
	kept   *reservation
	misfit misfits // for those who may use all that is free
}

func (s *State) newPool(p Pool) *pool {
	out := &pool{Pool: p, index: make(map[string]int, len(p.Nodes)), runs: map[ID]*run{}}
	row := func(a resource.Amount, open bool) {
		v, _ := s.names.vector(a)
		out.has, out.free = append(out.has, v), append(out.free, slices.Clone(v))
		out.open, out.load = append(out.open, open), append(out.load, 0)
		out.rows++
		out.accelerators = out.accelerators || slices.ContainsFunc(v[2:], func(n int64) bool { return n > 0 })
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
		for _, v := range []vector{out.has[0], out.free[0]} {
			for i := range v {
				v[i] += int64(p.Ahead * float64(v[i]))
			}
		}
	}
	out.domains, out.every = newDomains(p), make([]int, out.rows)
	for i := range out.every {
		out.every[i] = i
	}
	out.windows = slices.ContainsFunc(p.Nodes, func(n Node) bool { return !n.Closes.IsZero() })
	return out
}

func (p *pool) anyOpen() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Closed == "" })
}

// take counts n workers of a running work on each of its rows; negative n gives
// them back.
func (p *pool) take(r *run, n int64) {
	if p.Delegated {
		p.takeRow(0, r.request, n*int64(r.placed()))
		return
	}
	for _, i := range r.rows {
		p.takeRow(i, r.request, n)
	}
}

func (p *pool) takeRow(i int, v vector, n int64) {
	p.free[i] = p.free[i].plus(v, -n)
	p.load[i] = 0
	for d, has := range p.has[i] {
		if has > 0 {
			p.load[i] = max(p.load[i], 1-float64(p.free[i][d])/float64(has))
		}
	}
}

// counts is how many of w's workers a row has room for now, at most most.
func (p *pool) counts(w *waiter, i int, now time.Time, brief bool, most int) int {
	if !p.open[i] || p.closes(&w.Work, i, now) {
		return 0
	}
	if w.PerNode > 0 {
		most = min(most, w.PerNode)
	}
	n := w.known.request.count(p.free[i], most)
	if n > 0 && p.kept != nil && !brief && p.kept.beside[i] != nil {
		n = w.known.request.count(p.kept.beside[i], n)
	}
	return n
}

// closes reports that a row closes before a work that starts now has ended, and it
// is not one that saves and leaves.
func (p *pool) closes(w *Work, i int, now time.Time) bool {
	if !p.windows || p.Delegated || w.Preemptible {
		return false
	}
	at := p.Nodes[i].Closes
	return !at.IsZero() && (w.Timeout == 0 || now.Add(w.Timeout).After(at))
}

// shut reports that a work could not start even were the pool empty, because its
// nodes close before it would have ended.
func (p *pool) shut(w *waiter, now time.Time) bool {
	if !p.windows || p.Delegated || w.Preemptible {
		return false
	}
	counts := make([]int, p.rows)
	for i := range counts {
		if p.open[i] && !p.closes(&w.Work, i, now) {
			counts[i] = w.known.request.count(p.has[i], w.perNode())
		}
	}
	return p.most(w.known, counts) < w.least()
}

// brief reports that a work that starts now has ended before the one for whom
// nodes are kept gets them.
func (p *pool) brief(w *Work, now time.Time) bool {
	return p.kept != nil && !p.kept.at.IsZero() && w.Timeout > 0 && !now.Add(w.Timeout).After(p.kept.at)
}

// room finds rows for least to most workers: nil when there are too few. One
// worker gets the fullest row that has room, so that large requests keep finding
// whole nodes; a gang as few nodes as it can, that stand as close together as they
// can. What asks for no accelerator goes where none is left, if it can.
func (p *pool) room(w *waiter, most int, now time.Time) []int {
	k, brief := w.known, p.brief(&w.Work, now)
	failed := &p.misfit
	if p.kept != nil && !brief {
		failed = &p.kept.misfit
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
		i := -1
		if p.accelerators && !k.accelerated {
			i = p.fullest(w, now, brief, true)
		}
		if i < 0 {
			i = p.fullest(w, now, brief, false)
		}
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
	return p.gather(p.closest(k, counts, n), counts, n)
}

// fullest is the row in use most that has room for one; -1 when none has. With
// bare only rows without free accelerators count.
func (p *pool) fullest(w *waiter, now time.Time, brief, bare bool) int {
	best := -1
	for i := range p.rows {
		if best >= 0 && p.load[i] <= p.load[best] || !w.known.request.fits(p.free[i]) || p.counts(w, i, now, brief, 1) == 0 {
			continue
		}
		if bare && slices.ContainsFunc(p.free[i][2:], func(n int64) bool { return n > 0 }) {
			continue
		}
		best = i
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

// price is what an hour of a worker costs in a pool.
func price(w *Work, p *pool) float64 {
	if len(p.Nodes) == 0 {
		return p.PricePerHour
	}
	return p.PricePerHour * Share(w.Request, p.Nodes[0].Amount)
}
