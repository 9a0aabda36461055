package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// refer is the reference: the rules of the package in their plainest form, which
// computes everything anew for every question from the lists of what runs. Who
// leaves for whom, and how many workers pay under Goodput, it takes from the plan; who
// could not have others leave is in wrong.
func refer(d Delta, plan Plan, sizes map[ID]int) (result referred) {
	r := newReference(d)
	r.leave(plan, "")
	var out strings.Builder
	never := map[ID]bool{}
	for w := r.next(); w != nil; w = r.next() {
		r.seen[w.ID] = true
		pools := r.permitted(*w)
		q := r.queue(*w)
		n := w.most()
		for n > 0 && !r.within(*w, n, false) {
			n--
		}
		if n >= w.least() && r.Policy == Goodput && w.elastic() && !w.EvictableWorkers {
			n = min(n, max(w.least(), cmp.Or(w.Target, sizes[w.ID])))
		}
		if n >= w.least() && slices.Contains(d.Turns, w.ID) {
			n = r.owned(*w, n)
		}
		if len(pools) == 0 || !r.within(*w, w.least(), true) {
			never[w.ID] = true
			continue
		}
		if r.first[q] && r.queues[q].Order == Strict || w.NotBefore.After(d.Now) {
			continue
		}
		ready := slices.DeleteFunc(slices.Clone(pools), func(p Pool) bool { return r.shut(*w, p) })
		if len(ready) == 0 {
			continue
		}
		placed := false
		place := func(p Pool, nodes []string) {
			run := Running{Workload: *w, Pool: p.Name, Placed: len(nodes), Started: d.Now}
			if w.Timeout > 0 {
				run.Deadline = d.Now.Add(w.Timeout)
			}
			if !p.Delegated {
				run.Nodes = nodes
			}
			if k := r.kept[p.Name]; k != nil && !r.brief(*w, p) {
				for i, node := range nodes {
					if _, ok := k.beside[node]; ok {
						k.beside[node] = k.beside[node].Minus(asks(*w, i))
					}
				}
			}
			r.add(run)
			fmt.Fprintf(&out, "%s in %s, %d workers on %v\n", w.ID, p.Name, len(nodes), run.Nodes)
			placed = true
		}
		for turn, find := range []func(Workload, Pool, int) []string{r.room, r.queueAhead} {
			if turn > 0 && !placed {
				if wrong := r.leave(plan, w.ID); wrong != "" && result.wrong == "" {
					result.wrong = wrong
				}
			}
			for _, p := range pools {
				if nodes := find(*w, p, n); !placed && n >= w.least() && len(nodes) >= w.least() {
					place(p, nodes)
				}
			}
		}
		if placed {
			continue
		}
		if n >= w.least() {
			for _, p := range ready {
				if r.kept[p.Name] == nil {
					r.keep(*w, p)
				}
			}
		}
		r.hold(*w)
	}
	for _, p := range plan.Preempt {
		if !r.asked[p.For] {
			result.wrong = cmp.Or(result.wrong, fmt.Sprintf("%s is told to leave for %s, which may not have that", p.Workload, p.For))
		}
	}
	result.placed, result.never = out.String(), never
	return result
}

// referred is what the reference says.
type referred struct {
	placed string      // in words
	never  map[ID]bool // who may never run
	wrong  string      // whom the plan has leave though it may not; empty is nobody
}

