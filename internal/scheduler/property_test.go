package scheduler

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/resource"
)

var zones = []string{"home", "DE", "AE"}

// rarely is true once in n times: rapid draws what is small, and the most, more often.
func rarely(t *rapid.T, label string, n int) bool { return rapid.IntRange(0, n).Draw(t, label) == n-1 }

// mostly is the first, and once in n times one of the others.
func mostly[T any](t *rapid.T, label string, n int, first T, others ...T) T {
	if !rarely(t, label, n) {
		return first
	}
	return rapid.SampledFrom(others).Draw(t, label)
}

func drawAmount(t *rapid.T, label string, most int64) resource.Amount {
	a := resource.Amount{
		CPU:    resource.CPU(rapid.Int64Range(0, 4*most).Draw(t, label+" cpu")) * 250, // of many more few would be large
		Memory: resource.Bytes(rapid.Int64Range(0, most).Draw(t, label+" memory")) * resource.GiB,
	}
	if rarely(t, label+" counts bandwidth", 6) {
		a.MemoryBandwidth = resource.Bandwidth(rapid.Int64Range(0, most).Draw(t, label+" bandwidth")) * 1e9
	}
	gpus := []int64{0, 2, 2, 1}
	if most < 4 { // of one worker
		gpus = []int64{0, 0, 0, 0, 0, 1, 1, 0}
	}
	if n := rapid.SampledFrom(gpus).Draw(t, label+" gpus"); n > 0 {
		a.Accelerators = map[string]int64{"nvidia.com/gpu": n}
		if rapid.IntRange(0, 5).Draw(t, label+" shares") == 0 {
			a.Accelerators["nvidia.com/gpu.shared"] = 1
		}
	}
	return a
}

// drawLimit draws what some may use, mostly enough for one of them.
func drawLimit(t *rapid.T, label string, most int64) resource.Limit {
	a := drawAmount(t, label, most)
	if !rarely(t, label+" is small", 5) {
		a = a.Plus(resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB})
		for name := range a.Accelerators {
			a.Accelerators[name]++
		}
	}
	l := resource.LimitOf(a)
	if rarely(t, label+" allows no cores", 12) {
		l.CPU = new(resource.CPU)
	}
	if rarely(t, label+" allows no memory", 12) {
		l.Memory = new(resource.Bytes)
	}
	return l
}

func drawClosed(t *rapid.T) string {
	return mostly(t, "closed", 5, "", "down")
}

// drawPool draws a pool that most may use.
func drawPool(t *rapid.T, name string) Pool {
	p := Pool{
		Name: name, Zone: mostly(t, "zone", 6, "home", "DE", "AE"),
		Isolation:    mostly(t, "isolation", 6, Sandbox, None, Container, Dedicated),
		Delegated:    rarely(t, "delegated", 3),
		Remote:       rarely(t, "remote", 3),
		Alike:        rarely(t, "alike", 8),
		Closed:       mostly(t, "pool closed", 16, "", "down"),
		PricePerHour: float64(rapid.IntRange(0, 3).Draw(t, "price")),
		Ahead:        rapid.SampledFrom([]float64{0, 0, 0.5, 1.5}).Draw(t, "ahead"),
	}
	for n := range mostly(t, "nodes", 2, 2, 3, 3, 1, 1, 0) {
		p.Nodes = append(p.Nodes, drawNode(t, fmt.Sprint("n", n)))
	}
	if rapid.Bool().Draw(t, "levels") {
		p.Levels = []string{"rack"}
	}
	return p
}

func drawNode(t *rapid.T, name string) Node {
	node := Node{Name: name, Amount: drawAmount(t, "node", 6).Plus(resource.Amount{CPU: resource.Cores(2), Memory: 2 * resource.GiB}), Closed: drawClosed(t)}
	if rapid.Bool().Draw(t, "unknown bandwidth") {
		node.Amount.MemoryBandwidth = resource.AnyBandwidth
	}
	node.Where = drawRack(t)
	return node
}

func drawRack(t *rapid.T) []string {
	if rack := rapid.IntRange(0, 3).Draw(t, "rack"); rack > 0 {
		return []string{fmt.Sprint("r", rack)}
	}
	return nil
}

