package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestTriesAreFair: who may take back what another queue has borrowed does so soon,
// however many kinds of workloads before it want what may not leave yet.
func TestTriesAreFair(t *testing.T) {
	cores := func(n int64) resource.Amount { return resource.Amount{CPU: resource.Cores(n)} }
	began := start.Add(time.Hour)
	world := Delta{
		Now: began, Policy: Fifo,
		Queues: []Queue{
			{Name: "lab", Quota: resource.LimitOf(cores(1000))},
			{Name: "new", Parent: "lab", MinRuntime: 24 * time.Hour},
			{Name: "old", Parent: "lab"},
			{Name: "many", Parent: "lab", Quota: resource.LimitOf(cores(1000))},
			{Name: "mine", Parent: "lab", Quota: resource.LimitOf(cores(8))},
		},
	}
	for _, name := range []string{"a", "b"} {
		world.Pools = append(world.Pools, Pool{Name: name, Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: cores(400)}}})
	}
	work := func(id, queue, pool string, n int64) Workload {
		return Workload{
			ID: ID(id), Queue: queue, Pools: []string{pool}, Request: cores(n), Residency: []string{"home"}, Isolation: Sandbox,
			Preemptible: true, Submitted: start.Add(time.Duration(len(world.Submitted)) * time.Second),
		}
	}
	for queue, pool := range map[string]string{"new": "a", "old": "b"} {
		world.Started = append(world.Started, Running{Workload: work("of "+queue, queue, pool, 400), Pool: pool, Nodes: []string{"n1"}, Started: start})
	}
	for n := range int64(300) {
		world.Submitted = append(world.Submitted, work(fmt.Sprintf("many%03d", n), "many", "a", 100+n))
	}
	world.Submitted = append(world.Submitted, work("mine", "mine", "b", 8))

	s := &State{}
	delta := world
	for step := range 200 {
		now := began.Add(time.Duration(step) * searchRetry)
		delta.Now, world.Now, world.Turns = now, now, s.Turns()
		plan := s.Step(delta)
		delta = Delta{}
		if whole, anew := Decide(world); render(whole, anew) != render(s, plan) {
			t.Fatalf("step %d: from nothing\n%s\nand not\n%s", step, render(whole, anew), render(s, plan))
		}
		if len(plan.Preempt) > 0 {
			if p := plan.Preempt[0]; p.Workload != "of old" || p.For != "mine" {
				t.Fatalf("%+v", plan.Preempt)
			}
			if step == 0 {
				t.Fatal("nobody was tried in vain before it")
			}
			return
		}
		if plan.Wake.IsZero() || plan.Wake.After(now.Add(searchRetry)) {
			t.Fatalf("step %d: the next step is at %s, and some were not tried", step, plan.Wake)
		}
	}
	t.Fatal("nobody leaves for mine")
}