func newReference(d Delta) *reference {
	r := &reference{Delta: d, queues: map[string]Queue{"": {}}, seen: map[ID]bool{}, kept: map[string]*nodesKept{}, first: map[string]bool{}, limits: map[string]bool{}, asked: map[ID]bool{}}
	for _, q := range d.Queues {
		r.queues[q.Name] = q
	}
	slices.SortFunc(r.Pools, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	for _, w := range d.Submitted {
		for n := range w.least() {
			r.typical = append(r.typical, asks(w, n))
		}
	}
	for _, run := range d.Started {
		for n := range max(run.Placed, 1) {
			r.typical = append(r.typical, asks(run.Workload, n))
		}
	}
	r.Started = nil
	for _, run := range d.Started {
		r.add(run)
	}
	return r
}

// add takes in what runs.
func (r *reference) add(run Running) {
	r.whole = append(r.whole, run)
	r.Started = append(r.Started, apart([]Running{run})...)
	r.holders = append(r.holders, holder{queue: r.queue(run.Workload), project: run.Project, user: run.User, amount: run.amount(), real: true})
}

// leave takes in whom the plan tells to leave for a workload, for maintenance when it is empty,
// and says whom it may not tell.
func (r *reference) leave(plan Plan, id ID) (wrong string) {
	var who []ID
	for i := range r.whole {
		run := &r.whole[i]
		for _, p := range plan.Preempt {
			if p.Workload == run.ID && p.For == id {
				run.Leaving, run.LeavingSince, run.LeavingFor = true, r.Now, id
				who = append(who, run.ID)
			}
		}
		for _, rs := range plan.Resize {
			if rs.Workload == run.ID && rs.For == id && len(rs.Evict) > 0 {
				run.Evicted = slices.Clone(run.Evicted)
				for _, n := range rs.Evict {
					run.Evicted = append(run.Evicted, Eviction{Worker: n, Since: r.Now, For: id})
				}
				who = append(who, run.ID)
			}
		}
	}
	r.Started, r.asked[id] = apart(r.whole), true
	i := slices.IndexFunc(r.Submitted, func(w Workload) bool { return w.ID == id })
	if i < 0 {
		return ""
	}
	for _, run := range r.whole {
		if slices.Contains(who, run.ID) && !r.may(r.Submitted[i], run) {
			wrong = fmt.Sprintf("%s has no right to what %s has", id, run.ID)
		}
	}
	return wrong
}

// may reports that a workload may have one leave that runs in another queue, as far as use
// says, were all gone who leave: its queue has borrowed, while the other has what is its own,
// or a smaller share; or it had enough. Within one queue anybody may.
func (r *reference) may(w Workload, run Running) bool {
	q, from := r.queue(w), r.queue(run.Workload)
	world := world{queues: r.Queues}
	if q == from || world.idles(run, w, r.Now) {
		return true
	}
	if r.path(q)[0] != r.path(from)[0] {
		return false
	}
	without := *r // all who leave
	without.holders = slices.Clone(r.holders)
	for _, gone := range r.Started {
		if gone.Leaving {
			without.holders = append(without.holders, holder{queue: r.queue(gone.Workload), amount: gone.amount().Times(-1), real: true})
		}
	}
	// The ways of both queues down from the lowest that is above both.
	ours, theirs := r.path(q), r.path(from)
	for len(ours) > 0 && len(theirs) > 0 && ours[0] == theirs[0] {
		ours, theirs = ours[1:], theirs[1:]
	}
	borrows := true
	for _, o := range theirs {
		over := false
		for part, x := range parts(w.Amount(w.least())) {
			over = over || x > 0 && r.named(q, part) && r.used(o, part, false) > r.subtree(o, part)
		}
		borrows = borrows && over
	}
	nominal := slices.Contains(ours, without.inQuota(q, w.Amount(w.least())))
	without.holders = append(without.holders, holder{queue: q, amount: w.Amount(w.least()), real: true})
	alone := *r // without this one
	goes := run.amount()
	if !run.Preemptible { // a worker of a service
		goes = run.Amount(1)
	}
	alone.holders = append(slices.Clone(r.holders), holder{queue: from, amount: goes.Times(-1), real: true})
	less := r.Policy == Fair && without.share(q) < alone.share(from)
	had := r.Policy == Tiresias && w.Served < 16*3600 && much(run, r.Now)
	return borrows && (nominal || less || had)
}

// holding is the reference with more in use in a queue.
func (r *reference) holding(q string, more resource.Amount) *reference {
	with := *r
	with.holders = append(slices.Clone(r.holders), holder{queue: q, amount: more, real: true})
	return &with
}

// inQuota is the deepest queue, from q up and below the top, whose quota holds so much more;
// empty when none does.
func (r *reference) inQuota(q string, more resource.Amount) string {
	with, path := r.holding(q, more), r.path(q)
	for _, o := range slices.Backward(path[1:]) {
		fits := true
		for part := range parts(more) {
			used := with.used(o, part, false)
			fits = fits && (!r.named(q, part) || used == r.used(o, part, false) || used <= r.subtree(o, part))
		}
		if fits {
			return o
		}
	}
	return ""
}

// owned is how many workers one gets for which others left: no more than its least beyond
// the quota that it is within.
func (r *reference) owned(w Workload, most int) int {
	q := r.queue(w)
	path := r.path(q)
	if len(path) == 1 || len(w.Roles) > 0 || !r.limited(q) {
		return most
	}
	least := r.inQuota(q, w.Amount(w.least()))
	for n := w.least() + 1; n <= most; n++ {
		if at := r.inQuota(q, w.Amount(n)); least == "" || len(r.path(at)) < len(r.path(least)) || at == "" {
			return n - 1
		}
	}
	return most
}

// limited reports that some queue of q's tree names something in its quota.
func (r *reference) limited(q string) bool {
	for _, o := range r.queues {
		if r.path(o.Name)[0] == r.path(q)[0] && !o.Quota.IsZero() {
			return true
		}
	}
	return false
}

// apart takes workers that were told to stop out of workloads that go on without them: each
// is a workload by itself that leaves.
func apart(all []Running) (out []Running) {
	for _, run := range all {
		rest := run
		rest.Nodes, rest.Placed = nil, 0
		for n := range max(run.Placed, 1) {
			one := run
			one.ID, one.Placed, one.Nodes = ID(fmt.Sprintf("%s#%d", run.ID, n)), 1, nil
			if n < len(run.Nodes) {
				one.Nodes = []string{run.Nodes[n]}
			}
			told := slices.IndexFunc(run.Evicted, func(s Eviction) bool { return s.Worker == n })
			if told < 0 || !run.EvictableWorkers || run.Leaving || len(run.Roles) > 0 {
				rest.Placed, rest.Nodes = rest.Placed+1, append(rest.Nodes, one.Nodes...)
				continue
			}
			one.Leaving, one.LeavingSince = true, run.Evicted[told].Since
			out = append(out, one)
		}
		if rest.Placed > 0 {
			out = append(out, rest)
		}
	}
	return out
}

type reference struct {
	Delta
	whole   []Running         // what runs; of Started each worker that was told to stop is by itself
	typical []resource.Amount // what each worker that waits or runs asks for
	queues  map[string]Queue
	seen    map[ID]bool
	asked   map[ID]bool // for whom others may have been told to leave
	holders []holder
	kept    map[string]*nodesKept
	first   map[string]bool // queues in which somebody waits
	limits  map[string]bool // limits for which somebody waits
}

// holder has part of the quotas: a running workload, or what is kept.
type holder struct {
	queue, project, user string
	amount               resource.Amount
	real                 bool
	only                 string // a limit, or a queue for its own workloads: no other sees it
}

type nodesKept struct {
	at     time.Time
	beside map[string]resource.Amount
}

func (r *reference) queue(w Workload) string {
	if _, ok := r.queues[w.Queue]; ok {
		return w.Queue
	}
	return ""
}

func (r *reference) parent(q string) string {
	p := r.queues[q].Parent
	if _, ok := r.queues[p]; !ok {
		return ""
	}
	return p
}

// next is the workload to look at.
func (r *reference) next() *Workload {
	var best *Workload
	for i := range r.Submitted { // whose turn it is already
		w := &r.Submitted[i]
		if slices.Contains(r.Turns, w.ID) && !r.seen[w.ID] && (best == nil || r.inLine(*w, *best) < 0) {
			best = w
		}
	}
	if best != nil {
		return best
	}
	for i := range r.Submitted {
		w := &r.Submitted[i]
		if !r.seen[w.ID] && (best == nil || r.before(*w, *best)) {
			best = w
		}
	}
	return best
}

func (r *reference) before(a, b Workload) bool {
	if r.Policy != Fair {
		return r.inLine(a, b) < 0
	}
	if qa, qb := r.queue(a), r.queue(b); qa != qb {
		pa, pb := r.path(qa), r.path(qb)
		for i := 0; ; i++ {
			switch {
			case i == len(pa): // a queue's own workloads come before those below it
				return true
			case i == len(pb):
				return false
			case pa[i] != pb[i]:
				return cmp.Or(cmp.Compare(r.share(pa[i]), r.share(pb[i])), cmp.Compare(pa[i], pb[i])) < 0
			}
		}
	}
	return r.inLine(a, b) < 0
}

func (r *reference) inLine(a, b Workload) int {
	x, y := r.counts(a), r.counts(b)
	if r.Policy != Fair && r.Policy != Tiresias {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), x.Compare(y), cmp.Compare(a.ID, b.ID))
	}
	return cmp.Or(x.Compare(y), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID))
}

