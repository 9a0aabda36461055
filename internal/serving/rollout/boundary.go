package rollout

import "math"

// normalMixture is the two-sided normal mixture for sums whose intrinsic time is
// v (Howard et al., Proposition 5): S stays within ±bound at all times.
type normalMixture struct{ rho float64 }

// logMartingale of a sum s at intrinsic time v:
// ½ ln(ρ/(v+ρ)) + s²/(2(v+ρ)).
func (m normalMixture) logMartingale(s, v float64) float64 {
	return 0.5*math.Log(m.rho/(v+m.rho)) + s*s/(2*(v+m.rho))
}

// bound at intrinsic time v where the martingale is exp(threshold):
// √((v+ρ)(ln(1+v/ρ) + 2·threshold)).
func (m normalMixture) bound(v, threshold float64) float64 {
	return math.Sqrt((v + m.rho) * (math.Log1p(v/m.rho) + 2*threshold))
}
