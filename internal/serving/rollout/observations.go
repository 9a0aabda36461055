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

// Arm is what one version did in the trial so far.
type Arm struct {
	Version int64 `json:"version"`
	// Share of the assignments that this version should get, 0 to 1. Both 0: the
	// split is not checked, for example because the weight was moved.
	Share float64 `json:"share"`
	// Assigned counts what was assigned independently: requests, or distinct keys
	// where keys stick to a version.
	Assigned int64 `json:"assigned"`
	Requests int64 `json:"requests"` // answered or failed
	Errors   int64 `json:"errors"`   // of them failed
	// Slow counts the requests that took longer than Guardrails.Slow.
	Slow       int64         `json:"slow"`
	LatencyP99 time.Duration `json:"latency_p99"` // for people; nanoseconds in JSON
	Loss       Moments       `json:"loss"`        // of the labelled requests
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
		case a.Assigned < 0 || a.Errors < 0 || a.Slow < 0 || a.Errors > a.Requests || a.Slow > a.Requests:
			return "the counts contradict each other"
		}
	}
	return ""
}
