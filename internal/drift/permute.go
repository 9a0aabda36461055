package drift

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

// Where the law of a statistic is only known for values that all differ, or for
// two samples of like size, its p-value comes from random divisions of the
// pooled rows: valid for every sample.

// permutationP is the share of divisions whose statistic is at least observed.
// stat gets the rows of the smaller side; they are different on each call.
func permutationP(total, small int, seed uint64, observed float64, stat func(rows []int) float64) float64 {
	rng := rand.New(rand.NewPCG(seed, 0x7065726d)) //nolint:gosec // Repeatable, not secret.
	rows := make([]int, total)
	for i := range rows {
		rows[i] = i
	}
	least := observed - 1e-9*math.Abs(observed)
	above := 1
	for range permutations {
		for i := range small {
			j := i + rng.IntN(total-i)
			rows[i], rows[j] = rows[j], rows[i]
		}
		if stat(rows[:small]) >= least {
			above++
		}
	}
	return float64(above) / (permutations + 1)
}

// groups are the pooled values with equal ones together.
type groups struct {
	of    []int     // of each pooled row, in order of value
	size  []float64 // rows in each
	small []float64 // of those, rows of the smaller side; scratch
	n, m  float64   // rows of the smaller and of the other side
}

// group pools two sorted samples. first are the groups' counts of the smaller one.
func group(a, b []float64) (g groups, first []float64) {
	if len(a) > len(b) {
		a, b = b, a
	}
	g = groups{n: float64(len(a)), m: float64(len(b))}
	eachValue(a, b, func(i0, i, j0, j int) {
		for range i - i0 + j - j0 {
			g.of = append(g.of, len(g.size))
		}
		g.size = append(g.size, float64(i-i0+j-j0))
		first = append(first, float64(i-i0))
	})
	g.small = make([]float64, len(g.size))
	return g, first
}

// p is the permutation p-value of a statistic of the groups' counts.
func (g groups) p(seed uint64, observed float64, stat func(small []float64) float64) float64 {
	return permutationP(len(g.of), int(g.n), seed, observed, func(rows []int) float64 {
		clear(g.small)
		for _, r := range rows {
			g.small[g.of[r]]++
		}
		return stat(g.small)
	})
}

// cramer is T: n·m/(n+m)² times the squared differences of the distribution
// functions over all rows.
func (g groups) cramer(small []float64) float64 {
	f, all, t := 0.0, 0.0, 0.0
	for i, size := range g.size {
		f += small[i]
		all += size
		d := f/g.n - (all-f)/g.m
		t += size * d * d
	}
	return t * g.n * g.m / ((g.n + g.m) * (g.n + g.m))
}

// anderson is the k-sample statistic with mid-ranks, not normalised.
func (g groups) anderson(small []float64) float64 {
	total := g.n + g.m
	f, before, s := 0.0, 0.0, 0.0
	for i, size := range g.size {
		mid := before + size/2
		weight := mid*(total-mid) - total*size/4
		if weight > 0 {
			d := total*(f+small[i]/2) - mid*g.n
			// The other side's difference is the same with the other sign.
			s += size / total * d * d / weight * (1/g.n + 1/g.m)
		}
		f += small[i]
		before += size
	}
	return (total - 1) / total * s
}

// eppsP is the permutation p-value of Epps–Singleton from the waves of all rows.
func eppsP(pooled [][4]float64, small int, seed uint64, observed float64) float64 {
	total := len(pooled)
	n, m := float64(small), float64(total-small)
	all := momentsOfWaves(pooled, nil)
	cov := mat.NewSymDense(4, nil)
	diff, solved := mat.NewVecDense(4, nil), mat.NewVecDense(4, nil)
	var chol mat.Cholesky
	// The statistic here is the one with the inverse of the whole matrix; where it
	// has none, the observed one is not further away.
	return permutationP(total, small, seed, observed, func(rows []int) float64 {
		a := momentsOfWaves(pooled, rows)
		for i := range 4 {
			ai, bi := a.sum[i]/n, (all.sum[i]-a.sum[i])/m
			diff.SetVec(i, ai-bi)
			for j := i; j < 4; j++ {
				aj, bj := a.sum[j]/n, (all.sum[j]-a.sum[j])/m
				ca, cb := a.square[i][j]/n-ai*aj, (all.square[i][j]-a.square[i][j])/m-bi*bj
				cov.SetSym(i, j, (n+m)/n*ca+(n+m)/m*cb)
			}
		}
		if !chol.Factorize(cov) || chol.SolveVecTo(solved, diff) != nil {
			return math.Inf(1)
		}
		return (n + m) * mat.Dot(diff, solved)
	})
}

type waveMoments struct {
	sum    [4]float64
	square [4][4]float64
}

// momentsOfWaves sums the given rows; nil are all.
func momentsOfWaves(pooled [][4]float64, rows []int) waveMoments {
	var w waveMoments
	add := func(r *[4]float64) {
		for i := range 4 {
			w.sum[i] += r[i]
			for j := i; j < 4; j++ {
				w.square[i][j] += r[i] * r[j]
			}
		}
	}
	if rows == nil {
		for i := range pooled {
			add(&pooled[i])
		}
		return w
	}
	for _, i := range rows {
		add(&pooled[i])
	}
	return w
}