// drawChange is what becomes of a pool: its nodes move, come and go, and close. What
// compute refuses to change under running workload stays, and nodes mostly do on which some is.
func drawChange(t *rapid.T, old Pool, on map[string]bool, now time.Time) Pool {
	p := drawPool(t, old.Name)
	if len(on) > 0 {
		p.Zone, p.Delegated, p.Remote = old.Zone, old.Delegated, old.Remote
	}
	if rapid.IntRange(0, 3).Draw(t, "is as it was") > 0 {
		p.Zone, p.Isolation, p.Delegated, p.Remote, p.Ahead, p.Levels = old.Zone, old.Isolation, old.Delegated, old.Remote, old.Ahead, old.Levels
	}
	come := p.Nodes
	p.Nodes = nil
	for _, n := range old.Nodes {
		if at := slices.IndexFunc(come, func(o Node) bool { return o.Name == n.Name }); at >= 0 && (on[n.Name] || on[""] || rapid.IntRange(0, 3).Draw(t, "stays") > 0) {
			come[at].Amount = n.Amount
			if rapid.IntRange(0, 3).Draw(t, "moves") > 0 {
				come[at].Where = n.Where
			}
		} else if at < 0 && rapid.IntRange(0, 3).Draw(t, "goes") > 0 {
			come = append(come, n)
		}
	}
	slices.SortFunc(come, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range come {
		n.Closed, n.Closes = drawClosed(t), time.Time{}
		n.Leave = n.Closed != "" && rapid.Bool().Draw(t, "leave")
		if soon := rapid.IntRange(0, 4).Draw(t, "closes"); soon > 2 {
			n.Closes = now.Add(time.Duration(soon-1) * time.Minute)
		}
		p.Nodes = append(p.Nodes, n)
	}
	return p
}

// drawQueues draws up to five queues in trees, some with quotas and limits.
func drawQueues(t *rapid.T) []Queue {
	queues := []Queue{}
	maybe := func(label string) *resource.Amount {
		if rapid.Bool().Draw(t, label) {
			return nil
		}
		a := drawLimit(t, label, 4).Amount()
		return &a
	}
	for n := range mostly(t, "queues", 2, 4, 5, 3, 2, 1, 0) {
		q := Queue{
			Name: fmt.Sprint("q", n), Weight: float64(rapid.IntRange(0, 3).Draw(t, "weight")),
			Order:         rapid.SampledFrom([]Order{"", BestEffort, Strict}).Draw(t, "order"),
			HalfLife:      time.Duration(rapid.IntRange(0, 2).Draw(t, "half-life")) * time.Minute,
			MinRuntime:    mostly(t, "min runtime", 2, 0, time.Minute, 3*time.Minute, 15*time.Minute),
			NeverPreempts: rarely(t, "patient", 5),
			IdleReclaim:   time.Duration(max(rapid.IntRange(-3, 2).Draw(t, "idle reclaim"), 0)) * time.Minute,
			IdleEnd:       rapid.Bool().Draw(t, "idle end"),
			Borrow:        maybe("borrow"), Lend: maybe("lend"),
		}
		if !rarely(t, "no quota", 4) {
			q.Quota = drawLimit(t, "nominal", 6)
		}
		if n > 0 && !rarely(t, "on top", 4) {
			q.Parent = fmt.Sprint("q", rapid.IntRange(0, n-1).Draw(t, "parent"))
		}
		if rapid.IntRange(0, 3).Draw(t, "limits of users") == 0 {
			q.PerUser = drawLimit(t, "user", 6)
		}
		if rapid.IntRange(0, 3).Draw(t, "limits of projects") == 0 {
			q.PerProject = drawLimit(t, "project", 6)
		}
		queues = append(queues, q)
	}
	return queues
}

func drawWork(t *rapid.T, id ID, now time.Time) Workload {
	var due time.Time
	if rarely(t, "deadline", 5) {
		due = now.Add(time.Duration(rapid.IntRange(-1, 8).Draw(t, "due")) * time.Minute)
	}
	within := mostly(t, "within", 4, "", "rack", OnNode)
	var speed []float64
	for n := range max(rapid.IntRange(-2, 6).Draw(t, "speeds"), 0) {
		speed = append(speed, 1+float64(n)*rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "speed"))
	}
	return Workload{
		Speed: speed, Target: max(rapid.IntRange(-3, 3).Draw(t, "target"), 0),
		Roles:  drawRoles(t),
		Pools:  mostly(t, "pools", 12, nil, []string{"pool0"}, []string{"pool1", "pool2"}),
		Within: within, PerNode: mostly(t, "per node", 6, 0, 1, 2),
		ID: id, Due: due, Expected: time.Duration(rapid.IntRange(0, 4).Draw(t, "expected")) * time.Minute,
		Project: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "project"),
		User:    rapid.SampledFrom([]string{"alia", "omar"}).Draw(t, "user"), Queue: mostly(t, "queue", 6, fmt.Sprint("q", rapid.IntRange(0, 3).Draw(t, "which queue")), "", "q4"),
		Timeout:     time.Duration(rapid.IntRange(0, 4).Draw(t, "timeout")) * time.Minute,
		Preemptible: !rarely(t, "stays", 3), EvictableWorkers: rapid.Bool().Draw(t, "evictable"),
		Request:   drawAmount(t, "request", 2),
		Residency: zones[:rapid.IntRange(1, 3).Draw(t, "zones")],
		Isolation: mostly(t, "wanted isolation", 8, Sandbox, None, None, Container, Dedicated),
		Priority:  rapid.IntRange(0, 2).Draw(t, "priority"),
		Submitted: now.Add(-time.Duration(rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 1440 - 2, 1440}).Draw(t, "age")) * time.Minute),
		Served:    rapid.SampledFrom([]float64{0, 0, 16*3600 - 120, 16 * 3600, 1e6}).Draw(t, "served"),
		NotBefore: now.Add(mostly(t, "delay", 8, -time.Minute, time.Minute)),
		Workers:   max(rapid.IntRange(-3, 3).Draw(t, "workers"), 0), MaxWorkers: max(rapid.IntRange(-5, 8).Draw(t, "most workers"), 0),
		InPlace: rarely(t, "in place", 16),
	}
}

// drawRoles draws none for most workloads, of the others some that ask for the same.
func drawRoles(t *rapid.T) (roles []Role) {
	for n := range max(rapid.IntRange(-6, 3).Draw(t, "roles"), 0) {
		r := Role{Name: fmt.Sprint("r", n), Workers: rapid.IntRange(1, 3).Draw(t, "workers of a role"), Request: drawAmount(t, "role", 2)}
		if n > 0 && rapid.IntRange(0, 2).Draw(t, "the same") == 0 {
			r.Request = roles[0].Request
		}
		roles = append(roles, r)
	}
	return roles
}

