package burst

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func amount(cpu float64) resource.Amount {
	return resource.Amount{CPU: resource.Cores(int64(cpu)), Memory: resource.GiB}
}

// node is what all nodes here have.
var node = resource.Amount{CPU: resource.Cores(4), Memory: 16 * resource.GiB}

// home has one node, which costs 2 an hour.
func home() Pool {
	return Pool{Pool: scheduler.Pool{
		Name: "home", Zone: "AE", Isolation: scheduler.Sandbox, PricePerHour: 2, Nodes: []scheduler.Node{{Name: "n1", Amount: node}},
	}}
}

// cloud has up to four that cost 10 an hour and take 6 minutes to start up.
func cloud() Pool {
	return Pool{
		Pool:    scheduler.Pool{Name: "cloud", Zone: "AE", Isolation: scheduler.Sandbox, PricePerHour: 10},
		Elastic: &Elastic{Max: 4, Startup: 6 * time.Minute, Idle: 10 * time.Minute, Node: node},
	}
}

func work(id string, workers int, delay float64) Work {
	return Work{
		Workload: scheduler.Workload{
			ID: scheduler.ID(id), Project: "p", Request: amount(4), Residency: []string{"AE"}, Isolation: scheduler.Sandbox, Workers: workers, Submitted: now,
		},
		Duration: time.Hour, DelayCost: delay,
	}
}

// roles is a gang of a worker of so many cores each.
func roles(delay float64, cores ...float64) Work {
	w := work("w", 0, delay)
	w.Request = resource.Amount{}
	for i, n := range cores {
		w.Roles = append(w.Roles, scheduler.Role{Name: fmt.Sprint("r", i), Workers: 1, Request: amount(n)})
	}
	return w
}

// until runs on home until a time.
func until(deadline time.Time) scheduler.Running {
	return scheduler.Running{
		Workload: scheduler.Workload{ID: "r", Request: amount(4)}, Pool: "home", Placed: 1, Nodes: []string{"n1"}, Started: now.Add(-24 * time.Hour), Deadline: deadline,
	}
}

