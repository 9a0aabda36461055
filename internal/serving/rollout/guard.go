package rollout

import "math"

// Budgets of the tests that run beside the comparison of losses. Each is the
// probability that the test ever ends a trial of a version like the stable one.
const (
	guardAlpha = 0.01
	srmAlpha   = 0.001
	// srmPrior is how many assignments the split's prior counts for: it is that
	// of the two-armed Dirichlet mixture around the meant split, so that small
	// deviations are found soon.
	srmPrior = 100
)

// logMixture is the likelihood of x successes in n trials in one order, averaged
// over the success probability by a Beta(a, b) prior. Divided by the likelihood
// at the true probability it is a martingale that starts at 1, whatever decides
// when the next trial comes; by Ville's inequality it ever exceeds 1/α with a
// probability of at most α. No approximation.
func logMixture(x, n int64, a, b float64) float64 {
	return logBeta(a+float64(x), b+float64(n-x)) - logBeta(a, b)
}

// logLikelihood of x successes in n trials in one order.
func logLikelihood(x, n int64, p float64) float64 {
	l := 0.0
	if x > 0 {
		l += float64(x) * math.Log(p)
	}
	if n > x {
		l += float64(n-x) * math.Log1p(-p)
	}
	return l
}

// above is the p-value, valid at all times at once, of "the probability of
// success is at most limit".
func above(x, n int64, limit float64) float64 {
	if n == 0 || float64(x)/float64(n) <= limit || limit >= 1 {
		return 1
	}
	return pValue(logMixture(x, n, 0.5, 0.5) - logLikelihood(x, n, limit))
}

// apart is the p-value, valid at all times at once, of "the candidate's
// probability is at most the stable one's plus allowance". The product of both
// martingales is one at the true pair; the smallest over all pairs that the
// hypothesis permits is below it. The likelihood is concave, so its largest value
// lies on the edge of the hypothesis when the observed pair is outside of it.
func apart(x, n, stableX, stableN int64, allowance float64) float64 {
	if n == 0 || stableN == 0 || allowance >= 1 || float64(x)/float64(n) <= float64(stableX)/float64(stableN)+allowance {
		return 1
	}
	likelihood := func(p float64) float64 {
		return logLikelihood(x, n, p+allowance) + logLikelihood(stableX, stableN, p)
	}
	best := largest(likelihood, 0, 1-allowance)
	return pValue(logMixture(x, n, 0.5, 0.5) + logMixture(stableX, stableN, 0.5, 0.5) - best)
}

// largest value of a concave function between low and high, by golden section:
// the ends, where a likelihood may be −∞, are never asked.
func largest(f func(float64) float64, low, high float64) float64 {
	const golden = 0.6180339887498949
	a, b := high-golden*(high-low), low+golden*(high-low)
	atA, atB := f(a), f(b)
	for range 60 {
		if atA < atB {
			low, a, atA = a, b, atB
			b = low + golden*(high-low)
			atB = f(b)
		} else {
			high, b, atB = b, a, atA
			a = high - golden*(high-low)
			atA = f(a)
		}
	}
	return max(atA, atB)
}

// sampleRatio is the p-value, valid at all times at once, of "assignments go to
// the candidate with probability share" (Lindon and Malek, Anytime-Valid
// Inference for Multinomial Count Data, NeurIPS 2022, for two arms).
func sampleRatio(candidate, stable int64, share float64) float64 {
	if candidate+stable == 0 || !(share > 0 && share < 1) {
		return 1
	}
	n := candidate + stable
	return pValue(logMixture(candidate, n, srmPrior*share, srmPrior*(1-share)) - logLikelihood(candidate, n, share))
}

// labelSlack is by which factor the odds of a label being of the candidate may
// differ from those of an assignment: versions do not fail equally often.
const labelSlack = 1.1

// labelRatio is the p-value of "labels are of the candidate as often as
// assignments are, within labelSlack".
func labelRatio(candidate, stable int64, share float64) float64 {
	n := candidate + stable
	if n == 0 || !(share > 0 && share < 1) {
		return 1
	}
	odds := share / (1 - share)
	low, high := odds/labelSlack/(1+odds/labelSlack), odds*labelSlack/(1+odds*labelSlack)
	nearest := min(max(float64(candidate)/float64(n), low), high) // where the likelihood is largest
	return pValue(logMixture(candidate, n, srmPrior*share, srmPrior*(1-share)) - logLikelihood(candidate, n, nearest))
}

func logBeta(a, b float64) float64 {
	x, _ := math.Lgamma(a)
	y, _ := math.Lgamma(b)
	z, _ := math.Lgamma(a + b)
	return x + y - z
}
