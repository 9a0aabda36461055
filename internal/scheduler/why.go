package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Why returns the wait reason of a pending workload after the last step; false if it is not pending.
//
// The reason is looked for in this order: no pool may ever take it (impossible, refusal), a limit that
// it can never fit (never), a delay, a queue of strict order, a limit that is used up (limited), and
// then one reason per pool (full), in the order in which the pools are tried: the cheapest first, see
// shapeOf. Users see the first reason first.
func (s *State) Why(id ID) (Wait, bool) {
	w := s.waiting[id]
	if w == nil {
		return Wait{}, false
	}
	return s.why(w), true
}

// WaitCodes counts pending workloads, most of them at most, by the code of their first reason.
func (s *State) WaitCodes(most int) map[Code]int {
	counts := map[Code]int{}
	for _, w := range s.waiting {
		if most--; most < 0 {
			break
		}
		if wait := s.waits(w); len(wait.Reasons) > 0 {
			counts[wait.Reasons[0].Code]++
		}
	}
	return counts
}

func (s *State) why(w *waiter) Wait {
	wait := s.waits(w)
	if r, late := w.late(s.now); late {
		wait.Reasons = append(wait.Reasons, r)
	}
	if r, demoted := s.demotion(w); demoted && wait.Possible {
		wait.Reasons = append(wait.Reasons, r)
	}
	return wait
}

func (s *State) waits(w *waiter) Wait {
	k := s.know(w)
	one := func(possible bool, step string, code Code, text string) Wait {
		return Wait{Possible: possible, Reasons: []Reason{{Step: step, Code: code, Text: text}}}
	}
	switch {
	case len(k.pools) == 0:
		return Wait{Reasons: s.impossible(&w.Workload, k.shape)}
	case k.never != "":
		return one(false, "admit", OverQuota, k.never)
	case w.NotBefore.After(s.now):
		return one(true, "admit", Delayed, cmp.Or(w.Because, "retried after "+w.NotBefore.UTC().Format(time.RFC3339)))
	case k.queue.stopped && k.queue.first != w:
		return one(true, "admit", StrictOrder, fmt.Sprintf("behind %s in queue %s, which has strict order", k.queue.first.label(), k.queue.Name))
	}
	if code, text := s.limited(w); code != "" {
		return s.withPreempting(w, one(true, "fit", code, text))
	}
	wait := Wait{Possible: true}
	for _, p := range k.pools {
		wait.Reasons = append(wait.Reasons, s.full(w, p))
	}
	wait.Reasons = append(wait.Reasons, k.refused...)
	return s.withPreempting(w, wait)
}

// withPreempting puts the victims that leave for a workload in front of its wait reasons.
func (s *State) withPreempting(w *waiter, wait Wait) Wait {
	var names []string
	workers := map[*run]int{}
	for _, r := range w.preempts {
		if s.leaving[r.ID] == r {
			workers[r.whole]++
		}
	}
	for _, r := range w.preempts {
		n := workers[r.whole]
		switch {
		case s.leaving[r.ID] != r || n == 0:
		case r.whole == nil:
			names = append(names, r.label())
		default:
			names = append(names, workersOf(r.whole, n))
			delete(workers, r.whole)
		}
	}
	if len(names) > 0 {
		wait.Reasons = append([]Reason{{Step: "preempt", Code: Preempting, Text: "until " + list(names) + " left for it"}}, wait.Reasons...)
	}
	return wait
}