// counts is when a workload counts as submitted.
func (r *reference) counts(w Workload) time.Time {
	start := w.Due.Add(-w.Expected*5/4 - time.Minute)
	if w.Expected == 0 {
		start = w.Submitted.Add(w.Due.Sub(w.Submitted) / 2)
	}
	if start.Before(w.Submitted) {
		start = w.Submitted
	}
	switch {
	case !w.Due.IsZero() && !start.After(r.Now) && r.Now.Before(w.Due.Add(-w.Expected/2)):
		return start.Add(-24 * time.Hour)
	case r.Policy == Tiresias && w.Served >= 16*3600:
		return w.Submitted.Add(24*time.Hour - time.Duration(w.Priority)*time.Minute)
	case r.Policy == Fair || r.Policy == Tiresias:
		return w.Submitted.Add(-time.Duration(w.Priority) * time.Minute)
	}
	return w.Submitted
}

// path is from the top down to a queue.
func (r *reference) path(q string) []string {
	path := []string{q}
	for p := r.parent(q); p != "" && q != ""; p = r.parent(p) {
		path = append([]string{p}, path...)
	}
	return path
}

func (r *reference) below(q, top string) bool { return slices.Contains(r.path(q), top) }

func parts(a resource.Amount) map[string]int64 {
	out := map[string]int64{"cpu": int64(a.CPU), "memory": int64(a.Memory), "memory bandwidth": int64(a.MemoryBandwidth)}
	maps.Copy(out, a.Accelerators)
	return out
}

// limitOf is what a limit says of a part; false when it does not name it.
func limitOf(l resource.Limit, part string) (int64, bool) {
	named := map[string]bool{"cpu": l.CPU != nil, "memory": l.Memory != nil, "memory bandwidth": l.MemoryBandwidth != nil}[part]
	_, accelerator := l.Accelerators[part]
	return parts(l.Amount())[part], named || accelerator
}

func (r *reference) share(q string) float64 {
	total := resource.Amount{}
	for _, p := range r.Pools {
		for _, n := range p.Nodes {
			if n.Closed == "" {
				total = total.Plus(n.Amount)
			}
		}
	}
	used := resource.Amount{}
	for _, h := range r.holders {
		if h.real && r.below(h.queue, q) {
			used = used.Plus(h.amount)
		}
	}
	most := 0.0
	past, remembers := r.History[q]
	for name, n := range parts(total) {
		if n <= 0 {
			continue
		}
		x := float64(parts(used)[name])
		if remembers && r.queues[q].HalfLife > 0 {
			x = (x + past.Amount[name]) / 2
		}
		most = max(most, x/float64(n))
	}
	if weight := r.queues[q].Weight; weight > 0 {
		return most / weight
	}
	return most
}

func (r *reference) permitted(w Workload) []Pool {
	var out []Pool
	for _, p := range r.Pools {
		counts := map[string]int{}
		for _, n := range spots(p) {
			if n.Closed == "" {
				counts[n.Name] = w.Request.Count(n.Amount, w.perNode())
			}
		}
		fits := roomiest(w, p, counts)
		if p.Delegated { // its engine has the nodes, and a worker is on one of them
			fits = 0
			for _, n := range p.Nodes {
				if n.Closed == "" {
					fits += w.Request.Count(n.Amount, w.perNode())
				}
			}
		}
		if len(w.Roles) > 0 {
			fits = r.packed(w, p, func(n Node) (resource.Amount, bool) { return n.Amount, n.Closed == "" })
		}
		if p.Delegated && (w.together() != "" || w.PerNode > 0 || slices.ContainsFunc(w.Roles, func(r Role) bool {
			workers, room := 0, 0 // of all roles that ask for the same
			for _, o := range w.Roles {
				if o.Request.Equal(r.Request) {
					workers += o.Workers
				}
			}
			for _, n := range p.Nodes {
				if n.Closed == "" {
					room += r.Request.Count(n.Amount, workers)
				}
			}
			return room < workers
		})) {
			fits = 0
		}
		if len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Name) || p.Alike && len(w.Roles) > 0 {
			continue
		}
		if p.Closed == "" && slices.Contains(w.Residency, p.Zone) && p.Isolation.AtLeast(w.Isolation) && (!w.InPlace || !p.Remote) &&
			p.anyOpenNode() && fits >= w.least() {
			out = append(out, p)
		}
	}
	cost := func(p Pool) float64 { return p.PricePerHour * w.Share(p.Nodes[0].Amount, 1) }
	slices.SortStableFunc(out, func(a, b Pool) int { return cmp.Compare(cost(a), cost(b)) })
	return out
}

