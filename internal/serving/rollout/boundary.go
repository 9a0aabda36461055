package rollout

import (
	"math"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat/distuv"
)

// A mixture is a test martingale of a centred sum: at sum s and intrinsic time v
// its logarithm is logMartingale, and the probability that it ever reaches 1/α is
// at most α. The formulas are those of Howard, Ramdas, McAuliffe and Sekhon,
// "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of
// Statistics 49(2), 2021, §3; the tests have the reference values of its authors'
// implementation.
type mixture interface {
	logMartingale(s, v float64) float64
}

// bound is the sum at which the mixture's martingale reaches exp(threshold), by
// bisection: it rises with the sum.
func bound(m mixture, v, threshold float64) float64 {
	low, high := 0.0, math.Sqrt(v)+1
	for range 1100 { // 2¹⁰²⁴ is the end of floating point
		if l := m.logMartingale(high, v); l >= threshold || math.IsInf(high, 0) {
			break
		}
		low, high = high, 2*high
	}
	for range 200 {
		mid := low + (high-low)/2
		if mid <= low || mid >= high {
			break
		}
		if m.logMartingale(mid, v) < threshold {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// normalMixture is the two-sided normal mixture for sums that are sub-Gaussian
// at intrinsic time v (Proposition 5): |S| stays below bound at all times.
type normalMixture struct{ rho float64 }

// bestRho is the ρ whose two-sided boundary is lowest at v.
func bestRho(v, alpha float64) float64 {
	l := 2 * math.Log(1/alpha)
	return v / (l + math.Log1p(l))
}

// logMartingale is ½ ln(ρ/(v+ρ)) + s²/(2(v+ρ)).
func (m normalMixture) logMartingale(s, v float64) float64 {
	return 0.5*math.Log(m.rho/(v+m.rho)) + s*s/(2*(v+m.rho))
}

// bound where the martingale is exp(threshold): √((v+ρ)(ln(1+v/ρ) + 2·threshold)).
func (m normalMixture) bound(v, threshold float64) float64 {
	return math.Sqrt((v + m.rho) * (math.Log1p(v/m.rho) + 2*threshold))
}

// oneSidedNormalMixture mixes over positive means only (Proposition 6): S stays
// below bound at all times. Its best ρ is bestRho(v, 2α).
type oneSidedNormalMixture struct{ rho float64 }

// logMartingale is ½ ln(4ρ/(v+ρ)) + s²/(2(v+ρ)) + ln Φ(s/√(v+ρ)).
func (m oneSidedNormalMixture) logMartingale(s, v float64) float64 {
	return 0.5*math.Log(4*m.rho/(v+m.rho)) + s*s/(2*(v+m.rho)) + math.Log(distuv.UnitNormal.CDF(s/math.Sqrt(v+m.rho)))
}

// gammaExponentialMixture is for sub-exponential sums of scale c (Proposition
// 9): in particular for bounded ones with an empirical variance (Theorem 4).
type gammaExponentialMixture struct{ rho, c, constant float64 }

func newGammaExponential(rho, c float64) gammaExponentialMixture {
	k := rho / (c * c)
	lg, _ := math.Lgamma(k)
	return gammaExponentialMixture{rho, c, k*math.Log(k) - lg - math.Log(mathext.GammaIncReg(k, k))}
}

func (m gammaExponentialMixture) logMartingale(s, v float64) float64 {
	c2 := m.c * m.c
	a, b := (v+m.rho)/c2, s/m.c+(v+m.rho)/c2
	lg, _ := math.Lgamma(a)
	return m.constant + lg + math.Log(mathext.GammaIncReg(a, b)) - a*math.Log(b) + s/m.c + v/c2
}

// gammaPoissonMixture is for sub-Poisson sums of scale c (Proposition 10).
type gammaPoissonMixture struct{ rho, c, constant float64 }

func newGammaPoisson(rho, c float64) gammaPoissonMixture {
	k := rho / (c * c)
	lg, _ := math.Lgamma(k)
	return gammaPoissonMixture{rho, c, k*math.Log(k) - lg - math.Log(mathext.GammaIncRegComp(k, k))}
}

func (m gammaPoissonMixture) logMartingale(s, v float64) float64 {
	c2 := m.c * m.c
	b := (v + m.rho) / c2
	a := s/m.c + b
	lg, _ := math.Lgamma(a)
	return m.constant + lg + math.Log(mathext.GammaIncRegComp(a, b)) - a*math.Log(b) + v/c2
}

// betaBinomialMixture is for sub-Bernoulli sums whose steps are −g or h
// (Propositions 7 and 8). v is g·h times the number of steps.
type betaBinomialMixture struct {
	r, g, h, constant float64
	oneSided          bool
}

func newBetaBinomial(v, alpha, g, h float64, oneSided bool) betaBinomialMixture {
	rho := bestRho(v, alpha)
	if oneSided {
		rho = bestRho(v, 2*alpha)
	}
	m := betaBinomialMixture{r: max(rho-g*h, 1e-3*g*h), g: g, h: h, oneSided: oneSided}
	m.constant = m.logBeta(m.r/(g*(g+h)), m.r/(h*(g+h)))
	return m
}

// logBeta is of the failures' share: the one-sided prior has no failures above
// h/(g+h).
func (m betaBinomialMixture) logBeta(a, b float64) float64 {
	if !m.oneSided {
		return logBeta(a, b)
	}
	return logBeta(a, b) + math.Log(mathext.RegIncBeta(a, b, m.h/(m.g+m.h)))
}

func (m betaBinomialMixture) logMartingale(s, v float64) float64 {
	g, h := m.g, m.h
	if v <= g*s {
		return math.Inf(1) // more than can be: the largest sum, each step h, is v/g
	}
	up, down := (v+h*s)/(h*(g+h)), (v-g*s)/(g*(g+h))
	return v/(g*h)*math.Log(g+h) - up*math.Log(g) - down*math.Log(h) +
		m.logBeta(m.r/(g*(g+h))+down, m.r/(h*(g+h))+up) - m.constant
}

// polyStitching is the stitched boundary of Theorem 1 for sub-gamma sums of
// scale c from intrinsic time vMin on; s and eta shape it.
func polyStitching(v, alpha, vMin, c, s, eta float64) float64 {
	v = max(v, vMin)
	l := s*math.Log(math.Log(eta*v/vMin)) + math.Log(mathext.Zeta(s, 1)/(alpha*math.Pow(math.Log(eta), s)))
	k1 := (math.Pow(eta, 0.25) + math.Pow(eta, -0.25)) / math.Sqrt2
	k2 := (math.Sqrt(eta) + 1) / 2
	return math.Sqrt(k1*k1*v*l+k2*k2*c*c*l*l) + k2*c*l
}

// empiricalProcess bounds the largest distance between the empirical and the
// true distribution function at all times t ≥ tMin at once, A√((ln(1+ln(t/tMin))
// + C)/t) (Howard and Ramdas, "Sequential estimation of quantiles", Bernoulli
// 28(3), 2022, Theorem 2). Below tMin it is +Inf.
func empiricalProcess(t, alpha, tMin, a float64) float64 {
	if t < tMin {
		return math.Inf(1)
	}
	low, high := 0.0, 1e4
	for range 100 {
		if mid := (low + high) / 2; empiricalProcessError(a, mid) > alpha {
			low = mid
		} else {
			high = mid
		}
	}
	return a * math.Sqrt((math.Log1p(math.Log(t/tMin))+high)/t)
}

// empiricalProcessError is the smallest bound on the error that the theorem
// gives, over its free parameter η between 1 and 2A².
func empiricalProcessError(a, c float64) float64 {
	log := func(eta float64) float64 {
		root := a - math.Sqrt(2*(eta-1)/c)
		gamma2 := 2 / eta * root * root
		if root <= 0 || gamma2 <= 1 {
			return math.Inf(1)
		}
		return math.Log(4) - gamma2*c + math.Log1p(1/((gamma2-1)*math.Log(eta)))
	}
	// A grid first: where γ² ≤ 1 the function is infinite, which golden section
	// could not tell from rising.
	best, step := math.Inf(1), (2*a*a-1)/400
	at := 1.0
	for i := 1; i < 400; i++ {
		if eta := 1 + float64(i)*step; log(eta) < best {
			best, at = log(eta), eta
		}
	}
	low, high := max(at-step, 1+1e-9), at+step
	for range 100 {
		x, y := low+(high-low)/3, high-(high-low)/3
		if log(x) < log(y) {
			high = y
		} else {
			low = x
		}
	}
	return math.Exp(min(best, log(low), log((low+high)/2)))
}
