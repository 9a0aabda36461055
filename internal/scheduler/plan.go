package scheduler

import (
	"strings"
	"time"
)

// Plan is what a step decided. State.Why says why the others wait.
type Plan struct {
	Place []Placement // in the order in which they were decided
	// Wake is when the next delayed work may start; zero when none is delayed.
	Wake time.Time
}

// Placement gives a work its place: all of its workers in one pool.
type Placement struct {
	Work ID
	Pool string
	// Workers is between the work's least and most. Nodes has one name for each
	// of them, and is empty in a delegated pool.
	Workers int
	Nodes   []string
	// Passed says why the pools that may not take the work were passed by.
	Passed []Reason
}

// Wait says why a work has no place.
type Wait struct {
	// Possible is true when some pool could run it as the pools are now: it
	// waits for room, time or quota, not for somebody to change something.
	Possible bool
	Reasons  []Reason // at least one
}

// Reason is one cause in words, and the step that found it.
type Reason struct {
	Step string // "admit", "fit"
	Pool string // empty when it concerns no pool
	Text string // "pool gpu-de is in DE and the data may be in home only"
}

// String joins the reasons with semicolons.
func (w Wait) String() string {
	texts := make([]string, len(w.Reasons))
	for i, r := range w.Reasons {
		texts[i] = r.Text
	}
	return strings.Join(texts, "; ")
}
