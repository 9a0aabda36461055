package burst

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// row is a node in the forecast: what is free now, and what is freed when. A workload that is
// forecast to start later takes its capacity from now on, so that no later workload is forecast to
// overtake it. Hence free capacity never shrinks with time. A delegated pool is one row.
type row struct {
	name string
	has  resource.Amount
	free resource.Amount // less than 0 where a pending workload is forecast to use it
	ends []ending        // by time
}

// ending is when a workload frees its resources; guess marks an estimate.
type ending struct {
	at     time.Time
	amount resource.Amount
	guess  bool
}

func newPool(p Pool, w World) *pool {
	out := &pool{Pool: p, kept: map[string]bool{}}
	index := map[string]int{}
	total := resource.Amount{}
	for _, n := range p.Nodes {
		if n.Closed != "" {
			continue
		}
		if total = total.Plus(n.Amount); !p.Delegated {
			index[n.Name] = len(out.rows)
			out.rows = append(out.rows, row{name: n.Name, has: n.Amount, free: n.Amount})
		} else {
			out.nodes = append(out.nodes, n.Amount)
		}
	}
	if p.Delegated {
		out.rows = []row{{has: total, free: total}}
	}
	if p.Elastic != nil {
		for _, n := range p.Elastic.Rented {
			_, there := index[n.Name]
			if n.Leaving || there || !n.Coming { // a rented node that runs but is not in the pool takes no work
				continue
			}
			out.come(n.Name, n.Ready)
		}
	}
	for _, r := range w.Running {
		if r.Pool != p.Name {
			continue
		}
		end, guess := expected(r, w.Now)
		hold := func(i int, amount resource.Amount) {
			out.rows[i].free = out.rows[i].free.Minus(amount)
			if !end.IsZero() {
				out.rows[i].ends = append(out.rows[i].ends, ending{end, amount, guess})
			}
		}
		if p.Delegated {
			hold(0, r.Amount(max(r.Placed, 1)))
			continue
		}
		for n, name := range r.Nodes {
			if i, ok := index[name]; ok {
				hold(i, r.Of(n))
			}
		}
	}
	for i := range out.rows {
		out.rows[i].sort()
	}
	out.rows0 = len(out.rows)
	return out
}

// come adds a node that will be ready at an instant.
func (p *pool) come(name string, ready time.Time) {
	e := ending{at: ready, amount: p.Elastic.Node, guess: true}
	if p.Delegated {
		p.nodes = append(p.nodes, p.Elastic.Node)
		p.rows[0].has = p.rows[0].has.Plus(p.Elastic.Node)
		p.rows[0].ends = append(p.rows[0].ends, e)
		p.rows[0].sort()
		return
	}
	p.rows = append(p.rows, row{name: name, has: p.Elastic.Node, free: resource.Amount{}, ends: []ending{e}})
}

func (r *row) sort() {
	slices.SortStableFunc(r.ends, func(a, b ending) int { return a.at.Compare(b.at) })
}

// expected is when a running workload ends: its expected end, or its deadline.
// Without either, or when the expected end has passed, the guess is that it runs as long again
// as it has run: half of all processes of a given age end before they are twice as old (Harchol-Balter and Downey, ACM TOCS 15(3), 1997:
// a process outlives an age t with a probability of about 1/t). Zero is unknown.
func expected(r scheduler.Running, now time.Time) (end time.Time, guess bool) {
	if r.Leaving {
		return now, false
	}
	if !r.Started.IsZero() {
		if end = r.Started.Add(r.Expected); r.Expected > 0 && end.After(now) {
			guess = true
		} else if end = (time.Time{}); r.Expected > 0 || r.Deadline.IsZero() {
			end, guess = now.Add(max(now.Sub(r.Started), time.Minute)), true
		}
	}
	if d := r.Deadline; !d.IsZero() && (end.IsZero() || d.Before(end)) {
		end, guess = d, false
		if end.Before(now) {
			end = now
		}
	}
	return end, guess
}

// start is the forecast start of a workload: when, and on which rows.
type start struct {
	at    time.Time
	guess bool
	rows  []share
}

// share is some workers on a row.
type share struct {
	row, workers int
	amount       resource.Amount
}

