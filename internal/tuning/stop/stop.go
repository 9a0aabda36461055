// Package stop decides which trials end before they are through, and when a sweep asks
// for no more.
//
// # Map
//
//   - stop.go: a rule, and Decide.
//   - percentile.go: median and percentile: worse than others were at the same step.
//   - halving.go: asha and hyperband: only the best of each rung go on.
//   - patience.go: no better than it was.
//   - budget.go: trials, time and money of a sweep.
//
// It is pure: a decision is a function of the rule, the trial, the others and the time.
// It is asked whenever a trial has reported, and now and then, for trials that do not.
//
// What a trial reports that is NaN is worse than anything: at a step where it is judged
// it ends the trial. Who never reports is never judged by value; report_within ends it.
// Failed trials are nobody's measure.
package stop

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// Kind is how trials are judged.
type Kind string

// The kinds.
const (
	None       Kind = "none"
	Median     Kind = "median"
	Percentile Kind = "percentile"
	ASHA       Kind = "asha"
	Hyperband  Kind = "hyperband"
	Patience   Kind = "patience"
)

// Rule is when a trial is stopped. The zero value of a number is its default.
type Rule struct {
	Kind      Kind            `json:"kind,omitempty" enum:"none,median,percentile,asha,hyperband,patience" doc:"Rule that stops trials by their reported values; none by default."`
	Direction trial.Direction `json:"direction,omitempty" enum:"minimize,maximize" doc:"Whether a higher or a lower reported value is better; by default as for the objective."`

	Percentile float64 `json:"percentile,omitempty" doc:"For percentile: a trial is stopped if its best value is worse than the best values of this percentage of the complete trials at the same step. The median is 50."`
	Startup    int     `json:"startup_trials,omitempty" doc:"For median and percentile: number of trials that complete before the rule applies; 5 by default."`
	Warmup     int64   `json:"warmup_steps,omitempty" doc:"First step at which the rule applies."`
	Interval   int64   `json:"interval_steps,omitempty" doc:"For median and percentile: the rule applies every so many steps; 1 by default."`
	MinTrials  int     `json:"min_trials,omitempty" doc:"For median and percentile: number of other complete trials that must have reported at the step; 1 by default."`

	MinResource int64 `json:"min_resource,omitempty" doc:"For asha and hyperband: step of the lowest rung; 1 by default."`
	MaxResource int64 `json:"max_resource,omitempty" doc:"For hyperband: last step of a trial that is never stopped; it determines the number of brackets. For asha: step from which no trial is stopped; none by default."`
	Reduction   int64 `json:"reduction_factor,omitempty" doc:"For asha and hyperband: reduction factor η: one of η trials continues at a rung, and the next rung has η times the steps; 3 by default."`
	Rate        int   `json:"min_early_stopping_rate,omitempty" doc:"For asha: number of lowest rungs that are skipped."`

	Patience int     `json:"patience,omitempty" doc:"For patience: number of consecutive reports without improvement after which a trial is stopped."`
	MinDelta float64 `json:"min_delta,omitempty" doc:"For patience: minimum improvement."`

	ReportWithin compute.Duration `json:"report_within,omitempty" doc:"A trial that has not reported for this time is stopped; never by default."`
}

// Limits of a rule.
const (
	maxCount = 1_000_000
	maxStep  = 1 << 53
	maxRate  = 30
)

// Validate says what is wrong with a rule.
func (r Rule) Validate() error {
	wrong := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "early stopping: %s", fmt.Sprintf(format, args...))
	}
	switch r.Direction {
	case "", trial.Minimize, trial.Maximize:
	default:
		return wrong("the direction is %q, and must be minimize or maximize", r.Direction)
	}
	for _, l := range []struct {
		name         string
		v, low, high int64
	}{
		{"startup_trials", int64(r.Startup), 0, maxCount},
		{"min_trials", int64(r.MinTrials), 0, maxCount},
		{"patience", int64(r.Patience), 0, maxCount},
		{"min_early_stopping_rate", int64(r.Rate), 0, maxRate},
		{"warmup_steps", r.Warmup, 0, maxStep},
		{"interval_steps", r.Interval, 0, maxStep},
		{"min_resource", r.MinResource, 0, maxStep},
		{"max_resource", r.MaxResource, 0, maxStep},
		{"reduction_factor", r.Reduction, 0, maxCount},
		{"report_within", int64(r.ReportWithin), 0, math.MaxInt64},
	} {
		if l.v < l.low || l.v > l.high {
			return wrong("%s is %d, and must be %d to %d", l.name, l.v, l.low, l.high)
		}
	}
	switch {
	case r.Reduction == 1:
		return wrong("a reduction_factor of 1 stops no trial").WithHint("Use 2 or more; the default is 3.")
	case r.MaxResource > 0 && r.MaxResource < r.lowest():
		return wrong("max_resource %d is below min_resource %d", r.MaxResource, r.lowest())
	case math.IsNaN(r.MinDelta) || math.IsInf(r.MinDelta, 0) || r.MinDelta < 0:
		return wrong("min_delta is %v, and must be a finite number of at least 0", r.MinDelta)
	}
	switch r.Kind {
	case "", None, Median, ASHA:
	case Percentile:
		if !(r.Percentile > 0 && r.Percentile < 100) {
			return wrong("percentile is %v, and must be between 0 and 100", r.Percentile).WithHint("25 keeps the best quarter of trials at each step.")
		}
	case Hyperband:
		if r.MaxResource == 0 {
			return wrong("hyperband requires max_resource").WithHint("Set it to the last step of a complete trial.")
		}
	case Patience:
		if r.Patience == 0 {
			return wrong("patience is 0").WithHint("Set it to the number of reports without improvement before a trial stops.")
		}
	default:
		return wrong("there is no kind %q", r.Kind).WithHint("The kinds are none, median, percentile, asha, hyperband and patience.")
	}
	return nil
}

