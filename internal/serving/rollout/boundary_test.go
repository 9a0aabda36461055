package rollout

import (
	"math"
	"testing"
)

// The values of the authors' implementation (confseq, uniform_boundaries_unittest.cpp).
func TestBoundariesHaveThePublishedValues(t *testing.T) {
	const v, alpha = 100, 0.05
	threshold := math.Log(1 / alpha)
	two := normalMixture{rho: bestRho(v, alpha)}
	one := oneSidedNormalMixture{rho: bestRho(v, 2*alpha)}
	for _, test := range []struct {
		name      string
		got, want float64
	}{
		{"best rho", two.rho, 12.60056},
		{"two-sided normal mixture, martingale", two.logMartingale(10, 100), -0.6510052},
		{"two-sided normal mixture", two.bound(v, threshold), 30.35209},
		{"the same by bisection", bound(two, v, threshold), 30.35209},
		{"one-sided normal mixture", bound(one, v, threshold), 27.66071},
		{"gamma-exponential", bound(newGammaExponential(bestRho(v, 2*alpha), 2), v, threshold), 33.02017},
		{"gamma-Poisson", bound(newGammaPoisson(bestRho(v, 2*alpha), 2), v, threshold), 30.1949},
		{"beta-binomial, two-sided", bound(newBetaBinomial(v, alpha, .2, .8, false), v, threshold), 31.4308},
		{"beta-binomial, one-sided", bound(newBetaBinomial(v, alpha, .2, .8, true), v, threshold), 28.41238},
		{"poly-stitching", polyStitching(v, alpha, 10, 3, 1.4, 2), 64.48755},
		{"poly-stitching, c = −1", polyStitching(v, alpha, 10, -1, 1.4, 2), 28.99389},
		{"empirical process", empiricalProcess(1000, alpha, 100, .85), 0.08204769},
	} {
		if !(math.Abs(test.got-test.want) < 1e-5) {
			t.Errorf("%s: %.7f, published %.7f", test.name, test.got, test.want)
		}
	}
}

// drconfseq's std_conjmix_margin, √(2(tρ²+1)/(t²ρ²)·ln(√(tρ²+1)/α)), is the
// normal mixture in another parameter.
func TestAsymptoticSequenceIsTheMixture(t *testing.T) {
	for _, n := range []float64{10, 1000, 1e6} {
		for _, rho := range []float64{.01, .3, 5} {
			want := math.Sqrt(2 * (n*rho*rho + 1) / (n * n * rho * rho) * math.Log(math.Sqrt(n*rho*rho+1)/.05))
			got := normalMixture{rho: 1 / (rho * rho)}.bound(n, math.Log(20)) / n
			if math.Abs(got-want) > 1e-12*want {
				t.Errorf("t %v, rho %v: %v, want %v", n, rho, got, want)
			}
		}
	}
}

// TestPriceOfExactness is why Decide uses the asymptotic sequence: of losses in
// [0, 1] the exact one (Theorem 4, one gamma-exponential mixture for each version
// and side) needs so many more labels to be as narrow as the margin.
func TestPriceOfExactness(t *testing.T) {
	const deviation, share, margin, alpha = 0.2, 0.2, 0.01, 0.05
	labels := func(width func(n float64) float64) float64 {
		low, high := 1e2, 1e7
		for high/low > 1.0001 {
			if mid := math.Sqrt(low * high); width(mid) > margin {
				low = mid
			} else {
				high = mid
			}
		}
		return high
	}
	asymptotic := labels(func(n float64) float64 {
		of := func(n float64) Moments { return Moments{N: int64(n), M2: n * deviation * deviation} }
		return compare(Observations{Candidate: Arm{Loss: of(n * share)}, Stable: Arm{Loss: of(n * (1 - share))}}, Brier, mixtureFor(margin, alpha)).halfWidth(alpha)
	})
	exact := labels(func(n float64) float64 {
		side := func(n float64) float64 {
			v := n * deviation * deviation
			return bound(newGammaExponential(bestRho(v, alpha/2), 1), v, math.Log(4/alpha)) / n
		}
		return side(n*share) + side(n*(1-share))
	})
	t.Logf("labels until the interval is as narrow as the margin: %.0f asymptotic, %.0f exact (%.2f times)", asymptotic, exact, exact/asymptotic)
	if exact < 1.5*asymptotic {
		t.Error("the exact sequence decides about as quickly: use it")
	}
}
