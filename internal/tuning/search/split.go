package search

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// maxGood is how many trials are good at most, with one objective.
const maxGood = 25

// split parts trials, in their order, into good and bad: of those that ended a tenth
// is good, complete ones before stopped ones, and of these those that came far before
// those that did not. What runs is bad, so that nothing like it is tried meanwhile.
func split(trials []trial.Trial, directions []trial.Direction) (good, bad []trial.Trial) {
	var complete, stopped []int
	var losses [][]float64
	for i, t := range trials {
		if t.State == trial.Stopped {
			stopped = append(stopped, i)
		} else if l, ok := t.Losses(directions); ok {
			complete, losses = append(complete, i), append(losses, l)
		}
	}
	want := (len(complete) + len(stopped) + 9) / 10
	if len(directions) == 1 {
		want = min(want, maxGood)
	}
	isGood := make([]bool, len(trials))
	for _, i := range best(losses, min(want, len(complete))) {
		isGood[complete[i]] = true
	}
	slices.SortStableFunc(stopped, func(a, b int) int { return farther(trials[a], trials[b], directions[0]) })
	for _, i := range stopped[:min(max(want-len(complete), 0), len(stopped))] {
		isGood[i] = true
	}
	for i, t := range trials {
		if isGood[i] {
			good = append(good, t)
		} else {
			bad = append(bad, t)
		}
	}
	return good, bad
}

// farther orders stopped trials by their last step and then by what they had there.
func farther(a, b trial.Trial, d trial.Direction) int {
	x, ok := a.Last()
	y, both := b.Last()
	switch {
	case !ok || !both:
		return compare(boolean(both), boolean(ok))
	case x.Step != y.Step:
		return compare(float64(y.Step), float64(x.Step))
	}
	return compare(d.Loss(x.Value), d.Loss(y.Value))
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// best are the indices of the n best points: by their one loss, or by the front they
// are on, and of the last front those that together have the most hypervolume.
func best(losses [][]float64, n int) []int {
	all := make([]int, len(losses))
	for i := range all {
		all[i] = i
	}
	if n == len(losses) || n == 0 {
		return all[:n]
	}
	if len(losses[0]) == 1 {
		slices.SortStableFunc(all, func(a, b int) int { return compare(losses[a][0], losses[b][0]) })
		return all[:n]
	}
	ranks := trial.Ranks(losses, n)
	slices.SortStableFunc(all, func(a, b int) int { return ranks[a] - ranks[b] })
	last := ranks[all[n-1]]
	from := slices.IndexFunc(all, func(i int) bool { return ranks[i] == last })
	to := from
	for to < len(all) && ranks[all[to]] == last {
		to++
	}
	if to == n {
		return all[:n]
	}
	return append(slices.Clone(all[:from]), spread(losses, all[from:to], n-from)...)
}

// A front of thousands is thinned before its hypervolume is looked at, whose time grows
// with the power of the points.
const (
	maxSpread   = 100 // are chosen by it
	maxSpreadOf = 500 // that it is looked at of
)

// spread chooses n of candidates one after the other, each the one that adds the most
// hypervolume. What one adds only shrinks as others are chosen, so that an old number
// is a bound, and most need not be computed anew.
func spread(losses [][]float64, candidates []int, n int) []int {
	if n > maxSpread {
		chosen := spread(losses, candidates, maxSpread)
		rest := slices.DeleteFunc(slices.Clone(candidates), func(i int) bool { return slices.Contains(chosen, i) })
		return append(chosen, evenly(losses, rest, n-maxSpread)...)
	}
	candidates = evenly(losses, candidates, min(len(candidates), maxSpreadOf))
	reference := beyond(losses, candidates)
	bound := make(map[int]float64, len(candidates))
	fresh := map[int]bool{}
	adds := func(i int, chosen []int) float64 {
		box := 1.0
		for d, r := range reference {
			box *= max(r-losses[i][d], 0)
		}
		taken := make([][]float64, len(chosen))
		for k, c := range chosen {
			taken[k] = make([]float64, len(reference))
			for d := range reference {
				taken[k][d] = max(losses[c][d], losses[i][d])
			}
		}
		if v := box - trial.Hypervolume(taken, reference); !math.IsNaN(v) {
			return v
		}
		return math.Inf(-1)
	}
	left := slices.Clone(candidates)
	for _, i := range left {
		bound[i], fresh[i] = adds(i, nil), true
	}
	var chosen []int
	for len(chosen) < n {
		at := 0
		for k, i := range left {
			if bound[i] > bound[left[at]] {
				at = k
			}
		}
		i := left[at]
		if !fresh[i] {
			bound[i], fresh[i] = adds(i, chosen), true
			continue
		}
		chosen, left = append(chosen, i), slices.Delete(left, at, at+1)
		clear(fresh)
	}
	return chosen
}

// evenly are n of the candidates, by their losses from one end of the front to the other.
func evenly(losses [][]float64, candidates []int, n int) []int {
	if n == len(candidates) {
		return candidates
	}
	sorted := slices.Clone(candidates)
	slices.SortStableFunc(sorted, func(a, b int) int { return slices.Compare(losses[a], losses[b]) })
	out := make([]int, n)
	for i := range out {
		out[i] = sorted[i*len(sorted)/n]
	}
	return out
}

// beyond is a reference a tenth worse than the worst of the candidates, infinite
// losses apart.
func beyond(losses [][]float64, candidates []int) []float64 {
	out := make([]float64, len(losses[0]))
	for d := range out {
		worst := math.Inf(-1)
		for _, i := range candidates {
			if l := losses[i][d]; !math.IsInf(l, 0) {
				worst = max(worst, l)
			}
		}
		switch {
		case math.IsInf(worst, -1): // none is finite
			out[d] = 0
		case worst == 0:
			out[d] = 1e-12
		default:
			out[d] = max(1.1*worst, 0.9*worst)
		}
	}
	return out
}