// vacancy is capacity for n workers on a row from an instant on.
type vacancy struct {
	row, n int
	at     time.Time
	guess  bool
}

// earliest is when so many workers of a workload fit a pool, or all workers of a gang with roles; false
// if no such time is known. Only the rows below index before are used.
func (p *pool) earliest(w *Work, workers, before int, now time.Time) (start, bool) {
	if !p.whole(w, workers, 0) {
		return start{}, false
	}
	if len(w.Roles) > 0 {
		return p.earliestOfRoles(w, p.rows[:min(before, len(p.rows))], now)
	}
	found, each := p.found[:0], w.Request
	for i := range p.rows[:min(before, len(p.rows))] {
		r := &p.rows[i]
		most := min(each.Count(r.has, workers), w.onNode(p))
		if most == 0 {
			continue
		}
		free, guess := r.free, false
		n := each.Count(free, most)
		if n > 0 {
			found = append(found, vacancy{i, n, now, false})
		}
		for _, e := range r.ends {
			if n == most {
				break
			}
			free, guess = free.Plus(e.amount), guess || e.guess
			if more := each.Count(free, most); more > n {
				found = append(found, vacancy{i, more - n, e.at, guess})
				n = more
			}
		}
	}
	p.found = found
	slices.SortFunc(found, func(a, b vacancy) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(b.n, a.n), cmp.Compare(a.row, b.row))
	})
	out := start{at: now}
	for _, v := range found {
		n := min(v.n, workers)
		out.rows = append(out.rows, share{v.row, n, each.Times(n)})
		if v.at.After(out.at) {
			out.at = v.at
		}
		out.guess = out.guess || v.guess
		if workers -= n; workers == 0 {
			return out, true
		}
	}
	return out, false
}

// whole reports that each of so many workers, or each worker of a gang with roles, fits one node when
// nothing else runs and the pool has more nodes. It checks delegated pools only: their row is the sum of
// their nodes, but a worker cannot be split over nodes.
func (p *pool) whole(w *Work, workers, more int) bool {
	if !p.Delegated {
		return true
	}
	kinds := w.kinds
	if len(kinds) == 0 {
		kinds = []scheduler.Role{{Request: w.Request, Workers: workers}}
	}
	for _, k := range kinds {
		n := 0
		for _, node := range p.nodes {
			n += k.Request.Count(node, k.Workers)
		}
		if more > 0 {
			n += more * k.Request.Count(p.Elastic.Node, k.Workers)
		}
		if n < k.Workers {
			return false
		}
	}
	return true
}

// take allocates a workload's forecast start: no later workload uses those resources before it
// ends.
func (p *pool) take(w *Work, s start) {
	for _, at := range s.rows {
		r := &p.rows[at.row]
		r.free = r.free.Minus(at.amount)
		if w.Duration > 0 {
			r.ends = append(r.ends, ending{s.at.Add(w.Duration), at.amount, true})
			r.sort()
		}
		if p.Elastic != nil {
			p.kept[r.name] = true
		}
	}
}

// price is the cost of an hour of so many workers on existing nodes.
func (p *pool) price(w *Work, workers int) float64 {
	node := resource.Amount{}
	switch {
	case p.Elastic != nil:
		node = p.Elastic.Node
	case len(p.Nodes) > 0:
		node = p.Nodes[0].Amount
	}
	return p.PricePerHour * w.Share(node, workers)
}

// rework is the run time of a workload, in hours, on nodes that are interrupted at random times, with
// that many interruptions per hour in total. After each, it resumes from its last checkpoint once another
// node has started:
//
//	work = M × e^(R/M) × (e^(τ/M) − 1) × duration / τ
//
// with M the mean time between interruptions, R the start-up and τ the time between
// checkpoints; without checkpoints τ = duration. J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006),
// 303–312, with checkpoints that cost nothing.
func rework(duration, saves, startup, interruptions float64) float64 {
	if interruptions <= 0 || duration <= 0 {
		return duration
	}
	if saves <= 0 || saves > duration {
		saves = duration
	}
	m := 1 / interruptions
	return m * math.Exp(startup/m) * math.Expm1(saves/m) * duration / saves
}