// TestRule: each line is a world in which home is used until 15:00, what waits for
// an hour's work, and what becomes of it.
func TestRule(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(w *World)
		rents int
		pools string
		why   string
	}{
		// 3 h of waiting and 1 of work against 0.1 of start-up and 1 of work; 11 against 2.
		"worth it":          {func(w *World) { w.Waiting[0].DelayCost = 3.2 }, 1, "cloud", "ends 2h54m0s earlier, which is worth 9.28 AED; it costs 9.00 AED more"},
		"not worth it":      {func(w *World) { w.Waiting[0].DelayCost = 3.1 }, 0, "", "cloud costs 9.00 AED more than home and ends it 2h54m0s earlier, which is worth 8.99 AED"},
		"no delay cost":     {func(*World) {}, 0, "", "cloud costs 11.00 AED and home 2.00 AED, but no delay_cost is set"},
		"cheaper than home": {func(w *World) { w.Pools[1].PricePerHour = 1 }, 1, "cloud", "ready in about 6m0s"},
		"soon":              {func(w *World) { w.Waiting[0].DelayCost = 1e6; w.Running[0].Deadline = now.Add(5 * time.Minute) }, 0, "", "not end earlier than on home, which has capacity in 5m0s"},
		"home has capacity": {func(w *World) { w.Waiting[0].DelayCost = 1e6; w.Running = nil }, 0, "", "home has capacity"},
		"another zone":      {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Zone = "DE" }, 0, "", "no elastic pool accepts it"},
		"isolation":         {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Isolation = scheduler.None }, 0, "", "no elastic pool accepts it"},
		"named pools":       {func(w *World) { w.Waiting[0].DelayCost = 100; w.Waiting[0].Pools = []string{"home"} }, 0, "", "no elastic pool accepts it"},
		"closed":            {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Closed = "strike" }, 0, "", "no elastic pool accepts it"},
		"nothing else":      {func(w *World) { w.Waiting[0].Pools = []string{"cloud"} }, 1, "cloud", "no other pool accepts it; it costs 11.00 AED"},
		"barred":            {func(w *World) { w.Waiting[0].DelayCost = 100; w.Waiting[0].Barred = "the quota is used up" }, 0, "", "the quota is used up"},
		"budget":            {func(w *World) { w.Waiting[0].DelayCost = 100; w.Money = map[string]float64{"p": 10} }, 0, "", "costs 11.00 AED, but the budget of p has 10.00 AED left"},
		"budget, named":     {func(w *World) { w.Waiting[0].Pools = []string{"cloud"}; w.Money = map[string]float64{"p": 10} }, 0, "", "the budget of p has 10.00 AED left"},
		"unknown duration":  {func(w *World) { w.Waiting[0].DelayCost = 100; w.Waiting[0].Duration = 0 }, 0, "", "its expected duration is unknown"},
		"unknown end": {func(w *World) {
			w.Waiting[0].DelayCost = 100
			w.Running[0].Started, w.Running[0].Deadline = time.Time{}, time.Time{}
		}, 0, "", "neither a time-out nor a start time"},
		"a guess": {func(w *World) {
			w.Waiting[0].DelayCost = 100
			w.Running[0].Started, w.Running[0].Deadline = now.Add(-4*time.Hour), time.Time{}
		}, 1, "cloud", "probably by 2026-11-22T16:00:00Z"},
		"gang": {func(w *World) { w.Waiting[0].DelayCost, w.Waiting[0].Workers = 100, 4 }, 4, "cloud", "gets 4 nodes of cloud"},
		"spread": {func(w *World) {
			w.Waiting[0].DelayCost, w.Waiting[0].Workers, w.Waiting[0].Request, w.Waiting[0].PerNode = 100, 3, amount(1), 1
		}, 3, "cloud", "gets 3 nodes of cloud"},
		"in one rack": {func(w *World) { w.Waiting[0].DelayCost, w.Waiting[0].Workers, w.Waiting[0].Within = 100, 3, "rack" }, 0, "", "no elastic pool accepts it"},
		// 4 cpu, and 4 times 1 cpu: two nodes, not five.
		"roles": {func(w *World) { w.Waiting[0] = roles(100, 4, 1, 1, 1, 1) }, 2, "cloud", "gets 2 nodes of cloud"},
		"roles beside others": {func(w *World) {
			w.Waiting[0] = roles(100, 4, 1, 1, 1, 1)
			rented(&w.Pools[1], Node{Name: "c1", Busy: true})
			w.Running = append(w.Running, scheduler.Running{Workload: scheduler.Workload{ID: "r1", Request: amount(1)}, Pool: "cloud", Placed: 1, Nodes: []string{"c1"}, Started: now, Deadline: now.Add(9 * time.Hour)})
		}, 2, "cloud", "gets 2 nodes of cloud"},
		"roles, spread":            {func(w *World) { w.Waiting[0] = roles(100, 4, 1, 1); w.Waiting[0].PerNode = 1 }, 3, "cloud", "gets 3 nodes of cloud"},
		"roles, home has capacity": {func(w *World) { w.Waiting[0] = roles(1e6, 2, 1, 1); w.Running = nil }, 0, "", "home has capacity"},
		"roles, home soon":         {func(w *World) { w.Waiting[0] = roles(1e6, 2, 1, 1); w.Running[0].Deadline = now.Add(5 * time.Minute) }, 0, "", "home, which has capacity in 5m0s"},
		"roles, home too small":    {func(w *World) { w.Waiting[0] = roles(0, 3, 2); w.Running = nil }, 2, "cloud", "no other pool accepts it"},
		"roles, node too small":    {func(w *World) { w.Waiting[0] = roles(100, 2, 5) }, 0, "", "a node of cloud is too small for a worker of role r1: 5 cpu wanted, 4 free"},
		// 4 times 3 cpu are 12, and no node of 4 has room for two of them.
		"delegated, too many": {func(w *World) {
			w.Waiting[0].Pools, w.Waiting[0].Workers, w.Waiting[0].Request = []string{"cloud"}, 4, amount(3)
			w.Pools[1].Delegated, w.Pools[1].Elastic.Max = true, 3
			for _, n := range []string{"c1", "c2"} {
				rented(&w.Pools[1], Node{Name: n, Coming: true, Ready: now})
			}
		}, 0, "", "2 nodes of cloud would be needed, but only 1 more may be rented"},
		"delegated home too small": {func(w *World) {
			w.Waiting[0].Workers, w.Waiting[0].Request, w.Running = 4, amount(3), nil
			w.Pools[0].Delegated = true
			w.Pools[0].Nodes = []scheduler.Node{{Name: "n1", Amount: node}, {Name: "n2", Amount: node}, {Name: "n3", Amount: node}}
		}, 4, "cloud", "no other pool accepts it"},
		"roles, delegated home too small": {func(w *World) {
			w.Waiting[0], w.Running = roles(0, 3, 3, 3, 3), nil
			w.Pools[0].Delegated = true
			w.Pools[0].Nodes = []scheduler.Node{{Name: "n1", Amount: node}, {Name: "n2", Amount: node}, {Name: "n3", Amount: node}}
		}, 4, "cloud", "no other pool accepts it"},
		"roles, too many":   {func(w *World) { w.Waiting[0] = roles(100, 3, 3, 3, 3, 3) }, 0, "", "5 nodes of cloud would be needed, but only 4 more may be rented"},
		"roles, alike pool": {func(w *World) { w.Waiting[0] = roles(100, 4, 1); w.Pools[1].Alike = true }, 0, "", "no elastic pool accepts it"},
		"alike pool":        {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Alike = true }, 1, "cloud", "gets 1 node of cloud"},
		"roles on their way": {func(w *World) {
			w.Waiting[0] = roles(0, 4, 1, 1)
			for _, n := range []string{"c1", "c2"} {
				rented(&w.Pools[1], Node{Name: n, Coming: true, Ready: now.Add(90 * time.Second), For: "w"})
			}
		}, 0, "cloud", "waits for 2 nodes of cloud that start up, about 1m30s"},
		"limit used up": {func(w *World) {
			w.Waiting[0].DelayCost, w.Waiting[0].Limits = 100, []string{"project p"}
			w.Left = map[string]resource.Amount{"project p": {CPU: -1}}
		}, 0, "", "project p leaves too little: 4 cpu wanted, 0 free"},
		"gang too large": {func(w *World) { w.Waiting[0].DelayCost, w.Waiting[0].Workers = 100, 5 }, 0, "", "5 nodes of cloud would be needed, but only 4 more may be rented"},
		"half nodes":     {func(w *World) { w.Waiting[0].DelayCost, w.Waiting[0].Workers, w.Waiting[0].Request = 100, 5, amount(2) }, 3, "cloud", "gets 3 nodes"},
		"node too small": {func(w *World) { w.Waiting[0].DelayCost, w.Waiting[0].Request = 100, amount(5) }, 0, "", "a node of cloud is too small: 5 cpu wanted, 4 free"},
		"after a failure": {func(w *World) {
			w.Waiting[0].DelayCost = 100
			w.Pools[1].Elastic.NotBefore, w.Pools[1].Elastic.Because = now.Add(time.Minute), "no capacity"
		}, 0, "", "no nodes before 2026-11-22T12:01:00Z: no capacity"},
		"limit": {func(w *World) {
			w.Waiting[0].DelayCost, w.Waiting[0].Limits = 100, []string{"project p"}
			w.Left = map[string]resource.Amount{"project p": {CPU: 3000}}
		}, 0, "", "project p leaves too little: 4 cpu wanted, 3 free"},
		"spot, saves": {func(w *World) {
			w.Waiting[0].DelayCost, w.Waiting[0].Saves = 100, 6*time.Minute
			w.Pools[1].Elastic.Interruptions = 0.5
		}, 1, "cloud", "it costs 9.78 AED more"},
		"spot, never saves": {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Elastic.Interruptions = 0.5 }, 1, "cloud", "it costs 12.64 AED more"},
		"spot, hopeless":    {func(w *World) { w.Waiting[0].DelayCost = 100; w.Pools[1].Elastic.Interruptions = 3 }, 0, "", "not end earlier"},
		"transfer": {func(w *World) {
			w.Waiting[0].DelayCost, w.Waiting[0].GiB = 100, 50
			w.Pools[1].Elastic.GiBPerHour, w.Pools[1].Elastic.Egress = 100, 0.1
		}, 1, "cloud", "ends 2h24m0s earlier, which is worth 240.00 AED; it costs 19.00 AED more"},
		"a node is there": {func(w *World) { w.Waiting[0].DelayCost = 3; rented(&w.Pools[1], Node{Name: "c1", Idle: now}) }, 0, "cloud", "may use nodes of cloud: home has capacity by 2026-11-22T15:00:00Z, so it ends 3h0m0s earlier, which is worth 9.00 AED; it costs 8.00 AED more"},
		"a node is on its way": {func(w *World) {
			rented(&w.Pools[1], Node{Name: "c1", Coming: true, Ready: now.Add(90 * time.Second), For: "w"})
		}, 0, "cloud", "waits for 1 node of cloud that starts up, about 1m30s"},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Now: now, Currency: "AED", Pools: []Pool{home(), cloud()}, Running: []scheduler.Running{until(now.Add(3 * time.Hour))}, Waiting: []Work{work("w", 1, 0)}}
			c.edit(&w)
			plan := Decide(w)
			v := plan.Works[0]
			if v.Rents != c.rents || strings.Join(v.Pools, ",") != c.pools || !strings.Contains(v.Why, c.why) {
				t.Errorf("%+v", v)
			}
			if wish := plan.Pools[0]; wish.Pool != "cloud" || len(wish.Why) == 0 {
				t.Errorf("%+v", wish)
			}
		})
	}
}

