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

// cycle measures a step of the scheduler over a busy installation: from nothing,
// and after ten works ended and ten others came.
func (b *bench) cycle(context.Context) error {
	for _, size := range []struct {
		nodes, works int
		full, delta  float64 // aims, ms
	}{{1000, 10_000, 250, 20}, {10_000, 100_000, 2500, 100}} {
		if b.Quick && size.nodes > 1000 {
			continue
		}
		world := schedulertest.Installation(size.nodes, size.works)
		var full []float64
		var s *scheduler.State
		var plan scheduler.Plan
		for range b.Rounds {
			start := time.Now()
			s, plan = scheduler.Decide(world)
			full = append(full, harness.Millis(time.Since(start)))
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		running, now, next := plan.Place, world.Now, size.works
		var delta []float64
		for range 40 * b.Rounds {
			now = now.Add(time.Second)
			d := scheduler.Delta{Now: now}
			for range min(10, len(running)) {
				d.Removed = append(d.Removed, running[0].Work)
				running = running[1:]
				d.Submitted = append(d.Submitted, schedulertest.Work(next))
				next++
			}
			start := time.Now()
			p := s.Step(d)
			delta = append(delta, harness.Millis(time.Since(start)))
			running = append(running, p.Place...)
		}
		runtime.KeepAlive(s)
		of := fmt.Sprintf("%d nodes, %d works", size.nodes, size.works)
		slices.Sort(delta)
		b.Add(harness.Row{
			Name: "plan from nothing, " + of, Unit: "ms", Better: harness.Lower, Ours: harness.Value(harness.Median(full)),
			Aim: &harness.Aim{Value: harness.Value(size.full)}, Note: fmt.Sprintf("median of %d; %d works get a place", len(full), len(plan.Place)),
		})
		b.Add(harness.Row{
			Name: "plan after a change, p99, " + of, Unit: "ms", Better: harness.Lower, Ours: harness.Value(delta[len(delta)*99/100]),
			Aim: &harness.Aim{Value: harness.Value(size.delta)}, Note: fmt.Sprintf("of %d cycles, in each of which ten works end and ten come; median %.1f", len(delta), harness.Median(delta)),
		})
		b.Add(harness.Row{
			Name: "heap with the state of " + of, Unit: "MiB", Better: harness.Lower, Ours: harness.Value(float64(m.HeapAlloc) / (1 << 20)),
			Note: "with the input that it was made of",
		})
	}
	return nil
}
