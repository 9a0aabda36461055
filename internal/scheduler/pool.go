package scheduler

import (
	"cmp"
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

	accelerators bool // it has some

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
	}
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

// counts is how many requests of k a row has room for now, at most most.
func (p *pool) counts(k *known, i int, brief bool, most int) int {
	if !p.open[i] {
		return 0
	}
	n := k.request.count(p.free[i], most)
	if n > 0 && p.kept != nil && !brief && p.kept.beside[i] != nil {
		n = k.request.count(p.kept.beside[i], n)
	}
	return n
}

// brief reports that a work that starts now has ended before the one for whom
// nodes are kept gets them.
func (p *pool) brief(w *Work, now time.Time) bool {
	return p.kept != nil && !p.kept.at.IsZero() && w.Timeout > 0 && !now.Add(w.Timeout).After(p.kept.at)
}

// room finds rows for least to most workers: nil when there are too few. One
// worker gets the fullest row that has room, so that large requests keep finding
// whole nodes; a gang as few nodes as it can. What asks for no accelerator goes
// where none is left, if it can.
func (p *pool) room(w *waiter, most int, now time.Time) []int {
	k, brief := w.known, p.brief(&w.Work, now)
	failed := &p.misfit
	if p.kept != nil && !brief {
		failed = &p.kept.misfit
	}
	if failed.cover(k.request) {
		return nil
	}
	if most == 1 {
		i := -1
		if p.accelerators && !k.accelerated {
			i = p.fullest(k, brief, true)
		}
		if i < 0 {
			i = p.fullest(k, brief, false)
		}
		if i < 0 {
			*failed = failed.with(k.request)
			return nil
		}
		return []int{i}
	}
	type spot struct{ row, n int }
	var spots []spot
	n := 0
	for i := range p.rows {
		if fit := p.counts(k, i, brief, most); fit > 0 {
			spots = append(spots, spot{i, fit})
			n += fit
		}
	}
	if n < w.least() {
		if n == 0 {
			*failed = failed.with(k.request)
		}
		return nil
	}
	slices.SortFunc(spots, func(a, b spot) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(p.load[b.row], p.load[a.row]), cmp.Compare(a.row, b.row))
	})
	rows := make([]int, 0, min(n, most))
	for i, at := range spots {
		if left := most - len(rows); at.n > left { // the last: where that many fit most closely
			for _, other := range spots[i:] {
				if other.n >= left && other.n < at.n {
					at = other
				}
			}
		}
		for range min(at.n, most-len(rows)) {
			rows = append(rows, at.row)
		}
		if len(rows) == most {
			break
		}
	}
	return rows
}

// fullest is the row in use most that has room for one; -1 when none has. With
// bare only rows without free accelerators count.
func (p *pool) fullest(k *known, brief, bare bool) int {
	best := -1
	for i := range p.rows {
		if best >= 0 && p.load[i] <= p.load[best] || !k.request.fits(p.free[i]) || p.counts(k, i, brief, 1) == 0 {
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