// rented puts a node into an elastic pool.
func rented(p *Pool, n Node) {
	p.Elastic.Rented = append(p.Elastic.Rented, n)
	if !n.Coming && !n.Leaving {
		p.Nodes = append(p.Nodes, scheduler.Node{Name: n.Name, Amount: p.Elastic.Node})
	}
}

func TestScale(t *testing.T) {
	long := now.Add(-10 * time.Minute)
	for name, c := range map[string]struct {
		least   int
		rented  []Node
		wish    int
		release string
		rent    int
	}{
		"idle":             {0, []Node{{Name: "a", Idle: long}, {Name: "b", Idle: long.Add(-time.Second)}}, 0, "b,a", 0},
		"not long enough":  {0, []Node{{Name: "a", Idle: long.Add(time.Second)}}, 1, "", 0},
		"works":            {0, []Node{{Name: "a", Busy: true, Idle: long}}, 1, "", 0},
		"starts up":        {0, []Node{{Name: "a", Coming: true, Ready: now}}, 1, "", 0},
		"leaves":           {0, []Node{{Name: "a", Leaving: true, Idle: long}}, 0, "", 0},
		"the least":        {2, []Node{{Name: "a", Idle: long}, {Name: "b", Idle: long}, {Name: "c", Idle: long}}, 2, "c", 0},
		"too few":          {2, []Node{{Name: "a", Busy: true}}, 2, "", 1},
		"no room for more": {4, []Node{{Name: "a", Busy: true}, {Name: "b", Leaving: true}}, 3, "", 2},
		"least, and work":  {1, []Node{{Name: "a", Idle: long}, {Name: "b", Busy: true}}, 1, "a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := cloud()
			p.Elastic.Min = c.least
			for _, n := range c.rented {
				rented(&p, n)
			}
			wish := Decide(World{Now: now, Pools: []Pool{home(), p}}).Pools[0]
			rent := 0
			for _, n := range wish.Rent {
				rent += n.Nodes
			}
			if wish.Nodes != c.wish || strings.Join(wish.Release, ",") != c.release || rent != c.rent {
				t.Errorf("%+v", wish)
			}
		})
	}
	t.Run("somebody waits for it", func(t *testing.T) {
		p := cloud()
		rented(&p, Node{Name: "a", Idle: long})
		w := work("w", 1, 0)
		w.Pools = []string{"cloud"}
		if wish := Decide(World{Now: now, Pools: []Pool{p}, Waiting: []Work{w}}).Pools[0]; wish.Nodes != 1 || len(wish.Release)+len(wish.Rent) != 0 {
			t.Errorf("%+v", wish)
		}
	})
}

