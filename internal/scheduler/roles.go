package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Role is a number of workers of a gang with the same request.
type Role struct {
	Name    string
	Workers int // at least one
	Request resource.Amount
}

// inRoles is the number of workers of all roles.
func (w *Workload) inRoles() (n int) {
	for _, r := range w.Roles {
		n += r.Workers
	}
	return n
}

// Parts are the roles of a gang of n workers; without roles, one role with all workers.
func (w *Workload) Parts(n int) []Role {
	if len(w.Roles) > 0 {
		return w.Roles
	}
	return []Role{{Workers: n, Request: w.Request}}
}

// Amount is the request of n workers together; with roles, that of all workers.
func (w *Workload) Amount(n int) resource.Amount {
	if len(w.Roles) == 0 {
		return w.Request.Times(n)
	}
	var sum resource.Amount
	for _, r := range w.Roles {
		sum = sum.Plus(r.Request.Times(r.Workers))
	}
	return sum
}

// Largest is the largest request of a worker, for each resource.
func (w *Workload) Largest() resource.Amount {
	if len(w.Roles) == 0 {
		return w.Request
	}
	out := resource.Amount{Accelerators: map[string]int64{}}
	for _, r := range w.Roles {
		out.CPU, out.Memory = max(out.CPU, r.Request.CPU), max(out.Memory, r.Request.Memory)
		out.MemoryBandwidth = max(out.MemoryBandwidth, r.Request.MemoryBandwidth)
		for name, n := range r.Request.Accelerators {
			out.Accelerators[name] = max(out.Accelerators[name], n)
		}
	}
	return out
}

// Share is the number of nodes like the given one that n workers use, each counted by its dominant resource.
func (w *Workload) Share(node resource.Amount, n int) float64 {
	if len(w.Roles) == 0 {
		return Share(w.Request, node) * float64(n)
	}
	sum := 0.0
	for _, r := range w.Roles {
		sum += Share(r.Request, node) * float64(r.Workers)
	}
	return sum
}

// Of is the request of the n-th worker.
func (w *Workload) Of(n int) resource.Amount {
	for _, r := range w.Roles {
		if n < r.Workers {
			return r.Request
		}
		n -= r.Workers
	}
	return w.Request
}

// rolesInWords is "1 chief of 4 cpu and 2 ps of 8 cpu".
func rolesInWords(roles []Role) string {
	words := make([]string, len(roles))
	for i, r := range roles {
		words[i] = fmt.Sprintf("%d %s of %s", r.Workers, r.Name, r.Request)
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " and " + words[last]
	}
	return words[0]
}

// kind is the workers of a gang with the same request, of one or several roles.
type kind struct {
	request vector
	workers int
	roles   []int // of Workload.Roles, in order
}

// kinds returns the kinds of a gang in the order in which they are placed: those with accelerators
// first, then by their share of all pools, the largest first.
func (s *State) kinds(w *Workload) []kind {
	var out []kind
	for n, r := range w.Roles {
		v, _ := s.names.vector(r.Request)
		i := slices.IndexFunc(out, func(k kind) bool { return slices.Equal(k.request, v) })
		if i < 0 {
			i, out = len(out), append(out, kind{request: v})
		}
		out[i].workers += r.Workers
		out[i].roles = append(out[i].roles, n)
	}
	share := func(k kind) float64 {
		most := 0.0
		for i, total := range s.total {
			if total > 0 {
				most = max(most, float64(k.request.part(i))/float64(total))
			}
		}
		return most
	}
	accelerated := func(k kind) int {
		return btoi(slices.ContainsFunc(k.request[accelerators:], func(n int64) bool { return n > 0 }))
	}
	slices.SortStableFunc(out, func(a, b kind) int {
		return cmp.Or(cmp.Compare(accelerated(b), accelerated(a)), cmp.Compare(share(b), share(a)))
	})
	return out
}

