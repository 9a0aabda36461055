package harness

import (
	"slices"
	"strconv"
	"time"
)

// Row is a measurement. Ours and Theirs have the same unit; nil is "not
// measured", and Note says why.
type Row struct {
	Step   string   `json:"step,omitempty"` // of the program
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Better string   `json:"better"` // higher or lower
	Ours   *float64 `json:"ours"`
	Theirs *float64 `json:"theirs"`
	Peer   string   `json:"peer"`
	Aim    *Aim     `json:"aim,omitempty"`
	Note   string   `json:"note"`
	// Detail is left out of the table of bench/README.md.
	Detail bool `json:"detail,omitempty"`
}

// Aim is a bound in the unit of the row, or a ratio to the peer; a ratio above 1
// means that ours is better.
type Aim struct {
	Ratio *float64 `json:"ratio,omitempty"`
	Value *float64 `json:"value,omitempty"`
}

// What of a number is better.
const (
	Lower  = "lower"
	Higher = "higher"
)

// Value rounds to four digits, which is more than the noise of any measurement.
func Value(v float64) *float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return &rounded
}

// Ratio is how many times better ours is.
func (r Row) Ratio() (float64, bool) {
	if r.Ours == nil || r.Theirs == nil || *r.Ours == 0 || *r.Theirs == 0 {
		return 0, false
	}
	if r.Better == Higher {
		return *r.Ours / *r.Theirs, true
	}
	return *r.Theirs / *r.Ours, true
}

// AimMet says whether the aim is reached; known is false without an aim or a value.
func (r Row) AimMet() (met, known bool) {
	if r.Aim == nil || r.Ours == nil {
		return false, false
	}
	if r.Aim.Ratio != nil {
		got, ok := r.Ratio()
		return got >= *r.Aim.Ratio, ok
	}
	if r.Better == Higher {
		return *r.Ours >= *r.Aim.Value, true
	}
	return *r.Ours <= *r.Aim.Value, true
}

// Median sorts the values.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile is the value below which the share q of the values is; it sorts them.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// Millis is a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// AllMillis are durations in milliseconds.
func AllMillis(times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, d := range times {
		out[i] = Millis(d)
	}
	return out
}
