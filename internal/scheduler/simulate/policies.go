package simulate

import (
	"maps"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// policies are all there are, by name.
var policies = map[string]func() Policy{
	"fifo":     func() Policy { return fifo{} },
	"goodput":  func() Policy { return newAdaptive() },
	"tiresias": func() Policy { return newTiresias() },
}

// NewPolicy makes a policy for one workload.
func NewPolicy(name string) (Policy, error) {
	if p := policies[name]; p != nil {
		return p(), nil
	}
	if name == "fair" { // one of the live scheduler's
		return nil, fault.New(fault.Invalid, "%q is not a policy for workloads", name).
			WithHint("It shares capacity among queues, which the jobs of a workload do not have: simulate it with --from-live. The policies are %q.", slices.Sorted(maps.Keys(policies)))
	}
	return nil, fault.New(fault.Invalid, "unknown policy %q", name).WithHint("The policies are %q.", slices.Sorted(maps.Keys(policies)))
}
