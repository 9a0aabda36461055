package label

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/sketch"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
)

// Rollout is a trial of a version, as serving has it.
type Rollout struct {
	ID         string
	Project    string
	Deployment string
	Stable     int64
	Candidate  int64
	Weight     int // percent that the candidate answers
	Spec       rollout.Spec
	Started    time.Time // on the wall's clock
	StartedAt  time.Time // of its first record; zero until Began
}

const (
	// lookEvery is after how many labels the judge looks: at the same labels
	// whenever it runs, so that a replay decides where the first run did.
	lookEvery = 25
	maxPoints = 500
	// maxStuck is of how many keys the split is checked where keys stick to a
	// version: the first ones.
	maxStuck = 4096
)

// Point is the interval on the difference of the losses at a number of labels.
type Point struct {
	Labels     int64     `json:"labels"` // of both versions
	At         time.Time `json:"at"`     // on the clock of the records
	Difference float64   `json:"difference"`
	Low        float64   `json:"low"`
	High       float64   `json:"high"`
}

// tally is what was seen of a rollout.
type tally struct {
	Stable    side `json:"stable"`
	Candidate side `json:"candidate"`

	First time.Time `json:"first,omitzero"` // At of the rollout's first record
	// Of the rollout's records of replays. Those of live requests are on the wall's
	// clock, and mean nothing here.
	From   time.Time `json:"from,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	// How many of its records are of replays and how many are not: the clock of
	// most is the rollout's.
	Replayed int64 `json:"replayed,omitempty"`
	Live     int64 `json:"live,omitempty"`

	Weight int  `json:"weight"`
	Moved  bool `json:"moved,omitempty"` // the weight was changed: the split is not checked any more
	// Stuck are hashes of the first keys, where keys stick to a version.
	Stuck    []uint64 `json:"stuck,omitempty"`
	Keyless  int64    `json:"keyless,omitempty"`  // requests without the sticky key
	Unjudged int64    `json:"unjudged,omitempty"` // labels that are none for the metric

	Looked     int64                `json:"looked"` // labels at the last look
	Decision   rollout.Decision     `json:"decision"`
	Observed   rollout.Observations `json:"observed"` // at the last look
	Trajectory []Point              `json:"trajectory,omitempty"`
	Stride     int64                `json:"stride"` // labels between two points
}

// side is what was seen of a version.
type side struct {
	Assigned int64           `json:"assigned"`
	Requests int64           `json:"requests"`
	Errors   int64           `json:"errors"`
	Slow     int64           `json:"slow"`
	Loss     rollout.Moments `json:"loss"`
	Latency  []byte          `json:"latency,omitempty"` // sketch.Latency

	latency *sketch.Latency
}

// side is that of a version; nil for another one.
func (t *tally) side(r Rollout, version int64) *side {
	switch version {
	case r.Stable:
		return &t.Stable
	case r.Candidate:
		return &t.Candidate
	}
	return nil
}

func newTally(r Rollout) *tally {
	t := &tally{Weight: r.Weight, Stride: lookEvery}
	t.Decision.Outcome = rollout.Continue
	t.Stable.latency, t.Candidate.latency = sketch.NewLatency(), sketch.NewLatency()
	return t
}

func decodeTally(b []byte) (*tally, error) {
	t := &tally{}
	if err := json.Unmarshal(b, t); err != nil {
		return nil, fault.New(fault.Internal, "a judgement cannot be read: %w", err)
	}
	for _, s := range []*side{&t.Stable, &t.Candidate} {
		s.latency = sketch.NewLatency()
		if len(s.Latency) > 0 {
			if err := s.latency.UnmarshalBinary(s.Latency); err != nil {
				return nil, err
			}
		}
	}
	t.Stride = max(t.Stride, lookEvery)
	return t, nil
}

func (t *tally) encode() ([]byte, error) {
	for _, s := range []*side{&t.Stable, &t.Candidate} {
		var err error
		if s.Latency, err = s.latency.MarshalBinary(); err != nil {
			return nil, err
		}
	}
	return json.Marshal(t)
}

// record counts a record of the deployment.
func (t *tally) record(r Rollout, rec *prediction.Record) {
	if rec.Shadow {
		return
	}
	if rec.Rollout != r.ID {
		return
	}
	s := t.side(r, rec.Version)
	if s == nil {
		return
	}
	if t.First.IsZero() {
		t.First = rec.At
	}
	if !rec.Replay {
		t.Live++
	} else {
		t.Replayed++
		if t.From.IsZero() || rec.At.Before(t.From) {
			t.From = rec.At
		}
		if rec.At.After(t.Newest) {
			t.Newest = rec.At
		}
	}
	t.assign(r, rec, s)
	if ofTheAsker(rec.Failure) {
		return // no version would have answered it
	}
	s.Requests++
	if rec.Failure != "" {
		s.Errors++
		return
	}
	s.latency.Add(rec.Latency)
	if slow := r.Spec.Guardrails.Slow(); slow > 0 && rec.Latency > slow {
		s.Slow++
	}
}

// ofTheAsker reports whether a failure says something about the request and
// nothing about the version that got it.
func ofTheAsker(failure string) bool {
	switch fault.ParseKind(failure) {
	case fault.Invalid, fault.Unauthenticated, fault.PermissionDenied, fault.NotFound, fault.TooLarge:
		return failure != ""
	default:
		return false
	}
}

// assign counts an assignment: each request, or each key where keys stick.
func (t *tally) assign(r Rollout, rec *prediction.Record, s *side) {
	if r.Spec.Sticky == "" {
		s.Assigned++
		return
	}
	if len(t.Stuck) >= maxStuck {
		return
	}
	key, ok := stickyKey(r.Spec.Sticky, rec)
	if !ok {
		t.Keyless++
		return
	}
	at, there := slices.BinarySearch(t.Stuck, key)
	if there {
		return
	}
	t.Stuck = slices.Insert(t.Stuck, at, key)
	s.Assigned++
}

// stickyKey is a hash of the value by which a request was routed.
func stickyKey(column string, rec *prediction.Record) (uint64, bool) {
	h := fnv.New64a()
	for _, columns := range [][]prediction.Column{rec.Keys, rec.Inputs} {
		for _, c := range columns {
			if c.Name != column {
				continue
			}
			switch {
			case len(c.Texts) > 0:
				_, _ = h.Write([]byte(c.Texts[0]))
			case len(c.Numbers) > 0:
				b, _ := json.Marshal(c.Numbers[0])
				_, _ = h.Write(b)
			default:
				return 0, false
			}
			return h.Sum64(), true
		}
	}
	return 0, false
}

// pair counts the loss of a labelled request: the mean over its rows.
func (t *tally) pair(r Rollout, p Pair) {
	if p.Record.Rollout != r.ID || p.Record.Shadow || p.Record.Failure != "" {
		return
	}
	s := t.side(r, p.Record.Version)
	if s == nil {
		return
	}
	if len(p.Record.Scores) != len(p.Labels) || len(p.Labels) == 0 {
		t.Unjudged++
		return
	}
	sum := 0.0
	for i, label := range p.Labels {
		loss, err := r.Spec.Loss(p.Record.Scores[i], label)
		if err != nil {
			t.Unjudged++
			return
		}
		sum += loss
	}
	s.Loss.Add(sum / float64(len(p.Labels)))
}

func (t *tally) labels() int64 { return t.Stable.Loss.N + t.Candidate.Loss.N }

// elapsed is how long the rollout runs: on the records' clock while old times
// are replayed, else on the wall's, which goes on without traffic.
func (t *tally) elapsed(r Rollout, now time.Time) time.Duration {
	if t.replay() {
		return max(0, t.Newest.Sub(t.From))
	}
	return max(0, now.Sub(r.Started))
}

// at is now on the clock of the records.
func (t *tally) at(now time.Time) time.Time {
	if t.replay() {
		return t.Newest
	}
	return now
}

func (t *tally) replay() bool { return t.Replayed > t.Live }

func (t *tally) observations(r Rollout, now time.Time) rollout.Observations {
	arm := func(s side, version int64, share float64) rollout.Arm {
		return rollout.Arm{
			Version: version, Share: share, Assigned: s.Assigned, Requests: s.Requests, Errors: s.Errors, Slow: s.Slow,
			LatencyP99: s.latency.Quantile(.99), Loss: s.Loss,
		}
	}
	share := float64(r.Weight) / 100
	o := rollout.Observations{
		Stable: arm(t.Stable, r.Stable, 1-share), Candidate: arm(t.Candidate, r.Candidate, share), Elapsed: t.elapsed(r, now),
	}
	if t.Moved || t.Keyless > 0 {
		o.Stable.Share, o.Candidate.Share = 0, 0
	}
	return o
}

// look decides by what was seen so far.
func (t *tally) look(r Rollout, now time.Time) rollout.Observations {
	o := t.observations(r, now)
	t.Decision, t.Observed = rollout.Decide(o, r.Spec), o
	n := t.labels()
	t.Looked = n
	if !t.Decision.Comparable {
		return o
	}
	last := int64(0)
	if k := len(t.Trajectory); k > 0 {
		last = t.Trajectory[k-1].Labels
	}
	if n >= last+t.Stride || (t.Decision.Final() && n > last) {
		t.Trajectory = append(t.Trajectory, Point{
			Labels: n, At: t.at(now), Difference: t.Decision.Difference, Low: t.Decision.Low, High: t.Decision.High,
		})
	}
	if len(t.Trajectory) > maxPoints { // every other point stays
		kept := t.Trajectory[:0]
		for i, p := range t.Trajectory {
			if i%2 == 1 || i == len(t.Trajectory)-1 {
				kept = append(kept, p)
			}
		}
		t.Trajectory, t.Stride = kept, t.Stride*2
	}
	return o
}
