package stop

import (
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Budget is what a sweep may use. Zero is no limit.
type Budget struct {
	Trials int              `json:"trials,omitempty" doc:"Maximum number of trials that the sweep starts, including failed ones; trials that an Optuna client adds do not count."`
	Failed int              `json:"failed_trials,omitempty" doc:"Number of failed trials after which no more are started."`
	Time   compute.Duration `json:"time,omitempty" doc:"Time after the start of the sweep during which trials are started."`
	Money  float64          `json:"money,omitempty" doc:"Maximum cost of the trials, in the installation's currency: no trial is started after this amount is spent."`
}

// Spent is what a sweep has used.
type Spent struct {
	Trials, Failed int
	Time           time.Duration
	Money          float64 // of trials that run, too
}

// MaxTrials is how many trials a sweep has at most.
const MaxTrials = 100_000

// Validate says what is wrong with a budget.
func (b Budget) Validate() error {
	switch {
	case b.Trials < 0 || b.Trials > MaxTrials:
		return fault.New(fault.Invalid, "budget: trials is %d, and must be 0 to %d", b.Trials, MaxTrials)
	case b.Failed < 0 || b.Failed > MaxTrials:
		return fault.New(fault.Invalid, "budget: failed_trials is %d, and must be 0 to %d", b.Failed, MaxTrials)
	case b.Time < 0:
		return fault.New(fault.Invalid, "budget: time is negative")
	case math.IsNaN(b.Money) || math.IsInf(b.Money, 0) || b.Money < 0:
		return fault.New(fault.Invalid, "budget: money is %v, and must be a finite amount of at least 0", b.Money)
	}
	return nil
}

// Decide says whether the sweep starts no more trials.
func (b Budget) Decide(s Spent) Decision {
	limit := b.Trials
	if limit == 0 {
		limit = MaxTrials
	}
	switch {
	case s.Trials >= limit:
		return end("%d trials were started, of %d", s.Trials, limit)
	case b.Failed > 0 && s.Failed >= b.Failed:
		return end("%d trials failed, the limit is %d", s.Failed, b.Failed)
	case b.Time > 0 && s.Time >= time.Duration(b.Time):
		return end("%s passed, of %s", s.Time.Round(time.Second), time.Duration(b.Time))
	case b.Money > 0 && s.Money >= b.Money:
		return end("%.2f were spent, of %.2f", s.Money, b.Money)
	}
	return goOn("%d trials were started", s.Trials)
}
