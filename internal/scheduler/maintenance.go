package scheduler

import (
	"slices"
	"time"
)

// Window is a time in which nodes are looked after.
type Window struct {
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`
	Nodes  []string  `json:"nodes,omitempty" doc:"Affected nodes; default all of the pool"`
	Reason string    `json:"reason,omitempty" doc:"Reason, shown with the wait reasons of pending jobs"`
}

// Windows are those of a pool.
type Windows []Window

// At is what they say of a node at a time: why it takes nothing, and when that is
// next.
func (all Windows) At(node string, now time.Time) (closed string, closes time.Time) {
	var until time.Time
	for _, w := range all {
		switch {
		case len(w.Nodes) > 0 && !slices.Contains(w.Nodes, node) || !w.Until.After(now):
		case w.From.After(now):
			if closes.IsZero() || w.From.Before(closes) {
				closes = w.From
			}
		case !w.Until.After(until): // another takes longer
		default:
			until = w.Until
			closed = "maintenance until " + w.Until.UTC().Format(time.RFC3339)
			if w.Reason != "" {
				closed += ": " + w.Reason
			}
		}
	}
	return closed, closes
}

// Next is when one begins or ends after a time; zero is never.
func (all Windows) Next(now time.Time) (next time.Time) {
	for _, w := range all {
		for _, at := range []time.Time{w.From, w.Until} {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}