// Decision is whether a trial ends, and why; a trial that goes on has a reason, too.
type Decision struct {
	Stop   bool
	Reason string
}

func goOn(format string, args ...any) Decision {
	return Decision{Reason: fmt.Sprintf(format, args...)}
}

func end(format string, args ...any) Decision {
	return Decision{Stop: true, Reason: fmt.Sprintf(format, args...)}
}

// Decide says whether a trial goes on. The others may have the trial itself among
// them. The rule is valid and has a direction. For hyperband the seed is what
// spreads trials over brackets: the sweep's.
func Decide(r Rule, seed uint64, t trial.Trial, others []trial.Trial, now time.Time) Decision {
	if t.State != trial.Running {
		return goOn("it is %s", t.State)
	}
	last, reported := t.Last()
	if d := r.silent(t, now); d.Stop {
		return d
	}
	switch {
	case r.Kind == "" || r.Kind == None:
		return goOn("early stopping is disabled")
	case !reported:
		return goOn("it has no reports")
	case last.Step < r.Warmup:
		return goOn("step %d is before %d, the first step of early stopping", last.Step, r.Warmup)
	}
	others = slices.DeleteFunc(slices.Clone(others), func(o trial.Trial) bool { return o.Number == t.Number || o.State == trial.Failed })
	switch r.Kind {
	case Median:
		return r.percentile(50, t, last, others)
	case Percentile:
		return r.percentile(r.Percentile, t, last, others)
	case ASHA:
		return r.halving(r.Rate, t, last, others)
	case Hyperband:
		return r.hyperband(seed, t, last, others)
	default:
		return r.patience(t)
	}
}

// atOnce is how many reports of a trial are judged that came together.
const atOnce = 100

// Turns are those of the steps that a trial reported at which the rule judges it: of asha
// and hyperband the first at each rung, else all; of very many the last. Steps are in
// their order.
func (r Rule) Turns(t trial.Trial, steps []int64) []int64 {
	switch r.Kind {
	case "", None:
		return nil
	case ASHA, Hyperband:
		first := map[int64]bool{}
		for _, p := range r.reached(t) {
			first[p.Step] = true
		}
		steps = slices.DeleteFunc(slices.Clone(steps), func(s int64) bool { return !first[s] })
	case Median, Percentile, Patience:
	}
	return steps[max(len(steps)-atOnce, 0):]
}

// reached are the reports by which a trial came to rungs, which may be one for several.
func (r Rule) reached(t trial.Trial) (out []trial.Report) {
	for k := 0; ; k++ {
		step, ok := r.rung(k)
		if !ok {
			return out
		}
		p, ok := at(t, step)
		if !ok {
			return out
		}
		out = append(out, p)
	}
}

// Reaches reports whether who had reported up to a step comes to a rung at another one.
func (r Rule) Reaches(before, step int64) bool {
	if r.Kind != ASHA && r.Kind != Hyperband {
		return false
	}
	for k := 0; ; k++ {
		rung, ok := r.rung(k)
		if !ok || rung > step {
			return false
		}
		if rung > before {
			return true
		}
	}
}

// Kept are those reports of a trial that has ended which a decision about others, or a
// sampler, looks at.
func (r Rule) Kept(t trial.Trial) []trial.Report {
	last, ok := t.Last()
	if !ok {
		return nil
	}
	kept := []trial.Report{last}
	switch {
	case t.State == trial.Failed:
		return nil
	case r.Kind == Median, r.Kind == Percentile:
		return t.Reports
	case r.Kind == ASHA, r.Kind == Hyperband:
		for _, p := range r.reached(t) {
			if !slices.ContainsFunc(kept, func(k trial.Report) bool { return k.Step == p.Step }) {
				kept = append(kept, p)
			}
		}
	}
	return kept
}

// silent ends a trial that has not reported for too long, by the times of reports.
func (r Rule) silent(t trial.Trial, now time.Time) Decision {
	since, limit := t.Started, time.Duration(r.ReportWithin)
	for _, p := range t.Reports {
		if p.At.After(since) {
			since = p.At
		}
	}
	if limit == 0 || since.IsZero() || now.Sub(since) <= limit {
		return goOn("it reports")
	}
	return end("it has not reported for %s, longer than %s", now.Sub(since).Round(time.Second), limit)
}