// often walks a thousand histories where nobody asked for another number.
func often(t *testing.T) {
	t.Helper()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue && !testing.Short() {
		if err := flag.Set("rapid.checks", "1000"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set("rapid.checks", f.DefValue) })
	}
}

// TestPromises walks random histories step by step, incrementally and from the
// whole snapshot, and checks what the package promises after every step.
func TestPromises(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		now := start
		w := world{pools: map[string]Pool{}, waiting: map[ID]Workload{}, running: map[ID]Running{}}
		s := &State{}
		w.policy = rapid.SampledFrom(Policies).Draw(t, "policy")
		never := map[ID]bool{}
		for step := range rapid.IntRange(2, 7).Draw(t, "steps") {
			tick := rapid.SampledFrom([]time.Duration{time.Minute, time.Minute, time.Minute, time.Minute, time.Minute, 0, -time.Minute, -time.Hour}).Draw(t, "tick")
			if w.policy == Goodput && tick > 0 { // sizes settle for a while
				tick = 10 * time.Minute
			}
			now = now.Add(tick)
			d := Delta{Now: now, Policy: w.policy, Sizes: rapid.Bool().Draw(t, "sizes")}
			if step == 0 || rapid.IntRange(0, 5).Draw(t, "other queues") == 0 {
				w.queues = drawQueues(t)
				d.Queues = w.queues
			}
			if step == 0 || rapid.IntRange(0, 5).Draw(t, "other quotas") == 0 {
				w.quotas = map[string]resource.Limit{"p": drawLimit(t, "quota", 16)}
				d.Quotas = w.quotas
			}
			for n := range mostly(t, "pools changed", 2, 2*btoi(step == 0), 1, 2, 3) {
				p := drawPool(t, fmt.Sprint("pool", n))
				if old, known := w.pools[p.Name]; known {
					p = drawChange(t, old, w.on(old.Name), now)
				}
				d.Pools = append(d.Pools, p)
				w.pools[p.Name] = p
			}
			for _, id := range append(slices.Sorted(maps.Keys(w.running)), slices.Sorted(maps.Keys(w.waiting))...) {
				r, runs := w.running[id]
				goes := 8
				if r.Leaving || never[id] {
					goes = 2
				}
				if !rarely(t, "goes", goes) {
					continue
				}
				delete(w.running, id)
				delete(w.waiting, id)
				if runs && r.Leaving && r.Preemptible { // it has saved, and waits again
					d.Submitted = append(d.Submitted, r.Workload)
					w.waiting[id] = r.Workload
					continue
				}
				d.Removed = append(d.Removed, id)
			}
			for n := range rapid.IntRange(0, 10).Draw(t, "submitted") {
				k := drawWork(t, ID(fmt.Sprintf("w%d_%d", step, n)), now)
				if last := len(d.Submitted) - 1; last >= 0 && rapid.Bool().Draw(t, "asks for the same") {
					like := d.Submitted[last]
					k.Request, k.Roles, k.Workers, k.PerNode, k.Within = like.Request, like.Roles, like.Workers, like.PerNode, like.Within
					k.Residency, k.Isolation, k.InPlace = like.Residency, like.Isolation, like.InPlace
				}
				d.Submitted = append(d.Submitted, k)
				w.waiting[k.ID] = k
			}
			for _, id := range slices.Sorted(maps.Keys(w.running)) {
				if r := w.running[id]; rapid.IntRange(0, 3).Draw(t, "idles") == 0 {
					r.Idle = rapid.SampledFrom([]time.Time{{}, now.Add(-2 * time.Minute), now.Add(-time.Minute), now}).Draw(t, "idle")
					w.running[id] = r
					d.Started = append(d.Started, r)
				}
			}
			for _, id := range slices.Sorted(maps.Keys(w.running)) {
				if r := w.running[id]; len(r.Evicted) > 0 && rapid.Bool().Draw(t, "have stopped") {
					w.running[id] = stopped(r, rapid.IntRange(1, len(r.Evicted)).Draw(t, "so many"))
					d.Started = append(d.Started, w.running[id])
				}
			}
			before := w.delta(now)
			before.Turns, before.Sizes = s.Turns(), d.Sizes
			plan := s.Step(d)
			before.History = s.History()
			sizes := maps.Clone(s.sizes)
			whole, anew := Decide(before)
			if got, want := render(s, plan), render(whole, anew); got != want {
				t.Fatalf("incremental and whole differ:\n%s\n%s", got, want)
			}
			if again, anew := Decide(before); render(again, anew) != render(s, plan) {
				t.Fatalf("the same snapshot gave another plan:\n%s\n%s", render(s, plan), render(again, anew))
			}
			want := refer(before, plan, sizes)
			never = want.never
			if got := placements(plan); got != want.placed {
				t.Fatalf("the reference places\n%s\nand not\n%s\n%s", want.placed, got, render(s, plan))
			}
			if want.wrong != "" {
				t.Fatalf("by the reference %s\n%s", want.wrong, render(s, plan))
			}
			w.check(t, s, plan, before)
			for id := range w.waiting {
				if wait, _ := s.Why(id); wait.Possible == want.never[id] {
					t.Fatalf("%s may run by the reference: %t; here: %+v", id, !want.never[id], wait)
				}
			}
		}
		dryRunHolds(t, s, drawWork(t, "proposed", now), now)
	})
}

