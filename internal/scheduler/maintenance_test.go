package scheduler

import (
	"testing"
	"time"
)

// TestWindows: of several windows over a node the one that ends last counts, and of
// those to come the next.
func TestWindows(t *testing.T) {
	hour := func(n int) time.Time { return start.Add(time.Duration(n) * time.Hour) }
	all := Windows{
		{From: hour(2), Until: hour(4), Reason: "disks"},
		{From: hour(1), Until: hour(3), Reason: "drivers"},
		{From: hour(6), Until: hour(7), Nodes: []string{"b"}},
		{From: hour(8), Until: hour(9)},
	}
	for _, c := range []struct {
		at     int
		node   string
		closed string
		closes int // 0 is never
	}{
		{0, "a", "", 1},
		{1, "a", "maintenance until 2026-01-01T03:00:00Z: drivers", 2},
		{2, "a", "maintenance until 2026-01-01T04:00:00Z: disks", 8},
		{3, "a", "maintenance until 2026-01-01T04:00:00Z: disks", 8},
		{4, "a", "", 8},
		{4, "b", "", 6},
		{9, "b", "", 0},
	} {
		closed, closes := all.At(c.node, hour(c.at))
		if closed != c.closed || closes.IsZero() != (c.closes == 0) || c.closes > 0 && !closes.Equal(hour(c.closes)) {
			t.Errorf("at %d on %s: %q, next %s", c.at, c.node, closed, closes)
		}
	}
}
