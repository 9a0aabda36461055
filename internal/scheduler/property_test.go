package scheduler

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

var zones = []string{"home", "DE", "AE"}

func drawAmount(t *rapid.T, label string, most int64) resource.Amount {
	a := resource.Amount{
		CPU:    resource.CPU(rapid.Int64Range(0, most*1000).Draw(t, label+" cpu")),
		Memory: resource.Bytes(rapid.Int64Range(0, most).Draw(t, label+" memory")) * resource.GiB,
	}
	if n := rapid.Int64Range(0, 3).Draw(t, label+" gpus"); n > 1 {
		a.Accelerators = map[string]int64{"nvidia.com/gpu": n - 1}
	}
	return a
}

func drawPool(t *rapid.T, name string) Pool {
	p := Pool{
		Name: name, Zone: rapid.SampledFrom(zones).Draw(t, "zone"),
		Isolation:    rapid.SampledFrom(levels).Draw(t, "isolation"),
		Delegated:    rapid.Bool().Draw(t, "delegated"),
		PricePerHour: float64(rapid.IntRange(0, 3).Draw(t, "price")),
	}
	for n := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: drawAmount(t, "node", 8)})
	}
	return p
}

func drawWork(t *rapid.T, id ID, now time.Time) Work {
	return Work{
		ID: id, Project: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "project"),
		Request:   drawAmount(t, "request", 5),
		Residency: zones[:rapid.IntRange(1, 3).Draw(t, "zones")],
		Isolation: rapid.SampledFrom(levels).Draw(t, "wanted isolation"),
		Priority:  rapid.IntRange(0, 2).Draw(t, "priority"),
		Submitted: now.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "age")) * time.Minute),
		NotBefore: now.Add(time.Duration(rapid.IntRange(-5, 1).Draw(t, "delay")) * time.Minute),
	}
}

// TestPromises walks random histories step by step, incrementally and from the
// whole snapshot, and checks what the package promises after every step.
func TestPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := start
		quotas := map[string]resource.Amount{"p": drawAmount(t, "quota", 12)}
		w := world{pools: map[string]Pool{}, waiting: map[ID]Work{}, running: map[ID]Running{}}
		var s State
		for step := range rapid.IntRange(1, 6).Draw(t, "steps") {
			now = now.Add(time.Minute)
			d := Delta{Now: now, Quotas: quotas}
			for n := range rapid.IntRange(0, 3).Draw(t, "pools changed") {
				p := drawPool(t, fmt.Sprint("pool", n))
				if old, known := w.pools[p.Name]; known {
					p.Nodes, p.Delegated, p.Zone, p.Isolation = old.Nodes, old.Delegated, old.Zone, old.Isolation // what compute refuses to change under running work
				}
				d.Pools = append(d.Pools, p)
				w.pools[p.Name] = p
			}
			for n := range rapid.IntRange(0, 8).Draw(t, "submitted") {
				k := drawWork(t, ID(fmt.Sprintf("w%d_%d", step, n)), now)
				d.Submitted = append(d.Submitted, k)
				w.waiting[k.ID] = k
			}
			for _, id := range append(slices.Sorted(maps.Keys(w.running)), slices.Sorted(maps.Keys(w.waiting))...) {
				if rapid.IntRange(0, 3).Draw(t, "remove") == 0 && len(d.Submitted) == 0 {
					d.Removed = append(d.Removed, id)
					delete(w.running, id)
					delete(w.waiting, id)
				}
			}
			before := w.delta(now, quotas)
			next, plan := Step(s, d)
			if whole := Decide(before); !same(plan, whole) {
				t.Fatalf("incremental and whole differ:\n%s\n%s", render(plan), render(whole))
			}
			if again := Decide(before); !same(plan, again) {
				t.Fatalf("the same snapshot gave another plan:\n%s\n%s", render(plan), render(again))
			}
			w.check(t, plan, now, quotas)
			s = next
		}
	})
}

// same compares what plans say, treating nil and empty alike.
func same(a, b Plan) bool {
	return render(a) == render(b) && a.Wake.Equal(b.Wake) && len(a.Place) == len(b.Place) && len(a.Wait) == len(b.Wait)
}

// world is the plain model that plans are checked against.
type world struct {
	pools   map[string]Pool
	waiting map[ID]Work
	running map[ID]Running
}

