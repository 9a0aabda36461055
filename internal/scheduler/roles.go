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

// Role is some workers of a gang, that ask for the same.
type Role struct {
	Name    string
	Workers int // at least one
	Request resource.Amount
}

// inRoles is how many workers the roles have.
func (w *Workload) inRoles() (n int) {
	for _, r := range w.Roles {
		n += r.Workers
	}
	return n
}

// Parts are the roles of a gang of n workers; without roles there is one, of all.
func (w *Workload) Parts(n int) []Role {
	if len(w.Roles) > 0 {
		return w.Roles
	}
	return []Role{{Workers: n, Request: w.Request}}
}

// Amount is what n workers ask for together; of a gang with roles, all of them.
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

// Largest is the most of each part that a worker asks for.
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

// Share is how many nodes such as one n workers take, by the largest part of each.
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

// Of is what the n-th worker asks for.
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

// kind is the workers of a gang that ask for the same, of one role or of several.
type kind struct {
	request vector
	workers int
	roles   []int // of Workload.Roles, in order
}

// kinds are in the order in which they are placed: what asks for accelerators
// first, then what asks for the larger share of all pools.
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

// asked is what each of n workers asks for, where all ask for the same, and what
// all ask for together.
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
		return each, each // nobody changes either
	}
	return each, each.times(n)
}

// of is what the n-th worker asks for.
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

// each is the most of each part that a worker asks for.
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

// of is what the worker asks for that is on the n-th of its rows.
func (r *run) of(n int) vector {
	if r.requests != nil {
		return r.requests[n]
	}
	return r.request
}

// allowedRoles is allowed for a gang with roles: all of its workers, or none.
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

// now is what w may have of a row now; with brief also of what is kept for others.
func (p *pool) now(w *waiter, i int, now time.Time, brief bool) vector {
	if !p.open[i] || p.closes(&w.Workload, i, now) {
		return nil
	}
	if p.kept == nil || brief || p.kept.beside[i] == nil {
		return p.free[i]
	}
	// What fits into both fits into the least of each part.
	v := slices.Clone(p.free[i])
	for d := range v {
		v[d] = min(v[d], p.kept.beside[i].part(d))
	}
	return v
}

// packing is how far a gang with roles finds room.
type packing struct {
	rows  [][]int // of each kind
	n     int     // workers that have a place
	spare int     // workers of the first kind that the rows have room for
}

// pack gives rows of a set to a gang with roles, kind by kind, each as gather does;
// free is what rows have, nil for none. What it takes of it, it puts back.
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

// packed is for how many workers of a gang with roles the roomiest set of rows
// that it may use has room. What else runs where does not matter.
func (p *pool) packed(w *waiter, free []vector) (n int) {
	for _, set := range p.within(w.known) {
		n = max(n, p.pack(w, set, free, nil).n)
	}
	return n
}

// counted is room for a number for each row, until the next asks for it.
func (p *pool) counted() []int {
	if len(p.counting) < p.rows {
		p.counting = make([]int, p.rows)
	}
	return p.counting
}

// may is what w may have of each row now; with brief also of what is kept for others.
func (p *pool) may(w *waiter, now time.Time, brief bool) []vector {
	free := make([]vector, p.rows)
	for i := range free {
		free[i] = p.now(w, i, now, brief)
	}
	return free
}

// roomForRoles finds a row for each worker of a gang with roles: nil when there
// are too few. It is on few nodes that stand close together, as room has it.
func (p *pool) roomForRoles(w *waiter, now time.Time, brief bool) []int {
	k := w.known
	failed := &p.misfit
	if p.kept != nil && !brief {
		failed = &p.kept.misfit
	}
	for _, kd := range k.kinds {
		if failed.cover(kd.request) {
			return nil
		}
	}
	free := p.may(w, now, brief)
	for _, kd := range k.kinds {
		if slices.ContainsFunc(free, func(v vector) bool { return v != nil && kd.request.fits(v) }) {
			continue
		}
		if !p.windows { // else it may be that it only takes too long
			*failed = failed.with(kd.request)
		}
		return nil
	}
	best := p.closestForRoles(w, free)
	if best.n < w.least() {
		return nil
	}
	// Worker by worker, role by role: a kind's roles in their order.
	next := make([]int, len(k.kinds))
	out := make([]int, 0, w.least())
	for role, r := range w.Roles {
		kd := slices.IndexFunc(k.kinds, func(kd kind) bool { return slices.Contains(kd.roles, role) })
		out = append(out, best.rows[kd][next[kd]:next[kd]+r.Workers]...)
		next[kd] += r.Workers
	}
	return out
}

// closestForRoles is closest for a gang with roles: of the innermost level at which
// some rows hold it, of nodes the one with the most merit, else those with the least
// room beyond that.
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

// vacateForRoles is vacate for a gang with roles: as many of those that run are
// taken away as it needs, those that end first, first.
func (s *State) vacateForRoles(p *pool, w *waiter) *reservation {
	runs := make([]leaver, 0, len(p.runs))
	for _, r := range p.runs {
		l := leaver{run: r}
		if l.at, l.sure = r.ends(s.now); !l.sure { // the oldest probably go first
			l.at = r.Started
		}
		runs = append(runs, l)
	}
	slices.SortFunc(runs, leaver.compare)
	free, gone := make([]vector, p.rows), 0
	for i := range free {
		if p.open[i] && !p.closes(&w.Workload, i, s.now) {
			free[i] = slices.Clone(p.free[i])
		}
	}
	without := func(n int) []vector {
		for ; gone < n; gone++ {
			runs[gone].leave(free, 1)
		}
		for ; gone > n; gone-- {
			runs[gone-1].leave(free, -1)
		}
		return free
	}
	n := sort.Search(len(runs), func(n int) bool { return p.packed(w, without(n)) >= w.least() })
	kept := &reservation{owner: w, beside: make([]vector, p.rows)}
	best := p.closestForRoles(w, without(n))
	switch {
	case best.n == 0: // its nodes close before it has ended
		return kept
	case n == 0:
		kept.at = s.now
	case runs[n-1].sure:
		kept.at = runs[n-1].at
	}
	for kd, rows := range best.rows {
		for _, i := range rows {
			if kept.beside[i] == nil {
				kept.beside[i] = slices.Clone(p.has[i])
			}
			kept.beside[i] = kept.beside[i].plus(w.known.kinds[kd].request, -1)
		}
	}
	for i, r := range runs {
		if kept.outlasts(r, i < n) {
			r.leave(kept.beside, -1)
		}
	}
	return kept
}

// leave adds what its workers have to the rows on which they are, or takes it away;
// nil rows have nothing.
func (r *run) leave(rows []vector, n int64) {
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

// tooSmall says in words why a gang with roles has no room in a pool, however
// empty; empty when it has.
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

// roleTooLarge says of a delegated pool, whose engine fills the nodes one by one, that they
// hold fewer workers than roles of one request have; empty when they hold them. Whether
// roles of different requests fit beside each other is the engine's to find.
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
