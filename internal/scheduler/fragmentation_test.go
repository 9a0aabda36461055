package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestMix walks histories in which most workloads ask for accelerators and many nodes
// have room, so that where they go depends on what is typical: the incremental plan,
// that from nothing and the reference's are the same.
func TestMix(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string, cpu, gpus int64) resource.Amount {
			a := resource.Amount{
				CPU:    resource.Cores(rapid.Int64Range(1, cpu).Draw(t, label+" cpu")),
				Memory: resource.Bytes(rapid.Int64Range(1, 8*gpus).Draw(t, label+" memory")) * resource.GiB,
			}
			if n := rapid.Int64Range(0, gpus).Draw(t, label+" gpus"); n > 0 {
				name := rapid.SampledFrom([]string{"nvidia.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu.shared"}).Draw(t, label+" name")
				a.Accelerators = map[string]int64{name: n}
			}
			return a
		}
		p := Pool{Name: "home", Zone: "home", Isolation: Sandbox}
		for n := range rapid.IntRange(2, 6).Draw(t, "nodes") {
			p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: draw("node", 32, 8)})
		}
		w := world{pools: map[string]Pool{"home": p}, waiting: map[ID]Workload{}, running: map[ID]Running{}}
		s, now := &State{}, start
		for step := range rapid.IntRange(1, 5).Draw(t, "steps") {
			now = now.Add(time.Minute)
			d := Delta{Now: now}
			if step == 0 {
				d.Pools = []Pool{p}
			}
			for n := range rapid.IntRange(1, 6).Draw(t, "submitted") {
				k := Workload{
					ID: ID(fmt.Sprintf("w%d_%d", step, n)), Residency: []string{"home"}, Isolation: Sandbox, Request: draw("request", 8, 4), Submitted: now,
					Workers: max(rapid.IntRange(-3, 2).Draw(t, "workers"), 0), Timeout: time.Minute,
				}
				d.Submitted = append(d.Submitted, k, k) // twice is once
				w.waiting[k.ID] = k
			}
			for _, id := range append(slices.Sorted(maps.Keys(w.running)), slices.Sorted(maps.Keys(w.waiting))...) {
				if w.waiting[id].Submitted != now && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
					d.Removed = append(d.Removed, id)
					delete(w.running, id)
					delete(w.waiting, id)
				}
			}
			before := w.delta(now)
			plan := s.Step(d)
			_, anew := Decide(before)
			want := refer(before, plan, nil).placed
			if got, anew := placements(plan), placements(anew); got != want || anew != want {
				t.Fatalf("the reference places\n%s\nincrementally\n%s\nand from nothing\n%s", want, got, anew)
			}
			w.check(t, s, plan, before)
		}
	})
}
