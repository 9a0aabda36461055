package scheduler

import (
	"fmt"
	"maps"
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

func drawClosed(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "", "down"}).Draw(t, "closed")
}

func drawPool(t *rapid.T, name string) Pool {
	p := Pool{
		Name: name, Zone: rapid.SampledFrom(zones).Draw(t, "zone"),
		Isolation:    rapid.SampledFrom(levels).Draw(t, "isolation"),
		Delegated:    rapid.Bool().Draw(t, "delegated"),
		Remote:       rapid.Bool().Draw(t, "remote"),
		PricePerHour: float64(rapid.IntRange(0, 3).Draw(t, "price")),
	}
	for n := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: drawAmount(t, "node", 8), Closed: drawClosed(t)})
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
		Workers:   max(rapid.IntRange(-3, 4).Draw(t, "workers"), 0), MaxWorkers: max(rapid.IntRange(-5, 8).Draw(t, "most workers"), 0),
		InPlace: rapid.IntRange(0, 3).Draw(t, "in place") == 0,
	}
}

// TestPromises walks random histories step by step, incrementally and from the
// whole snapshot, and checks what the package promises after every step.
func TestPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := start
		quotas := map[string]resource.Amount{"p": drawAmount(t, "quota", 12)}
		w := world{pools: map[string]Pool{}, waiting: map[ID]Work{}, running: map[ID]Running{}}
		s := &State{}
		for step := range rapid.IntRange(1, 6).Draw(t, "steps") {
			now = now.Add(time.Minute)
			d := Delta{Now: now, Quotas: quotas}
			for n := range rapid.IntRange(0, 3).Draw(t, "pools changed") {
				p := drawPool(t, fmt.Sprint("pool", n))
				if old, known := w.pools[p.Name]; known {
					p.Delegated, p.Zone, p.Isolation, p.Remote = old.Delegated, old.Zone, old.Isolation, old.Remote // what compute refuses to change under running work
					p.Nodes = slices.Clone(old.Nodes)
					for i := range p.Nodes {
						p.Nodes[i].Closed = drawClosed(t)
					}
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
			plan := s.Step(d)
			whole, anew := Decide(before)
			if got, want := render(s, plan), render(whole, anew); got != want {
				t.Fatalf("incremental and whole differ:\n%s\n%s", got, want)
			}
			if again, anew := Decide(before); render(again, anew) != render(s, plan) {
				t.Fatalf("the same snapshot gave another plan:\n%s\n%s", render(s, plan), render(again, anew))
			}
			w.check(t, s, plan, now, quotas)
		}
	})
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

func (w *world) check(t *rapid.T, s *State, plan Plan, now time.Time, quotas map[string]resource.Amount) {
	for _, pl := range plan.Place {
		k, ok := w.waiting[pl.Work]
		if _, waits := s.Why(pl.Work); !ok || waits {
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
		case k.InPlace && p.Remote:
			t.Fatalf("%s wants files of the server and was placed elsewhere", k.ID)
		case pl.Workers < max(k.Workers, 1) || pl.Workers > max(k.Workers, k.MaxWorkers, 1):
			t.Fatalf("%s: %d workers, not %d to %d", k.ID, pl.Workers, k.Workers, k.MaxWorkers)
		case p.Delegated && len(pl.Nodes) != 0 || !p.Delegated && len(pl.Nodes) != pl.Workers:
			t.Fatalf("%s: %d workers on nodes %q in a pool with delegated=%t", k.ID, pl.Workers, pl.Nodes, p.Delegated)
		}
		for _, name := range pl.Nodes {
			if i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Name == name }); i < 0 || p.Nodes[i].Closed != "" {
				t.Fatalf("%s was placed on node %s, which is closed", k.ID, name)
			}
		}
		delete(w.waiting, pl.Work)
		w.running[pl.Work] = Running{Work: k, Pool: pl.Pool, Placed: pl.Workers, Nodes: pl.Nodes}
	}
	for id := range w.waiting {
		wait, ok := s.Why(id)
		if !ok || len(wait.Reasons) == 0 || slices.ContainsFunc(wait.Reasons, func(r Reason) bool { return r.Text == "" || r.Step == "" }) {
			t.Fatalf("%s waits without a reason: %+v", id, wait)
		}
	}
	type place struct{ pool, node string }
	used, project := map[place]resource.Amount{}, map[string]resource.Amount{}
	for _, r := range w.running {
		for _, n := range r.Nodes {
			used[place{r.Pool, n}] = used[place{r.Pool, n}].Plus(r.Request)
		}
		used[place{pool: r.Pool}] = used[place{pool: r.Pool}].Plus(r.amount())
		project[r.Project] = project[r.Project].Plus(r.amount())
	}
	for _, p := range w.pools {
		all := resource.Amount{}
		for _, n := range p.Nodes {
			all = all.Plus(n.Amount)
			if u := used[place{p.Name, n.Name}]; !u.Fits(n.Amount) {
				t.Fatalf("node %s/%s holds %+v of %+v", p.Name, n.Name, u, n.Amount)
			}
		}
		if u := used[place{pool: p.Name}]; !u.Fits(all) {
			t.Fatalf("pool %s holds %+v of %+v", p.Name, u, all)
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

func BenchmarkDecide10000Waiting(b *testing.B) {
	d := Delta{Now: start, Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: 1000}}}}}}
	for n := range 10_000 {
		d.Submitted = append(d.Submitted, Work{ID: ID(strconv.Itoa(n)), Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: 1000}})
	}
	for b.Loop() {
		Decide(d)
	}
}

// BenchmarkStep10000Waiting is a cycle in which one work ends and the first of
// 10,000 in line takes its place.
func BenchmarkStep10000Waiting(b *testing.B) {
	d := Delta{Now: start, Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: 1000}}}}}}
	work := func(n int) Work {
		return Work{ID: ID(fmt.Sprintf("%09d", n)), Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: 1000}}
	}
	for n := range 10_000 {
		d.Submitted = append(d.Submitted, work(n))
	}
	s, plan := Decide(d)
	for n := 10_000; b.Loop(); n++ {
		plan = s.Step(Delta{Now: start, Removed: []ID{plan.Place[0].Work}, Submitted: []Work{work(n)}})
		if len(plan.Place) != 1 {
			b.Fatal(plan)
		}
	}
}
