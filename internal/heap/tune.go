package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// A collection costs by what is in use, so a small heap that is filled quickly, as by
// predictions of small models, is collected many times a second by Go's rule, which is as
// much garbage as there is in use. tuner lets there be more where that is little.
//
// The rule is set anew after each collection, because what is in use may have become much
// more since: so garbage is never more than the larger of least and what is in use.
type tuner struct {
	least uint64 // bytes
	share int    // of what is in use, in percent: Go's own rule

	mu   sync.Mutex
	set  int
	over bool
}

// smallest is the heap that Go collects for the first time, by its own rule; it grows as the rule
// does.
const smallest = 4 << 20

// GOGC in the environment makes another rule than this one, which then stays.
const usualShare = 100

// Tune begins, and says how to end: then Go's rule is there again.
func Tune(least int64) (end func()) {
	share := debug.SetGCPercent(usualShare)
	if share != usualShare || least <= 0 {
		debug.SetGCPercent(share)
		return func() {}
	}
	g := &tuner{least: uint64(least), share: share, set: share}
	g.collected(&sentinel{})
	return g.end
}

// sentinel is garbage by the next collection, which tells.
type sentinel struct{ _ [16]byte }

// collected sets the rule by what is in use.
func (g *tuner) collected(s *sentinel) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	if want := g.rule(inUse()); want != g.set {
		g.set = want
		debug.SetGCPercent(want)
	}
	runtime.SetFinalizer(s, g.collected)
}

// rule is how much garbage there may be beside so many bytes in use, in percent of them.
// It stays about as it is as long as that is about the same: the world stops for a change.
func (g *tuner) rule(used uint64) int {
	want := max(g.share, int(g.least*100/max(used, smallest))) //nolint:gosec // a share
	if off := want - g.set; off*8 < g.set && -off*8 < g.set && want > g.share {
		return g.set
	}
	return want
}

func (g *tuner) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.over = true
		debug.SetGCPercent(g.share)
	}
}

// inUse is how many bytes the rule is of: the heap's that were in use at the last
// collection, and the stacks.
func inUse() (n uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			n += s.Value.Uint64()
		}
	}
	return n
}
