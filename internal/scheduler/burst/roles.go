package burst

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Gangs with roles are counted as the scheduler places them, so that what is rented
// for one is what it gets: see scheduler.Workload.Roles. Here is what of the forecast and
// the rule differs for them.

// kinds are the workers of a gang with roles, those that ask for the same together, in
// the order in which the scheduler places them: what asks for accelerators first, then
// what asks for the larger share of all pools.
func (d *decision) kinds(w *Work) []scheduler.Role {
	var out []scheduler.Role
	for _, r := range w.Roles {
		i := slices.IndexFunc(out, func(k scheduler.Role) bool { return k.Request.Equal(r.Request) })
		if i < 0 {
			out = append(out, r)
			continue
		}
		out[i].Workers += r.Workers
	}
	accelerated := func(k scheduler.Role) int {
		for _, n := range k.Request.Accelerators {
			if n > 0 {
				return 1
			}
		}
		return 0
	}
	slices.SortStableFunc(out, func(a, b scheduler.Role) int {
		return cmp.Or(cmp.Compare(accelerated(b), accelerated(a)), cmp.Compare(scheduler.Share(b.Request, d.total), scheduler.Share(a.Request, d.total)))
	})
	return out
}

// pack gives each worker of a gang with roles a row: kind by kind, the roomiest rows
// first, the last where as many as are left fit most closely. free is what the rows
// have, and is used up; false when some worker has no room.
func (w *Work) pack(p *pool, free []resource.Amount) (rows []share, ok bool) {
	on := make([]int, len(free)) // workers
	counts := make([]int, len(free))
	for _, kind := range w.kinds {
		for i := range free {
			counts[i] = kind.Request.Count(free[i], min(kind.Workers, w.onNode(p)-on[i]))
		}
		for left := kind.Workers; left > 0; {
			best := 0
			for i, n := range counts {
				if min(n, left) > min(counts[best], left) || n >= left && n < counts[best] {
					best = i
				}
			}
			if len(counts) == 0 || counts[best] == 0 {
				return nil, false
			}
			n := min(counts[best], left)
			amount := kind.Request.Times(n)
			if k := slices.IndexFunc(rows, func(s share) bool { return s.row == best }); k >= 0 {
				rows[k].workers, rows[k].amount = rows[k].workers+n, rows[k].amount.Plus(amount)
			} else {
				rows = append(rows, share{best, n, amount})
			}
			free[best], counts[best] = free[best].Minus(amount), 0
			on[best] += n
			left -= n
		}
	}
	return rows, true
}

// free is what rows have at an instant.
func free(rows []row, at time.Time) []resource.Amount {
	out := make([]resource.Amount, len(rows))
	for i := range rows {
		out[i] = rows[i].free
		for _, e := range rows[i].ends {
			if e.at.After(at) {
				break
			}
			out[i] = out[i].Plus(e.amount)
		}
	}
	return out
}

// earliestOfRoles is earliest for a gang with roles: the first instant at which all of
// it has room. What is free never shrinks with the time, so it is found by halving.
func (p *pool) earliestOfRoles(w *Work, rows []row, now time.Time) (out start, ok bool) {
	times := []time.Time{now}
	for _, r := range rows {
		for _, e := range r.ends {
			if e.at.After(now) {
				times = append(times, e.at)
			}
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	n := sort.Search(len(times), func(n int) bool {
		found, fits := w.pack(p, free(rows, times[n]))
		if fits {
			out.at, out.rows = times[n], found
		}
		return fits
	})
	for _, s := range out.rows {
		for _, e := range rows[s.row].ends {
			out.guess = out.guess || e.guess && !e.at.After(out.at)
		}
	}
	return out, n < len(times)
}

// forRoles is how many nodes a gang with roles needs besides what is free when they
// are ready; 0 when a worker has no room on one of them.
func (p *pool) forRoles(w *Work, ready time.Time) int {
	if p.tooSmall(w) != "" {
		return 0
	}
	there := free(p.rows, ready)
	return 1 + sort.Search(w.least()-1, func(n int) bool {
		all := slices.Clone(there)
		for range n + 1 {
			all = append(all, p.Elastic.Node)
		}
		_, fits := w.pack(p, all)
		return fits && p.whole(w, 0, n+1)
	})
}

// tooSmall says in words why a worker has no room on a node of an elastic pool; empty
// when each has.
func (p *pool) tooSmall(w *Work) string {
	for _, part := range w.Parts(1) {
		if part.Request.Fits(p.Elastic.Node) {
			continue
		}
		who := ""
		if len(w.Roles) > 0 {
			who = " for a worker of role " + part.Name
		}
		return fmt.Sprintf("a node of %s is too small%s: %s", p.Name, who, strings.Join(part.Request.Lacks(p.Elastic.Node), ", "))
	}
	return ""
}
