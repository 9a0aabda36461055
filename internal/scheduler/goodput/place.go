package goodput

import (
	"cmp"
	"slices"
)

// ground is where jobs of a pool are while they are placed.
type ground struct {
	free  []int         // accelerators of each node
	on    map[int][]int // bids on each node
	at    map[int]Placement
	sizes map[int]int // replicas of each bid
}

// place puts the bids that took something of the pool onto its nodes.
//
//  1. Jobs with an unchanged number keep their placement.
//  2. The others follow, the largest first, each onto the fullest nodes that hold
//     it in as few parts as possible.
//  3. If none holds a part, the emptiest node whose jobs are all smaller is
//     cleared for it; these are then placed. So a job of many nodes never waits
//     for small ones, and each round moves smaller jobs than the one before.
//  4. If that is not possible either, the part is spread over the free accelerators.
func place(nodes []Node, pl pool, device int, bids []bid, out map[int]Placement) {
	g := ground{free: make([]int, len(nodes)), on: map[int][]int{}, at: map[int]Placement{}, sizes: map[int]int{}}
	for _, n := range pl.nodes {
		g.free[n] = nodes[n].GPUs
	}
	var queue []int
	for i := range bids {
		b := &bids[i]
		if b.taken < 0 || b.options[b.taken].device != device {
			continue
		}
		g.sizes[i] = b.options[b.taken].replicas
		if b.Placement.Replicas() == g.sizes[i] && b.Device == pl.device && g.holds(b.Placement) {
			g.put(i, b.Placement)
		} else {
			queue = append(queue, i)
		}
	}
	for len(queue) > 0 {
		slices.SortStableFunc(queue, func(a, b int) int { return cmp.Or(g.sizes[b]-g.sizes[a], a-b) })
		i := queue[0]
		queue = queue[1:]
		var p Placement
		for need := g.sizes[i]; need > 0; {
			part := min(need, pl.most)
			n, ok := g.fullest(pl.nodes, part)
			if !ok {
				var moved []int
				if n, moved, ok = g.clear(nodes, pl.nodes, part, g.sizes[i], p); ok {
					queue = append(queue, moved...)
				} else if n, ok = g.emptiest(pl.nodes); ok {
					part = min(part, g.free[n])
				} else {
					break // cannot be: the plan gave no more than there is
				}
			}
			p = append(p, Share{n, part})
			g.free[n] -= part
			need -= part
		}
		for _, s := range p {
			g.free[s.Node] += s.GPUs
		}
		g.put(i, p)
	}
	for i, p := range g.at {
		out[bids[i].ID] = p
	}
}

func (g *ground) holds(p Placement) bool {
	return !slices.ContainsFunc(p, func(s Share) bool { return s.Node >= len(g.free) || g.free[s.Node] < s.GPUs })
}

func (g *ground) put(bid int, p Placement) {
	g.at[bid] = p
	for _, s := range p {
		g.free[s.Node] -= s.GPUs
		g.on[s.Node] = append(g.on[s.Node], bid)
	}
}

func (g *ground) fullest(nodes []int, part int) (node int, ok bool) {
	for _, n := range nodes {
		if f := g.free[n]; f >= part && (!ok || f < g.free[node]) {
			node, ok = n, true
		}
	}
	return node, ok
}

func (g *ground) emptiest(nodes []int) (node int, ok bool) {
	for _, n := range nodes {
		if f := g.free[n]; f > 0 && (!ok || f > g.free[node]) {
			node, ok = n, true
		}
	}
	return node, ok
}

// clear takes all jobs off a node that are smaller than size; none of the node is
// in p.
func (g *ground) clear(nodes []Node, of []int, part, size int, p Placement) (node int, moved []int, ok bool) {
	for _, n := range of {
		if nodes[n].GPUs < part || ok && g.free[n] <= g.free[node] || slices.ContainsFunc(p, func(s Share) bool { return s.Node == n }) {
			continue
		}
		if !slices.ContainsFunc(g.on[n], func(b int) bool { return g.sizes[b] >= size }) {
			node, ok = n, true
		}
	}
	if !ok {
		return 0, nil, false
	}
	moved = slices.Clone(g.on[node])
	for _, b := range moved {
		for _, s := range g.at[b] {
			g.free[s.Node] += s.GPUs
			g.on[s.Node] = slices.DeleteFunc(g.on[s.Node], func(x int) bool { return x == b })
		}
		delete(g.at, b)
	}
	return node, moved, true
}
