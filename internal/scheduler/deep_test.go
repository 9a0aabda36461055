package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// deep is a world in which many wait in a queue of four cores, all of them used.
func deep(t *testing.T, policy Policy, n int) *State {
	t.Helper()
	cores := func(n int64) resource.Amount { return resource.Amount{CPU: resource.Cores(n)} }
	d := Delta{
		Now: start, Policy: policy, Queues: []Queue{{Name: "deep", Quota: resource.LimitOf(cores(4))}, {Name: "other", Quota: resource.LimitOf(cores(4))}},
		Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: cores(8)}}}},
	}
	for i := range n {
		d.Submitted = append(d.Submitted, Workload{
			ID: ID(fmt.Sprintf("w%05d", i)), Queue: "deep", Residency: []string{"home"}, Isolation: Sandbox, Request: cores(1), Priority: 10,
			Submitted: start.Add(time.Duration(i) * time.Millisecond),
		})
	}
	s, plan := Decide(d)
	if len(plan.Place) != 4 {
		t.Fatalf("%d started", len(plan.Place))
	}
	return s
}

// TestBehindMany: who may run starts in the next step, however many wait before it
// that may not.
func TestBehindMany(t *testing.T) {
	for _, policy := range Policies {
		s := deep(t, policy, 10_000)
		w := Workload{ID: "mine", Queue: "other", Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: resource.Cores(2)}, Submitted: start.Add(time.Minute)}
		plan := s.Step(Delta{Now: start.Add(time.Minute), Submitted: []Workload{w}})
		if len(plan.Place) != 1 || plan.Place[0].Workload != "mine" {
			t.Errorf("%s: %+v", policy, plan.Place)
		}
	}
}

// TestDrains: of one deep queue as many start in a step as ended before it.
func TestDrains(t *testing.T) {
	for _, policy := range Policies {
		s, next := deep(t, policy, 5_000), 4
		for step := range 500 {
			ends := 1 + step%4
			d := Delta{Now: start.Add(time.Duration(step+1) * time.Second)}
			for i := next - 4; i < next-4+ends; i++ { // who has run longest
				d.Removed = append(d.Removed, ID(fmt.Sprintf("w%05d", i)))
			}
			plan := s.Step(d)
			if len(plan.Place) != ends {
				t.Fatalf("%s: %d ended in step %d, and %d started", policy, ends, step, len(plan.Place))
			}
			next += ends
		}
	}
}
