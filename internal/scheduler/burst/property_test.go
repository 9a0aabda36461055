package burst

import (
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// TestMain draws a thousand worlds for each property.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("1000")
	}
	m.Run()
}

func drawWorld(t *rapid.T) World {
	w := World{Now: now, Currency: "AED", Money: map[string]float64{}}
	zone := func() string { return rapid.SampledFrom([]string{"AE", "AE", "AE", "DE"}).Draw(t, "zone") }
	isolation := func() scheduler.Isolation {
		return rapid.SampledFrom([]scheduler.Isolation{scheduler.Sandbox, scheduler.Sandbox, scheduler.None, scheduler.Container}).Draw(t, "isolation")
	}
	some := func(label string, most int) resource.Amount {
		a := resource.Amount{CPU: resource.Cores(int64(rapid.IntRange(0, most).Draw(t, label))), Memory: resource.GiB}
		if rapid.IntRange(0, 3).Draw(t, "gpu") == 0 {
			a.Accelerators = map[string]int64{"nvidia.com/gpu": 1}
		}
		return a
	}
	minutes := func(label string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * time.Minute
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "pools") {
		p := Pool{Pool: scheduler.Pool{
			Name: fmt.Sprint("own", i), Zone: zone(), Isolation: isolation(), PricePerHour: float64(rapid.IntRange(0, 5).Draw(t, "price")), Delegated: rapid.Bool().Draw(t, "delegated"),
		}}
		for n := range rapid.IntRange(0, 3).Draw(t, "nodes") {
			p.Nodes = append(p.Nodes, scheduler.Node{Name: fmt.Sprint("n", n), Amount: some("node", 8).Plus(resource.Amount{Memory: 15 * resource.GiB})})
		}
		w.Pools = append(w.Pools, p)
	}
	for i := range rapid.IntRange(1, 2).Draw(t, "elastic pools") {
		e := &Elastic{
			Max: rapid.IntRange(0, 6).Draw(t, "max"), Startup: minutes("start-up", 20), Idle: minutes("idle", 20),
			Node: some("node", 8).Plus(resource.Amount{CPU: 1000, Memory: 15 * resource.GiB}), Interruptions: float64(rapid.IntRange(0, 2).Draw(t, "interruptions")) / 10,
		}
		e.Min = rapid.IntRange(0, e.Max).Draw(t, "min")
		if rapid.IntRange(0, 5).Draw(t, "failed") == 0 {
			e.NotBefore, e.Because = now.Add(time.Minute), "no capacity"
		}
		p := Pool{Elastic: e, Pool: scheduler.Pool{
			Name: fmt.Sprint("cloud", i), Zone: zone(), Isolation: isolation(), PricePerHour: float64(rapid.IntRange(0, 20).Draw(t, "price")), Delegated: rapid.Bool().Draw(t, "delegated"),
			Closed: rapid.SampledFrom([]string{"", "", "", "", "closed"}).Draw(t, "closed"), Alike: rapid.IntRange(0, 4).Draw(t, "alike") == 0,
		}}
		for n := range rapid.IntRange(0, e.Max).Draw(t, "rented") {
			node := Node{Name: fmt.Sprint("c", n), For: scheduler.ID(rapid.SampledFrom([]string{"", "w0", "w3", "gone"}).Draw(t, "for"))}
			switch rapid.IntRange(0, 3).Draw(t, "state") {
			case 0:
				node.Coming, node.Ready = true, now.Add(minutes("ready", 20))
			case 1:
				node.Leaving = true
			case 2:
				node.Busy = true
			default:
				node.Idle = now.Add(-minutes("idle for", 40))
			}
			if e.Rented = append(e.Rented, node); !node.Coming && !node.Leaving {
				p.Nodes = append(p.Nodes, scheduler.Node{Name: node.Name, Amount: e.Node})
			}
		}
		w.Pools = append(w.Pools, p)
	}
	for _, p := range w.Pools {
		for _, n := range p.Nodes {
			if busy := p.Elastic != nil && slices.ContainsFunc(p.Elastic.Rented, func(r Node) bool { return r.Name == n.Name && r.Busy }); !busy && (p.Elastic != nil || rapid.Bool().Draw(t, "empty")) {
				continue
			}
			r := scheduler.Running{Workload: scheduler.Workload{ID: scheduler.ID(p.Name + n.Name), Request: n.Amount}, Pool: p.Name, Placed: 1, Nodes: []string{n.Name}}
			if rapid.Bool().Draw(t, "deadline") {
				r.Deadline = now.Add(minutes("until", 300))
			}
			if rapid.IntRange(0, 4).Draw(t, "known") > 0 {
				r.Started = now.Add(-minutes("since", 300))
			}
			w.Running = append(w.Running, r)
		}
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "waiting") {
		x := Work{
			Workload: scheduler.Workload{
				ID: scheduler.ID(fmt.Sprint("w", i)), Project: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "project"), Request: some("request", 6), Residency: []string{"AE"},
				Isolation: isolation(), Workers: rapid.IntRange(0, 4).Draw(t, "workers"), Submitted: now,
			},
			Duration: minutes("duration", 300), Saves: minutes("saves", 30), DelayCost: float64(rapid.SampledFrom([]int{0, 1, 10, 1000}).Draw(t, "delay")),
			Barred: rapid.SampledFrom([]string{"", "", "", "quota"}).Draw(t, "barred"), Limits: []string{"project p"},
		}
		if rapid.IntRange(0, 2).Draw(t, "has roles") == 0 {
			x.Request, x.Workers = resource.Amount{}, 0
			for n := range rapid.IntRange(1, 3).Draw(t, "roles") {
				x.Roles = append(x.Roles, scheduler.Role{Name: fmt.Sprint("r", n), Workers: rapid.IntRange(1, 3).Draw(t, "workers"), Request: some("request", 6)})
			}
			x.PerNode = rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "per node")
		}
		if rapid.IntRange(0, 3).Draw(t, "names pools") == 0 {
			x.Pools = []string{rapid.SampledFrom([]string{"own0", "cloud0", "cloud1"}).Draw(t, "named")}
		}
		w.Waiting = append(w.Waiting, x)
	}
	if rapid.Bool().Draw(t, "budget") {
		w.Money["p"] = float64(rapid.IntRange(0, 100).Draw(t, "money"))
	}
	if rapid.Bool().Draw(t, "limits") {
		w.Left = map[string]resource.Amount{"project p": {CPU: resource.Cores(int64(rapid.IntRange(1, 20).Draw(t, "left")))}}
	}
	return w
}

