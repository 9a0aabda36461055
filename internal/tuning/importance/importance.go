// Package importance tells which parameters decided how good trials became.
//
// It is PED-ANOVA (Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying
// Hyperparameter Importance in Arbitrary Subspaces", IJCAI 2023): a parameter matters as
// much as the values of the best tenth are spread otherwise than those of all trials, by
// the Pearson divergence of two kernel densities. It needs no model of the objective as
// fANOVA does, and takes time linear in the trials. A parameter that is not always
// active is weighed by how often it is there among the best and among all (conditional
// PED-ANOVA, 2026).
package importance

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// Weight is a parameter's share of what all matter; 0 where nothing can be told.
type Weight struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"`
}

const (
	best      = 0.1 // of the trials whose values are compared with those of all
	cells     = 50  // of a range
	fewTrials = 2
)

// Of gives the parameters' shares in one objective, the greatest first. They sum to 1,
// or are all 0 where fewer than two trials are complete, or all are alike.
func Of(s space.Space, trials []trial.Trial, directions []trial.Direction, objective int) []Weight {
	var done []trial.Trial
	var losses []float64
	for _, t := range trials {
		l, ok := t.Losses(directions)
		if ok && !math.IsInf(l[objective], 0) {
			done, losses = append(done, t), append(losses, l[objective])
		}
	}
	out := make([]Weight, len(s.Parameters))
	total := 0.0
	for i, p := range s.Parameters {
		out[i] = Weight{Name: p.Name}
		if len(done) >= fewTrials {
			out[i].Share = divergence(p, done, losses, threshold(losses))
		}
		total += out[i].Share
	}
	for i := range out {
		if total > 0 {
			out[i].Share /= total
		}
	}
	slices.SortStableFunc(out, func(a, b Weight) int {
		switch {
		case a.Share > b.Share:
			return -1
		case a.Share < b.Share:
			return 1
		}
		return 0
	})
	return out
}

// threshold is the loss of the worst of the best tenth.
func threshold(losses []float64) float64 {
	sorted := slices.Sorted(slices.Values(losses))
	return sorted[int(math.Ceil(best*float64(len(sorted))))-1]
}

// divergence of the density of the best from that of all who have the parameter.
func divergence(p space.Parameter, trials []trial.Trial, losses []float64, limit float64) float64 {
	if p.Single() {
		return 0
	}
	n := gridSize(p)
	all, top := make([]float64, n), make([]float64, n)
	var withAll, withTop, good float64
	for i, t := range trials {
		if losses[i] <= limit {
			good++
		}
		v, ok := t.Params[p.Name]
		if !ok {
			continue
		}
		x, err := p.Encode(v)
		if err != nil {
			continue
		}
		c := cell(p, x, n)
		all[c]++
		withAll++
		if losses[i] <= limit {
			top[c]++
			withTop++
		}
	}
	if withAll < fewTrials || withTop == 0 {
		return 0
	}
	smooth := kernel
	if p.Type == space.Categorical {
		smooth = counted
	}
	f, g := smooth(top, withTop), smooth(all, withAll)
	sum := 0.0
	for i := range f {
		r := (f[i]+1e-12)/(g[i]+1e-12) - 1
		sum += (g[i] + 1e-12) * r * r
	}
	share, base := withTop/good, withAll/float64(len(trials))
	return sum * share * share / base
}

func gridSize(p space.Parameter) int {
	n, countable := p.Count()
	switch {
	case p.Type == space.Categorical:
		return len(p.Choices)
	case p.Log && countable:
		return int(min(cells, math.Ceil(math.Log2(n))+1))
	case countable:
		return int(min(cells, n))
	}
	return cells
}

func cell(p space.Parameter, x float64, n int) int {
	if p.Type == space.Categorical {
		return int(x)
	}
	low, high := p.Low, p.Last()
	if p.Log {
		x, low, high = math.Log(x), math.Log(low), math.Log(high)
	}
	width := (high - low) / float64(n-1)
	return min(max(int(math.Ceil((x-low)/width-0.5)), 0), n-1)
}

// counted smooths counts of choices: each observation is spread a little, and one more
// is over all alike.
func counted(counts []float64, total float64) []float64 {
	n := float64(len(counts))
	kinds := 1.0 // kernels, of which the prior is one
	for _, c := range counts {
		if c > 0 {
			kinds++
		}
	}
	out := make([]float64, len(counts))
	for i := range out {
		for j, c := range counts {
			m := 1 / kinds
			if i == j {
				m++
			}
			out[i] += c / (total + 1) * m / (1 + n/kinds)
		}
		out[i] += 1 / (total + 1) / n
	}
	return out
}

// kernel smooths counts of cells by normal kernels of Scott's width, on the cells, and
// one over the whole range.
func kernel(counts []float64, total float64) []float64 {
	mean, at := 0.0, []int(nil)
	var cumulative []float64
	sum := 0.0
	for i, c := range counts {
		if c == 0 {
			continue
		}
		mean += float64(i) * c / total
		sum += c
		at, cumulative = append(at, i), append(cumulative, sum)
	}
	variance := 0.0
	for _, i := range at {
		variance += counts[i] * (float64(i) - mean) * (float64(i) - mean)
	}
	sigma := math.Sqrt(variance / max(1, total-1))
	lower, _ := slices.BinarySearch(cumulative, math.Floor(total/4))
	upper, exact := slices.BinarySearch(cumulative, math.Floor(total*3/4))
	if exact {
		upper++
	}
	iqr := float64(at[min(upper, len(at)-1)] - at[lower])
	sigma = max(1.059*min(iqr/1.34, sigma)*math.Pow(total, -0.2), 0.5/1.64)
	n := len(counts)
	out := make([]float64, n)
	add := func(mu, sigma, weight float64) {
		phi := func(x float64) float64 { return math.Erfc((mu-x)/sigma/math.Sqrt2) / 2 }
		whole := phi(float64(n)-0.5) - phi(-0.5)
		for i := range out {
			out[i] += weight / (total + 1) * (phi(float64(i)+0.5) - phi(float64(i)-0.5)) / whole
		}
	}
	for _, i := range at {
		add(float64(i), sigma, counts[i])
	}
	add(float64(n-1)/2, float64(n), 1)
	return out
}
