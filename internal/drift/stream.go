package drift

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Detectors of change in a stream of numbers, one at a time, without a window
// that somebody has to choose. Their defaults, and the moments at which they
// report, are those of River 0.26.

// ADWIN keeps a window as long as its older and its newer part have the same
// mean, and drops the older part when they do not (Bifet, Gavaldà, 2007). Memory
// is logarithmic in the window's length. As River's, it begins anew with the
// value after a change. Make one with NewADWIN.
type ADWIN struct {
	s adwinState
}

type adwinState struct {
	Delta      float64    `json:"delta"`
	Rows       [][]bucket `json:"rows"` // Rows[i] are buckets of 2^i values, the oldest first
	Ticks      uint64     `json:"ticks"`
	Width      float64    `json:"width"`
	Total      float64    `json:"total"`
	Spread     float64    `json:"spread"` // sum of squared differences from the mean
	Detections uint64     `json:"detections"`
	Changed    bool       `json:"changed"`
}

type bucket struct {
	Total  float64 `json:"t"`
	Spread float64 `json:"s"`
}

const (
	adwinClock   = 32 // values between two looks
	adwinBuckets = 5  // of one size
	adwinPart    = 5  // values that a part has at least
	adwinGrace   = 10 // values before the first look
	adwinRows    = 48 // 2⁴⁸ values are more than anyone will add
)

// NewADWIN returns a detector. delta is the chance of a false alarm at a look;
// 0 means 0.002.
func NewADWIN(delta float64) *ADWIN {
	if !(delta > 0 && delta < 1) {
		delta = 0.002
	}
	return &ADWIN{s: adwinState{Delta: delta, Rows: make([][]bucket, 1)}}
}

// Update adds a value and reports whether the mean has changed. A value that is
// not finite, or beyond sketch.MaxMagnitude, is left out.
func (a *ADWIN) Update(v float64) bool {
	if !(math.Abs(v) <= sketch.MaxMagnitude) {
		return false
	}
	s := &a.s
	if s.Changed {
		*s = adwinState{Delta: s.Delta, Rows: make([][]bucket, 1), Detections: s.Detections}
	}
	s.insert(v)
	s.Ticks++
	if s.Ticks%adwinClock != 0 || s.Width <= adwinGrace {
		return false
	}
	for s.cut() {
		s.forget()
		s.Changed = true
	}
	if s.Changed {
		s.Detections++
	}
	return s.Changed
}

// Width is how many values the window holds.
func (a *ADWIN) Width() int { return int(a.s.Width) }

// Mean is the mean of the window; 0 when it is empty.
func (a *ADWIN) Mean() float64 {
	if a.s.Width == 0 {
		return 0
	}
	return a.s.Total / a.s.Width
}

// Detections is how often a change was reported.
func (a *ADWIN) Detections() uint64 { return a.s.Detections }

// MarshalBinary returns the state, to go on from after a restart.
func (a *ADWIN) MarshalBinary() ([]byte, error) {
	b, err := json.Marshal(a.s)
	return b, fault.Wrap(err, "writing an ADWIN detector")
}

// UnmarshalBinary replaces the detector. It fails with Invalid on what
// MarshalBinary did not write, and leaves the detector as it was.
func (a *ADWIN) UnmarshalBinary(b []byte) error {
	var s adwinState
	if err := decodeState(b, &s); err != nil {
		return err
	}
	width := 0.0
	for i, row := range s.Rows {
		width += float64(len(row)) * math.Ldexp(1, i)
		if len(row) > adwinBuckets {
			width = -1
			break
		}
	}
	if n := len(s.Rows); n < 1 || n > adwinRows || n > 1 && len(s.Rows[n-1]) == 0 || width != s.Width || !(s.Delta > 0 && s.Delta < 1) {
		return fault.New(fault.Invalid, "this is not the state of an ADWIN detector")
	}
	a.s = s
	return nil
}

func (s *adwinState) insert(v float64) {
	if s.Width > 0 {
		d := v - s.Total/s.Width
		s.Spread += s.Width * d * d / (s.Width + 1)
	}
	s.Width++
	s.Total += v
	s.Rows[0] = append(s.Rows[0], bucket{Total: v})
	for i := 0; i < len(s.Rows) && len(s.Rows[i]) > adwinBuckets; i++ {
		if i+1 == len(s.Rows) {
			if i+1 == adwinRows {
				return
			}
			s.Rows = append(s.Rows, nil)
		}
		size := math.Ldexp(1, i)
		x, y := s.Rows[i][0], s.Rows[i][1]
		d := (x.Total - y.Total) / size
		s.Rows[i+1] = append(s.Rows[i+1], bucket{x.Total + y.Total, x.Spread + y.Spread + size/2*d*d})
		s.Rows[i] = append(s.Rows[i][:0], s.Rows[i][2:]...)
	}
}

