package drift

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat/distuv"
)

// The tests of two samples of numbers. Each takes samples that are sorted, finite
// and not empty, and returns a p-value in [0, 1]; ok is false, with the reason,
// when the samples do not allow the test.

// ksStatistic is the greatest distance of the two distribution functions.
func ksStatistic(a, b []float64) float64 {
	d, i, j := 0.0, 0, 0
	for i < len(a) && j < len(b) {
		v := math.Min(a[i], b[j])
		for i < len(a) && a[i] == v {
			i++
		}
		for j < len(b) && b[j] == v {
			j++
		}
		d = math.Max(d, math.Abs(float64(i)/float64(len(a))-float64(j)/float64(len(b))))
	}
	return d
}

// exactCells is the most n·m for which the Kolmogorov–Smirnov p-value is exact.
const exactCells = 1_000_000

func ks(a, b []float64, exact bool) (d, p float64) {
	d = ksStatistic(a, b)
	if d == 0 {
		return 0, 1
	}
	n, m := float64(len(a)), float64(len(b))
	if exact {
		return d, ksExactSF(d, len(a), len(b))
	}
	return d, kolmogorovSF(d, int(math.RoundToEven(n*m/(n+m))))
}

// eachValue visits the different values of two samples, the smallest first, as
// the places a[i0:i] and b[j0:j] that have it.
func eachValue(a, b []float64, visit func(i0, i, j0, j int)) {
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		v := math.Inf(1)
		if i < len(a) {
			v = a[i]
		}
		if j < len(b) {
			v = math.Min(v, b[j])
		}
		i0, j0 := i, j
		for i < len(a) && a[i] == v {
			i++
		}
		for j < len(b) && b[j] == v {
			j++
		}
		visit(i0, i, j0, j)
	}
}

// pooledRanks are the average ranks (from 1) of a's and b's values among all,
// and the sum of t³-t over groups of t equal values.
func pooledRanks(a, b []float64) (ra, rb []float64, ties float64) {
	ra, rb = make([]float64, len(a)), make([]float64, len(b))
	eachValue(a, b, func(i0, i, j0, j int) {
		t := float64(i - i0 + j - j0)
		rank := float64(i0+j0) + (t+1)/2
		for x := i0; x < i; x++ {
			ra[x] = rank
		}
		for x := j0; x < j; x++ {
			rb[x] = rank
		}
		ties += t*t*t - t
	})
	return ra, rb, ties
}

// exactCramer is up to how many values in a sample Cramér–von Mises is exact.
const exactCramer = 20

// cramerVonMises is the two-sample statistic T (Anderson, 1962). The p-value is
// exact up to 20 values in each sample (Xiao, Gordon, Yakovlev, 2007), else by
// the limit, normalised by the moments of T; with equal values, for which neither
// holds, by permutations.
func cramerVonMises(a, b []float64, seed uint64) (t, p float64, variant string) {
	ra, rb, ties := pooledRanks(a, b)
	if ties > 0 {
		g, first := group(a, b)
		t = g.cramer(first)
		return t, g.p(seed, t, g.cramer), permuted
	}
	n, m := float64(len(a)), float64(len(b))
	sa, sb := 0.0, 0.0
	for i, r := range ra {
		sa += (r - float64(i+1)) * (r - float64(i+1))
	}
	for i, r := range rb {
		sb += (r - float64(i+1)) * (r - float64(i+1))
	}
	u := n*sa + m*sb
	k, total := n*m, n+m
	t = u/(k*total) - (4*k-1)/(6*total)
	if max(len(a), len(b)) <= exactCramer {
		return t, cramerExactSF(u, len(a), len(b)), exactly
	}
	mean := (1 + 1/total) / 6
	variance := (total + 1) * (4*k*total - 3*(n*n+m*m) - 2*k) / (45 * total * total * 4 * k)
	x := 1.0/6 + (t-mean)/math.Sqrt(45*variance)
	if x < 0.003 {
		return t, 1, asymptotic
	}
	return t, clamp01(1 - cramerLimitCDF(x)), asymptotic
}

// cramerExactSF counts, over all orders of the pooled values, how often the
// statistic is at least u.
func cramerExactSF(u float64, n, m int) float64 {
	lcm := int64(n / gcd(n, m) * m)
	a, b := lcm/int64(n), lcm/int64(m)
	fn, fm, fl := float64(n), float64(m), float64(lcm)
	mn := fn * fm
	zeta := math.Floor(fl*fl*(fn+fm)*(6*u-mn*(4*mn-1))/(6*mn*mn) + 1e-9)
	frequencies := make([]map[int64]float64, n+1)
	frequencies[0] = map[int64]float64{0: 1}
	for j := range int64(m + 1) {
		var left map[int64]float64
		for i := range int64(n + 1) {
			here := map[int64]float64{}
			d := a*i - b*j
			for v, f := range frequencies[i] {
				here[v+d*d] += f
			}
			for v, f := range left {
				here[v+d*d] += f
			}
			frequencies[i], left = here, here
		}
	}
	above := 0.0
	for v, f := range frequencies[n] {
		if float64(v) >= zeta {
			above += f
		}
	}
	return clamp01(above / math.Exp(logChoose(fn+fm, fn)))
}