// TestPlans: what holds for every plan.
func TestPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		plan := Decide(w)
		if again := Decide(w); !reflect.DeepEqual(plan, again) {
			t.Fatalf("the same world gives\n%+v\nand\n%+v", plan, again)
		}
		pools := map[string]Pool{}
		for _, p := range w.Pools {
			pools[p.Name] = p
		}
		works := map[scheduler.ID]Work{}
		for _, x := range w.Waiting {
			works[x.ID] = x
		}
		needs := map[scheduler.ID]int{}
		for _, wish := range plan.Pools {
			p := pools[wish.Pool]
			total := len(p.Elastic.Rented)
			for _, n := range wish.Rent {
				total += n.Nodes
				needs[n.For] += n.Nodes
				if n.Nodes < 1 {
					t.Fatalf("a need of %d nodes", n.Nodes)
				}
				if p.Elastic.NotBefore.After(w.Now) || p.Closed != "" {
					t.Fatalf("%s is asked for nodes", p.Name)
				}
				if x, ok := works[n.For]; ok {
					allowed(t, x, p)
				}
			}
			if len(wish.Rent) > 0 && total > p.Elastic.Max {
				t.Fatalf("%s would have %d nodes of %d", p.Name, total, p.Elastic.Max)
			}
			if len(wish.Why) == 0 {
				t.Fatalf("%s does not say why", p.Name)
			}
			stay := 0
			for _, n := range p.Elastic.Rented {
				if !n.Leaving && !slices.Contains(wish.Release, n.Name) {
					stay++
				}
				if slices.Contains(wish.Release, n.Name) && (n.Busy || n.Coming || n.Leaving || w.Now.Sub(n.Idle) < p.Elastic.Idle) {
					t.Fatalf("%+v is given back", n)
				}
			}
			if got := stay + total - len(p.Elastic.Rented); wish.Nodes != got {
				t.Fatalf("%s wishes %d nodes, and it would have %d", p.Name, wish.Nodes, got)
			}
			if len(wish.Release) > 0 && wish.Nodes < p.Elastic.Min && p.Closed == "" {
				t.Fatalf("%s would have %d nodes, at least %d are wanted", p.Name, wish.Nodes, p.Elastic.Min)
			}
		}
		if len(plan.Works) != len(w.Waiting) {
			t.Fatalf("%d of %d were looked at", len(plan.Works), len(w.Waiting))
		}
		spent, cpu := 0.0, resource.CPU(0)
		for i, v := range plan.Works {
			x := works[v.Work]
			if v.Why == "" || v.Work != w.Waiting[i].ID {
				t.Fatalf("%+v", v)
			}
			if needs[v.Work] != v.Rents || v.Rents > 0 && len(v.Pools) != 1 || len(v.Pools) > 1 {
				t.Fatalf("%+v, and nodes for it are %d", v, needs[v.Work])
			}
			if len(v.Pools) == 0 {
				continue
			}
			p := pools[v.Pools[0]]
			allowed(t, x, p)
			if x.Barred != "" {
				t.Fatalf("%s is barred and bursts", v.Work)
			}
			if v.Rents == 0 {
				continue
			}
			// All of a gang have room on the nodes there, coming and rented.
			total := len(p.Elastic.Rented)
			for _, other := range plan.Works {
				if slices.Equal(other.Pools, v.Pools) {
					total += other.Rents
				}
			}
			if !hold(w, p, total, x) {
				t.Fatalf("%s gets %d nodes for %d workers", v.Work, v.Rents, x.least())
			}
			if x.Project == "p" {
				spent += float64(v.Rents) * p.PricePerHour * p.Elastic.Startup.Hours()
			}
			cpu += x.Amount(x.least()).CPU
		}
		if most, ok := w.Money["p"]; ok && spent > most {
			t.Fatalf("start-up alone costs %g of %g", spent, most)
		}
		if left, ok := w.Left["project p"]; ok && cpu > left.CPU {
			t.Fatalf("%s are promised of %s", cpu, left.CPU)
		}
		// Who is first, and has room where he need not rent, does not rent.
		if len(w.Waiting) > 0 && len(plan.Works[0].Pools) > 0 && fits(w, w.Waiting[0]) {
			t.Fatalf("%+v, and there is room for it", plan.Works[0])
		}
	})
}