// TestNobodyPasses: of two who wait, the second is forecast behind the first.
func TestNobodyPasses(t *testing.T) {
	w := World{Now: now, Currency: "AED", Pools: []Pool{home(), cloud()}, Running: []scheduler.Running{until(now.Add(10 * time.Minute))}}
	w.Waiting = []Work{work("w1", 1, 5), work("w2", 1, 20)}
	plan := Decide(w)
	if v := plan.Works[0]; v.Rents != 0 {
		t.Errorf("%+v", v)
	}
	if v := plan.Works[1]; v.Rents != 1 || !strings.Contains(v.Why, "13:10:00Z") {
		t.Errorf("%+v", v)
	}
	// What they may use together is counted together.
	for i := range w.Waiting {
		w.Waiting[i].Pools, w.Waiting[i].Limits = []string{"cloud"}, []string{"project p"}
	}
	w.Left = map[string]resource.Amount{"project p": {CPU: resource.Cores(6)}}
	if plan := Decide(w); plan.Works[0].Rents != 1 || plan.Works[1].Rents != 0 {
		t.Errorf("%+v", plan.Works)
	}
	w.Left, w.Money = nil, map[string]float64{"p": 15}
	if plan := Decide(w); plan.Works[0].Rents != 1 || plan.Works[1].Rents != 0 {
		t.Errorf("%+v", plan.Works)
	}
}

