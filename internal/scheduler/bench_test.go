package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/schedulertest"
)

var sizes = [][2]int{{1000, 10_000}, {10_000, 100_000}} // nodes, works

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

// BenchmarkDelta is a cycle in which ten works end and ten others come.
func BenchmarkDelta(b *testing.B) {
	for _, size := range sizes {
		nodes, works := size[0], size[1]
		b.Run(fmt.Sprintf("nodes=%d/works=%d", nodes, works), func(b *testing.B) {
			world := schedulertest.Installation(nodes, works)
			s, plan := scheduler.Decide(world)
			running, next, now := plan.Place, works, world.Now
			for b.Loop() {
				now = now.Add(time.Second)
				d := scheduler.Delta{Now: now}
				for range 10 {
					d.Removed = append(d.Removed, running[0].Work)
					running = running[1:]
					d.Submitted = append(d.Submitted, schedulertest.Work(next))
					next++
				}
				running = append(running, s.Step(d).Place...)
			}
		})
	}
}
