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
	return nil, fault.New(fault.Invalid, "%q is not a policy", name).WithHint("The policies are %q.", slices.Sorted(maps.Keys(policies)))
}