func (w *world) delta(now time.Time, quotas map[string]resource.Amount) Delta {
	d := Delta{Now: now, Quotas: quotas}
	for _, p := range w.pools {
		d.Pools = append(d.Pools, p)
	}
	for _, k := range w.waiting {
		d.Submitted = append(d.Submitted, k)
	}
	for _, r := range w.running {
		d.Started = append(d.Started, r)
	}
	return d
}

func (w *world) check(t *rapid.T, plan Plan, now time.Time, quotas map[string]resource.Amount) {
	for id, wait := range plan.Wait {
		if _, ok := w.waiting[id]; !ok {
			t.Fatalf("%s does not wait", id)
		}
		if len(wait.Reasons) == 0 || slices.ContainsFunc(wait.Reasons, func(r Reason) bool { return r.Text == "" || r.Step == "" }) {
			t.Fatalf("%s waits without a reason: %+v", id, wait)
		}
	}
	for _, pl := range plan.Place {
		k, ok := w.waiting[pl.Work]
		if _, both := plan.Wait[pl.Work]; !ok || both {
			t.Fatalf("%s placed twice, or placed and waiting", pl.Work)
		}
		p := w.pools[pl.Pool]
		switch {
		case !slices.Contains(k.Residency, p.Zone):
			t.Fatalf("%s may be in %v and was placed in %s", k.ID, k.Residency, p.Zone)
		case slices.Index(levels, p.Isolation) < slices.Index(levels, k.Isolation):
			t.Fatalf("%s wants %s and got %s", k.ID, k.Isolation, p.Isolation)
		case k.NotBefore.After(now):
			t.Fatalf("%s started too early", k.ID)
		case p.Delegated != (pl.Node == ""):
			t.Fatalf("%s: node %q in a pool with delegated=%t", k.ID, pl.Node, p.Delegated)
		}
		delete(w.waiting, pl.Work)
		w.running[pl.Work] = Running{Work: k, Pool: pl.Pool, Node: pl.Node}
	}
	if len(plan.Wait) != len(w.waiting) {
		t.Fatalf("%d wait and %d are explained", len(w.waiting), len(plan.Wait))
	}
	used, project := map[place]resource.Amount{}, map[string]resource.Amount{}
	for _, r := range w.running {
		used[r.place()] = used[r.place()].Plus(r.Request)
		project[r.Project] = project[r.Project].Plus(r.Request)
	}
	for _, p := range w.pools {
		if p.Delegated {
			if u := used[place{pool: p.Name}]; !u.Fits(total(p)) {
				t.Fatalf("pool %s holds %+v of %+v", p.Name, u, total(p))
			}
			continue
		}
		for _, n := range p.Nodes {
			if u := used[place{p.Name, n.Name}]; !u.Fits(n.Amount) {
				t.Fatalf("node %s/%s holds %+v of %+v", p.Name, n.Name, u, n.Amount)
			}
		}
	}
	for name, q := range quotas {
		u := project[name]
		if q.CPU > 0 && u.CPU > q.CPU || q.Memory > 0 && u.Memory > q.Memory {
			t.Fatalf("project %s holds %+v of its quota %+v", name, u, q)
		}
		for a, n := range q.Accelerators {
			if u.Accelerators[a] > n {
				t.Fatalf("project %s holds %+v of its quota %+v", name, u, q)
			}
		}
	}
}

// TestStepLeavesItsInput checks that a state can be stepped twice.
func TestStepLeavesItsInput(t *testing.T) {
	d := Delta{Now: start, Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: 1000}}}}}}
	s, _ := Step(State{}, d)
	add := Delta{Now: start, Submitted: []Work{{ID: "a", Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: 1000}}}}
	_, first := Step(s, add)
	_, second := Step(s, add)
	if !reflect.DeepEqual(first, second) || len(first.Place) != 1 {
		t.Fatalf("first %+v, second %+v", first, second)
	}
}

func BenchmarkDecide10000Waiting(b *testing.B) {
	d := Delta{Now: start, Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: 1000}}}}}}
	for n := range 10_000 {
		d.Submitted = append(d.Submitted, Work{ID: ID(strconv.Itoa(n)), Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: 1000}})
	}
	for b.Loop() {
		Decide(d)
	}
}