func allowed(t *rapid.T, x Work, p Pool) {
	if p.Elastic == nil || !slices.Contains(x.Residency, p.Zone) || !p.Isolation.AtLeast(x.Isolation) || len(x.Pools) > 0 && !slices.Contains(x.Pools, p.Name) || p.Closed != "" || p.Alike && len(x.Roles) > 0 {
		t.Fatalf("%+v may not use %+v", x, p)
	}
}

// hold asks the scheduler whether a workload starts on so many empty nodes of a pool.
func hold(w World, p Pool, nodes int, x Work) bool {
	d := scheduler.Delta{Now: w.Now}
	for _, other := range w.Pools {
		if other.Name == p.Name {
			other.Nodes = nil
			for n := range nodes {
				other.Nodes = append(other.Nodes, scheduler.Node{Name: fmt.Sprint("e", n), Amount: p.Elastic.Node})
			}
		}
		d.Pools = append(d.Pools, other.Pool)
	}
	x.Pools = []string{p.Name}
	d.Submitted = []scheduler.Workload{x.Workload}
	_, plan := scheduler.Decide(d)
	return len(plan.Place) > 0
}

// fits asks the scheduler whether a workload starts now where nothing is rented.
func fits(w World, x Work) bool {
	d := scheduler.Delta{Now: w.Now, Started: w.Running}
	var own []string
	for _, p := range w.Pools {
		if d.Pools = append(d.Pools, p.Pool); p.Elastic == nil && (len(x.Pools) == 0 || slices.Contains(x.Pools, p.Name)) {
			own = append(own, p.Name)
		}
	}
	if len(own) == 0 {
		return false
	}
	x.Pools = own
	d.Submitted = []scheduler.Workload{x.Workload}
	_, plan := scheduler.Decide(d)
	return len(plan.Place) > 0
}

