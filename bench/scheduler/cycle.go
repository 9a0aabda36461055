package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

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
		world := installation(size.nodes, size.works)
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
		running, now, next := plan.Place, began, size.works
		var delta []float64
		for range 40 * b.Rounds {
			now = now.Add(time.Second)
			d := scheduler.Delta{Now: now}
			for range min(10, len(running)) {
				d.Removed = append(d.Removed, running[0].Work)
				running = running[1:]
				d.Submitted = append(d.Submitted, work(next))
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

// installation has nodes of eight accelerators in pools of a thousand, and works
// of many shapes in a hundred queues, under the policy fair.
func installation(nodes, works int) scheduler.Delta {
	d := scheduler.Delta{Now: began, Policy: scheduler.Fair}
	for n := range nodes {
		if n%1000 == 0 {
			d.Pools = append(d.Pools, scheduler.Pool{Name: fmt.Sprintf("pool%02d", n/1000), Zone: "home", Isolation: scheduler.Sandbox, PricePerHour: float64(n / 1000)})
		}
		p := &d.Pools[len(d.Pools)-1]
		p.Nodes = append(p.Nodes, scheduler.Node{Name: fmt.Sprintf("n%05d", n), Amount: resource.Amount{
			CPU: resource.Cores(64), Memory: 512 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 8},
		}})
	}
	d.Queues = append(d.Queues, scheduler.Queue{Name: "all"})
	for n := range 100 {
		d.Queues = append(d.Queues, scheduler.Queue{Name: fmt.Sprint("q", n), Parent: "all", HalfLife: 24 * time.Hour})
	}
	for n := range works {
		d.Submitted = append(d.Submitted, work(n))
	}
	return d
}

func work(n int) scheduler.Work {
	w := scheduler.Work{
		ID: scheduler.ID(fmt.Sprintf("%09d", n)), Queue: fmt.Sprint("q", n*31%100), Residency: []string{"home"}, Isolation: scheduler.Sandbox,
		Submitted: began.Add(time.Duration(n) * time.Millisecond), Timeout: time.Duration(1+n*11%48) * time.Hour, Preemptible: n%2 == 0,
		Request: resource.Amount{
			CPU: resource.Cores(1 + int64(n*13%32)), Memory: resource.Bytes(4+n*17%200) * resource.GiB,
			Accelerators: map[string]int64{"nvidia.com/gpu": []int64{0, 1, 1, 2, 4, 8}[n*7%6]},
		},
	}
	if n%10 == 0 {
		w.Workers = 1 + n/10%8
	}
	return w
}
