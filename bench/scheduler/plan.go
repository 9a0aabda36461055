package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/scheduler/goodput"
)

// Sia's times are of its policy alone, on other jobs and another machine.
const sia = "Sia's policy, as published (SOSP 2023)"

// plan measures a plan of goodput from nothing: no job runs yet and none of the
// goodputs is known from the plan before.
func (b *bench) plan(context.Context) error {
	for _, size := range []struct {
		nodes, jobs int
		sia         float64 // ms
	}{{16, 160, 96}, {512, 5120, 1000}} {
		if b.Quick && size.jobs > 1000 {
			continue
		}
		nodes, jobs := population(size.nodes, size.jobs)
		var times []float64
		for range 3 * b.Rounds {
			began := time.Now()
			goodput.Default.Plan(nodes, jobs)
			times = append(times, harness.Millis(time.Since(began)))
		}
		b.Add(harness.Row{
			Name: fmt.Sprintf("plan of goodput, %d GPUs, %d jobs", size.nodes*4, size.jobs), Unit: "ms", Better: harness.Lower,
			Ours: harness.Value(harness.Median(times)), Theirs: harness.Value(size.sia), Peer: sia, Aim: &harness.Aim{Value: harness.Value(size.sia)},
			Note: fmt.Sprintf("median of %d", len(times)),
		})
	}
	return nil
}

// population are jobs of six families that scale differently.
func population(n, m int) ([]goodput.Node, []goodput.Job) {
	nodes := make([]goodput.Node, n)
	for i := range nodes {
		nodes[i] = goodput.Node{GPUs: 4}
	}
	var families []map[string]goodput.Device
	for f := range 6 {
		var seen []goodput.Observation
		for _, shape := range [][2]int{{1, 1}, {1, 2}, {1, 4}, {2, 8}, {4, 16}, {8, 32}} {
			for _, local := range []int{8, 16, 32, 64} {
				compute, sync := 0.02+0.004*float64(local), 0.0
				if shape[1] > 1 {
					sync = 0.01 * float64(f+1) * float64(shape[0])
				}
				seen = append(seen, goodput.Observation{Nodes: shape[0], Replicas: shape[1], Local: local, Step: math.Hypot(compute, sync), Sync: math.Hypot(compute, sync) - compute})
			}
		}
		families = append(families, map[string]goodput.Device{"": {
			Model: goodput.Fit(seen), Limits: goodput.Limits{MinLocal: 8, MaxLocal: 64, MinBatch: 32, MaxBatch: 4096, MaxReplicas: 64},
		}})
	}
	jobs := make([]goodput.Job, m)
	for i := range jobs {
		jobs[i] = goodput.Job{
			ID: i, Min: 1, Max: 64, On: families[i%len(families)], Age: float64(i * 60), Service: float64(i * i % 100_000),
			Gradient: goodput.Gradient{Sqr: 1, Var: float64(i % 977)},
		}
	}
	return nodes, jobs
}
