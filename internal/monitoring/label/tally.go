package label

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/sketch"
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
	// maxGroups is into how many groups the keys of a version go. Fewer groups than
	// keys cost a little power, and nothing else: they are independent, too.
	maxGroups = 1024
	// maxBucket bounds the bits of a set of buckets.
	maxBucket = 1 << 20
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

	// Seen is when its newest record or label was received, on the wall's clock.
	Seen time.Time `json:"seen,omitzero"`

	Unjudged int64 `json:"unjudged,omitempty"` // labels that are none for the metric

	Problem string `json:"problem,omitempty"` // why nothing could be read the last time

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
	Labelled int64           `json:"labelled"`
	Judged   int64           `json:"judged"` // losses, those of Groups among them
	Loss     rollout.Moments `json:"loss"`   // of requests that chance routed, each alone
	// Groups are the losses of requests that a key routed, by bucket modulo maxGroups.
	Groups map[uint32]rollout.Group `json:"groups,omitempty"`
	// Waiting are losses of requests that are younger than the rollout's label
	// delay, by stretch of time.
	Waiting map[int64]*waiting `json:"waiting,omitempty"`
	// Keys are the buckets that were seen, LabelledKeys those with a label.
	Keys         bits   `json:"keys,omitempty"`
	LabelledKeys bits   `json:"labelled_keys,omitempty"`
	Latency      []byte `json:"latency,omitempty"` // sketch.Latency

	latency *sketch.Latency
}

// waiting are the losses of the requests of a stretch of time.
type waiting struct {
	Replay bool                     `json:"replay,omitempty"`
	Until  time.Time                `json:"until"` // the end of the stretch
	Judged int64                    `json:"judged"`
	Loss   rollout.Moments          `json:"loss"`
	Groups map[uint32]rollout.Group `json:"groups,omitempty"`
}

// stretches is into how many parts a label delay is divided: a request waits for
// up to one of them longer.
const stretches = 8

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

func newTally() *tally {
	t := &tally{Stride: lookEvery}
	t.Decision.Outcome = rollout.Continue
	t.Stable.latency, t.Candidate.latency = sketch.NewLatency(), sketch.NewLatency()
	return t
}

