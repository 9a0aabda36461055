package trial

import (
	"math"
	"slices"
)

// MaxObjectives is how many objectives a sweep has at most: a hypervolume is exact for
// any number, but its time grows with the power of it.
const MaxObjectives = 3

// Dominates says that a is nowhere worse than b and somewhere better; lower is better.
func Dominates(a, b []float64) bool {
	better := false
	for i := range a {
		if a[i] > b[i] {
			return false
		}
		better = better || a[i] < b[i]
	}
	return better
}

// Front are the complete trials that no other dominates, by number. One with a value
// that is NaN, or that violates a constraint, is not among them.
func Front(trials []Trial, directions []Direction) []Trial {
	var out []Trial
	var losses [][]float64
	for _, t := range trials {
		if l, ok := t.Losses(directions); ok && !t.Infeasible && !slices.ContainsFunc(t.Values, math.IsNaN) {
			out, losses = append(out, t), append(losses, l)
		}
	}
	ranks := Ranks(losses, 1)
	keep := out[:0:0]
	for i, t := range out {
		if ranks[i] == 0 {
			keep = append(keep, t)
		}
	}
	slices.SortFunc(keep, func(a, b Trial) int { return a.Number - b.Number })
	return keep
}

// Ranks are 0 for the points that nothing dominates, 1 for those that only such
// dominate, and so on, until at least enough points have one; the others share the
// next. Of up to three objectives a front takes n log n, of more n².
func Ranks(points [][]float64, enough int) []int {
	ranks := make([]int, len(points))
	left := make([]int, len(points))
	for i := range left {
		left[i] = i
	}
	// What dominates a point is before it in this order.
	slices.SortStableFunc(left, func(a, b int) int { return slices.Compare(points[a], points[b]) })
	for rank := 0; len(left) > 0; rank++ {
		if len(points)-len(left) >= enough {
			for _, i := range left {
				ranks[i] = rank
			}
			break
		}
		var front stairs
		var rest []int
		for _, i := range left {
			if front.dominates(points[i]) {
				rest = append(rest, i)
				continue
			}
			front.add(points[i])
			ranks[i] = rank
		}
		left = rest
	}
	return ranks
}

// stairs are those points of a front that can dominate one which comes later in the order
// of their first coordinates: of up to three, the second rises and the third falls from
// each to the next.
type stairs [][]float64

func coordinate(p []float64, i int) float64 {
	if i < len(p) {
		return p[i]
	}
	return 0
}

// at is how many have at most the second coordinate of a point.
func (s *stairs) at(p []float64) int {
	n, _ := slices.BinarySearchFunc(*s, coordinate(p, 1), func(q []float64, y float64) int {
		if coordinate(q, 1) <= y {
			return -1
		}
		return 1
	})
	return n
}

func (s *stairs) dominates(p []float64) bool {
	if len(p) > MaxObjectives {
		return slices.ContainsFunc(*s, func(q []float64) bool { return Dominates(q, p) })
	}
	n := s.at(p) // the last of them has the least third coordinate
	return n > 0 && Dominates((*s)[n-1], p)
}

// add takes a point that none dominates.
func (s *stairs) add(p []float64) {
	if len(p) > MaxObjectives {
		*s = append(*s, p)
		return
	}
	from := s.at(p)
	if from > 0 && slices.Equal((*s)[from-1], p) {
		return
	}
	if from > 0 && coordinate((*s)[from-1], 1) == coordinate(p, 1) {
		from--
	}
	to := from
	for to < len(*s) && coordinate((*s)[to], 2) >= coordinate(p, 2) {
		to++
	}
	*s = slices.Replace(*s, from, to, p)
}

// Hypervolume is the volume between points and a reference that is worse than they
// are; lower is better. A point that is not better everywhere adds nothing. It is
// exact: slices along the last dimension, which takes n² log n for three.
func Hypervolume(points [][]float64, reference []float64) float64 {
	var inside [][]float64
	for _, p := range points {
		ok := true
		for i := range p {
			ok = ok && p[i] < reference[i]
		}
		if ok {
			inside = append(inside, p)
		}
	}
	return volume(inside, reference)
}

func volume(points [][]float64, reference []float64) float64 {
	if len(points) == 0 {
		return 0
	}
	last := len(reference) - 1
	byLast := slices.Clone(points)
	slices.SortFunc(byLast, func(a, b []float64) int {
		if a[last] < b[last] {
			return -1
		}
		if a[last] > b[last] {
			return 1
		}
		return 0
	})
	switch last {
	case 0:
		return reference[0] - byLast[0][0]
	case 1:
		total, left := 0.0, reference[0]
		for _, p := range byLast {
			if p[0] < left {
				total += (left - p[0]) * (reference[1] - p[1])
				left = p[0]
			}
		}
		return total
	}
	total := 0.0
	flat := make([][]float64, 0, len(byLast))
	for i, p := range byLast {
		flat = append(flat, p[:last])
		next := reference[last]
		if i+1 < len(byLast) {
			next = byLast[i+1][last]
		}
		if next > p[last] {
			total += volume(flat, reference[:last]) * (next - p[last])
		}
	}
	return total
}
