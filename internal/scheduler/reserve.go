package scheduler

import (
	"cmp"
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

// ends is when what a running work holds is free; false when nobody knows.
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

// leaver is a run and when what it holds is free.
type leaver struct {
	*run
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
func (s *State) reserve(p *pool, w *waiter) { p.kept = s.vacate(p, w) }

// vacate finds those rows.
func (s *State) vacate(p *pool, w *waiter) *reservation {
	k := w.known
	if k.kinds != nil {
		return s.vacateForRoles(p, w)
	}
	// 1. Who leaves which row when.
	leaving := make([][]leaver, p.rows)
	for _, r := range p.runs {
		l := leaver{run: r}
		l.at, l.sure = r.ends(s.now)
		if p.Delegated {
			leaving[0] = append(leaving[0], l)
			continue
		}
		for k, i := range r.rows {
			if !slices.Contains(r.rows[:k], i) {
				leaving[i] = append(leaving[i], l)
			}
		}
	}
	// 2. How many workers have room on each row, and from when.
	var vacancies []vacancy
	for i := range p.rows {
		most := 0
		if p.open[i] && !p.closes(&w.Work, i, s.now) {
			most = k.request.count(p.has[i], w.perNode())
		}
		if most == 0 {
			continue
		}
		free := slices.Clone(p.free[i])
		at := vacancy{row: i, n: k.request.count(free, most), at: s.now}
		if at.n > 0 {
			vacancies = append(vacancies, at)
		}
		slices.SortFunc(leaving[i], leaver.compare)
		for _, r := range leaving[i] {
			if before := k.request.count(free, most); before == most {
				break
			}
			free = r.hold(free, i, 1)
			at.gone++
			if r.sure {
				at.at = r.at
			} else {
				at.unsure++
			}
			if n := k.request.count(free, most); n > at.n {
				more := at
				more.n = n - at.n
				vacancies = append(vacancies, more)
				at.n = n
			}
		}
	}
	// 3. The soonest of them, until there are enough that may be together.
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
	// 4. What is left beside it then.
	for i, n := range best.workers {
		beside := slices.Clone(p.has[i])
		beside = beside.plus(k.request, -int64(n))
		for at, r := range leaving[i] {
			if kept.outlasts(r, at < best.gone[i]) {
				beside = r.hold(beside, i, -1)
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

// hold adds n times what its workers have on a row to v, in place.
func (r *run) hold(v vector, row int, n int64) vector {
	if r.rows == nil {
		return v.plus(r.total, n)
	}
	for k, i := range r.rows {
		if i == row {
			v = v.plus(r.of(k), n)
		}
	}
	return v
}
