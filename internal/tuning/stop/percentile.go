package stop

import (
	"cmp"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

const defaultStartup = 5

// percentile judges as Optuna's PercentilePruner (and MedianPruner, whose share is
// 50; Golovin et al., "Google Vizier", KDD 2017, §3.1): the best value that a trial
// has had against what complete ones had at its step.
func (r Rule) percentile(share float64, t trial.Trial, last trial.Report, others []trial.Trial) Decision {
	var at []float64
	complete, reported := 0, 0
	for _, o := range others {
		if o.State != trial.Complete {
			continue
		}
		complete++
		i := slices.IndexFunc(o.Reports, func(p trial.Report) bool { return p.Step == last.Step })
		if i < 0 {
			continue
		}
		reported++
		if v := o.Reports[i].Value; !math.IsNaN(v) {
			at = append(at, r.Direction.Loss(v))
		}
	}
	if startup := cmp.Or(r.Startup, defaultStartup); complete < startup {
		return goOn("%d of the %d trials required before early stopping are complete", complete, startup)
	}
	if !r.due(t, last.Step) {
		return goOn("it was evaluated since the last multiple of %d steps", r.Interval)
	}
	best := math.Inf(1)
	number := false
	for _, p := range t.Reports {
		best = min(best, r.Direction.Loss(p.Value))
		number = number || !math.IsNaN(p.Value)
	}
	if !number {
		return end("all its reports are NaN")
	}
	if need := max(r.MinTrials, 1); reported < need || len(at) == 0 {
		return goOn("%d other trials reported at step %d, %d of them numbers, and %d are required", reported, last.Step, len(at), need)
	}
	bound := quantile(at, share/100)
	if best > bound {
		return end("its best value until step %d, %v, is worse than %v, the %v%% bound of %d others there", last.Step, r.value(best), r.value(bound), share, len(at))
	}
	return goOn("its best value until step %d, %v, is within %v, the %v%% bound of %d others there", last.Step, r.value(best), r.value(bound), share, len(at))
}

// due says that no earlier report is in the same interval.
func (r Rule) due(t trial.Trial, step int64) bool {
	interval := max(r.Interval, 1)
	from := (step-r.Warmup)/interval*interval + r.Warmup
	return !slices.ContainsFunc(t.Reports, func(p trial.Report) bool { return p.Step >= from && p.Step < step })
}

// value is what a loss was.
func (r Rule) value(loss float64) float64 {
	if r.Direction == trial.Maximize {
		return -loss
	}
	return loss
}

// quantile interpolates between neighbours, as numpy does; infinities stay.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	at := q * float64(len(values)-1)
	i := int(at)
	if i+1 >= len(values) || at == float64(i) || values[i] == values[i+1] {
		return values[i]
	}
	return values[i] + (at-float64(i))*(values[i+1]-values[i])
}
