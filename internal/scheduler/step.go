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

// State is everything a step knows. The zero State knows nothing. It is a
// value: Step leaves the one it was given as it was.
type State struct {
	now     time.Time
	pools   map[string]Pool
	quotas  map[string]resource.Amount
	waiting map[ID]Work
	running map[ID]Running

	// Caches, derived from running.
	used    map[place]resource.Amount
	project map[string]resource.Amount
}

type place struct{ pool, node string }

// Decide is the plan for a state given whole, as one delta from nothing.
func Decide(all Delta) Plan {
	_, plan := Step(State{}, all)
	return plan
}

// Step is one scheduling cycle. The state it returns takes the plan as done.
func Step(s State, d Delta) (State, Plan) {
	// 1. Apply what changed.
	next := apply(s, d)
	c := cycle{State: next, plan: Plan{Wait: map[ID]Wait{}}, head: map[string]Work{}, quotaHead: map[string]Work{}}

	// 2. Admit: which pools may take each work at all.
	candidates := c.admit()

	// 3. Rank: who comes first.
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority),
			a.Submitted.Compare(b.Submitted),
			cmp.Compare(a.ID, b.ID))
	})

	// 4. Fit: give places while there is room, and 5. explain where there is
	// none. Fifo neither resizes nor preempts what runs.
	for _, work := range candidates {
		if !c.fit(work) {
			c.explain(work)
		}
	}
	return c.State, c.plan
}

func apply(s State, d Delta) State {
	s.now = d.Now
	s.pools, s.waiting, s.running = cloned(s.pools), cloned(s.waiting), cloned(s.running)
	s.used, s.project = cloned(s.used), cloned(s.project)
	if d.Quotas != nil {
		s.quotas = d.Quotas
	}
	for _, name := range d.RemovedPools {
		delete(s.pools, name)
	}
	for _, p := range d.Pools {
		s.pools[p.Name] = p
	}
	for _, id := range d.Removed {
		s.remove(id)
	}
	for _, w := range d.Submitted {
		s.remove(w.ID)
		s.waiting[w.ID] = w
	}
	for _, r := range d.Started {
		s.remove(r.ID)
		s.start(r)
	}
	return s
}

func (s *State) remove(id ID) {
	delete(s.waiting, id)
	if r, ok := s.running[id]; ok {
		delete(s.running, id)
		s.used[r.place()] = s.used[r.place()].Minus(r.Request)
		s.project[r.Project] = s.project[r.Project].Minus(r.Request)
	}
}

func (s *State) start(r Running) {
	delete(s.waiting, r.ID)
	s.running[r.ID] = r
	s.used[r.place()] = s.used[r.place()].Plus(r.Request)
	s.project[r.Project] = s.project[r.Project].Plus(r.Request)
}

func (r Running) place() place { return place{r.Pool, r.Node} }

func cloned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// cycle is a step under way.
type cycle struct {
	State
	plan Plan
	// head is the first work that waits for room in a pool: those behind it
	// may not take that pool. quotaHead is the same for a project's quota.
	head      map[string]Work
	quotaHead map[string]Work
}

// candidate is a work that may run once there is room.
type candidate struct {
	Work
	pools   []Pool   // that may take it, cheapest first
	refused []Reason // why the others may not
}

// admit splits the waiting into candidates and those that have to wait for
// something else than room; the latter get their reasons here.
func (c *cycle) admit() []candidate {
	var admitted []candidate
	for _, id := range slices.Sorted(maps.Keys(c.waiting)) {
		w := c.waiting[id]
		k := candidate{Work: w}
		for _, name := range slices.Sorted(maps.Keys(c.pools)) {
			p := c.pools[name]
			if why := refusal(w, p); why != "" {
				k.refused = append(k.refused, Reason{Step: "admit", Pool: name, Text: why})
				continue
			}
			k.pools = append(k.pools, p)
		}
		switch {
		case len(k.pools) == 0:
			c.plan.Wait[id] = Wait{Reasons: c.impossible(k)}
		case c.overQuota(w):
			c.plan.Wait[id] = Wait{Reasons: []Reason{{Step: "admit", Text: fmt.Sprintf(
				"the quota of project %s is smaller than the request: %s", w.Project, words(c.lacksQuota(w, resource.Amount{}), "allowed"))}}}
		case w.NotBefore.After(c.now):
			if c.plan.Wake.IsZero() || w.NotBefore.Before(c.plan.Wake) {
				c.plan.Wake = w.NotBefore
			}
			c.plan.Wait[id] = Wait{Possible: true, Reasons: []Reason{{Step: "admit", Text: "starts again after " +
				w.NotBefore.UTC().Format(time.RFC3339)}}}
		default:
			slices.SortStableFunc(k.pools, func(a, b Pool) int { return cmp.Compare(price(w, a), price(w, b)) })
			admitted = append(admitted, k)
		}
	}
	return admitted
}