func (p Pool) anyOpenNode() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Closed == "" })
}

// within reports that n more workers are within all limits; with empty, were
// nothing used.
func (r *reference) within(w Workload, n int, empty bool) bool {
	want := w.Amount(n)
	if n == 0 {
		return true
	}
	limit := func(key string, most resource.Limit, counts func(holder) bool) bool {
		used := resource.Amount{}
		for _, h := range r.holders {
			if !empty && (h.only == "" && h.real && counts(h) || h.only == key) {
				used = used.Plus(h.amount)
			}
		}
		for name, x := range parts(want) {
			top, named := limitOf(most, name)
			if x > 0 && named && x > top-parts(used)[name] {
				return false
			}
		}
		return true
	}
	q := r.queue(w)
	for key, most := range r.ceilings(w) {
		if !limit(key, most, func(h holder) bool {
			return key == "project" && h.project == w.Project || h.queue == q && (strings.HasPrefix(key, "project of") && h.project == w.Project || strings.HasPrefix(key, "user of") && h.user == w.User)
		}) {
			return false
		}
	}
	for name, x := range parts(want) {
		if x > 0 && r.named(q, name) && x > r.left(q, name, empty)-r.mine(q, name, empty) {
			return false
		}
	}
	return true
}

func (r *reference) ceilings(w Workload) map[string]resource.Limit {
	q := r.queue(w)
	out := map[string]resource.Limit{}
	if most, ok := r.Quotas[w.Project]; ok {
		out["project"] = most
	}
	if a := r.queues[q].PerProject; !a.IsZero() {
		out["project of "+q+keyOf(w.Project)] = a
	}
	if a := r.queues[q].PerUser; !a.IsZero() {
		out["user of "+q+keyOf(w.User)] = a
	}
	return out
}

func keyOf(s string) string { return ":" + s }

// named reports that a quota in the tree of q names a part.
func (r *reference) named(q, part string) bool {
	for _, o := range r.queues {
		if r.path(o.Name)[0] == r.path(q)[0] {
			if _, named := limitOf(o.Quota, part); named {
				return true
			}
		}
	}
	return false
}

func (r *reference) children(q string) []string {
	var out []string
	for name := range r.queues {
		if name != "" && r.parent(name) == q {
			out = append(out, name)
		}
	}
	return out
}

// subtree is what q has with what those below lend it, own what it lends to nobody.
func (r *reference) subtree(q, part string) int64 {
	n, _ := limitOf(r.queues[q].Quota, part)
	for _, c := range r.children(q) {
		n += r.subtree(c, part) - r.own(c, part)
	}
	return n
}

func (r *reference) own(q, part string) int64 {
	if lend := r.queues[q].Lend; lend != nil && len(r.path(q)) > 1 {
		return max(r.subtree(q, part)-parts(*lend)[part], 0)
	}
	return 0
}

func (r *reference) used(q, part string, empty bool) int64 {
	n := int64(0)
	for _, h := range r.holders {
		if !empty && h.queue == q && h.only == "" {
			n += parts(h.amount)[part]
		}
	}
	for _, c := range r.children(q) {
		n += max(r.used(c, part, empty)-r.own(c, part), 0)
	}
	return n
}

func (r *reference) left(q, part string, empty bool) int64 {
	if len(r.path(q)) == 1 {
		return r.subtree(q, part) - r.used(q, part, empty)
	}
	shared := r.left(r.parent(q), part, empty)
	if b := r.queues[q].Borrow; b != nil {
		taken := max(r.used(q, part, empty)-r.own(q, part), 0)
		shared = min(shared, r.subtree(q, part)-r.own(q, part)-taken+parts(*b)[part])
	}
	return max(r.own(q, part)-r.used(q, part, empty), 0) + shared
}

// mine is what is kept of the queue beyond its nominal quota, for its first.
func (r *reference) mine(q, part string, empty bool) int64 {
	n := int64(0)
	for _, h := range r.holders {
		if !empty && h.only == "queue "+q {
			n += parts(h.amount)[part]
		}
	}
	return n
}

// hold keeps limits for a workload that waits.
func (r *reference) hold(w Workload) {
	q, want := r.queue(w), w.Amount(w.least())
	if !r.first[q] {
		r.first[q] = true
		nominal, beyond := resource.Amount{}, resource.Amount{}
		for name, x := range parts(want) {
			have := x
			if r.named(q, name) {
				have = max(r.subtree(q, name)-r.used(q, name, false), 0)
				for _, o := range r.path(q)[1:] {
					have = max(have, r.subtree(o, name)-r.used(o, name, false))
				}
				have = min(x, have)
			}
			nominal, beyond = plusPart(nominal, name, have), plusPart(beyond, name, x-have)
		}
		r.holders = append(r.holders, holder{queue: q, amount: nominal}, holder{queue: q, amount: beyond, only: "queue " + q})
	}
	for key := range r.ceilings(w) {
		id := key
		if key == "project" {
			id += keyOf(w.Project)
		}
		if !r.limits[id] {
			r.limits[id] = true
			if key == "project" { // of this project only
				r.holders = append(r.holders, holder{queue: "\x00none", project: w.Project, amount: want, real: true})
				continue
			}
			r.holders = append(r.holders, holder{amount: want, only: key})
		}
	}
}

