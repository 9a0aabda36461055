package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestGarbageRule(t *testing.T) {
	for name, tt := range map[string]struct {
		used uint64
		set  int
		want int
	}{
		"nothing known yet":  {0, 100, 800},
		"little":             {8 << 20, 100, 400},
		"about as before":    {9 << 20, 400, 400},
		"more than before":   {16 << 20, 400, 200},
		"less than before":   {4 << 20, 400, 800},
		"as much as allowed": {32 << 20, 110, 100},
		"much":               {1 << 30, 400, 100},
		"too much to count":  {1 << 62, 100, 100},
	} {
		g := &tuner{least: 32 << 20, share: 100, set: tt.set}
		if got := g.rule(tt.used); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// TestGarbage: a small heap may have more garbage than Go lets it have, a large one not,
// and another's rule stays.
func TestGarbage(t *testing.T) {
	usual := debug.SetGCPercent(usualShare)
	defer debug.SetGCPercent(usual)
	rule := func() int { // of the process
		now := debug.SetGCPercent(usualShare)
		debug.SetGCPercent(now)
		return now
	}
	end := Tune(64 << 20)
	if now := rule(); now <= usualShare {
		t.Errorf("it begins with %d", now)
	}
	large := make([]byte, 128<<20) // nobody touches it: no memory of the machine's
	deadline := time.Now().Add(time.Minute)
	for runtime.GC(); rule() != usualShare; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of a large heap", rule())
		}
	}
	runtime.KeepAlive(large)
	end()
	end()
	if now := rule(); now != usualShare {
		t.Errorf("it ends with %d", now)
	}
	debug.SetGCPercent(70) // as by GOGC
	Tune(1 << 30)()
	if now := rule(); now != 70 {
		t.Errorf("GOGC=70 became %d", now)
	}
}
