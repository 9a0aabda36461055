package rollout

import "math"

// comparison is what the losses say about the difference of the two means,
// candidate minus stable. The zero value says nothing.
type comparison struct {
	ok          bool
	difference  float64
	information float64 // 1/variance of the difference
	rho         float64 // of the mixture
}

// compare looks at the difference of means on the scale of information,
//
//	I = 1/(σ²_c/n_c + σ²_s/n_s),  S = I·(mean_c − mean_s − D).
//
// Whatever the order and the share in which the two streams come, as long as it
// does not depend on what they cost, Cov(S_j, S_k) = min(I_j, I_k): S is Brownian
// motion observed at times I (Jennison and Turnbull, Group Sequential Methods,
// 1999, §11.3), so the normal mixture is a martingale in it. This is the
// two-sample mixture SPRT of Johari, Pekelis and Walsh (Operations Research
// 70(3), 2022) for any split. Exact for normal losses of known variance; with
// estimated variances of other losses it is the asymptotic confidence sequence
// of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (Annals of Statistics
// 52(6), 2024), whose error goes to alpha as the first look comes later: that is
// what MinLabels is for. The tests measure it: 10,000 trials of a version against
// itself, one look after each label.
//
// An exact sequence exists for losses in [0, 1] (boundary.go); it needs 2.3 times
// as many labels (TestPriceOfExactness), so this one decides for all metrics.
//
// Of skewed losses a small arm's mean and variance err together: too low a mean
// comes with too low a variance, and claims too much. So neither arm is taken to
// vary less than both together, which is exact when they are alike and on the
// safe side otherwise.
//
// The mixture is tuned to the information at which the interval is as wide as
// the margin to each side; that is known beforehand, so it costs no validity.
func compare(o Observations, metric Metric, rho float64) comparison {
	c, b := o.Candidate.Loss, o.Stable.Loss
	if c.N < 2 || b.N < 2 {
		return comparison{}
	}
	vc, vb := regularised(o.Candidate, metric), regularised(o.Stable, metric)
	pooled := (vc*float64(c.N) + vb*float64(b.N)) / float64(c.N+b.N)
	variance := max(vc, pooled)/float64(c.N) + max(vb, pooled)/float64(b.N)
	if !(variance > 0) || math.IsInf(variance, 0) {
		return comparison{}
	}
	information := 1 / variance
	if math.IsInf(information, 0) {
		return comparison{}
	}
	return comparison{ok: true, difference: c.Mean - b.Mean, information: information, rho: rho}
}

// regularised is a variance to which a bounded metric adds one imagined
// observation at each end of [0, 1], of as many requests as a group has: a stream
// that has not erred yet would otherwise claim to be certain.
func regularised(a Arm, metric Metric) float64 {
	m := a.Loss
	if metric != Brier && metric != Error {
		return m.Variance()
	}
	size := 1.0
	if a.Groups > 0 {
		size = float64(m.N) / float64(a.Groups)
	}
	return (m.M2 + 0.25*size*size) / float64(m.N)
}

// mixtureFor is the ρ whose interval is narrowest when its half-width is margin.
// With L = 2 ln(1/α), the best ρ at information I is I/k for k = L + ln(1+L), and
// the half-width there is √((1+1/k)(ln(1+k)+L)/I).
func mixtureFor(margin, alpha float64) float64 {
	l := 2 * math.Log(1/alpha)
	k := l + math.Log1p(l)
	information := (1 + 1/k) * (math.Log1p(k) + l) / (margin * margin)
	return information / k
}

// halfWidth of the interval at 1 − alpha.
func (c comparison) halfWidth(alpha float64) float64 {
	m := normalMixture{rho: c.rho}
	return m.bound(c.information, math.Log(1/alpha)) / c.information
}

// p is the always-valid p-value of "the difference is at or above d".
func (c comparison) p(d float64) float64 {
	if !c.ok || c.difference >= d {
		return 1
	}
	m := normalMixture{rho: c.rho}
	return pValue(m.logMartingale(c.information*(c.difference-d), c.information))
}

// pValue is the p-value of a test martingale (Ville's inequality).
func pValue(logMartingale float64) float64 { return math.Exp(-max(0, logMartingale)) }
