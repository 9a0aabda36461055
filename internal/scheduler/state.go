package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// State is everything that steps know, kept from one to the next. The zero
// State knows nothing. It is not safe for concurrent use.
type State struct {
	now     time.Time
	pools   map[string]*pool
	order   []*pool // by name
	open    int     // how many of them may take anything now
	quotas  map[string]resource.Amount
	waiting map[ID]*waiter
	line    []*waiter // all of waiting, who comes first is first
	left    bool      // somebody who no longer waits is still in line
	running map[ID]Running
	project map[string]resource.Amount // used, derived from running
	shapes  map[string]*shape

	// Of the last step: the first work that waits for room in a pool, or for a
	// project's quota. Those behind it may not take that pool or quota.
	head      map[string]*waiter
	quotaHead map[string]*waiter
}

// pool is a Pool with what running works use of it.
type pool struct {
	Pool
	index map[string]int    // of a node by its name
	used  []resource.Amount // of each node; of a delegated pool all in one
	total resource.Amount   // of the open nodes
}

// waiter is a work in line.
type waiter struct {
	Work
	shape *shape // nil until somebody asks
}

// shape is what all works that ask for the same have in common.
type shape struct {
	pools   []*pool  // that may take it, cheapest first
	refused []Reason // why the others may not
}

func newPool(p Pool) *pool {
	out := &pool{Pool: p, index: make(map[string]int, len(p.Nodes)), used: make([]resource.Amount, max(len(p.Nodes), 1))}
	for i, n := range p.Nodes {
		out.index[n.Name] = i
		if n.Closed == "" {
			out.total = out.total.Plus(n.Amount)
		}
	}
	return out
}

func (p *pool) anyOpen() bool {
	return slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Closed == "" })
}

// add counts what a running work holds, and sub what it held.
func (p *pool) add(r Running) { p.count(r, resource.Amount.Plus) }
func (p *pool) sub(r Running) { p.count(r, resource.Amount.Minus) }

func (p *pool) count(r Running, sum func(a, b resource.Amount) resource.Amount) {
	if p.Delegated {
		p.used[0] = sum(p.used[0], r.amount())
		return
	}
	for _, name := range r.Nodes {
		if i, ok := p.index[name]; ok {
			p.used[i] = sum(p.used[i], r.Request)
		}
	}
}

// free is what is left of a node, or of a delegated pool.
func (p *pool) free(node int) resource.Amount {
	if p.Delegated {
		return p.total.Minus(p.used[0])
	}
	return p.Nodes[node].Amount.Minus(p.used[node])
}

// apply takes in what changed.
func (s *State) apply(d Delta) {
	s.now = d.Now
	if s.pools == nil {
		s.pools, s.waiting, s.running = map[string]*pool{}, map[ID]*waiter{}, map[ID]Running{}
		s.project, s.shapes = map[string]resource.Amount{}, map[string]*shape{}
	}
	if d.Quotas != nil {
		s.quotas = d.Quotas
	}
	for _, id := range d.Removed {
		s.remove(id)
	}
	for _, w := range d.Submitted {
		s.remove(w.ID)
		s.waiting[w.ID] = &waiter{Work: w}
	}
	for _, r := range d.Started {
		s.remove(r.ID)
		s.start(r)
	}
	s.reline(d.Submitted)
	s.repool(d)
}

// reline drops from the line what no longer waits and puts in what is new.
func (s *State) reline(submitted []Work) {
	if s.left {
		s.line = slices.DeleteFunc(s.line, func(w *waiter) bool { return s.waiting[w.ID] != w })
		s.left = false
	}
	var added []*waiter
	for _, w := range submitted {
		if k := s.waiting[w.ID]; k != nil {
			added = append(added, k)
		}
	}
	slices.SortFunc(added, rank)
	added = slices.Compact(added) // submitted twice in one delta
	old := s.line
	if len(added) == 0 || len(old) == 0 || rank(old[len(old)-1], added[0]) < 0 {
		s.line = append(s.line, added...)
		return
	}
	s.line = make([]*waiter, 0, 2*(len(old)+len(added)))
	for len(old) > 0 && len(added) > 0 {
		from := &old
		if rank(added[0], old[0]) < 0 {
			from = &added
		}
		s.line, *from = append(s.line, (*from)[0]), (*from)[1:]
	}
	s.line = append(append(s.line, old...), added...)
}

// rank says who comes first: higher priority, then the earlier.
func rank(a, b *waiter) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Submitted.Compare(b.Submitted), cmp.Compare(a.ID, b.ID))
}

// repool takes in changed pools; what was thought of them is forgotten.
func (s *State) repool(d Delta) {
	if len(d.Pools)+len(d.RemovedPools) == 0 {
		return
	}
	for _, name := range d.RemovedPools {
		delete(s.pools, name)
	}
	changed := map[string]*pool{}
	for _, p := range d.Pools {
		s.pools[p.Name] = newPool(p)
		changed[p.Name] = s.pools[p.Name]
	}
	for _, r := range s.running {
		if p := changed[r.Pool]; p != nil {
			p.add(r)
		}
	}
	s.order = slices.SortedFunc(maps.Values(s.pools), func(a, b *pool) int { return cmp.Compare(a.Name, b.Name) })
	s.open = 0
	for _, p := range s.order {
		if p.Closed == "" && p.anyOpen() {
			s.open++
		}
	}
	clear(s.shapes)
	for _, w := range s.line {
		w.shape = nil
	}
}

func (s *State) remove(id ID) {
	s.leave(id)
	r, ok := s.running[id]
	if !ok {
		return
	}
	delete(s.running, id)
	s.project[r.Project] = s.project[r.Project].Minus(r.amount())
	if p := s.pools[r.Pool]; p != nil {
		p.sub(r)
	}
}

func (s *State) leave(id ID) {
	if s.waiting[id] != nil {
		delete(s.waiting, id)
		s.left = true
	}
}

func (s *State) start(r Running) {
	s.leave(r.ID)
	s.running[r.ID] = r
	s.project[r.Project] = s.project[r.Project].Plus(r.amount())
	if p := s.pools[r.Pool]; p != nil {
		p.add(r)
	}
}

// shapeOf finds what pools think of a work, once for all that ask for the same.
func (s *State) shapeOf(w *waiter) *shape {
	if w.shape != nil {
		return w.shape
	}
	key := fmt.Sprintf("%d %d %q %q %q %s %t", w.least(), w.most(), w.Residency, w.Isolation, w.Pools, w.Request, w.InPlace)
	if w.shape = s.shapes[key]; w.shape != nil {
		return w.shape
	}
	if len(s.shapes) > 2*len(s.waiting)+16 {
		clear(s.shapes) // most of them are of works long gone
	}
	w.shape = &shape{}
	for _, p := range s.order {
		if len(w.Pools) > 0 && !slices.Contains(w.Pools, p.Name) {
			continue // who does not ask for it need not be told
		}
		if why := refusal(w.Work, p); why != "" {
			w.shape.refused = append(w.shape.refused, Reason{Step: "admit", Pool: p.Name, Text: why})
			continue
		}
		w.shape.pools = append(w.shape.pools, p)
	}
	slices.SortStableFunc(w.shape.pools, func(a, b *pool) int { return cmp.Compare(price(w.Work, a), price(w.Work, b)) })
	s.shapes[key] = w.shape
	return w.shape
}
