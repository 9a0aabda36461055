package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/schedulertest"
)

// cycle measures a step of the scheduler over a busy installation: from nothing, and
// after ten works ended and ten others came; and again where queues have quotas, half of
// them less than they use and half more, and who was told to leave has a while later.
func (b *bench) cycle(context.Context) error {
	for _, size := range []struct {
		nodes, works int
		full, delta  float64 // aims, ms
	}{{1000, 10_000, 250, 20}, {10_000, 100_000, 2500, 100}, {1000, 1_000_000, 0, 0}} {
		if b.Quick && size.works > 10_000 {
			continue
		}
		rounds, aims := b.Rounds, size.full > 0
		if !aims {
			rounds = 1
		}
		for _, quotas := range []bool{false, true} {
			if quotas && !aims {
				continue
			}
			of := fmt.Sprintf("%d nodes, %d works", size.nodes, size.works)
			world := schedulertest.Installation(size.nodes, size.works)
			if quotas {
				of += ", quotas"
				schedulertest.Quotas(&world)
			}
			var full []float64
			var s *scheduler.State
			var plan scheduler.Plan
			for range rounds {
				start := time.Now()
				s, plan = scheduler.Decide(world)
				full = append(full, harness.Millis(time.Since(start)))
			}
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			run := schedulertest.Run(world, s, plan)
			var delta []float64
			left := 0
			for range 40 * rounds {
				d := run.Next()
				start := time.Now()
				p := s.Step(d)
				delta = append(delta, harness.Millis(time.Since(start)))
				run.Done(p)
				left += len(p.Preempt)
			}
			slices.Sort(delta)
			b.Add(harness.Row{
				Name: "plan from nothing, " + of, Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(full)),
				Aim: aim(size.full), Note: fmt.Sprintf("median of %d; %d works get a place", len(full), len(plan.Place)),
			})
			note := fmt.Sprintf("of %d cycles, in each of which ten works end and ten come; median %.1f", len(delta), harness.Median(delta))
			if quotas {
				note += fmt.Sprintf("; %d works had to leave for others", left)
			}
			b.Add(harness.Row{
				Name: "plan after a change, p99, " + of, Unit: "ms", Better: harness.Lower, Ours: harness.Value(delta[len(delta)*99/100]),
				Aim: aim(size.delta), Note: note,
			})
			if quotas {
				continue
			}
			b.Add(harness.Row{
				Name: "heap with the state of " + of, Unit: "MiB", Better: harness.Lower, Ours: harness.Value(float64(m.HeapAlloc) / (1 << 20)),
				Note: "with the input that it was made of",
			})
		}
	}
	return nil
}

// aim is a bound in the unit of a row; 0 for none.
func aim(value float64) *harness.Aim {
	if value == 0 {
		return nil
	}
	return &harness.Aim{Value: harness.Value(value)}
}
