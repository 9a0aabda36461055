package batching

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestSize: a batch grows as far as it pays.
func TestSize(t *testing.T) {
	for name, c := range map[string]struct {
		fixed, row time.Duration
		low, high  int
	}{
		"weights are read once a run":  {3 * time.Millisecond, 400 * time.Microsecond, 60, 64},
		"calling costs most":           {100 * time.Microsecond, time.Microsecond, 64, 64},
		"rows cost nothing":            {time.Millisecond, 0, 64, 64},
		"each row is a run of its own": {0, 100 * time.Millisecond, 1, 1},
		"a little is saved":            {10 * time.Millisecond, 20 * time.Millisecond, 4, 6},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var x cost
		for i := range 500 {
			rows := 1 + r.IntN(x.size(64))
			if i%9 == 0 {
				rows = 1 + r.IntN(8)
			}
			x.add(rows, c.fixed+time.Duration(rows)*c.row)
			if i == 10 && x.size(64) != 64 {
				t.Errorf("%s: judged by %d runs", name, i+1)
			}
		}
		if got := x.size(64); got < c.low || got > c.high {
			t.Errorf("%s: %d rows, want %d to %d", name, got, c.low, c.high)
		}
	}
	var alike cost
	for range 1000 {
		alike.add(7, time.Second)
	}
	if got := alike.size(64); got != 64 {
		t.Errorf("runs that are all alike say %d", got)
	}
}
