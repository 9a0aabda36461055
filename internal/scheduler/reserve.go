package scheduler

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// reservation reserves rows of a pool for the first workload that is pending for it.
type reservation struct {
	owner *waiter
	at    time.Time // when the owner fits there, by the time-outs of running workloads; zero is unknown
	// leftover is, for each reserved row, what workloads that still run at that time may use: neither
	// what the owner needs nor, while at is unknown, what running workloads free for it. It is nil
	// for other rows.
	leftover []vector
	misfit   misfits // for those others
}

// ends is when the resources of a running workload are free; false when unknown.
func (r *run) ends(now time.Time) (time.Time, bool) {
	switch {
	case r.isLeaving(now):
		return now, true
	case r.Leaving:
		return time.Time{}, false // its grace period is long over
	case r.Deadline.IsZero():
		return time.Time{}, false
	case r.Deadline.Before(now):
		return now, true
	}
	return r.Deadline, true
}

// occupant is a running workload on a row: what it uses there, and when it ends.
type occupant struct {
	*run
	has  vector
	at   time.Time
	sure bool
}

func (l occupant) compare(o occupant) int {
	if l.sure != o.sure {
		return cmp.Compare(btoi(o.sure), btoi(l.sure))
	}
	if c := l.at.Compare(o.at); c != 0 {
		return c
	}
	return cmp.Compare(l.ID, o.ID)
}

// rowRuns are the running workloads of a row.
type rowRuns struct {
	runs  []*run
	order []occupant // by their ends; nil if not computed
	until time.Time  // order is valid until then; zero means for ever
}

// occupants returns the running workloads of a row in the order of their ends. The order is cached
// until a workload starts, ends, is preempted, or exceeds its expected end.
func (p *pool) occupants(i int, now time.Time) []occupant {
	d := &p.on[i]
	if d.order != nil && (d.until.IsZero() || now.Before(d.until)) {
		return d.order
	}
	out, keeps := make([]occupant, 0, len(d.runs)), true
	d.until = time.Time{}
	for _, r := range d.runs {
		l := occupant{run: r, has: r.has(i)}
		l.at, l.sure = r.ends(now)
		keeps = keeps && !r.Leaving && (!l.sure || l.at.After(now))
		if l.sure && (d.until.IsZero() || l.at.Before(d.until)) {
			d.until = l.at
		}
		out = append(out, l)
	}
	slices.SortFunc(out, occupant.compare)
	if d.order = nil; keeps {
		d.order = out
	}
	return out
}

// on yields the rows of r's workers, each once.
func (r *run) on() iter.Seq[int] {
	return func(yield func(int) bool) {
		if r.rows == nil && r.pool.Delegated {
			yield(0)
			return
		}
		for k, i := range r.rows {
			if !slices.Contains(r.rows[:k], i) && !yield(i) {
				return
			}
		}
	}
}

// has is what r's workers use of a row.
func (r *run) has(row int) vector {
	if r.rows == nil {
		return r.total
	}
	var sum vector
	n := 0
	for k, i := range r.rows {
		switch {
		case i != row:
			continue
		case n == 0:
			sum = r.of(k)
		case n == 1:
			sum = slices.Clone(sum)
			fallthrough
		default:
			sum = sum.plus(r.of(k), 1)
		}
		n++
	}
	return sum
}

// opening is capacity for n workers that a row has from an instant on.
type opening struct {
	row, n int
	at     time.Time
	gone   int // running workloads of the row that must end first
	unsure int // of them, those without a time-out
}

func (v opening) compare(o opening) int {
	return cmp.Or(cmp.Compare(v.unsure, o.unsure), v.at.Compare(o.at), cmp.Compare(o.n, v.n), cmp.Compare(v.row, o.row))
}

// reserve reserves for w the rows of a pool where it will fit soonest.
func (s *State) reserve(p *pool, w *waiter) {
	p.reserved = s.planReservation(p, w)
	s.moves++
	if !p.reserved.at.IsZero() {
		s.longest = max(s.longest, p.reserved.at.Sub(s.now))
	}
}