// dryRunHolds checks that what is said of a workload is what becomes of it in the next step.
func dryRunHolds(t *rapid.T, s *State, w Workload, now time.Time) {
	f := s.DryRun(w)
	plan := s.Step(Delta{Now: now, Submitted: []Workload{w}})
	i := slices.IndexFunc(plan.Place, func(p Placement) bool { return p.Workload == w.ID })
	if (i >= 0) != (f.Place != nil) || i >= 0 && fmt.Sprint(plan.Place[i]) != fmt.Sprint(*f.Place) {
		t.Fatalf("the dry run gave it %+v, and gets of %+v", f.Place, plan.Place)
	}
	if i >= 0 {
		return
	}
	if wait, _ := s.Why(w.ID); wait.String() != f.Wait.String() || wait.Possible != f.Wait.Possible {
		t.Fatalf("dry run: %+v\nit waits: %+v", f.Wait, wait)
	}
	for _, p := range plan.Preempt {
		if p.For == w.ID && !slices.Contains(f.Leave, p.Workload) {
			t.Fatalf("%s leaves for it, the dry run said %v", p.Workload, f.Leave)
		}
	}
}

// stopped is what runs once the first n that were told to stop have.
func stopped(r Running, n int) Running {
	var nodes []string
	var told []Eviction
	for i := range r.Placed {
		at := slices.IndexFunc(r.Evicted, func(s Eviction) bool { return s.Worker == i })
		if at >= 0 && at < n {
			continue
		}
		if at >= 0 {
			again := r.Evicted[at]
			again.Worker = i
			for _, gone := range r.Evicted[:n] {
				again.Worker -= btoi(gone.Worker < i)
			}
			told = append(told, again)
		}
		if i < len(r.Nodes) {
			nodes = append(nodes, r.Nodes[i])
		}
	}
	r.Placed, r.Nodes, r.Evicted = r.Placed-n, nodes, told
	return r
}

// world is the plain model that plans are checked against.
type world struct {
	pools   map[string]Pool
	waiting map[ID]Workload
	running map[ID]Running
	queues  []Queue
	quotas  map[string]resource.Limit
	policy  Policy
}

// on are the nodes of a pool on which something runs; of one that is delegated, "".
func (w *world) on(pool string) map[string]bool {
	out := map[string]bool{}
	for _, r := range w.running {
		if r.Pool != pool {
			continue
		}
		out[""] = out[""] || len(r.Nodes) == 0
		for _, n := range r.Nodes {
			out[n] = true
		}
	}
	maps.DeleteFunc(out, func(_ string, on bool) bool { return !on })
	return out
}

