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
// that is NaN is not among them.
func Front(trials []Trial, directions []Direction) []Trial {
	var out []Trial
	var losses [][]float64
	for _, t := range trials {
		if l, ok := t.Losses(directions); ok && !slices.ContainsFunc(t.Values, math.IsNaN) {
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
// next.
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
		var front, rest []int
		for _, i := range left {
			if slices.ContainsFunc(front, func(f int) bool { return Dominates(points[f], points[i]) }) {
				rest = append(rest, i)
				continue
			}
			front = append(front, i)
			ranks[i] = rank
		}
		left = rest
	}
	return ranks
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