func plusPart(a resource.Amount, name string, n int64) resource.Amount {
	switch name {
	case "cpu":
		a.CPU += resource.CPU(n)
	case "memory":
		a.Memory += resource.Bytes(n)
	case "memory bandwidth":
		a.MemoryBandwidth += resource.Bandwidth(n)
	default:
		a = a.Plus(resource.Amount{Accelerators: map[string]int64{name: n}})
	}
	return a
}

// spots are the nodes of a pool; a delegated pool is one.
func spots(p Pool) []Node {
	if !p.Delegated {
		return p.Nodes
	}
	sum := resource.Amount{}
	for _, n := range p.Nodes {
		if n.Closed == "" {
			sum = sum.Plus(n.Amount)
		}
	}
	return []Node{{Amount: sum}}
}

func on(run Running, p Pool, node string) int {
	if p.Delegated {
		return max(run.Placed, 1)
	}
	n := 0
	for _, name := range run.Nodes {
		if name == node {
			n++
		}
	}
	return n
}

// asks is what the n-th worker asks for.
func asks(w Workload, n int) resource.Amount {
	var all []resource.Amount
	for _, r := range w.Roles {
		for range r.Workers {
			all = append(all, r.Request)
		}
	}
	if all == nil {
		return w.Request
	}
	return all[n]
}

// held is what a running workload has on a node.
func held(run Running, p Pool, node string) (sum resource.Amount) {
	for n := range max(run.Placed, 1) {
		if p.Delegated || n < len(run.Nodes) && run.Nodes[n] == node {
			sum = sum.Plus(asks(run.Workload, n))
		}
	}
	return sum
}

// domain is nodes that stand together: on one node (0), in one rack (1), or in one
// pool (2).
type domain struct {
	kind  int
	nodes []string
}

// sets are the domains of which w may use any one.
func sets(w Workload, p Pool) (out []domain) {
	all, racks := domain{kind: 2}, map[string]int{}
	for _, n := range spots(p) {
		all.nodes = append(all.nodes, n.Name)
		if !p.Delegated && (w.together() != "rack" || len(p.Levels) > 0) {
			out = append(out, domain{0, []string{n.Name}})
		}
	}
	for i, n := range spots(p) {
		if w.together() == OnNode || len(p.Levels) == 0 || p.Delegated {
			continue
		}
		rack := strconv.Itoa(i)
		if len(n.Where) > 0 {
			rack = n.Where[0]
		}
		if _, ok := racks[rack]; !ok {
			racks[rack] = len(out)
			out = append(out, domain{kind: 1})
		}
		out[racks[rack]].nodes = append(out[racks[rack]].nodes, n.Name)
	}
	if w.together() == "" {
		out = append(out, all)
	}
	return out
}

// roomiest is how many workers find room together.
func roomiest(w Workload, p Pool, counts map[string]int) int {
	most := 0
	for _, d := range sets(w, p) {
		most = max(most, d.sum(counts))
	}
	return most
}

func (d domain) sum(counts map[string]int) (n int) {
	for _, name := range d.nodes {
		n += counts[name]
	}
	return n
}

// closing reports that a node closes before w has ended.
func closing(w Workload, p Pool, n Node, now time.Time) bool {
	return !p.Delegated && !n.Closes.IsZero() && !w.Preemptible && (w.Timeout == 0 || n.Closes.Before(now.Add(w.Timeout)))
}

// shut reports that w has no room in the pool even were it empty, because its nodes
// close.
func (r *reference) shut(w Workload, p Pool) bool {
	if len(w.Roles) > 0 {
		return r.packed(w, p, func(n Node) (resource.Amount, bool) { return n.Amount, n.Closed == "" && !closing(w, p, n, r.Now) }) < w.least()
	}
	counts := map[string]int{}
	for _, n := range spots(p) {
		if n.Closed == "" && !closing(w, p, n, r.Now) {
			counts[n.Name] = w.Request.Count(n.Amount, w.perNode())
		}
	}
	return roomiest(w, p, counts) < w.least()
}

func (r *reference) free(p Pool, n Node) resource.Amount {
	free := n.Amount
	for _, run := range r.Started {
		if run.Pool == p.Name {
			free = free.Minus(held(run, p, n.Name))
		}
	}
	return free
}

// queueAhead is for nodes on which w waits in the engine's own queue.
func (r *reference) queueAhead(w Workload, p Pool, most int) (out []string) {
	for _, run := range r.Started {
		if run.Leaving && !r.Now.After(run.LeavingSince.Add(run.Grace+overdueMargin)) {
			return nil
		}
	}
	if p.Ahead == 0 || r.kept[p.Name] != nil || w.together() != "" || len(w.Roles) > 0 || most > 1 && !p.Delegated {
		return nil
	}
	shortest := 0.0
	for _, n := range spots(p) {
		room := r.free(p, n).Plus(handed(p, n.Amount).Minus(n.Amount))
		count := min(w.Request.Count(room, most), w.Request.Count(n.Amount, most))
		if load := r.load(p, n); n.Closed == "" && !closing(w, p, n, r.Now) && count >= w.least() && (out == nil || load < shortest) {
			out, shortest = slices.Repeat([]string{n.Name}, count), load
		}
	}
	return out
}

// handed is what may be handed over for a node, or for all of a delegated pool.
func handed(p Pool, has resource.Amount) resource.Amount {
	for name, x := range parts(has) {
		has = plusPart(has, name, int64(p.Ahead*float64(x)))
	}
	return has
}