func (w *world) delta(now time.Time) Delta {
	d := Delta{Now: now, Policy: w.policy, Quotas: w.quotas, Queues: w.queues}
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

// check takes a plan in, and what it promises; before is what it was made of.
func (w *world) check(t *rapid.T, s *State, plan Plan, before Delta) {
	now, policy := before.Now, w.policy
	for _, pl := range plan.Place {
		k, ok := w.waiting[pl.Workload]
		if _, waits := s.Why(pl.Workload); !ok || waits {
			t.Fatalf("%s placed twice, or placed and waiting", pl.Workload)
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
		case len(k.Roles) > 0 && pl.Workers != k.inRoles():
			t.Fatalf("%s: %d workers of %+v", k.ID, pl.Workers, k.Roles)
		case len(k.Roles) == 0 && (pl.Workers < max(k.Workers, 1) || pl.Workers > max(k.Workers, k.MaxWorkers, 1)):
			t.Fatalf("%s: %d workers, not %d to %d", k.ID, pl.Workers, k.Workers, k.MaxWorkers)
		case p.Delegated && len(pl.Nodes) != 0 || !p.Delegated && len(pl.Nodes) != pl.Workers:
			t.Fatalf("%s: %d workers on nodes %q in a pool with delegated=%t", k.ID, pl.Workers, pl.Nodes, p.Delegated)
		}
		for _, name := range pl.Nodes {
			if i := slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Name == name }); i < 0 || p.Nodes[i].Closed != "" {
				t.Fatalf("%s was placed on node %s, which is closed", k.ID, name)
			}
		}
		w.stands(t, k, p, pl.Nodes, now)
		delete(w.waiting, pl.Workload)
		r := Running{Workload: k, Pool: pl.Pool, Placed: pl.Workers, Nodes: pl.Nodes, Started: now}
		if k.Timeout > 0 {
			r.Deadline = now.Add(k.Timeout)
		}
		w.limits(t, r, now)
		w.running[pl.Workload] = r
		w.holds(t, p, pl)
	}
	w.strict(t, s, plan, before)
	for _, pr := range plan.Preempt {
		r, ok := w.running[pr.Workload]
		by, waits := w.waiting[pr.For]
		leave := slices.ContainsFunc(w.pools[r.Pool].Nodes, func(n Node) bool { return n.Leave && slices.Contains(r.Nodes, n.Name) })
		switch {
		case pr.For == "" && ok && leave && r.Preemptible && !r.Leaving && pr.Why != "":
		case !ok || !waits || pr.Why == "":
			t.Fatalf("%s is preempted for %s: running %t, waits %t, because %q", pr.Workload, pr.For, ok, waits, pr.Why)
		case pr.Ends == r.Preemptible:
			t.Fatalf("%s ends for good: %t, and is preemptible: %t", pr.Workload, pr.Ends, r.Preemptible)
		case r.EvictableWorkers && !r.Preemptible:
			t.Fatalf("%s keeps its least: %+v", pr.Workload, r)
		case !r.Preemptible && !w.idles(r, by, now) || r.Leaving || !r.Started.Before(now) || r.Started.Add(w.queue(r.Workload).MinRuntime).After(now):
			t.Fatalf("%s may not be preempted: %+v", pr.Workload, r)
		case w.idles(r, by, now):
		case w.queue(by).NeverPreempts:
			t.Fatalf("nobody leaves for %s: %+v", pr.For, w.queue(by))
		case policy == Tiresias && r.Queue == by.Queue && by.Served < 16*3600 && much(r, now):
		case policy == Tiresias && r.Queue == by.Queue && by.Served >= 16*3600 && !much(r, now):
			t.Fatalf("%s had more than %s", pr.For, pr.Workload)
		case r.Queue == by.Queue && r.Priority >= by.Priority:
			t.Fatalf("%s has no lower priority than %s", pr.Workload, pr.For)
		}
		r.Leaving, r.LeavingSince, r.LeavingFor = true, now, pr.For
		w.running[pr.Workload] = r
	}
	for _, rs := range plan.Resize {
		r, ok := w.running[rs.Workload]
		by, waits := w.waiting[rs.For]
		if len(rs.Evict) > 0 {
			told := map[int]bool{}
			for _, n := range rs.Evict {
				r.Evicted = append(r.Evicted, Eviction{Worker: n, Since: now, For: rs.For})
			}
			for _, s := range r.Evicted {
				told[s.Worker] = true
				if s.Worker < 0 || s.Worker >= r.Placed {
					t.Fatalf("%+v of %d workers", rs, r.Placed)
				}
			}
			switch {
			case !ok || !waits || rs.Why == "" || !r.EvictableWorkers || r.Preemptible || r.Leaving || len(r.Roles) > 0:
				t.Fatalf("%+v may not be: %+v", rs, r)
			case len(told) != len(r.Evicted) || rs.Workers != r.Placed-len(told) || rs.Workers < r.least():
				t.Fatalf("%+v leaves %d of %d to %d workers", rs, r.Placed-len(told), r.least(), r.most())
			case !r.Started.Before(now) || r.Started.Add(w.queue(r.Workload).MinRuntime).After(now):
				t.Fatalf("%s runs since %s only", rs.Workload, r.Started)
			case w.idles(r, by, now):
			case w.queue(by).NeverPreempts:
				t.Fatalf("nobody leaves for %s: %+v", rs.For, w.queue(by))
			case r.Queue == by.Queue && r.Priority >= by.Priority:
				t.Fatalf("%s has no lower priority than %s", rs.Workload, rs.For)
			}
			w.running[rs.Workload] = r
			continue
		}
		switch {
		case !ok || r.Leaving || !r.Preemptible || policy != Goodput || rs.Why == "":
			t.Fatalf("%+v is not to be resized: %+v", rs, r)
		case rs.Workers < r.least() || rs.Workers > r.most() || rs.Workers == r.Placed || rs.Workers > r.Placed && rs.Workers > r.least()+len(r.Speed)-1:
			t.Fatalf("%+v from %d workers of %d to %d, with %d speeds", rs, r.Placed, r.least(), r.most(), len(r.Speed))
		case rs.For == "" != (rs.Workers > r.Placed) || rs.For != "" && !waits:
			t.Fatalf("%+v from %d workers", rs, r.Placed)
		case now.Sub(r.Started) < 15*time.Minute:
			t.Fatalf("%+v after %s", rs, now.Sub(r.Started))
		}
		r.Leaving, r.LeavingSince, r.LeavingFor = true, now, rs.For
		w.running[rs.Workload] = r
	}
	for id := range w.waiting {
		wait, ok := s.Why(id)
		if !ok || len(wait.Reasons) == 0 || slices.ContainsFunc(wait.Reasons, func(r Reason) bool { return r.Text == "" || r.Step == "" }) {
			t.Fatalf("%s waits without a reason: %+v", id, wait)
		}
		k := w.waiting[id]
		for _, r := range wait.Reasons {
			p, ok := w.pools[r.Pool]
			if n := w.free(k, p, now); ok && (r.Code == Full && n >= k.least() != strings.Contains(r.Text, sinceThen) || r.Code == Kept && n < k.least()) {
				t.Fatalf("%s: there is room for %d of %d workers in %s: %+v", id, n, k.least(), p.Name, r)
			}
			if r.Code == Residency && slices.Contains(k.Residency, p.Zone) || r.Code == Isolated && p.Isolation.AtLeast(k.Isolation) ||
				r.Code == Demoted && (policy != Tiresias || k.Served < 16*3600) || r.Code == Delayed && !k.NotBefore.After(now) || r.Code == Late && !now.Add(k.Expected).After(k.Due) {
				t.Fatalf("%s: not true: %+v", id, r)
			}
		}
	}
}

// holds checks that no node holds more than may be handed over to it, once a workload has its
// place.
func (w *world) holds(t *rapid.T, p Pool, pl Placement) {
	for _, n := range spots(p) {
		used := resource.Amount{}
		for _, r := range w.running {
			if r.Pool == p.Name {
				used = used.Plus(held(r, p, n.Name))
			}
		}
		starts := w.running[pl.Workload]
		if may := handed(p, n.Amount); !within(held(starts, p, n.Name), used, may) {
			t.Fatalf("node %s/%s holds %+v of %+v with %s", p.Name, n.Name, used, may, pl.Workload)
		}
	}
}

// within reports that of the parts that are asked for no more is used than there is.
func within(asked, used, most resource.Amount) bool {
	for name, x := range parts(asked) {
		if x > 0 && parts(used)[name] > parts(most)[name] {
			return false
		}
	}
	return true
}

// queue is that of a workload; the zero Queue, whose workloads have nobody leave for them, where
// it is not known.
func (w *world) queue(k Workload) Queue {
	if i := slices.IndexFunc(w.queues, func(q Queue) bool { return q.Name == k.Queue }); i >= 0 {
		return w.queues[i]
	}
	return Queue{NeverPreempts: w.policy != Tiresias}
}

