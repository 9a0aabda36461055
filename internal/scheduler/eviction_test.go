package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

// TestEvictWorkers: workers of services stop for one of higher priority when any choice of them
// makes room for it, under every policy: no more than must, none of the least, and it
// begins when they have stopped. A gang may be told that nobody can help where another
// choice of nodes would have; all choices are tried here.
func TestEvictWorkers(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		cores := func(n int) resource.Amount { return resource.Amount{CPU: resource.Cores(int64(n))} }
		work := func(id string, cpu int) Workload {
			return Workload{ID: ID(id), Queue: "q", Residency: []string{"home"}, Isolation: Sandbox, Request: cores(cpu), Submitted: start}
		}
		p := Pool{Name: "home", Zone: "home", Isolation: Sandbox}
		free := map[string]int{}
		for n := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			name := fmt.Sprint("n", n)
			free[name] = rapid.IntRange(2, 5).Draw(t, "cores")
			p.Nodes = append(p.Nodes, Node{Name: name, Amount: cores(free[name])})
		}
		d := Delta{Now: start.Add(time.Hour), Policy: rapid.SampledFrom(Policies).Draw(t, "policy"), Pools: []Pool{p}, Queues: []Queue{{Name: "q"}}}
		type one struct{ service, cpu, worker int }
		on := map[string][]one{}
		spare := make([]int, rapid.IntRange(1, 3).Draw(t, "services"))
		for n := range spare {
			w := work(fmt.Sprint("s", n), rapid.IntRange(1, 2).Draw(t, "request"))
			w.EvictableWorkers = true
			r := Running{Pool: "home", Started: start}
			for k := range rapid.IntRange(1, 5).Draw(t, "replicas") {
				node := p.Nodes[rapid.IntRange(0, len(p.Nodes)-1).Draw(t, "node")].Name
				if cpu := int(w.Request.CPU / resource.Cores(1)); free[node] >= cpu {
					free[node] -= cpu
					on[node] = append(on[node], one{n, cpu, k})
					r.Nodes = append(r.Nodes, node)
				}
			}
			if r.Placed = len(r.Nodes); r.Placed == 0 {
				continue
			}
			w.Workers = rapid.IntRange(1, r.Placed).Draw(t, "least")
			w.MaxWorkers, spare[n] = r.Placed, r.Placed-w.Workers
			r.Workload = w
			d.Started = append(d.Started, r)
		}
		large := work("large", rapid.IntRange(1, 5).Draw(t, "large"))
		large.Workers, large.Priority = rapid.IntRange(1, 2).Draw(t, "gang"), rapid.IntRange(0, 1).Draw(t, "priority")
		d.Submitted = []Workload{large}

		// All choices: how many of each service stop on each node.
		need := int(large.Request.CPU / resource.Cores(1))
		var can func(node, room int, spare []int) bool
		can = func(node, room int, spare []int) bool {
			if room >= large.Workers {
				return true
			}
			if node == len(p.Nodes) {
				return false
			}
			name := p.Nodes[node].Name
			for set := range 1 << len(on[name]) {
				left, has := slices.Clone(spare), free[name]
				for k, o := range on[name] {
					if set>>k&1 == 1 {
						left[o.service]--
						has += o.cpu
					}
				}
				if slices.Min(left) >= 0 && can(node+1, room+has/need, left) {
					return true
				}
			}
			return false
		}
		possible := can(0, 0, spare)
		now := can(0, 0, make([]int, len(spare)))

		s, plan := Decide(d)
		switch _, waits := s.Why("large"); {
		case waits == now:
			t.Fatalf("there is room: %t; it waits: %t\n%s", now, waits, render(s, plan))
		case !waits, len(plan.Resize) == 0 && !possible, large.Priority == 0 && len(plan.Resize) == 0:
			return
		case !possible || large.Priority == 0 || len(plan.Preempt) > 0:
			t.Fatalf("nobody may stop for it:\n%s", render(s, plan))
		case len(plan.Resize) == 0 && large.Workers > 1:
			return // a gang
		case len(plan.Resize) == 0:
			t.Fatalf("some could stop for it:\n%s", render(s, plan))
		}
		// They stop, but for one of them at first; it does not begin before all have.
		var last *Running
		next := Delta{Now: d.Now.Add(time.Minute)}
		for i, r := range d.Started {
			for _, rs := range plan.Resize {
				if rs.Workload == r.ID {
					for _, n := range rs.Evict {
						r.Evicted = append(r.Evicted, Eviction{Worker: n, Since: d.Now, For: rs.For})
					}
				}
			}
			if len(r.Evicted) == 0 {
				continue
			}
			n := len(r.Evicted)
			if last == nil {
				n--
				last = &d.Started[i]
			}
			r = stopped(r, n)
			next.Started = append(next.Started, r)
			if last == &d.Started[i] {
				*last = r
			}
		}
		if plan := s.Step(next); len(plan.Place)+len(plan.Resize) > 0 {
			t.Fatalf("one more than must has stopped:\n%s", render(s, plan))
		}
		r := stopped(*last, 1)
		if plan := s.Step(Delta{Now: d.Now.Add(2 * time.Minute), Started: []Running{r}}); len(plan.Place) != 1 || r.Placed < r.least() {
			t.Fatalf("%d of at least %d workers stay, and it waits:\n%s", r.Placed, r.least(), render(s, plan))
		}
	})
}
