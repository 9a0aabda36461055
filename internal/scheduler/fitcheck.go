package scheduler

import (
	"slices"
	"time"
)

// fitCheck reports whether a workload's minimum fits a pool while victims are removed and put back on
// trial. After each change it recounts only the victim's rows, because a large gang may need thousands
// of victims.
type fitCheck struct {
	pool *pool
	w    *waiter
	now  time.Time
	mine bool // the pool has no reservation, or it is w's

	kinds   []kind  // of workers; without roles there is one
	sets    [][]int // sets of rows; the gang must fit one of them
	set     []int   // index of sets by row; nil if there is one
	count   [][]int // by kind and row: how many workers fit
	sum     [][]int // by kind and set: how many workers fit
	short   []int   // by set: kinds that do not fit whole
	fitting int     // sets without such kinds

	// With roles: whether all kinds fit together.
	free   []vector
	packed []bool // rows that the last packing used
	holds  bool   // result of the last packing
	stale  bool   // rows have changed since
}

// newFitCheck counts all rows, except for a single worker that is known to fit none of them (full).
func (p *pool) newFitCheck(w *waiter, now time.Time, full bool) *fitCheck {
	k := w.known
	g := &fitCheck{pool: p, w: w, now: now, mine: p.reserved == nil || p.reserved.owner == w, kinds: k.kinds, sets: p.within(k), stale: true}
	if g.kinds == nil {
		g.kinds = []kind{{request: k.request, workers: w.least()}}
	}
	if len(g.sets) > 1 {
		g.set = make([]int, p.rows)
		for n, rows := range g.sets {
			for _, i := range rows {
				g.set[i] = n
			}
		}
	}
	g.short = make([]int, len(g.sets))
	for n := range g.short {
		g.short[n] = len(g.kinds)
	}
	for range g.kinds {
		g.sum = append(g.sum, make([]int, len(g.sets)))
	}
	g.count = p.fitCounts(len(g.kinds))
	if k.kinds != nil {
		g.free, g.packed = make([]vector, p.rows), make([]bool, p.rows)
	}
	if full && k.kinds == nil && w.least() == 1 {
		return g
	}
	for i := range p.rows {
		g.recount(i)
	}
	return g
}

// fitCounts returns a scratch table by kind and row, valid until the pool's next fitCheck.
func (p *pool) fitCounts(kinds int) [][]int {
	for len(p.fitScratch) < kinds {
		p.fitScratch = append(p.fitScratch, make([]int, p.rows))
	}
	out := p.fitScratch[:kinds]
	for _, counts := range out {
		clear(counts)
	}
	return out
}

// update recounts the rows of a workload that was removed or put back.
func (g *fitCheck) update(r *run) {
	if r.pool != g.pool {
		return
	}
	for i := range r.on() {
		g.recount(i)
	}
}

// recount counts again how many workers fit a row.
func (g *fitCheck) recount(i int) {
	p, set := g.pool, 0
	if g.set != nil {
		set = g.set[i]
	}
	open := p.open[i] && !p.closes(&g.w.Workload, i, g.now)
	var beside vector
	if p.reserved != nil && !g.mine {
		beside = p.reserved.leftover[i]
	}
	same := true
	for k, kd := range g.kinds {
		n := 0
		if open {
			most := kd.workers
			if g.w.PerNode > 0 {
				most = min(most, g.w.PerNode)
			}
			if n = kd.request.count(p.free[i], most); n > 0 && beside != nil {
				n = kd.request.count(beside, n)
			}
		}
		was := g.count[k][i]
		if n == was {
			continue
		}
		same = false
		had := g.sum[k][set] >= kd.workers
		g.count[k][i] = n
		g.sum[k][set] += n - was
		switch has := g.sum[k][set] >= kd.workers; {
		case has && !had:
			if g.short[set]--; g.short[set] == 0 {
				g.fitting++
			}
		case had && !has:
			if g.short[set]++; g.short[set] == 1 {
				g.fitting--
			}
		}
	}
	if g.free != nil {
		g.free[i] = p.available(g.w, i, g.now, g.mine)
		g.stale = g.stale || !same || g.packed[i]
	}
}

// fits reports that the workload's minimum fits.
func (g *fitCheck) fits() bool {
	switch {
	case g.free == nil || g.fitting == 0:
		return g.fitting > 0
	case !g.stale:
		return g.holds
	}
	g.holds, g.stale = false, false
	clear(g.packed)
	for n, rows := range g.sets {
		if g.short[n] > 0 {
			continue
		}
		got := g.pool.pack(g.w, rows, g.free, nil)
		for _, some := range got.rows {
			for _, i := range some {
				g.packed[i] = true
			}
		}
		if got.n == g.w.least() {
			g.holds = true
			break
		}
	}
	return g.holds
}

// wouldFit reports that w would fit a pool whose rows had so much free, checking each kind of
// workers alone.
func (p *pool) wouldFit(w *waiter, free []vector, now time.Time) bool {
	kinds := w.known.kinds
	if kinds == nil {
		kinds = []kind{{request: w.known.request, workers: w.least()}}
	}
	return slices.ContainsFunc(p.within(w.known), func(rows []int) bool {
		return !slices.ContainsFunc(kinds, func(k kind) bool {
			most, left := k.workers, k.workers
			if w.PerNode > 0 {
				most = min(most, w.PerNode)
			}
			for _, i := range rows {
				if free[i] == nil || p.closes(&w.Workload, i, now) {
					continue
				}
				if left -= k.request.count(free[i], most); left <= 0 {
					return false
				}
			}
			return true
		})
	})
}