// limits checks that a workload that starts is within all limits: what each queue uses is
// counted anew with it and without.
func (w *world) limits(t *rapid.T, starts Running, now time.Time) {
	without := newReference(w.delta(now))
	with := newReference(w.delta(now))
	with.add(starts)
	of := with.queue(starts.Workload)
	for part, x := range parts(starts.amount()) {
		if x <= 0 || !with.named(of, part) {
			continue
		}
		for q := of; ; q = with.parent(q) {
			was, is := without.used(q, part, false), with.used(q, part, false)
			if is <= was {
				break // it is all of what those below lend to nobody
			}
			most, what := with.subtree(q, part), "has"
			if len(with.path(q)) > 1 {
				if with.queues[q].Borrow == nil {
					continue
				}
				most, what = most+parts(*with.queues[q].Borrow)[part], "has and may borrow"
			}
			if is > most {
				t.Fatalf("queue %s uses %d %s with %s, and %s %d", q, is, part, starts.ID, what, most)
			}
			if len(with.path(q)) == 1 {
				break
			}
		}
	}
	project, user, both := resource.Amount{}, resource.Amount{}, resource.Amount{}
	for _, h := range with.holders {
		if h.project == starts.Project {
			project = project.Plus(h.amount)
		}
		if h.queue == of && h.user == starts.User {
			user = user.Plus(h.amount)
		}
		if h.queue == of && h.project == starts.Project {
			both = both.Plus(h.amount)
		}
	}
	q := w.queue(starts.Workload)
	for _, l := range []struct {
		who  string
		used resource.Amount
		most resource.Limit
	}{{"project", project, w.quotas[starts.Project]}, {"user of queue", user, q.PerUser}, {"project in queue", both, q.PerProject}} {
		for part, x := range parts(starts.amount()) {
			if most, named := limitOf(l.most, part); x > 0 && named && parts(l.used)[part] > most {
				t.Fatalf("the %s of %s uses %d %s with it, of %d", l.who, starts.ID, parts(l.used)[part], part, most)
			}
		}
	}
}

// strict checks that nobody of a strict queue passed one before it that could start but for
// room.
func (w *world) strict(t *rapid.T, s *State, plan Plan, before Delta) {
	r := newReference(before)
	for _, pl := range plan.Place {
		k := w.running[pl.Workload].Workload
		if w.queue(k).Order != Strict {
			continue
		}
		for id, first := range w.waiting {
			wait, _ := s.Why(id)
			waits := wait.Possible && !first.NotBefore.After(before.Now) && slices.ContainsFunc(r.permitted(first), func(p Pool) bool { return !r.shut(first, p) })
			if waits && r.queue(first) == r.queue(k) && r.inLine(first, k) < 0 && !slices.Contains(before.Turns, k.ID) {
				t.Fatalf("%s of strict queue %s passed %s", k.ID, k.Queue, id)
			}
		}
	}
}

// idles reports that a running workload has to give back accelerators that another asks
// for.
func (w *world) idles(r Running, by Workload, now time.Time) bool {
	i := slices.IndexFunc(w.queues, func(q Queue) bool { return q.Name == r.Queue })
	if i < 0 || r.Idle.IsZero() || w.queues[i].IdleReclaim == 0 || r.Idle.Add(w.queues[i].IdleReclaim).After(now) {
		return false
	}
	return (r.Preemptible || r.EvictableWorkers || w.queues[i].IdleEnd) && r.amount().Accelerators["nvidia.com/gpu"] > 0 && by.Amount(by.least()).Accelerators["nvidia.com/gpu"] > 0
}

// much reports that a running workload had 16 accelerator-hours, or core-hours of what
// asks for no accelerator, since it last waited for a day.
func much(r Running, now time.Time) bool {
	all := r.Amount(max(r.Placed, 1))
	had, wide := r.Served, all.CPU.Cores()
	if n := all.Accelerators["nvidia.com/gpu"] + all.Accelerators["nvidia.com/gpu.shared"]; n > 0 {
		wide = float64(n)
	}
	if !r.Started.Before(r.Submitted.Add(24 * time.Hour)) {
		had = 0
	}
	return had+wide*now.Sub(r.Started).Seconds() >= 16*3600
}

// stands checks where the workers of a gang are.
func (w *world) stands(t *rapid.T, k Workload, p Pool, nodes []string, now time.Time) {
	racks, on := map[string]bool{}, map[string]int{}
	for _, name := range nodes {
		node := p.Nodes[slices.IndexFunc(p.Nodes, func(n Node) bool { return n.Name == name })]
		racks[fmt.Sprint(node.Where)] = true
		on[name]++
		if k.PerNode > 0 && on[name] > k.PerNode {
			t.Fatalf("%s has more than %d workers on %s", k.ID, k.PerNode, name)
		}
		if k.together() == "rack" && len(on) > 1 && (len(node.Where) == 0 || len(racks) > 1) || k.together() == OnNode && len(on) > 1 {
			t.Fatalf("%s is not within one %s: %q", k.ID, k.together(), nodes)
		}
		if !node.Closes.IsZero() && !k.Preemptible && (k.Timeout == 0 || now.Add(k.Timeout).After(node.Closes)) {
			t.Fatalf("%s is on %s, which closes before it ends", k.ID, name)
		}
	}
}

