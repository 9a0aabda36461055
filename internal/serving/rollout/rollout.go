// Package rollout decides, from what two versions of a model did side by side,
// whether the newer one takes over. It is pure: no clock, no I/O, no randomness.
//
// # Map
//
//   - rollout.go: Spec, what a manifest says; the loss of an answer by its label.
//   - observations.go: Moments, Arm and Observations, what was seen so far.
//   - decide.go: Decide, from Observations and Spec to a Decision with its reason.
//   - difference.go: the confidence sequence on the difference of two means.
//   - guard.go: exact sequential tests on counts: errors, slow answers, the split.
//   - boundary.go: the uniform boundaries of Howard, Ramdas, McAuliffe and Sekhon
//     (Annals of Statistics 49(2), 2021), on which the others stand.
//
// # Guarantees
//
// All statements hold at all times at once, so Decide may be asked after each
// label, each second, or whenever somebody looks, without spending more of alpha:
// an inferior version is promoted with a probability of at most alpha however
// often one looks, and one that is as good is rolled back for its loss with at
// most alpha, too. That comparison is asymptotic (difference.go). The guardrails
// and the split's test are exact and have budgets of their own (guard.go).
//
// # What the caller owes
//
// Requests are assigned at random and independently of what they will cost; one
// loss for each request; labels that arrive do not depend on the version that
// answered, which Decide checks as far as counts can say, nor on what they say, as
// what turns out badly often does so later: Spec.LabelDelay is for those. Where a key sticks to a
// version, its requests are not independent: Arm.Assigned and Arm.Labelled count
// distinct keys then, and Grouped makes Arm.Loss vary as the keys do. The
// guardrails on errors and latency count requests all the same: one key's
// requests may end a trial, they never promote.
package rollout

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Metric is how an answer is judged by its label. Smaller is better.
type Metric string

// The metrics. The first three judge a probability by a label of 0 or 1.
const (
	Brier         Metric = "brier"          // (score − label)², 0 to 1
	LogLoss       Metric = "log_loss"       // −ln of the label's probability, in nats, 0 to 13.8
	Error         Metric = "error"          // 1 when the score, cut at ½, is not the label
	AbsoluteError Metric = "absolute_error" // |score − label|, in the label's unit
	SquaredError  Metric = "squared_error"  // (score − label)²
)

var metrics = []Metric{Brier, LogLoss, Error, AbsoluteError, SquaredError}

// Inconclusive says what becomes of a rollout that did not decide in time.
type Inconclusive string

// What may be done without a proof.
const (
	InconclusiveRollback Inconclusive = "rollback"
	InconclusivePromote  Inconclusive = "promote"
	InconclusiveHold     Inconclusive = "hold" // a person decides
)

// Limits of a spec.
const (
	MaxWeight   = 99 // percent; a candidate alone has nothing to be compared with
	minMinLabel = 50 // the normal approximation needs some
	maxMinLabel = 100_000_000
	maxDuration = 366 * 24 * time.Hour
	maxName     = 200 // bytes
)

// clip keeps a score of 0 or 1 that was wrong from costing infinitely much.
const clip = 1e-6

// Spec is how new versions are tried: spec.rollout of a Deployment manifest.
// Zero fields mean their default; it can be compared with ==.
type Spec struct {
	Weight       int          `json:"weight,omitempty" doc:"Percent of the requests sent to the canary, 1 to 99; default 20"`
	Sticky       string       `json:"sticky,omitempty" doc:"Request column whose values are pinned to one version; default the header Falaj-Route-Key"`
	Metric       Metric       `json:"metric,omitempty" doc:"Metric to compare, lower is better: brier, log_loss, error, absolute_error or squared_error; default brier"`
	Margin       float64      `json:"margin,omitempty" doc:"Accepted loss of the canary, in the metric's unit; default 0.005, required for absolute_error and squared_error"`
	Alpha        float64      `json:"alpha,omitempty" doc:"Probability of a wrong decision, valid at any time; default 0.05"`
	MinLabels    int          `json:"min_labels,omitempty" doc:"Minimum labels of each version before a decision, at least 50; default 500"`
	LabelDelay   string       `json:"label_delay,omitempty" doc:"Evaluates a request at this age on the clock of the records, such as 2d, for labels whose delay depends on their value; default when its label arrives"`
	MaxDuration  string       `json:"max_duration,omitempty" doc:"Maximum duration of a rollout on the clock of the records, such as 14d or 36h; default 14d"`
	Inconclusive Inconclusive `json:"inconclusive,omitempty" doc:"Action when there is no decision by then: rollback, promote or hold; default rollback, which also replaces promote with fewer labels than min_labels"`
	Guardrails   Guardrails   `json:"guardrails,omitzero" doc:"Conditions that abort the rollout, with or without labels"`
}

