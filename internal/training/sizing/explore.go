package sizing

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// trial is for how long a trial runs, in seconds, or as long as a run.
const trial = 600.0

// Trial is a place that is worth trying, in money of the installation.
type Trial struct {
	Place
	Minutes float64 `json:"minutes"`
	Cost    float64 `json:"cost" doc:"Cost of the trial, if its result is discarded"`
	Saving  float64 `json:"expected_saving" doc:"Expected saving over future runs, without the cost of the trial"`
	Runs    float64 `json:"runs" doc:"Expected future runs: as many as in the last 30 days, plus the rest of a running one"`
	Basis   string  `json:"basis" doc:"Evidence for the expectation"`
}

// explore says where a trial costs less than it is expected to save. After a trial
// the price ratio P is known, and who finds it worse stays where he is, so that
// with N runs to come, each at the price C now, and K the best price ratio that is
// measured already (1 without any),
//
//	saving = N · C · E[max(K − P, 0)] > price of the trial
//
// This is the expected value of perfect information (Howard, IEEE Transactions on
// Systems Science and Cybernetics 2, 1966). With log P ~ N(μ, s²) the expectation
// is that of Black and Scholes for a put,
//
//	E[max(K − P, 0)] = K·Φ(z) − exp(μ + s²/2)·Φ(z − s),   z = (log K − μ) / s
//
// Only what like jobs let expect is distributed. Of a Bound nothing is expected,
// but what is cheaper at its bound is cheaper for certain: it saves K − P at least.
func (q Question) explore(options []Option) (out []Trial) {
	if q.Seconds == 0 || q.Now.Hourly == 0 || q.Next == 0 {
		return nil
	}
	best := 1.0
	for _, o := range options {
		if o.Known == Measured && o.Price != nil {
			best = min(best, o.Price.Is)
		}
	}
	for _, o := range options {
		if o.Price == nil {
			continue
		}
		gain := 0.0
		switch o.Known {
		case LikeJobs:
			gain = put(best, o.mean+math.Log(o.Hourly/q.Now.Hourly), o.sd)
		case Bound:
			gain = max(best-o.Price.High, 0)
		case Measured, Fitted:
			continue
		}
		seconds := min(trial, q.Seconds)
		t := Trial{
			Place: o.Place, Minutes: seconds / 60, Runs: q.Next, Basis: o.Basis(),
			Cost: o.Hourly * seconds / 3600, Saving: q.Next * q.Now.Hourly * q.Seconds / 3600 * gain,
		}
		if t.Saving > t.Cost {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b Trial) int {
		return cmp.Or(cmp.Compare(b.Saving-b.Cost, a.Saving-a.Cost), cmp.Compare(a.Pool, b.Pool))
	})
	return out
}

// put is E[max(k − exp(X), 0)] for X ~ N(mean, sd²).
func put(k, mean, sd float64) float64 {
	if sd == 0 {
		return max(k-math.Exp(mean), 0)
	}
	z := (math.Log(k) - mean) / sd
	return max(k*distuv.UnitNormal.CDF(z)-math.Exp(mean+sd*sd/2)*distuv.UnitNormal.CDF(z-sd), 0)
}
