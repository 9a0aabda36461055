package compute

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// Limits of what a pool says of its nodes.
const (
	maxWindows = 100
	maxLevels  = 5
	maxAhead   = 10
)

// Window is a time in which nodes are looked after.
type Window struct {
	From   time.Time `json:"from"`
	Until  time.Time `json:"until"`
	Nodes  []string  `json:"nodes,omitempty" doc:"Which nodes; default all of the pool"`
	Reason string    `json:"reason,omitempty" doc:"Why, for those who wait"`
}

func validWindows(all []Window) error {
	if len(all) > maxWindows {
		return fault.New(fault.Invalid, "there are %d maintenance windows, at most %d are allowed", len(all), maxWindows)
	}
	for _, w := range all {
		switch {
		case w.From.IsZero() || !w.Until.After(w.From):
			return fault.New(fault.Invalid, "a maintenance window must end after it begins").WithHint("Give from and until as 2026-12-01T06:00:00Z.")
		case len(w.Nodes) > maxNodes || len(w.Reason) > maxReason:
			return fault.New(fault.Invalid, "a maintenance window names more than %d nodes, or has a reason of more than %d bytes", maxNodes, maxReason)
		}
	}
	return nil
}

func validTopology(levels []string) error {
	if len(levels) > maxLevels {
		return fault.New(fault.Invalid, "topology has %d levels, at most %d are allowed", len(levels), maxLevels)
	}
	for i, l := range levels {
		switch {
		case l == "" || len(l) > 128 || strings.ContainsFunc(l, unicode.IsControl):
			return fault.New(fault.Invalid, "topology: %.80q is not the name of a label", l)
		case l == scheduler.OnNode:
			return fault.New(fault.Invalid, "topology: the level node is always there").WithHint("Leave it out.")
		case slices.Contains(levels[:i], l):
			return fault.New(fault.Invalid, "topology: %s is there twice", l)
		}
	}
	return nil
}

// looked is what the windows of a pool say of a node now: why it takes nothing, and
// when that is next.
func (p Pool) looked(node string, now time.Time) (closed string, closes time.Time) {
	for _, w := range p.Maintenance {
		switch {
		case len(w.Nodes) > 0 && !slices.Contains(w.Nodes, node) || !w.Until.After(now):
		case w.From.After(now):
			if closes.IsZero() || w.From.Before(closes) {
				closes = w.From
			}
		default:
			closed = "maintenance until " + w.Until.UTC().Format(time.RFC3339)
			if w.Reason != "" {
				closed += ": " + w.Reason
			}
		}
	}
	return closed, closes
}

// news is when a window begins or ends next; zero is never.
func (p Pool) news(now time.Time) (next time.Time) {
	for _, w := range p.Maintenance {
		for _, at := range []time.Time{w.From, w.Until} {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

// where is in what a node stands, by the levels of its pool.
func (p Pool) where(n Node) []string {
	if len(p.Topology) == 0 {
		return nil
	}
	out := make([]string, len(p.Topology))
	for i, level := range p.Topology {
		out[i] = n.Labels[level]
	}
	return out
}