// cramerLimitCDF is the limit law (Csörgő, Faraway, 1996, formula 1.3).
func cramerLimitCDF(x float64) float64 {
	sum := 0.0
	for k := 0.0; k < 200; k++ {
		gk, _ := math.Lgamma(k + 0.5)
		g1, _ := math.Lgamma(k + 1)
		y := 4*k + 1
		q := y * y / (16 * x)
		term := math.Exp(gk-g1) / (math.Pow(math.Pi, 1.5) * math.Sqrt(x)) * math.Sqrt(y) * besselK(0.25, q)
		sum += term
		if term < 1e-9 {
			break
		}
	}
	return clamp01(sum)
}

// besselK is exp(-x)·K_ν(x), by the trapezoidal rule on ∫ exp(-x(1+cosh t))·cosh(νt) dt,
// which converges as fast as its terms fall.
func besselK(nu, x float64) float64 {
	const step = 1.0 / 64
	sum := math.Exp(-2*x) / 2
	for t := step; t < 40; t += step {
		term := math.Exp(-x*(1+math.Cosh(t))) * math.Cosh(nu*t)
		sum += term
		if term < 1e-18*sum || term == 0 {
			break
		}
	}
	return sum * step
}

// andersonDarling is the k-sample statistic for k = 2 with mid-ranks, normalised
// (Scholz, Stephens, 1987). The p-value is interpolated in their table and lies
// in [0.001, 0.25]: it says no more than that outside. With equal values it is by
// permutations.
func andersonDarling(a, b []float64, seed uint64) (stat, p float64, variant, why string) {
	total := len(a) + len(b)
	if total < 4 {
		return 0, 1, "", "it requires four rows in total"
	}
	n, na, nb := float64(total), float64(len(a)), float64(len(b))
	g, first := group(a, b)
	raw := g.anderson(first)
	big := 1/na + 1/nb
	h, hs := 0.0, 0.0
	for x := total - 1; x > 1; x-- {
		h += 1 / float64(x)
		hs += h / float64(total-x+1)
	}
	h++
	const k = 2.0
	ca := (4*hs-6)*(k-1) + (10-6*hs)*big
	cb := (2*hs-4)*k*k + 8*h*k + (2*hs-14*h-4)*big - 8*h + 4*hs - 6
	cc := (6*h+2*hs-2)*k*k + (4*h-4*hs+6)*k + (2*h-6)*big + 4*h
	cd := (2*h+6)*k*k - 4*h*k
	variance := (ca*n*n*n + cb*n*n + cc*n + cd) / ((n - 1) * (n - 2) * (n - 3))
	if !(variance > 0) {
		return 0, 1, "", "its variance is undefined for this number of rows"
	}
	stat = (raw - (k - 1)) / math.Sqrt(variance)
	if len(g.size) < total {
		return stat, g.p(seed, raw, g.anderson), permuted, ""
	}
	return stat, andersonP(stat), asymptotic, ""
}

// andersonP fits a parabola through (critical value, log of the level) of the
// table for k-1 = 1.
func andersonP(stat float64) float64 {
	critical := []float64{
		0.675 - 0.245 - 0.105, 1.281 + 0.25 - 0.305, 1.645 + 0.678 - 0.362, 1.96 + 1.149 - 0.391,
		2.326 + 1.822 - 0.396, 2.573 + 2.364 - 0.345, 3.085 + 3.615 - 0.154,
	}
	level := []float64{0.25, 0.1, 0.05, 0.025, 0.01, 0.005, 0.001}
	if stat < critical[0] {
		return 0.25
	}
	if stat > critical[len(critical)-1] {
		return 0.001
	}
	x := mat.NewDense(len(critical), 3, nil)
	y := mat.NewVecDense(len(critical), nil)
	for i, c := range critical {
		x.SetRow(i, []float64{c * c, c, 1})
		y.SetVec(i, math.Log(level[i]))
	}
	var fit mat.VecDense
	if err := fit.SolveVec(x, y); err != nil { // the table is what it is
		return level[0]
	}
	return clamp01(math.Exp(fit.AtVec(0)*stat*stat + fit.AtVec(1)*stat + fit.AtVec(2)))
}

