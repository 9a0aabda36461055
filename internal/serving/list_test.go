package serving_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/serving"
)

// closedTo forbids what is of some names.
type closedTo struct {
	serving.Authorizer
	names map[string]bool
}

func (c closedTo) Allow(ctx context.Context, a policy.Action, o policy.Object) error {
	if c.names[o.Name] {
		return fault.New(fault.PermissionDenied, "a policy forbids %s", o.Name)
	}
	return c.Authorizer.Allow(ctx, a, o)
}

// TestListIsWhatMayBeRead: a deployment that a policy forbids to read is in no list, and
// pages go on where others follow.
func TestListIsWhatMayBeRead(t *testing.T) {
	p := newPond(t)
	for i := range 9 {
		if _, _, err := p.Apply(t.Context(), "nyc", fmt.Sprintf("d%d", i), serving.Spec{Model: "m", Version: "1"}, false); err != nil {
			t.Fatal(err)
		}
	}
	c := p.config()
	c.Authz = closedTo{c.Authz, map[string]bool{"d0": true, "d2": true, "d3": true, "d4": true, "d8": true}}
	s := newServices(c)
	for limit, pages := range map[int][][]string{1: {{"d1"}, {"d5"}, {"d6"}, {"d7"}, nil}, 2: {{"d1", "d5"}, {"d6", "d7"}, nil}, 3: {{"d1", "d5", "d6"}, {"d7"}}, 100: {{"d1", "d5", "d6", "d7"}}} {
		after := ""
		for i, want := range pages {
			all, err := s.Deployments.List(t.Context(), "nyc", after, limit)
			var names []string
			for _, d := range all {
				names = append(names, d.Name)
				after = d.Name
			}
			if err != nil || !slices.Equal(names, want) {
				t.Errorf("page %d of %d: %v, %v; want %v", i, limit, names, err, want)
			}
		}
	}
}