// Guardrails end a trial early.
type Guardrails struct {
	ErrorRate   float64 `json:"error_rate,omitempty" doc:"Roll back when the error rate exceeds that of the stable version by this share; default 0.02, 1 disables it"`
	LatencyP99  string  `json:"latency_p99,omitempty" doc:"Roll back when more than 1% of the requests take longer, such as 250ms; empty disables it"`
	MinRequests int     `json:"min_requests,omitempty" doc:"Minimum requests to the canary before a guardrail applies; default 100"`
}

// WithDefaults fills what is not said. A metric without a natural unit has no
// default margin.
func (s Spec) WithDefaults() Spec {
	s.Weight = cmp.Or(s.Weight, 20)
	s.Metric = cmp.Or(s.Metric, Brier)
	if s.Metric != AbsoluteError && s.Metric != SquaredError {
		s.Margin = cmp.Or(s.Margin, 0.005)
	}
	s.Alpha = cmp.Or(s.Alpha, 0.05)
	s.MinLabels = cmp.Or(s.MinLabels, 500)
	s.MaxDuration = cmp.Or(s.MaxDuration, "14d")
	s.Inconclusive = cmp.Or(s.Inconclusive, InconclusiveRollback)
	s.Guardrails.ErrorRate = cmp.Or(s.Guardrails.ErrorRate, 0.02)
	s.Guardrails.MinRequests = cmp.Or(s.Guardrails.MinRequests, 100)
	return s
}

// Validate says what is wrong with the spec; zero fields mean their default.
// Error: fault.Invalid.
func (s Spec) Validate() error {
	s = s.WithDefaults()
	g := s.Guardrails
	bad := func(field, format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "spec.rollout."+field+" "+format, args...)
	}
	switch {
	case s.Weight < 1 || s.Weight > MaxWeight:
		return bad("weight", "is %d", s.Weight).WithHint("Use 1 to %d percent.", MaxWeight)
	case len(s.Sticky) > maxName:
		return bad("sticky", "exceeds %d bytes", maxName)
	case !slices.Contains(metrics, s.Metric):
		return bad("metric", "unknown value %q", short(string(s.Metric))).WithHint("Use brier, log_loss, error, absolute_error or squared_error.")
	case s.Margin == 0:
		return bad("margin", "is required: %s has the unit of the label, so there is no default", s.Metric).
			WithHint("Set the accepted loss of a new version.")
	case !(s.Margin >= 1e-9 && s.Margin <= 1e12):
		return bad("margin", "is %v", s.Margin).WithHint("Set the accepted loss of a new version, greater than 0.")
	case !(s.Alpha >= 1e-6 && s.Alpha <= 0.5):
		return bad("alpha", "is %v", s.Alpha).WithHint("Use 0.000001 to 0.5; 0.05 is usual.")
	case s.MinLabels < minMinLabel || s.MinLabels > maxMinLabel:
		return bad("min_labels", "is %d", s.MinLabels).WithHint("Use %d to %d.", minMinLabel, maxMinLabel)
	case !slices.Contains([]Inconclusive{InconclusiveRollback, InconclusivePromote, InconclusiveHold}, s.Inconclusive):
		return bad("inconclusive", "unknown value %q", short(string(s.Inconclusive))).WithHint("Use rollback, promote or hold.")
	case !(g.ErrorRate > 0 && g.ErrorRate <= 1):
		return bad("guardrails.error_rate", "is %v", g.ErrorRate).WithHint("Use a share above 0; 1 turns it off.")
	case g.MinRequests < 1 || g.MinRequests > maxMinLabel:
		return bad("guardrails.min_requests", "is %d", g.MinRequests).WithHint("Use 1 to %d.", maxMinLabel)
	}
	if d, err := resource.ParseDuration(s.MaxDuration); err != nil || d < time.Second || d > maxDuration {
		return bad("max_duration", "%q is not a valid duration of a rollout", short(s.MaxDuration)).WithHint("Use 1s to 366d, such as 14d or 36h.")
	}
	if s.LabelDelay != "" {
		if d, err := resource.ParseDuration(s.LabelDelay); err != nil || d >= s.Duration() {
			return bad("label_delay", "%q is not a duration shorter than max_duration", short(s.LabelDelay)).WithHint("Set the delay of labels, such as 36h or 2d; a rollout takes longer than that.")
		}
	}
	if g.LatencyP99 != "" && g.LatencyP99 != "0" {
		if d, err := resource.ParseDuration(g.LatencyP99); err != nil || d <= 0 || d > time.Hour {
			return bad("guardrails.latency_p99", "%q is not a valid latency", short(g.LatencyP99)).WithHint("Use 1ms to 1h, such as 250ms.")
		}
	}
	return nil
}

