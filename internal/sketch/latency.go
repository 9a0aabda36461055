package sketch

import (
	"math"
	"slices"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/mapping"
	"github.com/DataDog/sketches-go/ddsketch/store"

	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	latencyError = 0.01 // relative error of a quantile
	latencyBins  = 1024 // 1 µs to 13 min without collapsing
	latencyFloor = time.Microsecond
	latencyMost  = 24 * time.Hour
)

// Latency answers quantiles of durations with a relative error of 1 % in at
// most 8 KiB (DDSketch: Masson, Rim, Lee, 2019). Rank error, KLL's, would say
// little about a p99 with a long tail; relative error does. Durations are
// brought into [1 µs, 24 h].
type Latency struct {
	sketch *ddsketch.DDSketch
	count  uint64
}

// NewLatency returns an empty summary.
func NewLatency() *Latency {
	m, err := mapping.NewLogarithmicMapping(latencyError)
	if err != nil {
		panic("sketch: a constant relative error is valid: " + err.Error())
	}
	return &Latency{sketch: ddsketch.NewDDSketch(m,
		store.NewCollapsingLowestDenseStore(latencyBins), store.NewCollapsingLowestDenseStore(1))}
}

// Add adds a duration.
func (l *Latency) Add(d time.Duration) {
	d = min(max(d, latencyFloor), latencyMost)
	l.sketch.GetPositiveValueStore().Add(l.sketch.Index(d.Seconds()))
	l.count++
}

// Count is how many durations were added.
func (l *Latency) Count() uint64 { return l.count }

// Quantile is the duration that a share q of all did not exceed; 0 when there
// are none or q is not in [0, 1].
func (l *Latency) Quantile(q float64) time.Duration {
	if l.count == 0 {
		return 0
	}
	v, err := l.sketch.GetValueAtQuantile(q)
	if err != nil || math.IsNaN(v) {
		return 0
	}
	return time.Duration(v * float64(time.Second))
}

// Merge adds all that other has seen.
func (l *Latency) Merge(other *Latency) {
	if other == nil || other.count == 0 {
		return
	}
	l.sketch.GetPositiveValueStore().MergeWith(other.sketch.GetPositiveValueStore())
	l.count += other.count
}

// MarshalBinary returns the binary form, which UnmarshalBinary reads.
func (l *Latency) MarshalBinary() ([]byte, error) {
	type bin struct {
		index int
		count float64
	}
	var bins []bin
	l.sketch.GetPositiveValueStore().ForEach(func(index int, count float64) bool {
		bins = append(bins, bin{index, count})
		return false
	})
	slices.SortFunc(bins, func(a, b bin) int { return a.index - b.index })
	w := newWriter(kindLatency)
	w.uint(uint64(len(bins)))
	for _, b := range bins {
		w.int(int64(b.index))
		w.uint(uint64(b.count))
	}
	return w.bytes, nil
}

// UnmarshalBinary replaces l. It fails with Invalid or TooLarge on bytes that
// MarshalBinary did not write, and leaves l as it was.
func (l *Latency) UnmarshalBinary(b []byte) error {
	r := newReader(b, kindLatency)
	got := NewLatency()
	low, high := int64(got.sketch.Index(latencyFloor.Seconds())), int64(got.sketch.Index(latencyMost.Seconds()))
	last := low - 1
	for range r.uintMax(latencyBins) {
		index, count := r.int(), r.uint()
		if index <= last || index > high || count == 0 || count > 1<<52 || got.count > 1<<53 {
			r.fail("a latency sketch has an impossible bin")
		}
		if r.err != nil {
			break
		}
		last = index
		got.count += count
		got.sketch.GetPositiveValueStore().AddWithCount(int(index), float64(count))
	}
	if err := r.end(); err != nil {
		return fault.Wrap(err, "reading a latency sketch")
	}
	*l = *got
	return nil
}
