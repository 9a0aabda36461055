package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestLargeEnoughWhateverRuns: what runs now does not decide whether a gang with roles
// could ever fit, and it begins when there is room.
func TestLargeEnoughWhateverRuns(t *testing.T) {
	amount := func(cpu, gpus int64) resource.Amount {
		return resource.Amount{CPU: resource.Cores(cpu), Accelerators: map[string]int64{"gpu": gpus}}
	}
	work := Workload{Residency: []string{"home"}, Isolation: Sandbox, Submitted: start}
	gang, x := work, work
	gang.ID, gang.Workers = "gang", 2
	gang.Roles = []Role{{Name: "chief", Workers: 1, Request: amount(8, 1)}, {Name: "ps", Workers: 1, Request: resource.Amount{CPU: resource.Cores(60)}}}
	x.ID, x.Request = "x", amount(64, 1)
	s := &State{}
	plan := s.Step(Delta{
		Now:       start,
		Pools:     []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "a", Amount: amount(8, 1)}, {Name: "b", Amount: amount(64, 1)}}}},
		Started:   []Running{{Workload: x, Pool: "home", Placed: 1, Nodes: []string{"b"}, Started: start}},
		Submitted: []Workload{gang},
	})
	if why, waits := s.Why("gang"); len(plan.Place) > 0 || !waits || !why.Possible {
		t.Errorf("%+v, %+v", plan, why)
	}
	plan = s.Step(Delta{Now: start.Add(time.Minute), Removed: []ID{"x"}})
	if len(plan.Place) != 1 || !slices.Equal(plan.Place[0].Nodes, []string{"a", "b"}) {
		t.Errorf("%+v", plan)
	}
}
