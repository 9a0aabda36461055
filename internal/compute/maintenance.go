package compute

import (
	"slices"
	"strings"
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
type Window = scheduler.Window

func validWindows(all []Window) error {
	if len(all) > maxWindows {
		return fault.New(fault.Invalid, "maintenance: %d windows exceed the limit of %d", len(all), maxWindows)
	}
	for _, w := range all {
		switch {
		case w.From.IsZero() || !w.Until.After(w.From):
			return fault.New(fault.Invalid, "maintenance: a window must end after it begins").WithHint("Set from and until, such as 2026-12-01T06:00:00Z.")
		case len(w.Nodes) > maxNodes || len(w.Reason) > maxReason:
			return fault.New(fault.Invalid, "maintenance: a window names more than %d nodes, or its reason exceeds %d bytes", maxNodes, maxReason)
		}
	}
	return nil
}

func validTopology(levels []string) error {
	if len(levels) > maxLevels {
		return fault.New(fault.Invalid, "topology: %d levels exceed the limit of %d", len(levels), maxLevels)
	}
	for i, l := range levels {
		switch {
		case l == "" || len(l) > 128 || strings.ContainsFunc(l, unicode.IsControl):
			return fault.New(fault.Invalid, "topology: %.80q is not a valid label name", l)
		case l == scheduler.OnNode:
			return fault.New(fault.Invalid, "topology: the level node is implicit").WithHint("Remove it.")
		case slices.Contains(levels[:i], l):
			return fault.New(fault.Invalid, "topology: duplicate level %s", l)
		}
	}
	return nil
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