func (r *reference) brief(w Workload, p Pool) bool {
	k := r.kept[p.Name]
	return k != nil && !k.at.IsZero() && w.Timeout > 0 && !r.Now.Add(w.Timeout).After(k.at)
}

// usable is how many of the free accelerators typical requests of a pool could use.
func (r *reference) usable(p Pool, free resource.Amount) float64 {
	all, sum, of := 0.0, map[string]map[string]float64{}, map[string]float64{}
	for _, w := range r.typical {
		key := resource.Amount{Accelerators: w.Accelerators}
		there := slices.ContainsFunc(spots(p), func(n Node) bool { return key.Fits(n.Amount) })
		if !there || key.String() == "nothing" {
			continue
		}
		if sum[key.String()] == nil {
			sum[key.String()] = map[string]float64{}
		}
		for name, n := range parts(w) {
			sum[key.String()][name] += float64(n)
		}
		of[key.String()]++
		all++
	}
	out := 0.0
	for _, key := range slices.Sorted(maps.Keys(sum)) {
		times, accelerators := math.Inf(1), 0.0
		for name, total := range sum[key] {
			if total > 0 {
				times = min(times, float64(max(parts(free)[name], 0))*of[key]/total)
			}
			if !strings.HasPrefix(name, "memory") && name != "cpu" {
				accelerators += total / of[key]
			}
		}
		if times < 1 {
			times /= 2
		}
		out += times * accelerators * of[key] / all
	}
	return out
}

// load is how full a node is: by its scarcest part, in a pool with accelerators by
// what is left of all parts.
func (r *reference) load(p Pool, n Node) float64 {
	load, free, has := 0.0, parts(r.free(p, n)), parts(n.Amount)
	left, some, most := 0.0, false, map[string]int64{}
	for _, other := range spots(p) {
		some = some || hasAccelerator(other.Amount)
		for name, x := range parts(other.Amount) {
			most[name] = max(most[name], x)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if has[name] > 0 {
			load = max(load, 1-float64(free[name])/float64(has[name]))
			left += float64(free[name]) / float64(most[name])
		}
	}
	if some {
		return -left
	}
	return load
}

// loss is how many fewer typical requests can use when some of what is free is
// taken, in quarters of an accelerator.
func (r *reference) loss(p Pool, free, taken resource.Amount) float64 {
	return math.Floor(4*(r.usable(p, free)-r.usable(p, free.Minus(taken))) + 0.5 + 1e-6)
}

// accelerated reports that some worker asks for an accelerator.
func accelerated(w Workload) bool { return hasAccelerator(w.Amount(1)) }

func hasAccelerator(a resource.Amount) bool {
	for _, n := range a.Accelerators {
		if n > 0 {
			return true
		}
	}
	return false
}

// room names a node for each worker, at most most.
func (r *reference) room(w Workload, p Pool, most int) []string {
	type spot struct {
		i, n int
		load float64
		node Node
		bare bool
		free resource.Amount
	}
	loss := func(s spot, n int) float64 { return r.loss(p, s.free, w.Request.Times(n)) }
	if len(w.Roles) > 0 {
		if most < w.least() {
			return nil
		}
		return r.rowsForRoles(w, p)
	}
	var fit []spot
	counts := map[string]int{}
	for i, node := range spots(p) {
		if node.Closed != "" || closing(w, p, node, r.Now) {
			continue
		}
		free := r.free(p, node)
		n := w.Request.Count(free, most)
		if w.PerNode > 0 {
			n = min(n, w.PerNode)
		}
		if k := r.kept[p.Name]; k != nil && !r.brief(w, p) {
			if beside, ok := k.beside[node.Name]; ok {
				n = min(n, w.Request.Count(beside, most))
			}
		}
		if n == 0 {
			continue
		}
		load := r.load(p, node)
		bare := true
		for _, n := range free.Accelerators {
			bare = bare && n <= 0
		}
		counts[node.Name] = n
		fit = append(fit, spot{i, n, load, node, bare && !accelerated(w), free})
	}
	total := roomiest(w, p, counts)
	if total < w.least() || total == 0 || most == 0 {
		return nil
	}
	single := most == 1 && w.together() == ""
	if !single { // the smallest that holds them, of nodes as for one, else the one with least room beyond
		enough := slices.DeleteFunc(sets(w, p), func(d domain) bool { return d.sum(counts) < min(total, most) })
		slices.SortStableFunc(enough, func(a, b domain) int {
			c := cmp.Compare(a.kind, b.kind)
			if c == 0 && a.kind == 0 {
				on := func(d domain) spot {
					return fit[slices.IndexFunc(fit, func(s spot) bool { return s.node.Name == d.nodes[0] })]
				}
				x, y, n := on(a), on(b), min(total, most)
				return cmp.Or(cmp.Compare(loss(x, n), loss(y, n)), cmp.Compare(btoi(y.bare), btoi(x.bare)), cmp.Compare(x.n, y.n), cmp.Compare(y.load, x.load))
			}
			return cmp.Or(c, cmp.Compare(a.sum(counts), b.sum(counts)))
		})
		fit = slices.DeleteFunc(fit, func(s spot) bool { return !slices.Contains(enough[0].nodes, s.node.Name) })
	}
	var out []string
	for len(out) < min(most, total) {
		left := most - len(out)
		slices.SortFunc(fit, func(a, b spot) int {
			// Where most have room; where that is more than are left, where least too many have.
			x, y := a.n, b.n
			if x >= left && y >= left {
				x, y = -x, -y
			}
			c := cmp.Compare(y, x)
			if single {
				c = cmp.Or(cmp.Compare(loss(a, 1), loss(b, 1)), cmp.Compare(btoi(b.bare), btoi(a.bare)))
			}
			return cmp.Or(c, cmp.Compare(b.load, a.load), cmp.Compare(a.i, b.i))
		})
		at := fit[0]
		for range min(at.n, left) {
			out = append(out, at.node.Name)
		}
		fit = fit[1:]
	}
	return out
}

// keep keeps the nodes on which w will have room soonest.
func (r *reference) keep(w Workload, p Pool) {
	if len(w.Roles) > 0 {
		r.keepForRoles(w, p)
		return
	}
	type event struct {
		node               string
		i, n, unsure, gone int
		at                 time.Time
	}
	var events []event
	end := r.end
	leave := map[string][]Running{} // those on a node, in the order in which they do
	for i, node := range spots(p) {
		if node.Closed != "" || closing(w, p, node, r.Now) {
			continue
		}
		var there []Running
		for _, run := range r.Started {
			if run.Pool == p.Name && on(run, p, node.Name) > 0 {
				there = append(there, run)
			}
		}
		slices.SortFunc(there, func(a, b Running) int {
			x, sx := end(a)
			y, sy := end(b)
			return cmp.Or(cmp.Compare(btoi(sy), btoi(sx)), x.Compare(y), cmp.Compare(a.ID, b.ID))
		})
		leave[node.Name] = there
		free, had, at, unsure := r.free(p, node), 0, r.Now, 0
		for k := 0; ; k++ {
			if n := w.Request.Count(free, w.perNode()); n > had {
				events = append(events, event{node.Name, i, n - had, unsure, k, at})
				had = n
			}
			if k == len(there) || had == w.perNode() {
				break
			}
			free = free.Plus(held(there[k], p, node.Name))
			if t, sure := end(there[k]); sure {
				at = t
			} else {
				unsure++
			}
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.unsure, b.unsure), a.at.Compare(b.at), cmp.Compare(b.n, a.n), cmp.Compare(a.i, b.i))
	})
	k := &nodesKept{beside: map[string]resource.Amount{}}
	var workers, gone map[string]int // by node
	least, sure := w.least()+1, false
	for _, d := range sets(w, p) {
		if w.together() == "" && d.kind < 2 || w.together() == "rack" && d.kind != 1 {
			continue
		}
		need, all, at, got, left := w.least(), true, r.Now, map[string]int{}, map[string]int{}
		for _, e := range events {
			if need == 0 || !slices.Contains(d.nodes, e.node) {
				continue
			}
			n := min(e.n, need)
			got[e.node] += n
			left[e.node] = max(left[e.node], e.gone)
			need -= n
			all = all && e.unsure == 0
			if e.at.After(at) {
				at = e.at
			}
		}
		if need < least || need == least && (all && !sure || all == sure && at.Before(k.at)) {
			least, sure, workers, gone, k.at = need, all, got, left, at
		}
	}
	if !sure || least > 0 {
		k.at = time.Time{}
	}
	for _, node := range spots(p) {
		n := workers[node.Name]
		if n == 0 {
			continue
		}
		beside := node.Amount.Minus(w.Request.Times(n))
		for i, run := range leave[node.Name] {
			if t, sure := end(run); k.at.IsZero() && i >= gone[node.Name] || !k.at.IsZero() && (!sure || t.After(k.at)) {
				beside = beside.Minus(held(run, p, node.Name))
			}
		}
		k.beside[node.Name] = beside
	}
	r.kept[p.Name] = k
}