// asked is the request of each of n workers, if all have the same, and the request of
// all together.
func (s *State) asked(w *Workload, n int) (each, total vector) {
	if len(w.Roles) > 0 {
		total = make(vector, s.names.width())
		for _, r := range w.Roles {
			v, _ := s.names.vector(r.Request)
			for i, x := range v.times(r.Workers) {
				total[i] = min(total[i]+x, unlimited)
			}
		}
		return nil, total
	}
	each, _ = s.names.vector(w.Request)
	if n == 1 {
		return each, each // neither is modified
	}
	return each, each.times(n)
}

// of is the request of the n-th worker.
func (k *shape) of(n int) vector {
	role := 0
	for ; role < len(k.roles) && n >= k.roles[role].Workers; role++ {
		n -= k.roles[role].Workers
	}
	for _, kd := range k.kinds {
		if slices.Contains(kd.roles, role) {
			return kd.request
		}
	}
	return k.request
}

// each is the largest request of a worker, for each resource.
func (k *shape) each() vector {
	if k.kinds == nil {
		return k.request
	}
	out := make(vector, len(k.total))
	for _, kd := range k.kinds {
		for i, x := range kd.request {
			out[i] = max(out[i], x)
		}
	}
	return out
}

// of is the request of the worker on r.rows[n].
func (r *run) of(n int) vector {
	if r.requests != nil {
		return r.requests[n]
	}
	return r.request
}

// allowedRoles is allowed for a gang with roles: all of its workers or none are within the limits.
func (s *State) allowedRoles(w *waiter) int {
	k := w.known
	for i, x := range k.total {
		if x <= 0 {
			continue
		}
		for _, c := range k.ceilings {
			if c.left(i) < x {
				return 0
			}
		}
		if k.queue.left(i)-k.queue.held.part(i) < x {
			return 0
		}
	}
	return w.least()
}

// available is what w may use of a row now; with brief, also what is reserved for others.
func (p *pool) available(w *waiter, i int, now time.Time, brief bool) vector {
	if !p.open[i] || p.closes(&w.Workload, i, now) {
		return nil
	}
	if p.reserved == nil || brief || p.reserved.leftover[i] == nil {
		return p.free[i]
	}
	// What fits both vectors fits their elementwise minimum.
	v := slices.Clone(p.free[i])
	for d := range v {
		v[d] = min(v[d], p.reserved.leftover[i].part(d))
	}
	return v
}

// packing is the result of placing a gang with roles on a set of rows.
type packing struct {
	rows  [][]int // of each kind
	n     int     // workers that fit
	spare int     // further workers of the first kind that would fit the rows
}

// pack finds rows of a set for a gang with roles, kind by kind, each as gather does;
// free is what each row has, nil for nothing. free is unchanged when pack returns.
func (p *pool) pack(w *waiter, set []int, free []vector, loads []float64) packing {
	out := packing{rows: make([][]int, len(w.known.kinds))}
	var on map[int]int
	if w.PerNode > 0 {
		on = map[int]int{}
	}
	counts := p.counted()
	for n, kd := range w.known.kinds {
		sum := 0
		for _, i := range set {
			counts[i] = 0
			if free[i] == nil {
				continue
			}
			most := kd.workers
			if on != nil {
				most = min(most, w.PerNode-on[i])
			}
			counts[i] = kd.request.count(free[i], most)
			sum += counts[i]
		}
		if n == 0 {
			out.spare = sum
		}
		out.rows[n] = gather(set, counts, min(sum, kd.workers), loads)
		out.n += len(out.rows[n])
		for _, i := range out.rows[n] {
			free[i] = free[i].plus(kd.request, -1)
			if on != nil {
				on[i]++
			}
		}
	}
	for n, kd := range w.known.kinds {
		for _, i := range out.rows[n] {
			free[i] = free[i].plus(kd.request, 1)
		}
	}
	return out
}

// packed is the highest number of workers of a gang with roles that fit one set of rows that it may
// use. It ignores the load of the rows.
func (p *pool) packed(w *waiter, free []vector) (n int) {
	for _, set := range p.within(w.known) {
		n = max(n, p.pack(w, set, free, nil).n)
	}
	return n
}

