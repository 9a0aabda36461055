package scheduler

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// reservation keeps rows of a pool for the first that waits for it.
type reservation struct {
	owner *waiter
	at    time.Time // when it has room there, by the time-outs of others; zero is unknown
	// beside is, of each row kept, what others may use that outlast at: what it needs is
	// not theirs, nor, while at is unknown, what those leave who must leave for it. nil
	// for rows that are not kept.
	beside []vector
	misfit misfits // for those others
}

// ends is when the resources of a running workload are free; false when unknown.
func (r *run) ends(now time.Time) (time.Time, bool) {
	switch {
	case r.leaves(now):
		return now, true
	case r.Leaving:
		return time.Time{}, false // it was told long ago
	case r.Deadline.IsZero():
		return time.Time{}, false
	case r.Deadline.Before(now):
		return now, true
	}
	return r.Deadline, true
}

// leaver is a run, what it holds of a row, and when that is free.
type leaver struct {
	*run
	has  vector
	at   time.Time
	sure bool
}

func (l leaver) compare(o leaver) int {
	if l.sure != o.sure {
		return cmp.Compare(btoi(o.sure), btoi(l.sure))
	}
	if c := l.at.Compare(o.at); c != 0 {
		return c
	}
	return cmp.Compare(l.ID, o.ID)
}

// departures are those that run on a row.
type departures struct {
	runs  []*run
	order []leaver  // as they leave; nil is to be found
	until time.Time // it is the same before; zero is for ever
}

// leavers are those on a row in the order in which they leave. It is kept until somebody
// comes, goes or is told to, or overstays.
func (p *pool) leavers(i int, now time.Time) []leaver {
	d := &p.on[i]
	if d.order != nil && (d.until.IsZero() || now.Before(d.until)) {
		return d.order
	}
	out, keeps := make([]leaver, 0, len(d.runs)), true
	d.until = time.Time{}
	for _, r := range d.runs {
		l := leaver{run: r, has: r.has(i)}
		l.at, l.sure = r.ends(now)
		keeps = keeps && !r.Leaving && (!l.sure || l.at.After(now))
		if l.sure && (d.until.IsZero() || l.at.Before(d.until)) {
			d.until = l.at
		}
		out = append(out, l)
	}
	slices.SortFunc(out, leaver.compare)
	if d.order = nil; keeps {
		d.order = out
	}
	return out
}

// on are the rows on which its workers are, each once.
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

// has is what its workers hold of a row.
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

// vacancy is room for some workers that a row will have.
type vacancy struct {
	row, n int
	at     time.Time
	gone   int // how many of those on it must end for it
	unsure int // how many of them without a time-out
}

func (v vacancy) compare(o vacancy) int {
	return cmp.Or(cmp.Compare(v.unsure, o.unsure), v.at.Compare(o.at), cmp.Compare(o.n, v.n), cmp.Compare(v.row, o.row))
}

// reserve keeps those rows of a pool for w on which it will have room soonest.
func (s *State) reserve(p *pool, w *waiter) {
	p.kept = s.vacate(p, w)
	s.moves++
	if !p.kept.at.IsZero() {
		s.longest = max(s.longest, p.kept.at.Sub(s.now))
	}
}

// vacate finds those rows.
func (s *State) vacate(p *pool, w *waiter) *reservation {
	k := w.known
	if k.kinds != nil {
		return s.vacateForRoles(p, w)
	}
	// 1. How many workers have room on each row, and from when: as others leave.
	var vacancies []vacancy
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
		at := vacancy{row: i, n: k.request.count(free, most), at: s.now}
		if at.n > 0 {
			vacancies = append(vacancies, at)
		}
		if at.n == most {
			continue
		}
		for _, l := range p.leavers(i, s.now) {
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
	// 2. The soonest of them, until there are enough that may be together.
	slices.SortFunc(vacancies, vacancy.compare)
	best := choice{need: w.least() + 1}
	for _, some := range p.together(k, vacancies) {
		if c := s.choose(some, w.least()); c.compare(best) < 0 {
			best = c
		}
	}
	kept := &reservation{owner: w, at: best.at, beside: make([]vector, p.rows)}
	if best.unsure || best.need > 0 {
		kept.at = time.Time{}
	}
	// 3. What is left beside it then.
	for i, n := range best.workers {
		beside := slices.Clone(p.has[i])
		beside = beside.plus(k.request, -int64(n))
		for at, l := range p.leavers(i, s.now) {
			if kept.outlasts(l, at < best.gone[i]) {
				beside = beside.plus(l.has, -1)
			}
		}
		kept.beside[i] = beside
	}
	return kept
}

// outlasts reports that l has its place still when the one has its own for whom others
// leave; gone says that l must leave for it.
func (k *reservation) outlasts(l leaver, gone bool) bool {
	if k.at.IsZero() {
		return !gone
	}
	return !l.sure || l.at.After(k.at)
}

// choice is how many workers get which rows, and from when.
type choice struct {
	workers map[int]int // by row
	gone    map[int]int // how many must have left the row
	need    int         // how many have none
	unsure  bool        // nobody knows when
	at      time.Time
}

func (c choice) compare(o choice) int {
	return cmp.Or(cmp.Compare(c.need, o.need), cmp.Compare(btoi(c.unsure), btoi(o.unsure)), c.at.Compare(o.at))
}

func (s *State) choose(soonest []vacancy, need int) choice {
	c := choice{workers: map[int]int{}, gone: map[int]int{}, need: need, at: s.now}
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

// together divides vacancies into those of which a gang may use any one.
func (p *pool) together(k *known, all []vacancy) [][]vacancy {
	if k.within == "" {
		return [][]vacancy{all}
	}
	sets := p.within(k)
	of, out := make(map[int]int, p.rows), make([][]vacancy, len(sets))
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
