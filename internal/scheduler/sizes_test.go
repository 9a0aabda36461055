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

// TestSizesDoNotThrash: whatever comes and goes in two hours, nobody restarts more than
// four times in an hour for another size, nodes hold no more than they have, everybody
// has between its least and its most, and a look at the whole world decides the same.
func TestSizesDoNotThrash(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		const gpu = "nvidia.com/gpu"
		p := Pool{Name: "home", Zone: "home", Isolation: Sandbox}
		for n := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: resource.Amount{Accelerators: map[string]int64{gpu: 4}}})
		}
		world := Delta{Policy: Goodput, Pools: []Pool{p}}
		waiting, running := map[ID]Workload{}, map[ID]Running{}
		target, resized := map[ID]Resize{}, map[string][]time.Time{}
		s, grew, shrank := &State{}, 0, 0
		number := 0
		come := func(w Workload) {
			number++
			w.ID = ID(fmt.Sprintf("%s/%04d", w.Label, number))
			waiting[w.ID] = w
		}
		for minute := range 120 {
			now := start.Add(time.Duration(minute) * time.Minute)
			if rapid.IntRange(0, 14).Draw(t, "comes") == 0 {
				w := Workload{
					Label: fmt.Sprint("job", minute), Residency: []string{"home"}, Isolation: Sandbox, Submitted: now, Preemptible: true,
					Request: resource.Amount{Accelerators: map[string]int64{gpu: 1}}, Workers: rapid.IntRange(1, 3).Draw(t, "least"),
				}
				if rapid.Bool().Draw(t, "elastic") {
					w.MaxWorkers = 12
					scale := rapid.SampledFrom([]float64{0, 0.2, 0.8, 1}).Draw(t, "scale")
					for n := range 12 - w.Workers + 1 {
						w.Speed = append(w.Speed, 1+scale*float64(n)/float64(w.Workers))
					}
				}
				come(w)
			}
			for _, id := range slices.Sorted(maps.Keys(running)) {
				r := running[id]
				rs, goes := target[id]
				switch {
				case goes:
					delete(target, id)
					next := r.Workload
					next.Target = rs.Workers
					come(next)
					fallthrough
				case rapid.IntRange(0, 119).Draw(t, "ends") == 0:
					delete(running, id)
				default:
					if rapid.IntRange(0, 9).Draw(t, "saves") == 0 {
						r.Saved = now
						running[id] = r
					}
				}
			}
			d := world
			d.Now, d.Sizes, d.Turns = now, true, s.Turns()
			for _, w := range waiting {
				d.Submitted = append(d.Submitted, w)
			}
			for _, r := range running {
				d.Started = append(d.Started, r)
			}
			next, plan := Decide(d)
			s = next
			for _, pl := range plan.Place {
				w := waiting[pl.Workload]
				delete(waiting, pl.Workload)
				if pl.Workers < w.least() || pl.Workers > w.most() || w.Target > 0 && pl.Workers > w.Target {
					t.Fatalf("%s has %d workers of %d to %d, and a target of %d", w.ID, pl.Workers, w.least(), w.most(), w.Target)
				}
				running[pl.Workload] = Running{Workload: w, Pool: pl.Pool, Placed: pl.Workers, Nodes: pl.Nodes, Started: now}
			}
			for _, rs := range plan.Resize {
				r := running[rs.Workload]
				if rs.Workers > r.Placed {
					grew++
				} else {
					shrank++
				}
				resized[r.Label] = append(resized[r.Label], now)
				r.Leaving, r.LeavingSince, r.LeavingFor = true, now, rs.For
				running[rs.Workload], target[rs.Workload] = r, rs
			}
			on := map[string]int64{}
			for _, r := range running {
				for _, n := range r.Nodes {
					on[n]++
				}
			}
			for _, n := range p.Nodes {
				if on[n.Name] > n.Amount.Accelerators[gpu] {
					t.Fatalf("%d workers on %s", on[n.Name], n.Name)
				}
			}
		}
		for label, at := range resized {
			for i := range at {
				if i >= 4 && at[i].Sub(at[i-4]) < time.Hour {
					t.Fatalf("%s was resized at %v", label, at)
				}
			}
		}
		t.Logf("%d grew and %d shrank", grew, shrank)
	})
}