// counted returns a scratch slice with a number per row, valid until the next call.
func (p *pool) counted() []int {
	if len(p.counting) < p.rows {
		p.counting = make([]int, p.rows)
	}
	return p.counting
}

// availableRows is available for each row.
func (p *pool) availableRows(w *waiter, now time.Time, brief bool) []vector {
	free := make([]vector, p.rows)
	for i := range free {
		free[i] = p.available(w, i, now, brief)
	}
	return free
}

// rowsForRoles finds a row for each worker of a gang with roles; nil if not all fit. It prefers
// few nodes that are close together, as room does.
func (p *pool) rowsForRoles(w *waiter, now time.Time, brief bool) []int {
	k := w.known
	failed := &p.misfit
	if p.reserved != nil && !brief {
		failed = &p.reserved.misfit
	}
	for _, kd := range k.kinds {
		if failed.cover(kd.request) {
			return nil
		}
	}
	free := p.availableRows(w, now, brief)
	for _, kd := range k.kinds {
		if slices.ContainsFunc(free, func(v vector) bool { return v != nil && kd.request.fits(v) }) {
			continue
		}
		if !p.windows { // with windows it may fail only because it takes too long
			*failed = failed.with(kd.request)
		}
		return nil
	}
	best := p.closestForRoles(w, free)
	if best.n < w.least() {
		return nil
	}
	// Assign the rows of each kind to the workers of its roles, in the order of the roles.
	next := make([]int, len(k.kinds))
	out := make([]int, 0, w.least())
	for role, r := range w.Roles {
		kd := slices.IndexFunc(k.kinds, func(kd kind) bool { return slices.Contains(kd.roles, role) })
		out = append(out, best.rows[kd][next[kd]:next[kd]+r.Workers]...)
		next[kd] += r.Workers
	}
	return out
}

// closestForRoles is closest for a gang with roles. It takes the innermost level at which some set
// of rows holds the gang: on a single node the one with the most merit, otherwise the set with the
// least capacity left over.
func (p *pool) closestForRoles(w *waiter, free []vector) packing {
	if p.packed(w, free) < w.least() {
		return packing{}
	}
	outermost := -1 // all rows
	if w.known.within != "" {
		outermost, _ = p.level(w.known.within)
	}
	for level := len(p.domains) - 1; level >= outermost; level-- {
		sets := [][]int{p.every}
		if level >= 0 {
			sets = p.domains[level]
		}
		var best packing
		var most merit
		for _, set := range sets {
			if len(set) == 1 && !w.known.total.fits(free[set[0]]) {
				continue
			}
			got := p.pack(w, set, free, p.load)
			if got.n < w.least() {
				got = p.pack(w, set, free, nil)
			}
			switch {
			case got.n < w.least():
			case level == len(p.domains)-1:
				if m := p.merit(w.known, set[0], w.known.total, 1); best.n == 0 || m.better(most) {
					best, most = got, m
				}
			case best.n == 0 || got.spare < best.spare:
				best = got
			}
		}
		if best.n > 0 {
			return best
		}
	}
	return packing{}
}