// Duration is MaxDuration as a duration. The spec is valid.
func (s Spec) Duration() time.Duration {
	d, _ := resource.ParseDuration(s.WithDefaults().MaxDuration) // validated
	return d
}

// Delay is LabelDelay as a duration, 0 without one. The spec is valid.
func (s Spec) Delay() time.Duration {
	d, _ := resource.ParseDuration(s.LabelDelay) // validated
	return d
}

// Slow is the latency above which an answer is slow (Arm.Slow), 0 when the
// guardrail is off. The spec is valid.
func (g Guardrails) Slow() time.Duration {
	d, _ := resource.ParseDuration(g.LatencyP99) // validated
	return d
}

// Loss is what an answer costs by its label. Error: fault.Invalid when the score
// or label is not a number, or not a probability and a 0 or 1 where the metric
// needs them.
func (s Spec) Loss(score, label float64) (float64, error) {
	if math.IsNaN(score) || math.IsInf(score, 0) {
		return 0, fault.New(fault.Invalid, "the score is %v", score)
	}
	if math.IsNaN(label) || math.IsInf(label, 0) {
		return 0, fault.New(fault.Invalid, "the label is %v", label)
	}
	metric := cmp.Or(s.Metric, Brier)
	switch metric {
	case AbsoluteError, SquaredError:
		d := math.Abs(score - label)
		if metric == SquaredError {
			d *= d
		}
		if d > 1e150 { // its square would not be finite
			return 0, fault.New(fault.Invalid, "the error of score %v for label %v is too large", score, label)
		}
		return d, nil
	case Brier, LogLoss, Error:
	default:
		return 0, fault.New(fault.Invalid, "unknown metric %q", short(string(metric)))
	}
	if score < 0 || score > 1 {
		return 0, fault.New(fault.Invalid, "the score is %v, which is not a probability", score).
			WithHint("Use absolute_error or squared_error for models that predict a quantity.")
	}
	if label != 0 && label != 1 {
		return 0, fault.New(fault.Invalid, "the label is %v; %s needs 0 or 1", label, metric)
	}
	switch metric {
	case LogLoss:
		p := min(max(score, clip), 1-clip)
		if label == 0 {
			p = 1 - p
		}
		return -math.Log(p), nil
	case Error:
		if (score >= 0.5) == (label == 1) {
			return 0, nil
		}
		return 1, nil
	default:
		return (score - label) * (score - label), nil
	}
}

func short(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
