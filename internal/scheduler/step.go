package scheduler

import (
	"cmp"
	"slices"

	"github.com/falaj-ml/falaj/internal/resource"
)

// Decide is the plan for a world given whole, as one delta from nothing, and
// the state that explains it.
func Decide(all Delta) (*State, Plan) {
	s := &State{}
	return s, s.Step(all)
}

// Step is one scheduling cycle. The state takes the plan as done.
func (s *State) Step(d Delta) Plan {
	// 1. Apply what changed.
	s.apply(d)
	s.head, s.quotaHead = map[string]*waiter{}, map[string]*waiter{}
	var plan Plan

	// 2. Go along the line: who comes first gets a place first. What may not
	// run anywhere or not yet keeps nothing from anybody. Fifo neither resizes
	// nor preempts what runs.
	for _, w := range s.line {
		if len(s.head) == s.open {
			break // somebody waits for every pool
		}
		shape := s.shapeOf(w)
		if len(shape.pools) == 0 || s.overQuota(w.Work) {
			continue
		}
		if w.NotBefore.After(s.now) {
			if plan.Wake.IsZero() || w.NotBefore.Before(plan.Wake) {
				plan.Wake = w.NotBefore
			}
			continue
		}
		if place, ok := s.fit(w, shape); ok {
			plan.Place = append(plan.Place, place)
		}
	}
	if len(plan.Place) > 0 {
		s.reline(nil)
	}
	return plan
}

// fit places a work where it is cheapest among the pools with room, unless
// somebody before it waits for that pool or for the project's quota. A work
// that finds no room becomes the head of what nobody waits for yet.
func (s *State) fit(w *waiter, shape *shape) (Placement, bool) {
	if s.quotaHead[w.Project] != nil {
		return Placement{}, false
	}
	most := s.allowed(w.Work)
	if most < w.least() {
		s.quotaHead[w.Project] = w
		return Placement{}, false
	}
	for _, p := range shape.pools {
		if s.head[p.Name] != nil {
			continue
		}
		n, nodes := p.room(w.Work, most)
		if n < w.least() {
			continue
		}
		s.start(Running{Work: w.Work, Pool: p.Name, Placed: n, Nodes: nodes})
		return Placement{Work: w.ID, Pool: p.Name, Workers: n, Nodes: nodes, Passed: shape.refused}, true
	}
	for _, p := range shape.pools {
		if s.head[p.Name] == nil {
			s.head[p.Name] = w
		}
	}
	return Placement{}, false
}

// room finds places in a pool for workers, at most most: first on the node on
// which least would stay free, by name where equal, so that large requests keep
// finding whole nodes and a gang stands close together.
func (p *pool) room(w Work, most int) (n int, nodes []string) {
	if p.Delegated {
		return w.Request.Count(p.free(0), most), nil
	}
	type spot struct {
		node  string
		n     int
		share float64
	}
	var spots []spot
	for i, node := range p.Nodes {
		if node.Closed != "" {
			continue
		}
		fits := w.Request.Count(p.free(i), most)
		if fits == 0 {
			continue
		}
		at := spot{node.Name, fits, Share(p.used[i].Plus(w.Request), node.Amount)}
		if most == 1 && len(spots) > 0 {
			// One worker needs no list of all nodes.
			if cmp.Or(cmp.Compare(at.share, spots[0].share), cmp.Compare(spots[0].node, at.node)) > 0 {
				spots[0] = at
			}
			continue
		}
		spots = append(spots, at)
	}
	slices.SortFunc(spots, func(a, b spot) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.node, b.node))
	})
	for _, at := range spots {
		for range min(at.n, most-n) {
			nodes = append(nodes, at.node)
			n++
		}
	}
	return n, nodes
}

// price is what an hour of a worker costs in a pool.
func price(w Work, p *pool) float64 {
	if len(p.Nodes) == 0 {
		return p.PricePerHour
	}
	return p.PricePerHour * Share(w.Request, p.Nodes[0].Amount)
}

// allowed is how many workers the quota of the project has room for now.
func (s *State) allowed(w Work) int {
	want, q, limited := s.limits(w)
	if !limited {
		return w.most()
	}
	return want.Count(q.Minus(s.project[w.Project]), w.most())
}

// overQuota reports that the least request alone is more than its project may
// use.
func (s *State) overQuota(w Work) bool {
	want, q, limited := s.limits(w)
	return limited && want.Count(q, w.least()) < w.least()
}

// limits is the part of a worker's request that the project's quota limits.
func (s *State) limits(w Work) (want, quota resource.Amount, limited bool) {
	q, ok := s.quotas[w.Project]
	if !ok {
		return want, q, false
	}
	if q.CPU > 0 {
		want.CPU = w.Request.CPU
	}
	if q.Memory > 0 {
		want.Memory = w.Request.Memory
	}
	for name, n := range w.Request.Accelerators {
		if _, has := q.Accelerators[name]; has {
			if want.Accelerators == nil {
				want.Accelerators = map[string]int64{}
			}
			want.Accelerators[name] = n
		}
	}
	return want, q, true
}
