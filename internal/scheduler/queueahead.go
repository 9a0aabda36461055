package scheduler

import "time"

// queueAhead hands a workload without room to the engine of a pool, to wait in the engine's
// own queue, so that a node does not idle between two workloads. It does not do so on reserved
// nodes, nor while a preemption in the pool is in progress, nor for a gang on named nodes,
// which would wait for the last of them.
func (s *State) queueAhead(w *waiter, most int, plan *Plan) bool {
	if w.known.kinds != nil || w.known.within != "" {
		return false
	}
	for _, r := range s.leaving {
		if r.isLeaving(s.now) {
			return false
		}
	}
	for _, p := range w.known.pools {
		if p.Ahead == 0 || p.reserved != nil || most > 1 && !p.Delegated {
			continue
		}
		if rows := p.shortestQueue(w, most, s.now); rows != nil {
			s.place(w, p, rows, plan)
			return true
		}
	}
	return false
}

// shortestQueue finds the row with the shortest line that has room for one more, or, in a
// delegated pool, for least to most.
func (p *pool) shortestQueue(w *waiter, most int, now time.Time) []int {
	best, n := -1, 0
	for i := range p.rows {
		if !p.open[i] || best >= 0 && p.load[i] >= p.load[best] || p.closes(&w.Workload, i, now) {
			continue
		}
		p.queueScratch = append(p.queueScratch[:0], p.free[i]...)
		for d, has := range p.has[i] {
			p.queueScratch[d] += int64(p.Ahead * float64(has))
		}
		if c := w.known.request.count(p.queueScratch, min(most, w.known.request.count(p.has[i], most))); c >= w.least() {
			best, n = i, c
		}
	}
	if best < 0 {
		return nil
	}
	rows := make([]int, n)
	for k := range rows {
		rows[k] = best
	}
	return rows
}