func list(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// never names a limit that is smaller than the request, however little is used; empty
// if there is none.
func (s *State) never(w *waiter) string {
	k := w.known
	want := k.total
	for _, c := range k.ceilings {
		if !want.fits(c.most) {
			return fmt.Sprintf("the quota of %s is smaller than the request: %s", c.who, s.lacks(want, c.most, "allowed"))
		}
	}
	ever := make(vector, len(want))
	for i := range ever {
		ever[i] = k.queue.ever(i)
	}
	if !want.fits(ever) {
		return fmt.Sprintf("queue %s can never admit so much: %s", k.queue.Name, s.lacks(want, ever, "with everything that it may borrow"))
	}
	return ""
}

// limited names the limit that keeps w pending; empty if there is none.
func (s *State) limited(w *waiter) (Code, string) {
	k := w.known
	want := k.total
	for _, c := range k.ceilings {
		left, unkept := slices.Clone(c.most), slices.Clone(c.most)
		left = left.plus(c.used, -1)
		unkept = unkept.plus(c.used, -1)
		if c.first != w {
			left = left.plus(c.held, -1)
		}
		switch {
		case !want.fits(unkept):
			return QuotaUsed, fmt.Sprintf("the quota of %s is used up: %s", c.who, s.lacks(want, unkept, "left"))
		case !want.fits(left):
			return QuotaKept, fmt.Sprintf("behind %s, which waits for the quota of %s", c.first.label(), c.who)
		}
	}
	q := k.queue
	left := make(vector, len(want))
	for i := range left {
		left[i] = q.left(i)
	}
	if !want.fits(left) {
		text := fmt.Sprintf("the quota of queue %s is used up: %s", q.Name, s.lacks(want, left, "left"))
		if lent := q.borrowers(want); len(lent) > 0 && (q.nominal(want) || q.within(want) != nil) {
			text += "; lent to queue " + list(lent)
		}
		return QuotaUsed, text
	}
	// Quota that is reserved for workloads considered before w.
	held := false
	for _, o := range s.keeping {
		if w.order > 0 && o.order >= w.order {
			break
		}
		if o.first == w || o.tree() != q.tree() {
			continue
		}
		o.use(o.mine, 1)
		defer o.use(o.mine, -1)
		for i := range left {
			left[i] = q.left(i)
		}
		if held = held || o == q; held {
			left = left.plus(q.held, -1)
		}
		if !want.fits(left) {
			return QuotaKept, fmt.Sprintf("behind %s, which waits for the quota of queue %s", o.first.label(), o.Name)
		}
	}
	return "", ""
}

// borrowers names the queues of q's tree that use more than their nominal quota
// of the requested resources.
func (q *queue) borrowers(request vector) []string {
	var out []string
	var look func(*queue)
	look = func(o *queue) {
		if o != q && len(o.below) == 0 && q.exceeds(o, request) {
			out = append(out, o.Name)
		}
		for _, c := range o.below {
			look(c)
		}
	}
	look(q.tree())
	return out
}

// lacks says what is missing, as "2 cpu wanted, 1 WHERE".
func (s *State) lacks(want, have vector, where string) string {
	have = slices.Clone(have)
	for i := range have {
		if have[i] > unlimited/2 {
			have[i] = want.part(i)
		}
	}
	return words(s.names.amount(want).Lacks(s.names.amount(have)), where)
}

// refusal says why a pool can never take a workload, even when it is empty; true if it can. It only
// accepts or refuses: shapeOf sorts the accepted pools by price, and fit takes the first that fits.
func (s *State) refusal(w *Workload, p *pool, of *shape) (Reason, bool) {
	no := func(code Code, format string, args ...any) (Reason, bool) {
		return Reason{Step: "admit", Code: code, Pool: p.Name, Text: fmt.Sprintf(format, args...)}, false
	}
	forbidden := p.Forbids(w.Residency)
	switch {
	case forbidden != "" && forbidden != p.Zone:
		return no(Residency, "pool %s runs its workloads on a machine in %s, outside the data's residency %s", p.Name, forbidden, strings.Join(w.Residency, ", "))
	case forbidden != "":
		return no(Residency, "pool %s is in %s, outside the data's residency %s", p.Name, forbidden, strings.Join(w.Residency, ", "))
	case !p.Isolation.AtLeast(w.Isolation):
		return no(Isolated, "pool %s provides isolation %s, weaker than the required %s", p.Name, p.Isolation, w.Isolation)
	case w.InPlace && p.Remote:
		return no(NoSuch, "pool %s is remote, and the workload needs files of the server", p.Name)
	case w.Refusals[p.Name] != "":
		return no(Refused, "pool %s %s", p.Name, w.Refusals[p.Name])
	case p.Closed != "":
		return no(Closed, "pool %s is closed: %s", p.Name, p.Closed)
	case len(p.Nodes) == 0:
		return no(Closed, "pool %s has no nodes", p.Name)
	case !p.anyOpen():
		return no(Closed, "pool %s has no open node%s", p.Name, p.closedNodes())
	}
	if w.together() != "" || w.PerNode > 0 {
		if p.Delegated {
			return no(NoSuch, "pool %s assigns nodes itself, so within and per_node are not supported", p.Name)
		}
		if _, ok := p.level(w.together()); !ok && w.together() != "" {
			return no(NoSuch, "pool %s does not label its nodes with %s", p.Name, w.Within)
		}
	}
	if len(w.Roles) > 0 {
		if p.Alike {
			return no(NoSuch, "pool %s only starts gangs with identical workers, and this one has roles", p.Name)
		}
		if why := s.tooSmall(w, p, of); why != "" {
			return no(NoRoomEver, "%s%s", why, p.closedNodes())
		}
		return Reason{}, true
	}
	nodes := p.Nodes
	counts, sum := make([]int, len(nodes)), 0
	request, exists := s.names.vector(w.Request)
	for i, node := range nodes {
		if !exists || node.Closed != "" {
			continue
		}
		if p.Delegated { // its engine places workers, and refuses those too large for every node
			has, _ := s.names.vector(node.Amount)
			sum += request.count(has, w.perNode())
		} else {
			counts[i] = request.count(p.has[i], w.perNode())
			sum += counts[i]
		}
		if sum >= w.least() && w.together() == "" {
			return Reason{}, true
		}
	}
	n := sum
	if !p.Delegated {
		n = p.most(&known{shape: &shape{within: w.together()}}, counts)
	}
	if n >= w.least() {
		return Reason{}, true
	}
	var best []string // the shortest list of lacks: the closest node is named
	for _, node := range nodes {
		if lacks := w.Request.Lacks(node.Amount); node.Closed == "" && (best == nil || len(lacks) < len(best)) {
			best = lacks
		}
	}
	if n == 0 {
		return no(NoRoomEver, "pool %s has no node large enough: %s%s", p.Name, words(best, "on its largest"), p.closedNodes())
	}
	in := "in all"
	if w.together() != "" {
		in = "in one " + w.Within
	}
	return no(NoRoomEver, "pool %s is too small: %s, capacity for %d %s%s", p.Name, gang(w), n, in, p.closedNodes())
}

// closedNodes names the unschedulable nodes, with a leading semicolon.
func (p *pool) closedNodes() string {
	var out strings.Builder
	left := 0
	for _, n := range p.Nodes {
		switch {
		case n.Closed == "":
		case out.Len() < 200:
			fmt.Fprintf(&out, "; node %s is unschedulable: %s", n.Name, n.Closed)
		default:
			left++
		}
	}
	if left > 0 {
		fmt.Fprintf(&out, "; and %d more", left)
	}
	return out.String()
}

// gang is "4 workers of 2 cpu wanted".
func gang(w *Workload) string {
	text := fmt.Sprintf("%d workers of %s wanted", w.least(), w.Request)
	if len(w.Roles) > 0 {
		text = rolesInWords(w.Roles) + " wanted"
	}
	if w.PerNode > 0 {
		text += fmt.Sprintf(", at most %d on a node", w.PerNode)
	}
	if w.Within != "" {
		text += " in one " + w.Within
	}
	return text
}

// words turns "2 cpu wanted, 1 free" into "2 cpu wanted, 1 WHERE".
func words(lacks []string, where string) string {
	out := make([]string, len(lacks))
	for i, l := range lacks {
		out[i] = strings.TrimSuffix(l, " free") + " " + where
	}
	return strings.Join(out, ", ")
}

// impossible explains a workload that no pool can take. An accelerator that no pool has is
// reported once, not per pool.
func (s *State) impossible(w *Workload, shape *shape) []Reason {
	if len(s.pools) == 0 {
		return []Reason{{Step: "admit", Code: NoSuch, Text: "no pools exist"}}
	}
	asked := w.Amount(1).Accelerators
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if asked[name] > 0 && !s.anyHas(name) {
			text := "no pool has " + name
			if near := resource.Nearest(name, s.accelerators()); near != "" {
				text += "; did you mean " + near + "?"
			}
			return []Reason{{Step: "admit", Code: NoSuch, Text: text}}
		}
	}
	var reasons []Reason
	for _, name := range w.Pools {
		if s.pools[name] == nil {
			reasons = append(reasons, Reason{Step: "admit", Code: NoSuch, Pool: name, Text: "pool not found: " + name})
		}
	}
	return append(reasons, shape.refused...)
}