// free is for how many workers a pool has room now, at most the least.
func (w *world) free(k Workload, p Pool, now time.Time) int {
	counts, left := map[string]int{}, map[string]resource.Amount{}
	for _, node := range spots(p) {
		if node.Closed != "" || closing(k, p, node, now) {
			continue
		}
		free := node.Amount
		for _, r := range w.running {
			if r.Pool == p.Name {
				free = free.Minus(held(r, p, node.Name))
			}
		}
		left[node.Name] = free
		counts[node.Name] = k.Request.Count(free, k.perNode())
	}
	if len(k.Roles) > 0 {
		r := reference{Delta: w.delta(now)}
		return r.packed(k, p, func(n Node) (resource.Amount, bool) { free, open := left[n.Name]; return free, open })
	}
	return roomiest(k, p, counts)
}

// placements are the plan's in words.
func placements(p Plan) string {
	var out strings.Builder
	for _, pl := range p.Place {
		fmt.Fprintf(&out, "%s in %s, %d workers on %v\n", pl.Workload, pl.Pool, pl.Workers, pl.Nodes)
	}
	return out.String()
}

// TestNobodyStarves: more is submitted all the time than fits, of all sizes, and
// every workload begins within what those before it can take.
func TestNobodyStarves(t *testing.T) {
	often(t)
	const long = 6 * time.Minute // that a workload takes at most
	rapid.Check(t, func(t *rapid.T) {
		s, now := &State{}, start
		d := Delta{Now: now, Policy: mostly(t, "policy", 2, Fair, Fifo, Tiresias, Goodput), Queues: []Queue{{Name: "a", HalfLife: time.Minute}, {Name: "b", Weight: 2}}}
		p := Pool{Name: "home", Zone: "home", Isolation: Sandbox, Delegated: rapid.Bool().Draw(t, "delegated")}
		for n := range 3 {
			p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: resource.Amount{CPU: resource.Cores(4)}})
		}
		d.Pools = []Pool{p}
		type life struct {
			ends  time.Time
			bound time.Time
		}
		lives, waiting := map[ID]*life{}, 0
		sizes := rapid.SliceOfN(rapid.IntRange(0, 99), 120, 120).Draw(t, "works")
		for minute := range 60 {
			for n := range 2 {
				x := sizes[(2*minute+n)%len(sizes)]
				w := Workload{
					ID: ID(fmt.Sprintf("w%03d_%d", minute, n)), Queue: []string{"a", "b"}[x%2], Residency: []string{"home"}, Isolation: Sandbox,
					Request: resource.Amount{CPU: resource.Cores(int64(1 + x%4))}, Workers: 1 + x%3, Submitted: now,
				}
				if x%3 == 1 {
					w.Roles = []Role{{"a", 1, w.Request}, {"b", 1 + x%2, resource.Amount{CPU: resource.Cores(1)}}}
				}
				if x%5 > 0 {
					w.Timeout = time.Duration(1+x%6) * time.Minute
				}
				lives[w.ID] = &life{bound: now.Add(time.Duration(2*(waiting+2)) * long)}
				d.Submitted = append(d.Submitted, w)
				waiting++
			}
			plan := s.Step(d)
			for _, pl := range plan.Place {
				waiting--
				takes := time.Duration(1+sizes[waiting%len(sizes)]%6) * time.Minute
				if limit := s.running[pl.Workload].Timeout; limit > 0 {
					takes = min(takes, limit)
				}
				lives[pl.Workload].ends = now.Add(takes)
			}
			now = now.Add(time.Minute)
			d = Delta{Now: now}
			for _, id := range slices.Sorted(maps.Keys(lives)) {
				switch l := lives[id]; {
				case l.ends.IsZero() && now.After(l.bound):
					wait, _ := s.Why(id)
					t.Fatalf("%s still waits %s after its bound: %s", id, now.Sub(l.bound), wait)
				case !l.ends.IsZero() && !l.ends.After(now):
					d.Removed = append(d.Removed, id)
					delete(lives, id)
				}
			}
		}
	})
}

// TestUnknownEnds: whom nobody's time-out promises a place begins all the same, once those
// have ended that ran when it came. Small ones take what it does not need meanwhile.
func TestUnknownEnds(t *testing.T) {
	often(t)
	const long = 6 // minutes that a workload takes at most
	rapid.Check(t, func(t *rapid.T) {
		p := Pool{Name: "home", Zone: "home", Isolation: Sandbox, Delegated: rapid.Bool().Draw(t, "delegated")}
		for n := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			p.Nodes = append(p.Nodes, Node{Name: fmt.Sprint("n", n), Amount: resource.Amount{CPU: resource.Cores(8)}})
		}
		work := func(id string, cores int) Workload {
			return Workload{ID: ID(id), Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: resource.Cores(int64(cores))}, Submitted: start}
		}
		large := work("large", rapid.IntRange(3, 8).Draw(t, "cores"))
		large.Workers = rapid.IntRange(1, len(p.Nodes)).Draw(t, "workers")
		if rapid.Bool().Draw(t, "roles") {
			large.Roles = []Role{{"a", large.Workers, large.Request}, {"b", 1, resource.Amount{CPU: resource.Cores(1)}}}
			if large.Request.CPU == resource.Cores(8) && large.Workers == len(p.Nodes) {
				large.Roles = large.Roles[:1]
			}
		}
		s, ends := &State{}, map[ID]int{}
		d := Delta{Pools: []Pool{p}}
		for minute := range 4 * long {
			d.Now = start.Add(time.Duration(minute) * time.Minute)
			for n := range rapid.IntRange(0, 6).Draw(t, "come") + 32*btoi(minute == 0) {
				x := work(fmt.Sprintf("x%02d_%02d", minute, n), rapid.IntRange(1, 3).Draw(t, "small"))
				x.Submitted = d.Now
				d.Submitted = append(d.Submitted, x)
			}
			if minute == 1 {
				d.Submitted = append(d.Submitted, large)
			}
			for _, pl := range s.Step(d).Place {
				ends[pl.Workload] = minute + rapid.IntRange(1, long).Draw(t, "takes")
			}
			if why, waits := s.Why("large"); waits && minute > 1+2*long {
				t.Fatalf("it waits since minute 1 in minute %d: %s", minute, why)
			}
			d = Delta{}
			for id, end := range ends {
				if end == minute+1 {
					d.Removed = append(d.Removed, id)
				}
			}
		}
	})
}

