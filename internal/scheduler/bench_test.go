package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/schedulertest"
)

var sizes = [][2]int{{1000, 10_000}, {10_000, 100_000}} // nodes, workloads

// BenchmarkFull is a plan from nothing.
func BenchmarkFull(b *testing.B) {
	for _, size := range sizes {
		nodes, works := size[0], size[1]
		b.Run(fmt.Sprintf("nodes=%d/works=%d", nodes, works), func(b *testing.B) {
			world, placed := schedulertest.Installation(nodes, works), 0
			for b.Loop() {
				_, plan := scheduler.Decide(world)
				placed = len(plan.Place)
			}
			b.ReportMetric(float64(placed), "placed")
		})
	}
}

// BenchmarkDelta is a cycle in which ten workloads end and ten others come.
func BenchmarkDelta(b *testing.B) {
	delta(b, func(w scheduler.Workload) scheduler.Workload { return w })
}

// BenchmarkRoles is that where all gangs have roles.
func BenchmarkRoles(b *testing.B) { delta(b, schedulertest.Roles) }

// BenchmarkPreempt is that where workloads have priorities.
func BenchmarkPreempt(b *testing.B) {
	n := 0
	delta(b, func(w scheduler.Workload) scheduler.Workload {
		n++
		w.Priority = n * 7 % 5
		return w
	})
}

// BenchmarkReclaim is that where queues have half of the accelerators that they use, or
// half as many again.
func BenchmarkReclaim(b *testing.B) {
	delta(b, func(w scheduler.Workload) scheduler.Workload { return w }, schedulertest.Quotas)
}

func delta(b *testing.B, as func(scheduler.Workload) scheduler.Workload, edits ...func(*scheduler.Delta)) {
	b.Helper()
	for _, size := range sizes {
		nodes, works := size[0], size[1]
		b.Run(fmt.Sprintf("nodes=%d/works=%d", nodes, works), func(b *testing.B) {
			world := schedulertest.Installation(nodes, works)
			for i, w := range world.Submitted {
				world.Submitted[i] = as(w)
			}
			for _, edit := range edits {
				edit(&world)
			}
			s, plan := scheduler.Decide(world)
			run, left := schedulertest.Run(world, s, plan), 0
			run.As = as
			for b.Loop() {
				plan := s.Step(run.Next())
				run.Done(plan)
				left += len(plan.Preempt)
			}
			b.ReportMetric(float64(left)/float64(b.N), "leave")
		})
	}
}

// BenchmarkLarge is a cycle in which a large gang waits, in vain, for a pool of all nodes:
// it keeps nodes, and those who might leave for it are not enough.
func BenchmarkLarge(b *testing.B) {
	for _, roles := range []bool{false, true} {
		for _, patient := range []bool{true, false} {
			b.Run(fmt.Sprintf("roles=%t/patient=%t", roles, patient), func(b *testing.B) {
				world := schedulertest.Installation(10_000, 40_000)
				for _, p := range world.Pools[1:] {
					world.Pools[0].Nodes = append(world.Pools[0].Nodes, p.Nodes...)
				}
				world.Pools, world.Policy = world.Pools[:1], scheduler.Fifo
				world.Queues = []scheduler.Queue{{Name: "q", NeverPreempts: patient}}
				for i := range world.Submitted {
					world.Submitted[i].Queue = "q"
				}
				s, plan := scheduler.Decide(world)
				gang := schedulertest.Work(5)
				gang.ID, gang.Queue, gang.Priority, gang.Workers, gang.Submitted = "gang", "q", 10, 7500, world.Now.Add(-time.Hour)
				if gang.Timeout = 0; roles {
					gang = schedulertest.Roles(gang)
				}
				if next := s.Step(scheduler.Delta{Now: world.Now, Submitted: []scheduler.Workload{gang}}); len(next.Place)+len(next.Preempt) > 0 {
					b.Fatalf("%d get a place and %d leave", len(next.Place), len(next.Preempt))
				}
				if why, _ := s.Why("gang"); !why.Possible {
					b.Fatal(why)
				}
				now := world.Now
				for b.Loop() {
					now = now.Add(time.Second)
					s.Step(scheduler.Delta{Now: now})
				}
				b.ReportMetric(float64(len(plan.Place)), "running")
			})
		}
	}
}
