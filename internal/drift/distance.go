package drift

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/falaj-ml/falaj/internal/sketch"
)

// minShare stands for an empty bin where a logarithm would be infinite, as
// Evidently has it; of few rows, half a row does, which is more.
const minShare = 0.0001

func (t table) shares(fill bool) (ref, cur []float64) {
	n, m := t.totals()
	ref, cur = make([]float64, len(t.ref)), make([]float64, len(t.cur))
	for i := range t.ref {
		ref[i], cur[i] = t.ref[i]/n, t.cur[i]/m
		if fill {
			ref[i], cur[i] = math.Max(ref[i], math.Max(minShare, 0.5/n)), math.Max(cur[i], math.Max(minShare, 0.5/m))
		}
	}
	return ref, cur
}

// stability is the population stability index: Σ (q-p)·ln(q/p).
func stability(t table) float64 {
	p, q := t.shares(true)
	s := 0.0
	for i := range p {
		s += (q[i] - p[i]) * math.Log(q[i]/p[i])
	}
	return math.Max(0, s)
}

// kullbackLeibler is Σ p·ln(p/q) of the reference p from the window q, in nats.
func kullbackLeibler(t table) float64 {
	p, q := t.shares(true)
	s := 0.0
	for i := range p {
		s += p[i] * math.Log(p[i]/q[i])
	}
	return math.Max(0, s)
}

// jensenShannon is the Jensen–Shannon distance, the square root of the
// divergence, in base 2: in [0, 1].
func jensenShannon(t table) float64 {
	p, q := t.shares(false)
	s := 0.0
	for i := range p {
		m := (p[i] + q[i]) / 2
		if p[i] > 0 {
			s += p[i] * math.Log2(p[i]/m) / 2
		}
		if q[i] > 0 {
			s += q[i] * math.Log2(q[i]/m) / 2
		}
	}
	return math.Sqrt(clamp01(s))
}

// hellinger is √(½ Σ (√p-√q)²), in [0, 1].
func hellinger(t table) float64 {
	p, q := t.shares(false)
	s := 0.0
	for i := range p {
		d := math.Sqrt(p[i]) - math.Sqrt(q[i])
		s += d * d
	}
	return math.Sqrt(clamp01(s / 2))
}

// chebyshev, L∞, is the greatest difference of a share.
func chebyshev(t table) float64 {
	p, q := t.shares(false)
	d := 0.0
	for i := range p {
		d = math.Max(d, math.Abs(p[i]-q[i]))
	}
	return d
}

// variation, the total variation distance, is half the sum of the differences.
func variation(t table) float64 {
	p, q := t.shares(false)
	s := 0.0
	for i := range p {
		s += math.Abs(p[i] - q[i])
	}
	return s / 2
}

// luck is the chance that sampling alone takes a distance over its noise.
const luck = 0.001

// noise is what a distance of samples of n and c rows from one distribution
// stays under but for luck. All but L∞ are, near zero, multiples of the chi-square statistic
// (for PSI: Yurdakul, 2018). Where categories are rare that is too low by up to
// 2·ln 2, so it is raised by as much.
func (t table) noise(m Method, n, c float64) float64 {
	t = t.compact()
	k := float64(len(t.ref))
	if k < 2 {
		return 0
	}
	rows := 1/n + 1/c
	if m == LInfinity {
		worst := 0.0
		for i := range t.ref {
			p := (t.ref[i] + t.cur[i]) / (n + c)
			worst = math.Max(worst, math.Sqrt(p*(1-p)*rows))
		}
		return worst * distuv.UnitNormal.Quantile(1-luck/(2*k))
	}
	q := distuv.ChiSquared{K: k - 1}.Quantile(1-luck) * rows
	if (n+c)/k < 20 || min(n, c)/k < 5 {
		q *= 2 * math.Ln2
	}
	switch m {
	case PSI:
		return q
	case KL:
		return q / 2
	case JensenShannon:
		return math.Sqrt(q / 8 / math.Ln2)
	case Hellinger:
		return math.Sqrt(q / 8)
	default:
		return 0
	}
}

// wasserstein is ∫ |F-G|, in the unit of the values.
func wasserstein(a, b sketch.Weighted) float64 {
	s := 0.0
	eachStep(a, b, func(width, f, g float64) { s += width * math.Abs(f-g) })
	return s
}

// energyDistance is √(2 ∫ (F-G)²), as scipy's; in the square root of the unit.
func energyDistance(a, b sketch.Weighted) float64 {
	s := 0.0
	eachStep(a, b, func(width, f, g float64) { s += width * (f - g) * (f - g) })
	return math.Sqrt(2 * s)
}

// eachStep walks both distribution functions over the intervals between values.
func eachStep(a, b sketch.Weighted, step func(width, f, g float64)) {
	na, nb := sum(a.Weights), sum(b.Weights)
	i, j, f, g := 0, 0, 0.0, 0.0
	last := math.NaN()
	for i < len(a.Values) || j < len(b.Values) {
		v := math.Inf(1)
		if i < len(a.Values) {
			v = a.Values[i]
		}
		if j < len(b.Values) {
			v = math.Min(v, b.Values[j])
		}
		if v > last {
			step(v-last, f/na, g/nb)
		}
		for i < len(a.Values) && a.Values[i] == v {
			f += a.Weights[i]
			i++
		}
		for j < len(b.Values) && b.Values[j] == v {
			g += b.Weights[j]
			j++
		}
		last = v
	}
}

// bridgeNoise is the noise of wasserstein, or with square set of energyDistance,
// for na and nb rows: √(1/na+1/nb)·(F-G) is near a Brownian bridge B over the
// pooled distribution, so mean and variance of ∫|B| and ∫B² are known. The tail
// is not normal; the factors bound it for the worst case, one step.
func bridgeNoise(a, b sketch.Weighted, na, nb float64, square bool) float64 {
	type interval struct{ width, p float64 }
	var steps []interval
	eachStep(a, b, func(width, f, g float64) {
		p := (f*na + g*nb) / (na + nb)
		steps = append(steps, interval{width, p})
	})
	// 64 steps are enough: put neighbours together.
	const most = 64
	if len(steps) > most {
		merged := make([]interval, 0, most)
		for part := range slices.Chunk(steps, (len(steps)+most-1)/most) {
			var m interval
			for _, s := range part {
				m.width += s.width
				m.p += s.width * s.p
			}
			if m.width > 0 {
				m.p /= m.width
				merged = append(merged, m)
			}
		}
		steps = merged
	}
	mean, variance := 0.0, 0.0
	for i, s := range steps {
		vs := s.p * (1 - s.p)
		if square {
			mean += s.width * vs
		} else {
			mean += s.width * math.Sqrt(2/math.Pi*vs)
		}
		for j, u := range steps {
			vu := u.p * (1 - u.p)
			cov := math.Min(s.p, u.p) - s.p*u.p
			if vs <= 0 || vu <= 0 {
				continue
			}
			switch {
			case square:
				variance += s.width * u.width * 2 * cov * cov
			case i == j:
				variance += s.width * u.width * vs * (1 - 2/math.Pi)
			default:
				r := clamp01(cov / math.Sqrt(vs*vu))
				variance += s.width * u.width * math.Sqrt(vs*vu) * 2 / math.Pi * (math.Sqrt(1-r*r) + r*math.Asin(r) - 1)
			}
		}
	}
	rows := 1/na + 1/nb
	sd := math.Sqrt(math.Max(0, variance))
	if square {
		return math.Sqrt(2 * rows * (mean + 7*sd))
	}
	return math.Sqrt(rows) * (mean + 4.2*sd)
}