// planReservationForRoles is planReservation for a gang with roles: running workloads are removed on
// trial in the order of their ends, until the gang fits.
func (s *State) planReservationForRoles(p *pool, w *waiter) *reservation {
	runs := make([]occupant, 0, len(p.runs))
	for _, r := range p.runs {
		l := occupant{run: r}
		if l.at, l.sure = r.ends(s.now); !l.sure { // without a time-out, the oldest is assumed to end first
			l.at = r.Started
		}
		runs = append(runs, l)
	}
	slices.SortFunc(runs, occupant.compare)
	free, gone := make([]vector, p.rows), 0
	for i := range free {
		if p.open[i] && !p.closes(&w.Workload, i, s.now) {
			free[i] = slices.Clone(p.free[i])
		}
	}
	without := func(n int) []vector {
		for ; gone < n; gone++ {
			runs[gone].addRowsTo(free, 1)
		}
		for ; gone > n; gone-- {
			runs[gone-1].addRowsTo(free, -1)
		}
		return free
	}
	n := sort.Search(len(runs), func(n int) bool { return p.packed(w, without(n)) >= w.least() })
	kept := &reservation{owner: w, leftover: make([]vector, p.rows)}
	best := p.closestForRoles(w, without(n))
	switch {
	case best.n == 0: // its nodes close for maintenance before it would end
		return kept
	case n == 0:
		kept.at = s.now
	case runs[n-1].sure:
		kept.at = runs[n-1].at
	}
	for kd, rows := range best.rows {
		for _, i := range rows {
			if kept.leftover[i] == nil {
				kept.leftover[i] = slices.Clone(p.has[i])
			}
			kept.leftover[i] = kept.leftover[i].plus(w.known.kinds[kd].request, -1)
		}
	}
	for i, r := range runs {
		if kept.outlasts(r, i < n) {
			r.addRowsTo(kept.leftover, -1)
		}
	}
	return kept
}

// addRowsTo adds what r's workers use, n times, to the rows that they run on; n is negative to subtract.
// Rows that are nil stay nil.
func (r *run) addRowsTo(rows []vector, n int64) {
	if r.rows == nil {
		if rows[0] != nil {
			rows[0] = rows[0].plus(r.total, n)
		}
		return
	}
	for k, i := range r.rows {
		if rows[i] != nil {
			rows[i] = rows[i].plus(r.of(k), n)
		}
	}
}

// tooSmall says why a gang with roles does not fit a pool even when the pool is empty; empty if it
// fits.
func (s *State) tooSmall(w *Workload, p *pool, of *shape) string {
	free := make([]vector, p.rows)
	for i := range free {
		if p.open[i] {
			free[i] = p.has[i]
		}
	}
	if p.Delegated {
		sum := Node{}
		for _, n := range p.Nodes {
			if n.Closed == "" {
				sum.Amount = sum.Amount.Plus(n.Amount)
			}
		}
		free[0], _ = s.names.vector(sum.Amount)
	}
	for _, r := range w.Roles {
		if slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Closed == "" && r.Request.Fits(n.Amount) }) {
			continue
		}
		var best []string
		for _, n := range p.Nodes {
			if lacks := r.Request.Lacks(n.Amount); n.Closed == "" && (best == nil || len(lacks) < len(best)) {
				best = lacks
			}
		}
		return fmt.Sprintf("pool %s has no node large enough for a worker of role %s: %s", p.Name, r.Name, words(best, "on its largest"))
	}
	if p.Delegated {
		if why := s.roleTooLarge(w, p); why != "" {
			return why
		}
	}
	n := p.packed(&waiter{Workload: *w, known: &known{shape: of}}, free)
	if n == w.least() {
		return ""
	}
	in := "in all"
	if w.together() != "" {
		in = "in one " + w.Within
	}
	return fmt.Sprintf("pool %s is too small: %s, capacity for %d %s", p.Name, gang(w), n, in)
}

// roleTooLarge says that the nodes of a delegated pool hold fewer workers than the roles with one
// request have; empty if they hold them. It checks each request alone: the engine decides whether
// roles of different requests fit together.
func (s *State) roleTooLarge(w *Workload, p *pool) string {
	for i, r := range w.Roles {
		alike := func(o Role) bool { return o.Request.Equal(r.Request) }
		if slices.ContainsFunc(w.Roles[:i], alike) {
			continue // counted with the first of them
		}
		request, exists := s.names.vector(r.Request)
		workers, room := 0, 0
		for _, o := range w.Roles[i:] {
			if alike(o) {
				workers += o.Workers
			}
		}
		for _, n := range p.Nodes {
			if has, _ := s.names.vector(n.Amount); exists && n.Closed == "" && room < workers {
				room += request.count(has, w.perNode())
			}
		}
		if room < workers {
			return fmt.Sprintf("pool %s is too small: %d workers of role %s wanted, capacity for %d in all", p.Name, workers, r.Name, room)
		}
	}
	return ""
}
