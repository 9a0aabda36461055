package rollout

import (
	"math"
	"time"
)

// Moments are a stream's count, mean and sum of squared deviations, in bounded
// space. The zero value is an empty stream.
type Moments struct {
	N    int64   `json:"n"`
	Mean float64 `json:"mean"`
	M2   float64 `json:"m2"`
}

// Add counts one more value (Welford's update).
func (m *Moments) Add(x float64) {
	m.N++
	d := x - m.Mean
	m.Mean += d / float64(m.N)
	m.M2 += d * (x - m.Mean)
}

// Merge adds another stream (Chan, Golub and LeVeque).
func (m *Moments) Merge(o Moments) {
	if o.N == 0 {
		return
	}
	if m.N == 0 {
		*m = o
		return
	}
	n := m.N + o.N
	d := o.Mean - m.Mean
	m.M2 += o.M2 + d*d*float64(m.N)*float64(o.N)/float64(n)
	m.Mean += d * float64(o.N) / float64(n)
	m.N = n
}

// Variance is the unbiased one; 0 for fewer than two values.
func (m *Moments) Variance() float64 {
	if m.N < 2 {
		return 0
	}
	return m.M2 / float64(m.N-1)
}

// Group is what the labelled requests with one key cost together. They met the
// same version, and their losses are alike in ways that another key's are not.
type Group struct {
	N   int64   `json:"n"`
	Sum float64 `json:"s"`
}

// Grouped are the moments of the losses of groups and of requests that stand
// alone, each a group of one. N and Mean are those of all losses; M2 is such that
// Variance()/N is the variance of Mean when groups, and not requests, are
// independent: Σ(sum_k − mean·n_k)²/N² · K/(K−1), the linearisation of the ratio
// of two sums. K is the number of groups, or 0 when there are only single requests.
func Grouped(alone Moments, groups []Group) (all Moments, k int64) {
	if len(groups) == 0 {
		return alone, 0
	}
	k = alone.N + int64(len(groups))
	sum := alone.Mean * float64(alone.N)
	all.N = alone.N
	for _, g := range groups {
		all.N += g.N
		sum += g.Sum
	}
	n := float64(all.N)
	all.Mean = sum / n
	if k < 2 {
		return all, k
	}
	apart := alone.Mean - all.Mean
	q := alone.M2 + apart*apart*float64(alone.N)
	for _, g := range groups {
		d := g.Sum - all.Mean*float64(g.N)
		q += d * d
	}
	all.M2 = q * float64(k) / float64(k-1) * (n - 1) / n
	return all, k
}

// Arm is what one version did in the trial so far.
type Arm struct {
	Version int64 `json:"version"`
	// Share of the assignments that this version should get, 0 to 1. Both 0: the
	// split is not checked, for example because the weight was moved.
	Share float64 `json:"share"`
	// Assigned counts what was assigned independently: requests without a key, and
	// distinct keys, which stick to a version.
	Assigned int64 `json:"assigned"`
	Requests int64 `json:"requests"` // answered or failed
	Errors   int64 `json:"errors"`   // of them failed
	// Slow counts the requests that took longer than Guardrails.Slow.
	Slow       int64         `json:"slow"`
	LatencyP99 time.Duration `json:"latency_p99"` // for people; nanoseconds in JSON
	// Labelled counts what Assigned does, of that which has a label, judged or not.
	Labelled int64   `json:"labelled"`
	Loss     Moments `json:"loss"` // of the labelled requests; see Grouped
	// Groups are the independent groups in Loss where keys stick to a version; 0
	// when each request is one.
	Groups int64 `json:"groups,omitempty"`
}

// Observations are what both versions did, and for how long the trial runs by
// the records' clock.
type Observations struct {
	Stable    Arm           `json:"stable"`
	Candidate Arm           `json:"candidate"`
	Elapsed   time.Duration `json:"elapsed"`
}

// wrong says what cannot be in observations; empty when nothing is.
func (o Observations) wrong() string {
	for _, a := range []Arm{o.Stable, o.Candidate} {
		m := a.Loss
		switch {
		case math.IsNaN(m.Mean) || math.IsInf(m.Mean, 0) || math.IsNaN(m.M2) || math.IsInf(m.M2, 0) || m.M2 < 0 || m.N < 0:
			return "the losses are not numbers"
		case !(a.Share >= 0 && a.Share <= 1):
			return "the share of a version is not between 0 and 1"
		case a.Assigned < 0 || a.Labelled < 0 || a.Groups < 0 || a.Errors < 0 || a.Slow < 0 || a.Errors > a.Requests || a.Slow > a.Requests:
			return "the counts contradict each other"
		}
	}
	return ""
}
