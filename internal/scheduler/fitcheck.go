package scheduler

import (
	"slices"
	"time"
)

// fitCheck says whether a pool has room for the least that a workload needs, while others are
// taken away to see and put back. It looks again only at rows where somebody was, for a
// large gang may need thousands to leave.
type fitCheck struct {
	pool *pool
	w    *waiter
	now  time.Time
	mine bool // what is kept is not for others

	kinds   []kind  // of workers; without roles there is one
	sets    [][]int // of rows that workers may be on together
	set     []int   // of each row; nil where there is one
	count   [][]int // of each kind, for how many of its workers each row has room
	sum     [][]int // of each kind, for how many each set has
	short   []int   // of each set, how many kinds have not room for all
	fitting int     // sets in which none is short

	// With roles: whether they have that room together as well.
	free   []vector
	packed []bool // rows that the last look gave to somebody
	holds  bool   // what it found
	stale  bool   // that may be otherwise now
}

// newFitCheck looks at all rows, but for a single worker that is known to have room on none.
func (p *pool) newFitCheck(w *waiter, now time.Time, full bool) *fitCheck {
	k := w.known
	g := &fitCheck{pool: p, w: w, now: now, mine: p.kept == nil || p.kept.owner == w, kinds: k.kinds, sets: p.within(k), stale: true}
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

// fitCounts is a number for each row and kind, until the next fitCheck of the pool.
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

// update takes in that a workload's rows have more or less free.
func (g *fitCheck) update(r *run) {
	if r.pool != g.pool {
		return
	}
	for i := range r.on() {
		g.recount(i)
	}
}

// recount counts anew for how many workers a row has room.
func (g *fitCheck) recount(i int) {
	p, set := g.pool, 0
	if g.set != nil {
		set = g.set[i]
	}
	open := p.open[i] && !p.closes(&g.w.Workload, i, g.now)
	var beside vector
	if p.kept != nil && !g.mine {
		beside = p.kept.beside[i]
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
		g.free[i] = p.now(g.w, i, g.now, g.mine)
		g.stale = g.stale || !same || g.packed[i]
	}
}

// fits reports that there is room.
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

// wouldFit reports that a pool would have room for w were so much free, of each kind of
// its workers by itself.
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