// cut looks for a place where the two parts differ.
func (s *adwinState) cut() bool {
	n0, t0 := 0.0, 0.0
	for i, row := range slices.Backward(s.Rows) {
		size := math.Ldexp(1, i)
		for _, b := range row {
			n0 += size
			t0 += b.Total
			n1 := s.Width - n0
			if n0 >= adwinPart && n1 >= adwinPart && math.Abs(t0/n0-(s.Total-t0)/n1) > s.limit(n0, n1) {
				return true
			}
		}
	}
	return false
}

func (s *adwinState) limit(n0, n1 float64) float64 {
	d := math.Log(2 * math.Log(s.Width) / s.Delta)
	m := 1/(n0-adwinPart+1) + 1/(n1-adwinPart+1)
	return math.Sqrt(2*m*math.Max(0, s.Spread)/s.Width*d) + 2.0/3.0*d*m
}

// forget drops the oldest bucket.
func (s *adwinState) forget() {
	last := len(s.Rows) - 1
	size := math.Ldexp(1, last)
	b := s.Rows[last][0]
	s.Width -= size
	s.Total -= b.Total
	d := b.Total/size - s.Total/s.Width
	s.Spread -= b.Spread + size*s.Width*d*d/(size+s.Width)
	s.Rows[last] = s.Rows[last][1:]
	for last > 0 && len(s.Rows[last]) == 0 {
		s.Rows = s.Rows[:last]
		last--
	}
}

// PageHinkley reports when the differences of the values from their mean,
// forgotten slowly, have risen or fallen by a threshold from where they were
// lowest or highest (Page, 1954). Make one with NewPageHinkley.
type PageHinkley struct {
	s pageState
}

type pageState struct {
	Delta      float64 `json:"delta"`
	Threshold  float64 `json:"threshold"`
	Count      float64 `json:"count"`
	Mean       float64 `json:"mean"`
	Up         float64 `json:"up"` // sum of differences, less delta
	Lowest     float64 `json:"lowest"`
	Down       float64 `json:"down"` // the same, plus delta
	Highest    float64 `json:"highest"`
	Detections uint64  `json:"detections"`
	Changed    bool    `json:"changed"`
}

const (
	pageGrace  = 30
	pageForget = 1 - 0.0001
)

// NewPageHinkley returns a detector. delta is the difference that is tolerated,
// 0 means 0.005; threshold is in the unit of the values, 0 means 50.
func NewPageHinkley(delta, threshold float64) *PageHinkley {
	if !(delta > 0) {
		delta = 0.005
	}
	if !(threshold > 0) {
		threshold = 50
	}
	return &PageHinkley{s: pageState{Delta: delta, Threshold: threshold}}
}

// Update adds a value and reports whether the mean has changed. After a report it
// begins anew. A value that is not finite, or beyond sketch.MaxMagnitude, is left
// out.
func (p *PageHinkley) Update(v float64) bool {
	if !(math.Abs(v) <= sketch.MaxMagnitude) {
		return false
	}
	s := &p.s
	if s.Changed {
		*s = pageState{Delta: s.Delta, Threshold: s.Threshold, Detections: s.Detections}
	}
	s.Count++
	s.Mean += (v - s.Mean) / s.Count
	s.Up = pageForget*s.Up + v - s.Mean - s.Delta
	s.Down = pageForget*s.Down + v - s.Mean + s.Delta
	if s.Count == 1 {
		s.Lowest, s.Highest = s.Up, s.Down
	}
	s.Lowest, s.Highest = math.Min(s.Lowest, s.Up), math.Max(s.Highest, s.Down)
	s.Changed = s.Count >= pageGrace && (s.Up-s.Lowest > s.Threshold || s.Highest-s.Down > s.Threshold)
	if s.Changed {
		s.Detections++
	}
	return s.Changed
}

// Detections is how often a change was reported.
func (p *PageHinkley) Detections() uint64 { return p.s.Detections }

// MarshalBinary returns the state, to go on from after a restart.
func (p *PageHinkley) MarshalBinary() ([]byte, error) {
	b, err := json.Marshal(p.s)
	return b, fault.Wrap(err, "writing a Page-Hinkley detector")
}

// UnmarshalBinary replaces the detector. It fails with Invalid on what
// MarshalBinary did not write, and leaves the detector as it was.
func (p *PageHinkley) UnmarshalBinary(b []byte) error {
	var s pageState
	if err := decodeState(b, &s); err != nil {
		return err
	}
	if !(s.Delta > 0 && s.Threshold > 0 && s.Count >= 0) {
		return fault.New(fault.Invalid, "this is not the state of a Page-Hinkley detector")
	}
	p.s = s
	return nil
}

const maxState = 64 << 10 // bytes

func decodeState(b []byte, into any) error {
	if len(b) > maxState {
		return fault.New(fault.TooLarge, "the state of a detector has %d bytes, over the limit of %d", len(b), maxState)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fault.New(fault.Invalid, "reading the state of a detector: %w", err)
	}
	return nil
}