func decodeTally(b []byte) (*tally, error) {
	t := &tally{}
	if err := json.Unmarshal(b, t); err != nil {
		return nil, fault.New(fault.Internal, "a stored judgement is invalid: %w", err)
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
	if rec.Received.After(t.Seen) {
		t.Seen = rec.Received
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
	if rec.Bucket == 0 || s.Keys.add(rec.Bucket) {
		s.Assigned++
	}
	if ofTheAsker(rec.Failure) || rec.Failure == prediction.GaveUp && !t.outwaited(rec.Latency) {
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

// enough is how many answers of the stable version say how long one takes.
const enough = 100

// outwaited reports whether who gave up had waited longer than for 99 in 100 answers of
// the stable version: then it was the version that took too long.
func (t *tally) outwaited(d time.Duration) bool {
	return t.Stable.latency.Count() >= enough && d > t.Stable.latency.Quantile(0.99)
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

// pair counts the loss of a labelled request: the mean over its rows.
func (t *tally) pair(r Rollout, p Pair) {
	if p.Record.Rollout != r.ID || p.Record.Shadow {
		return
	}
	s := t.side(r, p.Record.Version)
	if s == nil {
		return
	}
	if p.Received.After(t.Seen) {
		t.Seen = p.Received
	}
	key := p.Record.Bucket
	if key == 0 || s.LabelledKeys.add(key) {
		s.Labelled++
	}
	if p.Record.Failure != "" {
		return
	}
	loss, ok := lossOf(r.Spec, p)
	if !ok {
		t.Unjudged++
		return
	}
	one := waiting{Replay: p.Record.Replay, Judged: 1}
	if key == 0 {
		one.Loss.Add(loss)
	} else {
		one.Groups = map[uint32]rollout.Group{key % maxGroups: {N: 1, Sum: loss}}
	}
	if delay := r.Spec.Delay(); delay > 0 {
		s.wait(p.Record.At, delay, one)
		return
	}
	s.Judged++
	s.Loss.Merge(one.Loss)
	s.Groups = added(s.Groups, one.Groups)
}

// lossOf is the mean loss of a request's labelled rows. Of an answer of several classes
// only the error is known: whether the class is the right one. Its score is the
// probability of one class, which a label of another says nothing about.
func lossOf(spec rollout.Spec, p Pair) (mean float64, ok bool) {
	classes := p.Texts
	if p.Record.Task == prediction.Multiclass && classes == nil {
		classes = make([]string, len(p.Labels))
		for i, v := range p.Labels {
			classes[i] = ClassOf(v)
		}
	}
	sum, rows := 0.0, 0
	switch {
	case classes != nil:
		if spec.Metric != rollout.Error || len(p.Record.Predicted) != len(classes) || len(classes) == 0 {
			return 0, false
		}
		for i, c := range classes {
			if !p.Labelled(i) {
				continue
			}
			if rows++; p.Record.Predicted[i] != c {
				sum++
			}
		}
	case len(p.Record.Scores) != len(p.Labels) || len(p.Labels) == 0:
		return 0, false
	default:
		for i, label := range p.Labels {
			if !p.Labelled(i) {
				continue
			}
			rows++
			loss, err := spec.Loss(p.Record.Scores[i], label)
			if err != nil {
				return 0, false
			}
			sum += loss
		}
	}
	return sum / float64(max(rows, 1)), rows > 0
}

// ClassOf is what a class that labels give as a number is called: 2 is "2".
func ClassOf(label float64) string { return strconv.FormatFloat(label, 'f', -1, 64) }

// wait puts a loss where those of its time are.
func (s *side) wait(at time.Time, delay time.Duration, one waiting) {
	width := max(delay/stretches, time.Second)
	one.Until = at.Truncate(width).Add(width)
	n := one.Until.Unix() * 2 // each clock has stretches of its own
	if one.Replay {
		n++
	}
	if s.Waiting == nil {
		s.Waiting = map[int64]*waiting{}
	}
	if have := s.Waiting[n]; have != nil {
		have.Judged += one.Judged
		have.Loss.Merge(one.Loss)
		have.Groups = added(have.Groups, one.Groups)
		return
	}
	s.Waiting[n] = &one
}

// ripen takes in the losses of requests that are old enough.
func (t *tally) ripen(r Rollout, now time.Time) {
	delay := r.Spec.Delay()
	for _, s := range []*side{&t.Stable, &t.Candidate} {
		for _, n := range slices.Sorted(maps.Keys(s.Waiting)) {
			w, clock := s.Waiting[n], now
			if w.Replay {
				clock = t.Newest
			}
			if clock.Sub(w.Until) < delay {
				continue
			}
			s.Judged += w.Judged
			s.Loss.Merge(w.Loss)
			s.Groups = added(s.Groups, w.Groups)
			delete(s.Waiting, n)
		}
	}
}

// added are the groups of both; into may be nil, and changes.
func added(into, more map[uint32]rollout.Group) map[uint32]rollout.Group {
	if into == nil {
		return maps.Clone(more)
	}
	for k, g := range more {
		have := into[k]
		into[k] = rollout.Group{N: have.N + g.N, Sum: have.Sum + g.Sum}
	}
	return into
}

// bits is a set of small numbers.
type bits []byte

// add reports whether the number is new. One that is too large for the set never
// is.
func (b *bits) add(n uint32) bool {
	if n >= maxBucket {
		return false
	}
	if grow := int(n/8) + 1 - len(*b); grow > 0 {
		*b = append(*b, make([]byte, grow)...)
	}
	bit := byte(1) << (n % 8)
	had := (*b)[n/8]&bit != 0
	(*b)[n/8] |= bit
	return !had
}

// waits is how many labels are of requests that are too young.
func (t *tally) waits() (n int64) {
	for _, s := range []side{t.Stable, t.Candidate} {
		for _, w := range s.Waiting {
			n += w.Judged
		}
	}
	return n
}

func (t *tally) labels() int64 { return t.Stable.Judged + t.Candidate.Judged }

// elapsed is how long the rollout runs: on the records' clock while old times
// are replayed, else on the wall's, which goes on without traffic. A replay that has
// ended has a clock that stands still: then the wall's says how long nothing came.
func (t *tally) elapsed(r Rollout, now time.Time) time.Duration {
	if !t.replay() {
		return max(0, now.Sub(r.Started))
	}
	if t.over(r, now) {
		return now.Sub(t.Seen)
	}
	return max(0, t.Newest.Sub(t.From))
}

// Bounds of a replay's pauses, on the wall's clock.
const (
	minPause = time.Minute        // none is told of before
	standing = 7 * 24 * time.Hour // at least, before it ends the rollout
)

// patience is how long a replay may pause before its rollout ends.
func (r Rollout) patience() time.Duration { return max(standing, r.Spec.WithDefaults().Duration()) }

// over reports whether the rollout's replay has brought nothing for so long that it ends.
func (t *tally) over(r Rollout, now time.Time) bool {
	return t.replay() && now.Sub(t.Seen) >= r.patience()
}

// pause says that the rollout's replay brings nothing, and when that ends the rollout;
// empty while it does. It is the same until something comes.
func (t *tally) pause(r Rollout, now time.Time) string {
	if !t.replay() || now.Sub(t.Seen) < minPause {
		return ""
	}
	since := "; its replay has had no request or label since " + t.Seen.UTC().Format(time.RFC3339)
	if t.over(r, now) {
		return since
	}
	return since + ", and the rollout ends at " + t.Seen.Add(r.patience()).UTC().Format(time.RFC3339) + " unless one arrives"
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
		groups := make([]rollout.Group, 0, len(s.Groups))
		for _, key := range slices.Sorted(maps.Keys(s.Groups)) { // the order of a sum shows in its last digit
			groups = append(groups, s.Groups[key])
		}
		a := rollout.Arm{
			Version: version, Share: share, Assigned: s.Assigned, Requests: s.Requests, Errors: s.Errors, Slow: s.Slow,
			LatencyP99: s.latency.Quantile(.99), Labelled: s.Labelled,
		}
		a.Loss, a.Groups = rollout.Grouped(s.Loss, groups)
		return a
	}
	share := float64(r.Weight) / 100
	return rollout.Observations{
		Stable: arm(t.Stable, r.Stable, 1-share), Candidate: arm(t.Candidate, r.Candidate, share), Elapsed: t.elapsed(r, now),
	}
}

// look decides by what was seen so far. While there is more to be seen, the time
// being over ends nothing: records may be far ahead of labels that are there.
func (t *tally) look(r Rollout, now time.Time, more bool) rollout.Observations {
	t.ripen(r, now)
	o := t.observations(r, now)
	t.Observed = o
	if more {
		o.Elapsed = 0
	}
	t.Decision, o = rollout.Decide(o, r.Spec), t.Observed
	if !more && (!t.Decision.Final() || t.over(r, now)) {
		t.Decision.Reason += t.pause(r, now)
	}
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