// end is when a running workload has left; false when nobody knows.
func (r *reference) end(run Running) (time.Time, bool) {
	switch {
	case run.Leaving && r.Now.Sub(run.LeavingSince) <= run.Grace+2*time.Minute, !run.Leaving && !run.Deadline.IsZero() && run.Deadline.Before(r.Now):
		return r.Now, true
	case run.Leaving || run.Deadline.IsZero():
		return time.Time{}, false
	}
	return run.Deadline, true
}

// pack gives each worker of a gang with roles one of some nodes: first those that
// ask for accelerators, then those that ask for the larger share of all pools, all
// that ask for the same together; each time where most have room, the last ones
// where least too many have. It gives the nodes in the order of workers, how many
// have one, and for how many of the first there was room.
func (r *reference) pack(w Workload, p Pool, names []string, has func(Node) (resource.Amount, bool), fuller bool) (nodes []string, n, spare int) {
	var total resource.Amount
	for _, p := range r.Pools {
		for _, n := range p.Nodes {
			if n.Closed == "" {
				total = total.Plus(n.Amount)
			}
		}
	}
	size := func(worker int) (accelerated int, share float64) {
		a := asks(w, worker)
		for name, x := range parts(a) {
			if have := parts(total)[name]; have > 0 {
				share = max(share, float64(x)/float64(have))
			}
		}
		for _, x := range a.Accelerators {
			accelerated += btoi(x > 0)
		}
		return min(accelerated, 1), share
	}
	same := func(a, b int) bool { return asks(w, a).Fits(asks(w, b)) && asks(w, b).Fits(asks(w, a)) }
	var kinds [][]int
	for i := range w.least() {
		k := slices.IndexFunc(kinds, func(k []int) bool { return same(k[0], i) })
		if k < 0 {
			k, kinds = len(kinds), append(kinds, nil)
		}
		kinds[k] = append(kinds[k], i)
	}
	slices.SortStableFunc(kinds, func(a, b []int) int {
		x, sx := size(a[0])
		y, sy := size(b[0])
		return cmp.Or(cmp.Compare(y, x), cmp.Compare(sy, sx))
	})
	left, load, order, on := map[string]resource.Amount{}, map[string]float64{}, map[string]int{}, map[string]int{}
	for i, node := range spots(p) {
		order[node.Name] = i
		if a, ok := has(node); ok && slices.Contains(names, node.Name) {
			left[node.Name] = a
			if fuller {
				load[node.Name] = r.load(p, node)
			}
		}
	}
	nodes = make([]string, w.least())
	for k, workers := range kinds {
		room := map[string]int{}
		for name, a := range left {
			most := len(workers)
			if w.PerNode > 0 {
				most = min(most, w.PerNode-on[name])
			}
			if c := asks(w, workers[0]).Count(a, most); c > 0 {
				room[name] = c
			}
			if k == 0 {
				spare += room[name]
			}
		}
		for len(workers) > 0 && len(room) > 0 {
			best := slices.SortedFunc(maps.Keys(room), func(a, b string) int {
				x, y := room[a], room[b]
				if x >= len(workers) && y >= len(workers) {
					x, y = -x, -y
				}
				return cmp.Or(cmp.Compare(y, x), cmp.Compare(load[b], load[a]), cmp.Compare(order[a], order[b]))
			})[0]
			for range min(room[best], len(workers)) {
				nodes[workers[0]], workers = best, workers[1:]
				left[best] = left[best].Minus(asks(w, kinds[k][0]))
				on[best]++
				n++
			}
			delete(room, best)
		}
	}
	return nodes, n, spare
}