// TestSettles: with a demand that stays as it is, the nodes settle and then stay as
// they are; when it ends, they go down to the minimum and stay there.
func TestSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.Money = nil
		for i := range w.Pools {
			e := w.Pools[i].Elastic
			if e == nil {
				continue
			}
			e.NotBefore, e.Rented, w.Pools[i].Nodes = time.Time{}, nil, nil
		}
		w.Running = slices.DeleteFunc(w.Running, func(r scheduler.Running) bool { return strings.HasPrefix(r.Pool, "cloud") })
		for i := range w.Running {
			// It outlasts the test, and that is known.
			w.Running[i].Started, w.Running[i].Deadline = now.Add(-100*time.Hour), now.Add(100*time.Hour)
		}
		names := 0
		changes := map[time.Time]int{}
		step := func() {
			// What may run runs.
			plan := Decide(w)
			act(&w, plan, &names)
			for _, wish := range plan.Pools {
				changes[w.Now] += len(wish.Rent) + len(wish.Release)
			}
			place(&w, plan)
			w.Now = w.Now.Add(5 * time.Minute)
			for i := range w.Pools {
				arrive(&w, i)
			}
		}
		const steps = 24
		for range steps {
			step()
		}
		settled := w.Now
		for range steps {
			step()
		}
		for at, n := range changes {
			if !at.Before(settled) && n > 0 {
				t.Fatalf("%d changes at %s, %s after all had settled", n, at, at.Sub(settled))
			}
		}
		w.Waiting, w.Running = nil, nil
		for range steps {
			step()
		}
		for _, p := range w.Pools {
			if p.Elastic == nil {
				continue
			}
			least := p.Elastic.Min
			if p.Closed != "" {
				least = 0
			}
			if n := len(p.Elastic.Rented); n != least {
				t.Fatalf("%s is left with %d nodes, at least %d are wanted", p.Name, n, least)
			}
		}
	})
}

// act asks for nodes and gives them back at once.
func act(w *World, plan Plan, names *int) {
	for _, wish := range plan.Pools {
		i := slices.IndexFunc(w.Pools, func(p Pool) bool { return p.Name == wish.Pool })
		e := w.Pools[i].Elastic
		gone := func(name string) bool { return slices.Contains(wish.Release, name) }
		e.Rented = slices.DeleteFunc(slices.Clone(e.Rented), func(n Node) bool { return gone(n.Name) })
		w.Pools[i].Nodes = slices.DeleteFunc(slices.Clone(w.Pools[i].Nodes), func(n scheduler.Node) bool { return gone(n.Name) })
		for _, need := range wish.Rent {
			for range need.Nodes {
				*names++
				e.Rented = append(e.Rented, Node{Name: fmt.Sprint("x", *names), Coming: true, Ready: w.Now.Add(e.Startup), For: need.For})
			}
		}
	}
}

// arrive makes nodes ready whose time has come, those of a gang together, and says
// which have work.
func arrive(w *World, i int) {
	p := &w.Pools[i]
	if p.Elastic == nil {
		return
	}
	for j := range p.Elastic.Rented {
		n := &p.Elastic.Rented[j]
		if n.Coming && !n.Ready.After(w.Now) {
			n.Coming, n.Idle = false, w.Now
			p.Nodes = append(slices.Clone(p.Nodes), scheduler.Node{Name: n.Name, Amount: p.Elastic.Node})
		}
		busy := slices.ContainsFunc(w.Running, func(r scheduler.Running) bool {
			return r.Pool == p.Name && (p.Delegated || slices.Contains(r.Nodes, n.Name))
		})
		switch {
		case busy:
			n.Busy, n.Idle = true, time.Time{}
		case n.Busy:
			n.Busy, n.Idle = false, w.Now
		}
	}
}

// place has the scheduler give places to those who wait, on elastic pools to those
// who may use them.
func place(w *World, plan Plan) {
	d := scheduler.Delta{Now: w.Now, Started: w.Running}
	var all, own []string
	for _, p := range w.Pools {
		d.Pools = append(d.Pools, p.Pool)
		if all = append(all, p.Name); p.Elastic == nil {
			own = append(own, p.Name)
		}
	}
	works := map[scheduler.ID]Work{}
	for i, x := range w.Waiting {
		works[x.ID] = x
		may := append(slices.Clone(own), plan.Works[i].Pools...)
		named := x.Pools
		if len(named) == 0 {
			named = all
		}
		if x.Pools = slices.DeleteFunc(slices.Clone(named), func(p string) bool { return !slices.Contains(may, p) }); len(x.Pools) > 0 && x.Barred == "" {
			d.Submitted = append(d.Submitted, x.Workload)
		}
	}
	_, placed := scheduler.Decide(d)
	for _, pl := range placed.Place {
		x := works[pl.Workload]
		w.Running = append(w.Running, scheduler.Running{Workload: x.Workload, Pool: pl.Pool, Placed: pl.Workers, Nodes: pl.Nodes, Started: w.Now.Add(-100 * time.Hour), Deadline: w.Now.Add(100 * time.Hour)})
		delete(works, pl.Workload)
	}
	left := slices.Sorted(maps.Keys(works))
	w.Waiting = slices.DeleteFunc(slices.Clone(w.Waiting), func(x Work) bool { return !slices.Contains(left, x.ID) })
	for i := range w.Pools {
		arrive(w, i)
	}
}