// refusal says why a pool may not take a work however empty it is; empty when
// it may.
func refusal(w Work, p Pool) string {
	switch {
	case len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Name):
		return fmt.Sprintf("pool %s is not among those asked for (%s)", p.Name, strings.Join(w.Pools, ", "))
	case !slices.Contains(w.Residency, p.Zone):
		return fmt.Sprintf("pool %s is in %s and the data may be in %s only", p.Name, p.Zone, strings.Join(w.Residency, ", "))
	case !p.Isolation.AtLeast(w.Isolation):
		return fmt.Sprintf("pool %s isolates by %s and %s is wanted", p.Name, p.Isolation, w.Isolation)
	case p.Closed != "":
		return fmt.Sprintf("pool %s is closed: %s", p.Name, p.Closed)
	}
	if p.Delegated {
		if lacks := w.Request.Lacks(total(p)); len(lacks) > 0 {
			return fmt.Sprintf("pool %s is too small: %s", p.Name, words(lacks, "in all"))
		}
		return ""
	}
	// The node that lacks least is the one to name.
	var best []string
	for i, n := range p.Nodes {
		lacks := w.Request.Lacks(n.Amount)
		if len(lacks) == 0 {
			return ""
		}
		if i == 0 || len(lacks) < len(best) {
			best = lacks
		}
	}
	if len(p.Nodes) == 0 {
		return fmt.Sprintf("pool %s has no nodes", p.Name)
	}
	return fmt.Sprintf("pool %s has no node large enough: %s", p.Name, words(best, "on its largest"))
}

// words turns "2 cpu wanted, 1 free" into "2 cpu wanted, 1 WHERE".
func words(lacks []string, where string) string {
	out := make([]string, len(lacks))
	for i, l := range lacks {
		out[i] = strings.TrimSuffix(l, " free") + " " + where
	}
	return strings.Join(out, ", ")
}

// impossible explains a work that no pool may take; an accelerator that nobody
// has is said once rather than per pool.
func (c *cycle) impossible(k candidate) []Reason {
	if len(c.pools) == 0 {
		return []Reason{{Step: "admit", Text: "there are no pools"}}
	}
	for _, name := range slices.Sorted(maps.Keys(k.Request.Accelerators)) {
		if k.Request.Accelerators[name] > 0 && !c.anyHas(name) {
			return []Reason{{Step: "admit", Text: "no pool has " + name}}
		}
	}
	for _, name := range k.Pools {
		if _, ok := c.pools[name]; !ok {
			k.refused = append(k.refused, Reason{Step: "admit", Pool: name, Text: "there is no pool " + name})
		}
	}
	return k.refused
}

func (c *cycle) anyHas(accelerator string) bool {
	for _, p := range c.pools {
		for _, n := range p.Nodes {
			if n.Amount.Accelerators[accelerator] > 0 {
				return true
			}
		}
	}
	return false
}

// price is what an hour of the work costs in a pool.
func price(w Work, p Pool) float64 {
	if len(p.Nodes) == 0 {
		return p.PricePerHour
	}
	return p.PricePerHour * Share(w.Request, p.Nodes[0].Amount)
}

// overQuota reports that the request alone is more than its project may use.
func (c *cycle) overQuota(w Work) bool { return len(c.lacksQuota(w, resource.Amount{})) > 0 }

// lacksQuota names the parts in which used plus the request is over the quota.
func (c *cycle) lacksQuota(w Work, used resource.Amount) []string {
	q, ok := c.quotas[w.Project]
	if !ok {
		return nil
	}
	want := resource.Amount{Accelerators: map[string]int64{}}
	if q.CPU > 0 {
		want.CPU = w.Request.CPU
	}
	if q.Memory > 0 {
		want.Memory = w.Request.Memory
	}
	for name, n := range w.Request.Accelerators {
		if _, limited := q.Accelerators[name]; limited {
			want.Accelerators[name] = n
		}
	}
	return want.Lacks(q.Minus(used))
}