// mannWhitney is U of the first sample, with the two-sided p-value of the normal
// approximation, corrected for ties and for continuity.
func mannWhitney(a, b []float64) (u, p float64) {
	ra, _, ties := pooledRanks(a, b)
	n, m := float64(len(a)), float64(len(b))
	sum := 0.0
	for _, r := range ra {
		sum += r
	}
	u = sum - n*(n+1)/2
	total := n + m
	sd := math.Sqrt(n * m / 12 * (total + 1 - ties/(total*(total-1))))
	if !(sd > 0) {
		return u, 1
	}
	z := (math.Max(u, n*m-u) - n*m/2 - 0.5) / sd
	return u, clamp01(2 * normalSF(z))
}

// moments are what the t-test needs of a sample.
type moments struct{ n, mean, m2 float64 }

// student is the t-test with the pooled variance, two-sided.
func student(a, b moments) (t, p float64, why string) {
	df := a.n + b.n - 2
	if df < 1 || a.n < 2 || b.n < 2 {
		return 0, 1, "it requires two rows on each side"
	}
	se := math.Sqrt((a.m2 + b.m2) / df * (1/a.n + 1/b.n))
	if se == 0 {
		if a.mean == b.mean {
			return 0, 1, ""
		}
		return math.Copysign(math.MaxFloat64, a.mean-b.mean), 0, ""
	}
	t = (a.mean - b.mean) / se
	return t, clamp01(2 * distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df}.Survival(math.Abs(t))), ""
}

// eppsSingleton compares the empirical characteristic functions at 0.4 and 0.8
// half interquartile ranges (Epps, Singleton, 1986). It sees other things than
// tests by distribution functions, and works on discrete data. The chi-square law
// rejects too often when one side is much larger (10 % at α = 0.05 with 1,000 and
// 200 rows), so then the p-value is by permutations.
func eppsSingleton(a, b []float64, seed uint64) (w, p float64, variant, why string) {
	if min(len(a), len(b)) < 5 {
		return 0, 1, "", "it requires five rows on each side"
	}
	pooled := append(slices.Clone(a), b...)
	slices.Sort(pooled)
	sigma := (percentile(pooled, 0.75) - percentile(pooled, 0.25)) / 2
	if sigma == 0 {
		return 0, 1, "", "the middle half of all values is one value"
	}
	na, nb := float64(len(a)), float64(len(b))
	n := na + nb
	ga, ca := waves(a, sigma)
	gb, cb := waves(b, sigma)
	cov := mat.NewSymDense(4, nil)
	diff := mat.NewVecDense(4, nil)
	for i := range 4 {
		diff.SetVec(i, ga[i]-gb[i])
		for j := i; j < 4; j++ {
			cov.SetSym(i, j, n/na*ca[i][j]+n/nb*cb[i][j])
		}
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(cov, true) {
		return 0, 1, "", "its covariance has no decomposition"
	}
	values := eigen.Values(nil)
	var vectors mat.Dense
	eigen.VectorsTo(&vectors)
	largest, rank := 0.0, 0.0
	for _, v := range values {
		largest = math.Max(largest, math.Abs(v))
	}
	for k, v := range values {
		if math.Abs(v) <= 1e-12*largest || v <= 0 {
			continue
		}
		rank++
		dot := mat.Dot(vectors.ColView(k), diff)
		w += n * dot * dot / v
	}
	if rank == 0 {
		return 0, 1, "", "its covariance is zero"
	}
	if 2*max(len(a), len(b)) > 3*min(len(a), len(b)) {
		if len(a) > len(b) {
			a, b = b, a
		}
		return w, eppsP(append(wave(a, sigma), wave(b, sigma)...), len(a), seed, w), permuted, ""
	}
	if max(len(a), len(b)) < 25 {
		w /= 1 + math.Pow(n, -0.45) + 10.1*(math.Pow(na, -1.7)+math.Pow(nb, -1.7))
	}
	return w, chiSquareSF(w, rank), asymptotic, ""
}

// wave is cos and sin of the scaled values, at both points.
func wave(s []float64, sigma float64) [][4]float64 {
	rows := make([][4]float64, len(s))
	for i, v := range s {
		x, y := 0.4*v/sigma, 0.8*v/sigma
		rows[i] = [4]float64{math.Cos(x), math.Cos(y), math.Sin(x), math.Sin(y)}
	}
	return rows
}

// waves are their means and covariance.
func waves(s []float64, sigma float64) (mean [4]float64, cov [4][4]float64) {
	rows := wave(s, sigma)
	for _, r := range rows {
		for k := range 4 {
			mean[k] += r[k] / float64(len(s))
		}
	}
	for _, r := range rows {
		for i := range 4 {
			for j := range 4 {
				cov[i][j] += (r[i] - mean[i]) * (r[j] - mean[j]) / float64(len(s))
			}
		}
	}
	return mean, cov
}

// percentile interpolates linearly, as numpy does.
func percentile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

func normalSF(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

func chiSquareSF(x, df float64) float64 {
	if df <= 0 || x <= 0 {
		return 1
	}
	return clamp01(distuv.ChiSquared{K: df}.Survival(x))
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