// TestRolesAlike: a gang of which all roles ask for the same gets the places that
// one without roles gets.
func TestRolesAlike(t *testing.T) {
	often(t)
	rapid.Check(t, func(t *rapid.T) {
		d := Delta{Now: start, Pools: []Pool{drawPool(t, "a"), drawPool(t, "b")}, Quotas: map[string]resource.Limit{"p": resource.LimitOf(drawAmount(t, "quota", 12))}}
		for n := range 4 {
			x := drawWork(t, ID(fmt.Sprint("x", n)), start)
			x.Submitted = x.Submitted.Add(-time.Hour) // before it
			d.Submitted = append(d.Submitted, x)
		}
		s, _ := Decide(d)
		for i := range d.Pools { // what waits keeps nothing, and no gang with roles waits ahead
			d.Pools[i].Closed, d.Pools[i].Alike, d.Pools[i].Ahead = "", false, 0
		}
		d.Submitted = nil
		for _, r := range s.running {
			d.Started = append(d.Started, r.Running)
		}
		w := drawWork(t, "gang", start)
		w.Roles, w.MaxWorkers, w.Workers = nil, 0, rapid.IntRange(2, 5).Draw(t, "gang")
		alike := w
		first := rapid.IntRange(1, w.Workers-1).Draw(t, "first role")
		alike.Roles, alike.Request = []Role{{"a", first, w.Request}, {"b", w.Workers - first, w.Request}}, resource.Amount{}
		d.Submitted = []Workload{w}
		s, want := Decide(d)
		why, _ := s.Why(w.ID)
		d.Submitted = []Workload{alike}
		s, got := Decide(d)
		if because, _ := s.Why(w.ID); placements(got) != placements(want) || because.Possible != why.Possible || len(because.Reasons) != len(why.Reasons) {
			t.Fatalf("with roles:\n%s%+v\nwithout:\n%s%+v", placements(got), because, placements(want), why)
		}
	})
}

// TestTurns: who had others leave gets what they leave, however many come before it
// by then, under every policy.
func TestTurns(t *testing.T) {
	for _, policy := range Policies {
		t.Run(string(policy), func(t *testing.T) {
			work := func(id, queue string, priority int) Workload {
				return Workload{
					ID: ID(id), Queue: queue, Residency: []string{"home"}, Isolation: Sandbox, Request: resource.Amount{CPU: resource.Cores(2)},
					Priority: priority, Submitted: start, Preemptible: true, Grace: time.Second,
				}
			}
			d := Delta{Now: start, Policy: policy, Pools: []Pool{{Name: "home", Zone: "home", Isolation: Sandbox, Nodes: []Node{{Name: "n1", Amount: resource.Amount{CPU: resource.Cores(8)}}}}}, Queues: []Queue{
				{Name: "lab"}, {Name: "research", Parent: "lab", Quota: resource.LimitOf(resource.Amount{CPU: resource.Cores(4)})}, {Name: "fraud", Parent: "lab", Quota: resource.LimitOf(resource.Amount{CPU: resource.Cores(4)})},
			}}
			for n := range 20 {
				d.Submitted = append(d.Submitted, work(fmt.Sprintf("b%02d", n), "fraud", 5))
			}
			s, plan := Decide(d)
			if len(plan.Place) != 4 {
				t.Fatal(placements(plan))
			}
			world := d
			now, preempted, mine := start, 0, 0
			d = Delta{Submitted: []Workload{work("a0", "research", 0), work("a1", "research", 0), work("a2", "research", 0)}}
			leaves := map[ID]time.Time{}
			for range 30 {
				now = now.Add(time.Second)
				d.Now = now
				plan := s.Step(d)
				for _, pl := range plan.Place {
					if pl.Workload[0] == 'a' {
						mine++
					}
				}
				preempted += len(plan.Preempt)
				for _, p := range plan.Preempt {
					leaves[p.Workload] = now.Add(4 * time.Second)
				}
				// The world is read anew each time: what only the state knew is in Turns.
				d = Delta{Policy: policy, Pools: world.Pools, Queues: world.Queues, Turns: s.Turns(), History: s.History()}
				for id, r := range s.running {
					if at, ok := leaves[id]; ok && !at.After(now) { // it has saved and waits again
						d.Submitted = append(d.Submitted, r.Workload)
						delete(leaves, id)
						continue
					}
					again := r.Running
					again.LeavingFor, again.LeavingSince = "", time.Time{}
					d.Started = append(d.Started, again)
				}
				for _, w := range s.waiting {
					d.Submitted = append(d.Submitted, w.Workload)
				}
				s = &State{}
			}
			if mine != 2 || preempted != 2 {
				t.Errorf("%d works of the queue run, for which %d left: 2 and 2 are its quota", mine, preempted)
			}
		})
	}
}