// fit places a work where it is cheapest among the pools with room, unless
// somebody before it waits for that pool or for the project's quota.
func (c *cycle) fit(k candidate) bool {
	if _, held := c.quotaHead[k.Project]; held {
		return false
	}
	if len(c.lacksQuota(k.Work, c.project[k.Project])) > 0 {
		c.quotaHead[k.Project] = k.Work
		return false
	}
	for _, p := range k.pools {
		if _, held := c.head[p.Name]; held {
			continue
		}
		if node, ok := c.room(k.Work, p); ok {
			c.plan.Place = append(c.plan.Place, Placement{Work: k.ID, Pool: p.Name, Node: node, Passed: k.refused})
			c.start(Running{Work: k.Work, Pool: p.Name, Node: node})
			return true
		}
	}
	return false
}

// room finds a place in a pool: the node on which least would stay free, by
// name where equal, so that large requests keep finding whole nodes.
func (c *cycle) room(w Work, p Pool) (node string, ok bool) {
	if p.Delegated {
		return "", w.Request.Fits(total(p).Minus(c.used[place{pool: p.Name}]))
	}
	best := -1.0
	for _, n := range p.Nodes {
		used := c.used[place{p.Name, n.Name}]
		if !w.Request.Fits(n.Amount.Minus(used)) {
			continue
		}
		share := Share(used.Plus(w.Request), n.Amount)
		if share > best || share == best && n.Name < node {
			best, node, ok = share, n.Name, true
		}
	}
	return node, ok
}

// explain says why a candidate that found no room waits, and makes it the head
// of the line of each pool that nobody holds yet.
func (c *cycle) explain(k candidate) {
	wait := Wait{Possible: true}
	if head, held := c.quotaHead[k.Project]; held {
		lacks := c.lacksQuota(k.Work, c.project[k.Project])
		text := fmt.Sprintf("the quota of project %s is used up: %s", k.Project, words(lacks, "left"))
		if head.ID != k.ID {
			text = fmt.Sprintf("behind %s, which waits for the quota of project %s", head.label(), k.Project)
		}
		wait.Reasons = append(wait.Reasons, Reason{Step: "fit", Text: text})
		c.plan.Wait[k.ID] = wait
		return
	}
	for _, p := range k.pools {
		if head, held := c.head[p.Name]; held {
			wait.Reasons = append(wait.Reasons, Reason{Step: "fit", Pool: p.Name, Text: fmt.Sprintf("behind %s, which waits for pool %s", head.label(), p.Name)})
			continue
		}
		c.head[p.Name] = k.Work
		wait.Reasons = append(wait.Reasons, Reason{Step: "fit", Pool: p.Name, Text: c.full(k.Work, p)})
	}
	wait.Reasons = append(wait.Reasons, k.refused...)
	c.plan.Wait[k.ID] = wait
}

// full says what a pool lacks now, and who is next to give it back.
func (c *cycle) full(w Work, p Pool) string {
	lacks := w.Request.Lacks(total(p).Minus(c.used[place{pool: p.Name}]))
	if !p.Delegated {
		lacks = nil
		for _, n := range p.Nodes {
			l := w.Request.Lacks(n.Amount.Minus(c.used[place{p.Name, n.Name}]))
			if lacks == nil || len(l) < len(lacks) {
				lacks = l
			}
		}
	}
	return words(lacks, "free on "+p.Name) + c.nextToFinish(p)
}

// nextToFinish names the running work of a pool with the earliest deadline;
// without deadlines it names the first started, and does not promise.
func (c *cycle) nextToFinish(p Pool) string {
	var first Running
	found := false
	for _, r := range c.running {
		if r.Pool != p.Name || found && !sooner(r, first) {
			continue
		}
		first, found = r, true
	}
	switch {
	case !found:
		return ""
	case first.Deadline.IsZero():
		return "; held by " + first.label()
	}
	return fmt.Sprintf("; next to finish: %s, by %s", first.label(), first.Deadline.UTC().Format(time.RFC3339))
}

func sooner(a, b Running) bool {
	if a.Deadline.IsZero() != b.Deadline.IsZero() {
		return b.Deadline.IsZero()
	}
	return cmp.Or(a.Deadline.Compare(b.Deadline), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID)) < 0
}

func total(p Pool) resource.Amount {
	var sum resource.Amount
	for _, n := range p.Nodes {
		sum = sum.Plus(n.Amount)
	}
	return sum
}