// accelerators are the names of all accelerators in the pools.
func (s *State) accelerators() []string {
	all := map[string]bool{}
	for _, p := range s.pools {
		for _, n := range p.Nodes {
			for name := range n.Amount.Accelerators {
				all[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func (s *State) anyHas(accelerator string) bool {
	for _, p := range s.pools {
		for _, n := range p.Nodes {
			if n.Amount.Accelerators[accelerator] > 0 {
				return true
			}
		}
	}
	return false
}

// sinceThen is added for a gang with roles that did not fit in its turn, but would fit now, after
// workloads behind it were placed.
const sinceThen = ", but only after workloads behind it were placed"

// full says what a pool lacks now and which workload ends next there, or which workload has a
// reservation on it.
func (s *State) full(w *waiter, p *pool) Reason {
	if p.shut(w, s.now) {
		var at time.Time // when the first of its nodes closes
		for _, n := range p.Nodes {
			if n.Closed == "" && !n.Closes.IsZero() && (at.IsZero() || n.Closes.Before(at)) {
				at = n.Closes
			}
		}
		return Reason{Step: "fit", Code: Closed, Pool: p.Name, Text: fmt.Sprintf("pool %s closes for maintenance at %s, before this workload would have ended", p.Name, at.UTC().Format(time.RFC3339))}
	}
	if p.reserved != nil && p.reserved.owner != w && p.capacityFor(w, s.now, true) >= w.least() {
		text := fmt.Sprintf("behind %s, which has a reservation on %s", p.reserved.owner.label(), p.Name)
		if !p.reserved.at.IsZero() {
			text += " until " + p.reserved.at.UTC().Format(time.RFC3339)
		}
		return Reason{Step: "fit", Code: Kept, Pool: p.Name, Text: text}
	}
	var text string
	if w.least() > 1 || len(w.Roles) > 0 {
		n := p.capacityFor(w, s.now, true)
		text = fmt.Sprintf("%s, capacity for %d on pool %s", gang(&w.Workload), n, p.Name)
		if len(w.Roles) > 0 && n >= w.least() { // they fit now, packed differently
			text += sinceThen
		}
	} else {
		var lacks []string
		for i := range p.rows {
			if !p.open[i] {
				continue
			}
			if p.closes(&w.Workload, i, s.now) {
				continue
			}
			if l := w.Request.Lacks(s.names.amount(p.free[i])); lacks == nil || len(l) < len(lacks) {
				lacks = l
			}
		}
		text = words(lacks, "free on "+p.Name)
	}
	text += p.nextToFinish()
	if p.reserved != nil && p.reserved.owner == w && p.reserved.at.After(s.now) {
		text += "; capacity by " + p.reserved.at.UTC().Format(time.RFC3339) + " at the latest"
	}
	return Reason{Step: "fit", Code: Full, Pool: p.Name, Text: text}
}

// capacityFor is the number of w's workers that fit a pool now, at most its minimum; with all,
// as if nothing were reserved for others.
func (p *pool) capacityFor(w *waiter, now time.Time, all bool) int {
	if w.known.kinds != nil {
		return p.packed(w, p.availableRows(w, now, all))
	}
	best := 0
	for _, rows := range p.within(w.known) {
		n := 0
		for _, i := range rows {
			if n += p.counts(w, i, now, all, w.least()-n); n >= w.least() {
				return n
			}
		}
		best = max(best, n)
	}
	return best
}

// nextToFinish names the running workload of a pool with the earliest deadline;
// without deadlines it names the first started, and does not promise.
func (p *pool) nextToFinish() string {
	var first *run
	for _, r := range p.runs {
		if first == nil || endsSooner(r, first) {
			first = r
		}
	}
	switch {
	case first == nil:
		return ""
	case first.Leaving:
		return "; " + first.label() + " is leaving"
	case first.Deadline.IsZero():
		return "; held by " + first.label()
	}
	return fmt.Sprintf("; next to finish: %s, by %s", first.label(), first.Deadline.UTC().Format(time.RFC3339))
}

func endsSooner(a, b *run) bool {
	if a.Leaving != b.Leaving {
		return a.Leaving
	}
	if a.Deadline.IsZero() != b.Deadline.IsZero() {
		return b.Deadline.IsZero()
	}
	return cmp.Or(a.Deadline.Compare(b.Deadline), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID)) < 0
}