// planReservation finds those rows.
func (s *State) planReservation(p *pool, w *waiter) *reservation {
	k := w.known
	if k.kinds != nil {
		return s.planReservationForRoles(p, w)
	}
	// 1. The openings of each row: how many workers fit, and from when, as running workloads end.
	var vacancies []opening
	var free vector
	for i := range p.rows {
		most := 0
		if p.open[i] && !p.closes(&w.Workload, i, s.now) {
			most = k.request.count(p.has[i], w.perNode())
		}
		if most == 0 {
			continue
		}
		free = append(free[:0], p.free[i]...)
		at := opening{row: i, n: k.request.count(free, most), at: s.now}
		if at.n > 0 {
			vacancies = append(vacancies, at)
		}
		if at.n == most {
			continue
		}
		for _, l := range p.occupants(i, s.now) {
			free = free.plus(l.has, 1)
			at.gone++
			if l.sure {
				at.at = l.at
			} else {
				at.unsure++
			}
			if n := k.request.count(free, most); n > at.n {
				more := at
				more.n = n - at.n
				vacancies = append(vacancies, more)
				at.n = n
			}
			if at.n == most {
				break
			}
		}
	}
	// 2. The soonest openings until all workers fit, within one domain if the gang requires it.
	slices.SortFunc(vacancies, opening.compare)
	best := rowChoice{need: w.least() + 1}
	for _, some := range p.together(k, vacancies) {
		if c := s.choose(some, w.least()); c.compare(best) < 0 {
			best = c
		}
	}
	kept := &reservation{owner: w, at: best.at, leftover: make([]vector, p.rows)}
	if best.unsure || best.need > 0 {
		kept.at = time.Time{}
	}
	// 3. What remains on each row beside the owner then.
	for i, n := range best.workers {
		beside := slices.Clone(p.has[i])
		beside = beside.plus(k.request, -int64(n))
		for at, l := range p.occupants(i, s.now) {
			if kept.outlasts(l, at < best.gone[i]) {
				beside = beside.plus(l.has, -1)
			}
		}
		kept.leftover[i] = beside
	}
	return kept
}

// outlasts reports that l still runs when the reservation's owner starts; gone says that l
// must end before that.
func (k *reservation) outlasts(l occupant, gone bool) bool {
	if k.at.IsZero() {
		return !gone
	}
	return !l.sure || l.at.After(k.at)
}

// rowChoice is the number of workers by row, and the time from which they fit.
type rowChoice struct {
	workers map[int]int // by row
	gone    map[int]int // running workloads that must end first, by row
	need    int         // workers without a row
	unsure  bool        // the time is not known
	at      time.Time
}

func (c rowChoice) compare(o rowChoice) int {
	return cmp.Or(cmp.Compare(c.need, o.need), cmp.Compare(btoi(c.unsure), btoi(o.unsure)), c.at.Compare(o.at))
}

func (s *State) choose(soonest []opening, need int) rowChoice {
	c := rowChoice{workers: map[int]int{}, gone: map[int]int{}, need: need, at: s.now}
	for _, v := range soonest {
		n := min(v.n, c.need)
		c.workers[v.row] += n
		c.gone[v.row] = max(c.gone[v.row], v.gone)
		c.unsure = c.unsure || v.unsure > 0
		if v.at.After(c.at) {
			c.at = v.at
		}
		if c.need -= n; c.need == 0 {
			break
		}
	}
	return c
}

// together divides openings by domain, where a gang must be within one; otherwise it returns one set.
func (p *pool) together(k *known, all []opening) [][]opening {
	if k.within == "" {
		return [][]opening{all}
	}
	sets := p.within(k)
	of, out := make(map[int]int, p.rows), make([][]opening, len(sets))
	for n, rows := range sets {
		for _, i := range rows {
			of[i] = n
		}
	}
	for _, v := range all {
		if n, ok := of[v.row]; ok {
			out[n] = append(out[n], v)
		}
	}
	return out
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
