package replay

import (
	"fmt"
	"maps"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// maxNodes bounds the nodes of a pool in a play.
const maxNodes = 10_000

// Resize returns the world with n more nodes in a pool, copies of its first one, or with -n
// fewer: idle nodes are removed first, and workloads on the other removed nodes
// finish there. Errors: fault.NotFound, fault.Invalid.
func (w World) Resize(pool string, n int) (World, error) {
	i := slices.IndexFunc(w.Start.Pools, func(p scheduler.Pool) bool { return p.Name == pool })
	if i < 0 {
		names := make([]string, len(w.Start.Pools))
		for i, p := range w.Start.Pools {
			names[i] = p.Name
		}
		return w, fault.New(fault.NotFound, "pool %.64q not found", pool).WithHint("Pools: %q.", names)
	}
	w.Start.Pools = slices.Clone(w.Start.Pools)
	p := &w.Start.Pools[i]
	p.Nodes = slices.Clone(p.Nodes)
	open := 0
	for _, node := range p.Nodes {
		if node.Closed == "" {
			open++
		}
	}
	switch {
	case len(p.Nodes) == 0:
		return w, fault.New(fault.Invalid, "pool %s has no node to copy", pool)
	case n > maxNodes-len(p.Nodes):
		return w, fault.New(fault.Invalid, "pool %s has %d nodes; %d more exceed the limit of %d", pool, len(p.Nodes), n, maxNodes)
	case -n > open:
		return w, fault.New(fault.Invalid, "pool %s has %d open nodes; %d cannot be removed", pool, open, -n)
	}
	for k := range n {
		like := p.Nodes[0]
		like.Name, like.Closed, like.Leave = fmt.Sprintf("what-if-%d", k+1), "", false
		p.Nodes = append(p.Nodes, like)
	}
	busy := map[string]bool{}
	for _, r := range w.Start.Started {
		if r.Pool == pool {
			for _, node := range r.Nodes {
				busy[node] = true
			}
		}
	}
	for _, first := range []bool{false, true} { // the idle, then the busy, each from the end
		for k := len(p.Nodes) - 1; k >= 0 && n < 0; k-- {
			if node := &p.Nodes[k]; node.Closed == "" && busy[node.Name] == first {
				node.Closed = "removed in this what-if"
				n++
			}
		}
	}
	return w, nil
}

// Propose returns the world with a proposed workload, pending from the start.
func (w World) Propose(x About, work scheduler.Workload, a Assumptions) (About, World) {
	work.Submitted = w.Start.Now
	w.Start.Submitted = append(slices.Clip(w.Start.Submitted), work)
	w.Takes = maps.Clone(w.Takes)
	label := x.Label
	x = a.fill(x, work, 0)
	if label != "" {
		x.Label = label
	}
	w.Takes[work.ID] = seconds(*x.Left)
	if work.Timeout > 0 {
		w.Takes[work.ID] = min(w.Takes[work.ID], work.Timeout)
	}
	left := w.Takes[work.ID].Seconds()
	x.Left = &left
	return x, w
}