// TestRework against values worked out by hand from the formula.
func TestRework(t *testing.T) {
	for _, c := range []struct{ duration, saves, startup, rate, want float64 }{
		{10, 0, 0.1, 0, 10},
		{10, 1, 0, 0.1, 10 * 10 * math.Expm1(0.1)},
		{10, 0, 0.1, 0.1, 10 * math.Exp(0.01) * math.Expm1(1)},
		{10, 20, 0, 0.1, 10 * math.Expm1(1)},
		{0, 1, 1, 1, 0},
	} {
		if got := rework(c.duration, c.saves, c.startup, c.rate); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %g", c, got)
		}
	}
}

// BenchmarkDecide is a round with 1,000 own nodes that all work and 500 who wait.
func BenchmarkDecide(b *testing.B) {
	own, c := home(), cloud()
	own.Nodes = nil
	c.Elastic.Max = 100
	w := World{Now: now, Currency: "AED"}
	for i := range 1000 {
		name := fmt.Sprint("n", i)
		own.Nodes = append(own.Nodes, scheduler.Node{Name: name, Amount: node})
		r := until(now.Add(time.Duration(i) * time.Minute))
		r.ID, r.Nodes = scheduler.ID(name), []string{name}
		w.Running = append(w.Running, r)
	}
	for i := range MaxLooked {
		w.Waiting = append(w.Waiting, work(fmt.Sprint("w", i), 1+i%8, float64(i%40)))
	}
	w.Pools = []Pool{own, c}
	b.ReportAllocs()
	for b.Loop() {
		Decide(w)
	}
}