// packed is how many workers of a gang with roles find room together.
func (r *reference) packed(w Workload, p Pool, has func(Node) (resource.Amount, bool)) int {
	most := 0
	for _, d := range sets(w, p) {
		if w.together() == "" && d.kind < 2 || w.together() == "rack" && d.kind != 1 {
			continue
		}
		_, n, _ := r.pack(w, p, d.nodes, has, false)
		most = max(most, n)
	}
	return most
}

// rowsForRoles names a node for each worker of a gang with roles.
func (r *reference) rowsForRoles(w Workload, p Pool) []string {
	has := func(n Node) (resource.Amount, bool) {
		free := r.free(p, n)
		if k := r.kept[p.Name]; k != nil && !r.brief(w, p) {
			if beside, ok := k.beside[n.Name]; ok {
				for name, x := range parts(free) {
					free = plusPart(free, name, min(parts(beside)[name]-x, 0))
				}
			}
		}
		return free, n.Closed == "" && !closing(w, p, n, r.Now)
	}
	return r.closest(w, p, has)
}

func (r *reference) closest(w Workload, p Pool, has func(Node) (resource.Amount, bool)) []string {
	if r.packed(w, p, has) < w.least() {
		return nil
	}
	var best []string
	kind, least, load, loss, bare := 3, 0, 0.0, 0.0, false // of best
	for _, d := range sets(w, p) {
		nodes, n, spare := r.pack(w, p, d.nodes, has, true)
		if n < w.least() {
			nodes, n, spare = r.pack(w, p, d.nodes, has, false)
		}
		if n < w.least() {
			continue
		}
		full, lost, none := 0.0, 0.0, false
		if d.kind == 0 {
			i := slices.IndexFunc(spots(p), func(n Node) bool { return n.Name == d.nodes[0] })
			full = r.load(p, spots(p)[i])
			free := r.free(p, spots(p)[i])
			lost, none, spare = r.loss(p, free, w.Amount(1)), !accelerated(w) && !hasAccelerator(free), 0
		}
		if cmp.Or(cmp.Compare(d.kind, kind), cmp.Compare(lost, loss), cmp.Compare(btoi(bare), btoi(none)), cmp.Compare(spare, least), cmp.Compare(load, full)) < 0 {
			best, kind, least, load, loss, bare = nodes, d.kind, spare, full, lost, none
		}
	}
	return best
}

// keepForRoles keeps the nodes on which a gang with roles has room once the first
// of those that run have left; how many must is found by halving.
func (r *reference) keepForRoles(w Workload, p Pool) {
	var runs []Running
	for _, run := range r.Started {
		if run.Pool == p.Name {
			runs = append(runs, run)
		}
	}
	slices.SortFunc(runs, func(a, b Running) int {
		x, sx := r.end(a)
		y, sy := r.end(b)
		if !sx && !sy {
			x, y = a.Started, b.Started
		}
		return cmp.Or(cmp.Compare(btoi(sy), btoi(sx)), x.Compare(y), cmp.Compare(a.ID, b.ID))
	})
	without := func(gone int) func(n Node) (resource.Amount, bool) {
		return func(n Node) (resource.Amount, bool) {
			free := r.free(p, n)
			for _, run := range runs[:gone] {
				free = free.Plus(held(run, p, n.Name))
			}
			return free, n.Closed == "" && !closing(w, p, n, r.Now)
		}
	}
	gone := sort.Search(len(runs), func(gone int) bool { return r.packed(w, p, without(gone)) >= w.least() })
	k := &nodesKept{at: r.Now, beside: map[string]resource.Amount{}}
	if gone > 0 {
		k.at, _ = r.end(runs[gone-1])
	}
	nodes := r.closest(w, p, without(gone))
	if nodes == nil {
		k.at = time.Time{}
	}
	for _, node := range spots(p) {
		if !slices.Contains(nodes, node.Name) {
			continue
		}
		beside := node.Amount
		for worker, name := range nodes {
			if name == node.Name {
				beside = beside.Minus(asks(w, worker))
			}
		}
		for i, run := range runs {
			if t, sure := r.end(run); k.at.IsZero() && i >= gone || !k.at.IsZero() && (!sure || t.After(k.at)) {
				beside = beside.Minus(held(run, p, node.Name))
			}
		}
		k.beside[node.Name] = beside
	}
	r.kept[p.Name] = k
}
