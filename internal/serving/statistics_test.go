package serving

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/batching"
)

func TestStatisticsOfATally(t *testing.T) {
	var x tally
	at := time.Unix(1_000, 0)
	x.ran(batching.Run{Rows: 1, Infer: time.Millisecond, Ended: at})
	x.answered(batching.Answer{Infer: time.Millisecond})
	x.add(2*time.Millisecond, nil)
	x.ran(batching.Run{Rows: 3, Input: time.Microsecond, Infer: 4 * time.Millisecond, Output: 2 * time.Microsecond, Ended: at.Add(time.Second)})
	for range 2 { // two requests in one run
		x.answered(batching.Answer{Queue: time.Millisecond, Input: time.Microsecond, Infer: 4 * time.Millisecond, Output: 2 * time.Microsecond})
		x.add(6*time.Millisecond, nil)
	}
	x.add(time.Second, fault.New(fault.Unavailable, "full"))
	s := x.statistics(7)
	if s.Version != 7 || !s.Last.Equal(at.Add(time.Second)) || s.Inferences != 4 || s.Executions != 2 {
		t.Errorf("%+v", s)
	}
	want := []struct {
		name string
		got  Spent
		Spent
	}{
		{"success", s.Success, Spent{3, 14 * time.Millisecond}},
		{"fail", s.Fail, Spent{1, time.Second}},
		{"queue", s.Queue, Spent{3, 2 * time.Millisecond}},
		{"input", s.Input, Spent{3, 2 * time.Microsecond}},
		{"infer", s.Infer, Spent{3, 9 * time.Millisecond}},
		{"output", s.Output, Spent{3, 4 * time.Microsecond}},
	}
	for _, w := range want {
		if w.got != w.Spent {
			t.Errorf("%s: %+v, want %+v", w.name, w.got, w.Spent)
		}
	}
	if len(s.Batches) != 2 || s.Batches[0].Size != 1 || s.Batches[1].Size != 3 || s.Batches[1].Infer != (Spent{1, 4 * time.Millisecond}) {
		t.Errorf("%+v", s.Batches)
	}
	m := Measured{Statistics: s, Failures: map[fault.Kind]int64{}, Latency: map[float64]uint64{}, Waits: map[float64]uint64{}, Sizes: map[float64]uint64{}}
	x.measure(&m)
	ms := func(octave int) float64 { return float64(int64(1)<<octave) / 1e9 }
	if m.Failures[fault.Unavailable] != 1 || m.Sizes[2] != 1 || m.Sizes[4] != 2 || m.Latency[ms(20)] != 0 || m.Latency[ms(21)] != 1 || m.Latency[ms(23)] != 3 || m.Latency[ms(30)] != 4 ||
		m.Waits[ms(10)] != 1 || m.Waits[ms(20)] != 3 {
		t.Errorf("%+v", m)
	}
}

// TestSizeSlots: a run is counted where its size is found again, and no size is too large.
func TestSizeSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(0, 1<<31).Draw(t, "rows")
		slot := sizeSlot(rows)
		if size := sizeOf(slot); size < int64(rows) || rows <= maxSize && size != int64(rows) || rows > maxSize && size >= 2*int64(rows) || slot >= len(tally{}.batches) {
			t.Fatalf("%d rows are counted as %d", rows, size)
		}
	})
}
