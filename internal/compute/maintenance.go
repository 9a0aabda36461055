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
