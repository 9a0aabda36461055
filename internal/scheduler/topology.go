package scheduler

import (
	"cmp"
	"slices"
	"strings"
)

// OnNode is the level of single nodes, that every pool has.
const OnNode = "node"

// domains are the rows of a pool by where they stand: for each level, outermost
// first, the rows that stand together; who does not say stands alone. The last level is of single nodes.
type domains [][][]int

func newDomains(p Pool) domains {
	if p.Delegated {
		return nil
	}
	var out domains
	for level := range p.Levels {
		at := map[string]int{}
		var groups [][]int
		for i, n := range p.Nodes {
			if level >= len(n.Where) || n.Where[level] == "" {
				groups = append(groups, []int{i}) // nobody knows beside which
				continue
			}
			key := strings.Join(n.Where[:level+1], "\x00")
			g, ok := at[key]
			if !ok {
				g = len(groups)
				at[key], groups = g, append(groups, nil)
			}
			groups[g] = append(groups[g], i)
		}
		out = append(out, groups)
	}
	single := make([][]int, len(p.Nodes))
	for i := range single {
		single[i] = []int{i}
	}
	return append(out, single)
}

// level is the number of a named level; false when the pool has none of the name.
func (p *pool) level(name string) (int, bool) {
	if name == OnNode {
		return len(p.Levels), !p.Delegated
	}
	i := slices.Index(p.Levels, name)
	return i, i >= 0 && !p.Delegated
}

// within are the sets of rows of which a gang may use any one: all rows, where it
// does not say. The pool has the level.
func (p *pool) within(k *known) [][]int {
	if k.within == "" {
		return [][]int{p.every}
	}
	level, _ := p.level(k.within)
	return p.domains[level]
}

// closest is the smallest set of rows that stand together and hold n workers: of
// nodes the one with the most merit, else the one with the least room beyond that;
// nil when none holds them.
func (p *pool) closest(k *known, counts []int, n int) []int {
	outermost := -1 // all rows
	if k.within != "" {
		outermost, _ = p.level(k.within)
	}
	for level := len(p.domains) - 1; level >= outermost; level-- {
		groups := [][]int{p.every}
		if level >= 0 {
			groups = p.domains[level]
		}
		var best []int
		least, most := 0, merit{}
		for _, rows := range groups {
			sum := 0
			for _, i := range rows {
				sum += counts[i]
			}
			switch {
			case sum < n:
			case level == len(p.domains)-1:
				if m := p.merit(k, rows[0], k.request, n); best == nil || m.better(most) {
					best, most = rows, m
				}
			case best == nil || sum < least:
				best, least = rows, sum
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// most is for how many workers the roomiest set of rows that a gang may use has
// room.
func (p *pool) most(k *known, counts []int) int {
	n := 0
	for _, rows := range p.within(k) {
		sum := 0
		for _, i := range rows {
			sum += counts[i]
		}
		n = max(n, sum)
	}
	return n
}

// gather chooses rows for n workers out of some: the roomiest first, the last one
// where as many as are left fit most closely, so that a gang is on few nodes. Of like
// ones the fuller comes first, by loads; without them, the first.
func gather(rows, counts []int, n int, loads []float64) []int {
	spots := byRoom(rows, counts)
	if loads != nil {
		slices.SortFunc(spots, func(a, b int) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(loads[b], loads[a]), cmp.Compare(a, b))
		})
	}
	out := make([]int, 0, n)
	for k, i := range spots {
		left := n - len(out)
		if left == 0 {
			break
		}
		if counts[i] > left { // the last
			for _, other := range spots[k:] {
				if counts[other] >= left && counts[other] < counts[i] {
					i = other
				}
			}
		}
		for range min(counts[i], left) {
			out = append(out, i)
		}
	}
	return out
}

// byRoom are those of some rows that have room, the roomiest first; of like ones the first
// comes first.
func byRoom(rows, counts []int) []int {
	most, n := 0, 0
	for _, i := range rows {
		most, n = max(most, counts[i]), n+btoi(counts[i] > 0)
	}
	at := make([]int, most+1) // where those with so much room begin
	for _, i := range rows {
		if counts[i] > 0 {
			at[counts[i]-1]++
		}
	}
	for c, sum := most-1, 0; c >= 0; c-- {
		at[c], sum = sum, sum+at[c]
	}
	out := make([]int, n)
	for _, i := range rows {
		if c := counts[i]; c > 0 {
			out[at[c-1]] = i
			at[c-1]++
		}
	}
	return out
}
