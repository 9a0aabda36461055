package machine

import (
	"cmp"
	"slices"
)

// Spread chooses threads for workers, so many for each, all different, from those
// that may be used: the least used first, a worker's threads in one NUMA node where
// they fit and in one socket where not, whole cores before halves. busy says
// how many others are bound to each thread. nil when there are not enough.
func Spread(topology []Thread, may []int, busy map[int]int, counts ...int) [][]int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if len(counts) == 0 || slices.Min(counts) <= 0 || sum > len(may) {
		return nil
	}
	at := map[int]Thread{}
	for _, t := range topology {
		at[t.CPU] = t
	}
	free := make([]Thread, 0, len(may))
	for _, cpu := range may {
		t, known := at[cpu]
		if !known {
			t = Thread{CPU: cpu, Core: cpu}
		}
		free = append(free, t)
	}
	each := make([][]int, 0, len(counts))
	for _, n := range counts {
		part := choose(free, busy, n)
		each = append(each, part)
		free = slices.DeleteFunc(free, func(t Thread) bool { return slices.Contains(part, t.CPU) })
	}
	return each
}

// choose picks n of the free threads.
func choose(free []Thread, busy map[int]int, n int) []int {
	// The rooms in which the threads can be together, the closest first.
	type room struct{ kind, id int }
	rooms := map[room][]Thread{}
	for _, t := range free {
		rooms[room{0, t.NUMA}] = append(rooms[room{0, t.NUMA}], t)
		rooms[room{1, t.Socket}] = append(rooms[room{1, t.Socket}], t)
		rooms[room{2, 0}] = append(rooms[room{2, 0}], t)
	}
	best, load := room{kind: 3}, 0
	for r, threads := range rooms {
		if len(threads) < n {
			continue
		}
		l := 0
		for _, cpu := range quietest(threads, busy, n) {
			l += busy[cpu]
		}
		// Less crowded beats closer: sharing a core costs more than far memory.
		c := cmp.Or(cmp.Compare(l, load), cmp.Compare(r.kind, best.kind), cmp.Compare(len(threads), len(rooms[best])), cmp.Compare(r.id, best.id))
		if best.kind == 3 || c < 0 {
			best, load = r, l
		}
	}
	return quietest(rooms[best], busy, n)
}

// quietest picks the n least used threads, of whole cores before halves, in
// order of their number.
func quietest(threads []Thread, busy map[int]int, n int) []int {
	cores := map[[2]int]int{}
	for _, t := range threads {
		cores[[2]int{t.Socket, t.Core}] += busy[t.CPU]
	}
	sorted := slices.SortedFunc(slices.Values(threads), func(a, b Thread) int {
		return cmp.Or(
			cmp.Compare(busy[a.CPU], busy[b.CPU]), cmp.Compare(cores[[2]int{a.Socket, a.Core}], cores[[2]int{b.Socket, b.Core}]),
			cmp.Compare(a.Socket, b.Socket), cmp.Compare(a.Core, b.Core), cmp.Compare(a.CPU, b.CPU),
		)
	})
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = sorted[i].CPU
	}
	slices.Sort(cpus)
	return cpus
}
