package rollout

import (
	"fmt"
	"strconv"
)

// Outcome is what becomes of a trial.
type Outcome string

// The outcomes; all but Continue are final.
const (
	Continue Outcome = "continue" // not decided yet
	Promote  Outcome = "promote"  // the candidate takes over
	Rollback Outcome = "rollback" // the stable version takes all again
	Hold     Outcome = "hold"     // nothing is moved; a person decides
)

// Decision is an outcome with what speaks for it. The difference is that of the
// mean losses, candidate minus stable: above zero, the candidate is worse. Low
// and High hold the true difference at all times at once with a probability of
// at least 1 − Alpha; they are 0 while Comparable is false.
type Decision struct {
	Outcome    Outcome `json:"outcome"`
	Reason     string  `json:"reason"` // in words, with the numbers
	Comparable bool    `json:"comparable"`
	Difference float64 `json:"difference"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Alpha      float64 `json:"alpha"`
	Margin     float64 `json:"margin"`
	// P is the always-valid p-value of "the candidate is worse by the margin or
	// more"; 1 while nothing can be said.
	P float64 `json:"p"`
	// SRM is the always-valid p-value of "the split is as it was meant"; 1 when it
	// is not checked.
	SRM       float64 `json:"srm"`
	Guardrail string  `json:"guardrail,omitempty"` // which one ended the trial: error_rate, latency_p99 or sample_ratio
}

// Final reports whether the trial is over.
func (d Decision) Final() bool { return d.Outcome != Continue }

// Decide says what becomes of a trial. In this order: guardrails roll back; a
// split that is not as meant stops any comparison; then the losses decide, when
// there are MinLabels of both versions: promote when the whole interval lies
// below the margin, roll back when it lies above zero (worse, and not shown to
// be within the margin); then MaxDuration ends what did not decide. Without
// MinLabels nothing is ever promoted. The spec is valid.
func Decide(o Observations, s Spec) Decision {
	s = s.WithDefaults()
	d := Decision{Outcome: Continue, Alpha: s.Alpha, Margin: s.Margin, P: 1, SRM: 1}
	if err := s.Validate(); err != nil {
		d.Outcome, d.Reason = Hold, "cannot be judged: "+err.Error()
		return d
	}
	if wrong := o.wrong(); wrong != "" {
		d.Outcome, d.Reason = Hold, "cannot be judged: "+wrong
		return d
	}
	c := compare(o, s.Metric, mixtureFor(s.Margin, s.Alpha))
	if c.ok {
		w := c.halfWidth(s.Alpha)
		d.Comparable, d.Difference, d.Low, d.High, d.P = true, c.difference, c.difference-w, c.difference+w, c.p(s.Margin)
	}
	if o.Stable.Share > 0 && o.Candidate.Share > 0 {
		d.SRM = sampleRatio(o.Candidate.Assigned, o.Stable.Assigned, o.Candidate.Share/(o.Candidate.Share+o.Stable.Share))
	}
	if which, reason := guard(o, s); which != "" {
		d.Outcome, d.Guardrail, d.Reason = Rollback, which, reason
		return d
	}
	if d.SRM < srmAlpha {
		n := o.Candidate.Assigned + o.Stable.Assigned
		d.Outcome, d.Guardrail = Hold, "sample_ratio"
		d.Reason = fmt.Sprintf("the traffic split is wrong: %s of %s assignments went to version %d, %s expected (p %s): the losses of the versions cannot be compared",
			count(o.Candidate.Assigned), count(n), o.Candidate.Version, percent(o.Candidate.Share/(o.Candidate.Share+o.Stable.Share)), number(d.SRM))
		return d
	}
	enough := o.Candidate.sufficient(s) && o.Stable.sufficient(s) && !o.uneven()
	switch {
	case enough && d.Comparable && d.High < s.Margin:
		d.Outcome = Promote
		d.Reason = fmt.Sprintf("%s: worse by less than the margin %s, with %s confidence", d.seen(o, s), number(s.Margin), percent(1-s.Alpha))
	case enough && d.Comparable && d.Low > 0:
		d.Outcome = Rollback
		d.Reason = fmt.Sprintf("%s: worse, and not shown to be within the margin %s, with %s confidence", d.seen(o, s), number(s.Margin), percent(1-s.Alpha))
	case o.Elapsed >= s.Duration():
		d.Outcome, d.Reason = late(s, enough), fmt.Sprintf("inconclusive after %s, so %s: %s", s.MaxDuration, lateWords(s, enough), d.missing(o, s, enough))
	default:
		d.Reason = d.missing(o, s, enough)
	}
	return d
}

// sufficient reports whether a version has as many labels, of as many keys, as a
// decision by the loss needs.
func (a Arm) sufficient(s Spec) bool {
	return a.Loss.N >= int64(s.MinLabels) && (a.Groups == 0 || a.Groups >= minMinLabel)
}

// uneven reports whether one version's requests are labelled more often than the
// other's: then who is labelled depends on the answer, and the losses are those
// of different requests. It is no end of the trial: labels that came for one
// version first may come for the other.
func (o Observations) uneven() bool {
	return o.Stable.Share > 0 && o.Candidate.Share > 0 &&
		labelRatio(o.Candidate.Labelled, o.Stable.Labelled, o.Candidate.Share/(o.Candidate.Share+o.Stable.Share)) < srmAlpha
}

// guard names the guardrail that ends the trial, and why.
func guard(o Observations, s Spec) (which, reason string) {
	c, b, g := o.Candidate, o.Stable, s.Guardrails
	if c.Requests < int64(g.MinRequests) {
		return "", ""
	}
	if p := apart(c.Errors, c.Requests, b.Errors, b.Requests, g.ErrorRate); p < guardAlpha {
		return "error_rate", fmt.Sprintf("version %d fails more often: %s of %s requests against %s of %s of version %d, more than %s above it (p %s)",
			c.Version, count(c.Errors), count(c.Requests), count(b.Errors), count(b.Requests), b.Version, percent(g.ErrorRate), number(p))
	}
	if limit := g.Slow(); limit > 0 {
		if p := above(c.Slow, c.Requests, 0.01); p < guardAlpha {
			return "latency_p99", fmt.Sprintf("version %d is too slow: %s of %s requests took longer than %s, over 1%% (p %s)",
				c.Version, count(c.Slow), count(c.Requests), limit, number(p))
		}
	}
	return "", ""
}

// late is what becomes of a trial whose time is over.
func late(s Spec, enough bool) Outcome {
	switch {
	case s.Inconclusive == InconclusiveHold:
		return Hold
	case s.Inconclusive == InconclusivePromote && enough:
		return Promote
	default:
		return Rollback
	}
}

func lateWords(s Spec, enough bool) string {
	switch late(s, enough) {
	case Hold:
		return "a user must decide"
	case Promote:
		return "promoted, by spec.rollout.inconclusive"
	default:
		if s.Inconclusive == InconclusivePromote {
			return "rolled back, because there are fewer labels than min_labels"
		}
		return "rolled back"
	}
}

// seen is the comparison in words.
func (d Decision) seen(o Observations, s Spec) string {
	return fmt.Sprintf("%s of version %d is %s, of version %d %s: difference %s, between %s and %s (%s and %s labels)",
		s.Metric, o.Candidate.Version, number(o.Candidate.Loss.Mean), o.Stable.Version, number(o.Stable.Loss.Mean),
		signed(d.Difference), signed(d.Low), signed(d.High), count(o.Candidate.Loss.N), count(o.Stable.Loss.N))
}

// missing says what a decision waits for.
func (d Decision) missing(o Observations, s Spec, enough bool) string {
	c, b := o.Candidate, o.Stable
	switch {
	case c.Requests == 0 && c.Loss.N == 0:
		return fmt.Sprintf("version %d has not received requests", c.Version)
	case o.uneven():
		return fmt.Sprintf("%s labelled requests belong to version %d and %s to version %d, %s expected: labels depend on the version, so the losses cannot be compared",
			count(c.Labelled), c.Version, count(b.Labelled), b.Version, percent(c.Share/(c.Share+b.Share)))
	case !enough && c.Loss.N >= int64(s.MinLabels) && b.Loss.N >= int64(s.MinLabels):
		return fmt.Sprintf("the labels of version %d come from %s keys, those of version %d from %s; %d of each are needed, because requests of one key are evaluated together",
			c.Version, count(c.Groups), b.Version, count(b.Groups), minMinLabel)
	case !enough:
		return fmt.Sprintf("version %d has %s labelled requests and version %d has %s; %s of each are needed, and the rows of a request count as one",
			c.Version, count(c.Loss.N), b.Version, count(b.Loss.N), count(int64(s.MinLabels)))
	case !d.Comparable:
		return "the losses of both versions are constant, so they cannot be compared"
	default:
		return fmt.Sprintf("%s; decides below %s or above 0", d.seen(o, s), number(s.Margin))
	}
}

// number is short and stable: four significant digits.
func number(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }

func signed(x float64) string {
	if x >= 0 {
		return "+" + number(x)
	}
	return "−" + number(-x)
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'g', 4, 64) + " %" }

// count writes 12345 as 12,345.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
