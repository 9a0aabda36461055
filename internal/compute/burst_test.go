package compute_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/cost"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/simulated"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// hybrid is a world with a cloud and a clock that goes when it is told to. Cycles
// and rounds are made by hand.
type hybrid struct {
	*world
	t     *testing.T
	mu    sync.Mutex
	at    time.Time
	cloud *simulated.Cloud
	asked []string        // of the cloud, in order
	ctx   context.Context //nolint:containedctx // The life of one server.
	die   context.CancelFunc
	quota resource.Amount
	dead  bool // the cloud does nothing that it is asked
}

func (h *hybrid) Nodes(ctx context.Context, p provisioner.Pool) ([]provisioner.Node, error) {
	return h.cloud.Nodes(ctx, p)
}

func (h *hybrid) Rent(ctx context.Context, p provisioner.Pool, name string) error {
	if h.dead {
		return fault.New(fault.Unavailable, "the server died before it asked")
	}
	h.asked = append(h.asked, "+"+name)
	return h.cloud.Rent(ctx, p, name)
}

func (h *hybrid) Release(ctx context.Context, p provisioner.Pool, name string) error {
	if h.dead {
		return fault.New(fault.Unavailable, "the server died before it asked")
	}
	h.asked = append(h.asked, "-"+name)
	return h.cloud.Release(ctx, p, name)
}

func (h *hybrid) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at
}

func (h *hybrid) pass(d time.Duration) {
	h.mu.Lock()
	h.at = h.at.Add(d)
	h.mu.Unlock()
}

// again is another server on the same database.
func (h *hybrid) again() {
	h.t.Helper()
	h.die()
	h.restart(h.t)
	h.ctx, h.die = context.WithCancel(h.t.Context())
}

// cloudy is up to three nodes like home, at 10 an hour, that start up in a minute.
func cloudy(edit ...func(*compute.PoolSpec)) compute.PoolSpec {
	spec := compute.PoolSpec{
		Cost: &cost.Price{Rented: &cost.Rented{OnDemand: 10}},
		Elastic: &compute.Elastic{
			Provisioner: "simulated", Max: 3, Startup: compute.Duration(time.Minute), Idle: compute.Duration(5 * time.Minute),
			Node: compute.ElasticNode{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
		},
	}
	for _, e := range edit {
		e(&spec)
	}
	return spec
}

func newHybrid(t *testing.T, edit ...func(*compute.PoolSpec)) *hybrid {
	t.Helper()
	h := &hybrid{t: t, ctx: t.Context(), at: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	var err error
	if h.cloud, err = simulated.New(t.TempDir(), h.now); err != nil {
		t.Fatal(err)
	}
	h.world = newWorld(t, func(c *compute.Config) {
		c.Now = h.now
		c.Quotas = func(context.Context, *store.Tx) (map[string]resource.Limit, error) {
			return map[string]resource.Limit{"p": resource.LimitOf(h.quota)}, nil
		}
		e := c.Engines["local"]
		e.Provisioners = map[string]provisioner.Provisioner{"simulated": h}
		c.Engines["local"] = e
	})
	h.engine.vague.Store(true) // its clock is another one
	h.apply(edit...)
	return h
}

func (h *hybrid) apply(edit ...func(*compute.PoolSpec)) {
	h.t.Helper()
	if _, _, err := h.ApplyPool(h.t.Context(), "cloud", cloudy(edit...)); err != nil {
		h.t.Fatal(err)
	}
}

// round is a cycle, a round over the elastic pools, and a cycle that sees it.
func (h *hybrid) round() {
	h.t.Helper()
	for range 2 {
		if _, err := h.RunOnce(h.ctx); err != nil {
			h.t.Fatal(err)
		}
		if err := h.Burst(h.ctx); err != nil && !h.dead {
			h.t.Fatal(err)
		}
	}
	if _, err := h.RunOnce(h.ctx); err != nil {
		h.t.Fatal(err)
	}
}

// full keeps all of home for hours.
func (h *hybrid) full() {
	h.t.Helper()
	h.submit(h.t, compute.Request{ID: "att_full", Label: "full", Amount: cores(2), Pools: []string{"home"}, Timeout: 4 * time.Hour})
	h.round()
	h.awaitStart(h.t)
}

func (h *hybrid) pool() compute.Pool {
	h.t.Helper()
	p, err := h.Pool(h.t.Context(), "cloud")
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func (h *hybrid) why(id compute.WorkloadID) string {
	h.t.Helper()
	words, err := h.Why(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.Join(words, "; ")
}

func (h *hybrid) stands(wished, ready, coming int) {
	h.t.Helper()
	if r := h.pool().Renting; r.Wished != wished || r.Ready != ready || r.Coming != coming {
		why, _ := h.Why(h.t.Context(), "att_1")
		h.t.Fatalf("%+v, want %d wished, %d ready, %d coming; the cloud was asked %v; %q", r, wished, ready, coming, h.asked, why)
	}
}

// worth is a job that is worth a rented node.
func worth(id string, workers int) compute.Request {
	return compute.Request{ID: compute.WorkloadID(id), Label: "job_" + id, Amount: cores(2), Workers: workers, Timeout: time.Hour, DelayCost: 50, Preemptible: true}
}

func TestBurst(t *testing.T) {
	h := newHybrid(t)
	h.full()

	// One that says nothing waits, and one that waiting costs gets a node.
	h.submit(t, compute.Request{ID: "att_patient", Amount: cores(2), Timeout: time.Hour})
	h.submit(t, worth("att_1", 1))
	h.round()
	h.stands(1, 0, 1)
	if why := h.why("att_patient"); !strings.Contains(why, "no delay_cost is set") {
		t.Errorf("patient: %s", why)
	}
	if why := h.why("att_1"); !strings.HasPrefix(why, "waits for 1 node of cloud that starts up, about 1m0s") {
		t.Errorf("it waits: %s", why)
	}
	if _, possible := h.Waits("att_1"); !possible {
		t.Error("a work that a pool rents for cannot run as things are")
	}
	if n := h.pool().Nodes; len(n) != 1 || n[0].Name != "cloud-1" || n[0].Labels["simulated"] != "true" || !strings.Contains(n[0].Down, "is starting") {
		t.Errorf("%+v", n)
	}

	// What is only planned is told of it.
	out, err := h.DryRun(t.Context(), compute.Request{ID: "att_plan", Kind: compute.JobAttempt, Amount: cores(2)})
	if err != nil || out.Runs || !slices.ContainsFunc(out.Reasons, func(r compute.Reason) bool { return r.Pool == "cloud" && strings.Contains(r.Text, "is elastic") }) {
		t.Errorf("%+v, %v", out, err)
	}

	// The same need rents once.
	for range 5 {
		h.pass(11 * time.Second)
		h.round()
	}
	if !slices.Equal(h.asked, []string{"+cloud-1"}) {
		t.Errorf("the cloud was asked %v", h.asked)
	}
	h.stands(1, 0, 1)

	// It comes, and who rented it runs there, though another was there before.
	h.pass(10 * time.Second)
	h.round()
	if id := h.awaitStart(t); id != "att_1" {
		t.Fatalf("%s was started", id)
	}
	h.stands(1, 1, 0)
	if w, err := h.Workload(t.Context(), "att_1"); err != nil || w.Pool != "cloud" || !slices.Equal(w.Nodes, []string{"cloud-1"}) {
		t.Errorf("%+v, %v", w, err)
	}

	// A node with work stays; without, it goes after its time.
	h.runs(t, "att_1")
	h.pass(30 * time.Minute)
	h.round()
	h.stands(1, 1, 0)
	h.end("att_1", enginetest.Exit{})
	h.wait(t, "att_1")
	h.round()
	h.pass(4 * time.Minute)
	h.round()
	h.stands(1, 1, 0)
	h.pass(2 * time.Minute)
	h.round()
	h.pass(time.Second)
	h.round()
	h.stands(0, 0, 0)
	if !slices.Equal(h.asked, []string{"+cloud-1", "-cloud-1"}) {
		t.Errorf("the cloud was asked %v", h.asked)
	}

	// It cost from its first minute to its last, and what was not used is idle money.
	report, err := h.CostReport(t.Context(), compute.CostQuery{By: "pool"})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(report.Idle, func(p compute.IdlePool) bool { return p.Pool == "cloud" })
	idle := report.Idle[i]
	minutes := idle.NodeHours * 60
	if minutes < 37 || minutes > 37.3 || idle.Nodes != 0 || idle.Used*60 < 30 || idle.Used*60 > 30.2 || idle.Cost < 1.15 || idle.Cost > 1.25 {
		t.Errorf("%+v, %.2f minutes", idle, minutes)
	}
	if events := h.events(); !slices.Equal(events, []string{"0>1 +cloud-1", "1>0 -cloud-1"}) {
		t.Errorf("%v", events)
	}
}

// events are those of scaling, in short.
func (h *hybrid) events() (out []string) {
	h.t.Helper()
	all, _, err := h.db.ReadStream(h.t.Context(), "event", store.Position{}, 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range all {
		if e.Kind != compute.EventPoolScaled {
			continue
		}
		var b struct {
			From, To      int
			Rent, Release []string
			Reason        string
		}
		if err := json.Unmarshal(e.Body, &b); err != nil || b.Reason == "" {
			h.t.Fatal(err, b)
		}
		words := fmt.Sprintf("%d>%d", b.From, b.To)
		if len(b.Rent) > 0 {
			words += " +" + strings.Join(b.Rent, ",")
		}
		if len(b.Release) > 0 {
			words += " -" + strings.Join(b.Release, ",")
		}
		out = append(out, words)
	}
	return out
}

// TestGangBursts: a gang has all of its nodes at once, and where the cloud has too few
// it keeps none, and nothing is asked for a while.
func TestGangBursts(t *testing.T) {
	h := newHybrid(t)
	h.full()
	h.submit(t, worth("att_1", 3))
	h.round()
	h.stands(3, 0, 3)
	h.pass(time.Minute)
	h.round()
	if id := h.awaitStart(t); id != "att_1" {
		t.Fatalf("%s was started", id)
	}
	if w, err := h.Workload(t.Context(), "att_1"); err != nil || len(w.Nodes) != 3 {
		t.Errorf("%+v, %v", w, err)
	}
	h.stands(3, 3, 0)
}

func TestNoCapacity(t *testing.T) {
	two := 2
	h := newHybrid(t, func(p *compute.PoolSpec) { p.Elastic.Simulated = &compute.ElasticSimulated{Capacity: &two} })
	h.full()
	h.submit(t, worth("att_1", 3))
	h.round()
	h.round()
	h.stands(0, 0, 0)
	if why := h.why("att_1"); !strings.Contains(why, "cloud rents no nodes before") || !strings.Contains(why, "all are in use") {
		t.Errorf("it waits: %s", why)
	}
	asked := len(h.asked)
	h.pass(30 * time.Second)
	h.round()
	if len(h.asked) != asked {
		t.Errorf("the cloud was asked again: %v", h.asked[asked:])
	}
	// It is asked again, and then what two nodes can do is done.
	h.pass(31 * time.Second)
	h.submit(t, worth("att_2", 2))
	h.stop(t, "att_1", "cancelled")
	h.round()
	h.stands(2, 0, 2)
	h.pass(time.Minute)
	h.round()
	if id := h.awaitStart(t); id != "att_2" {
		t.Fatalf("%s was started", id)
	}
}

// TestTakenAway: a node of which the provider says that it goes takes no work any
// more, what runs there is asked to save, and another one is rented.
func TestTakenAway(t *testing.T) {
	h := newHybrid(t, func(p *compute.PoolSpec) {
		p.Cost.Rented = &cost.Rented{Spot: 4, Billing: "spot"}
		p.Elastic.Spot = &compute.Spot{Interruptions: 0.1}
		p.Elastic.Simulated = &compute.ElasticSimulated{InterruptAfter: compute.Duration(10 * time.Minute)}
	})
	h.full()
	h.submit(t, worth("att_1", 1))
	h.round()
	h.pass(time.Minute)
	h.round()
	h.awaitStart(t)
	h.pass(8 * time.Minute)
	h.round()
	got := h.wait(t, "att_1")
	if got.Status.Reason != "preempted" || !strings.Contains(got.Status.Message, "node cloud-1 of pool cloud is being released: reclaimed by the provider") {
		t.Errorf("%+v", got.Status)
	}
	if n := h.pool().Nodes; len(n) != 1 || !strings.Contains(n[0].Down, "it leaves") {
		t.Errorf("%+v", n)
	}
	h.submit(t, worth("att_2", 1))
	h.round()
	if n := h.pool().Renting; n.Leaving != 1 || n.Coming != 1 {
		t.Errorf("%+v", n)
	}
	h.pass(2 * time.Minute)
	h.round()
	if id := h.awaitStart(t); id != "att_2" {
		t.Fatalf("%s was started", id)
	}
	h.stands(1, 1, 0)
}

// TestIntentOutlivesTheServer: what was written down and not asked is asked by the
// next process, once; a node that nobody wished for is given back.
func TestIntentOutlivesTheServer(t *testing.T) {
	h := newHybrid(t)
	h.ctx, h.die = context.WithCancel(t.Context())
	h.full()
	h.submit(t, worth("att_1", 2))
	h.dead = true
	h.round()
	h.stands(2, 0, 2)
	if len(h.asked) > 0 {
		t.Fatal(h.asked)
	}
	p := provisioner.Pool{Name: "cloud", Max: 3, Simulated: &provisioner.Simulated{Capacity: 3}}
	if err := h.cloud.Rent(t.Context(), p, "cloud-1"); err != nil { // it had asked for one of two
		t.Fatal(err)
	}
	if err := h.cloud.Rent(t.Context(), p, "cloud-3"); err != nil { // and this is nobody's
		t.Fatal(err)
	}
	h.again()
	h.dead = false
	h.round()
	slices.Sort(h.asked)
	if !slices.Equal(slices.Compact(h.asked), []string{"+cloud-2", "-cloud-3"}) {
		t.Errorf("the cloud was asked %v", h.asked)
	}
	h.stands(2, 0, 2)
	h.pass(time.Minute)
	h.round()
	if id := h.awaitStart(t); id != "att_1" {
		t.Fatalf("%s was started", id)
	}
}

// TestElasticManifests: what cannot be is refused by name.
func TestElasticManifests(t *testing.T) {
	h := newHybrid(t)
	minus := -1
	for want, edit := range map[string]func(*compute.PoolSpec){
		"min 4 is more than max 3":                             func(p *compute.PoolSpec) { p.Elastic.Min = 4 },
		"must not be negative":                                 func(p *compute.PoolSpec) { p.Elastic.Min = -1 },
		"provisioner: required":                                func(p *compute.PoolSpec) { p.Elastic.Provisioner = "" },
		`engine local has no provisioner "slurm"`:              func(p *compute.PoolSpec) { p.Elastic.Provisioner = "slurm" },
		"startup: required":                                    func(p *compute.PoolSpec) { p.Elastic.Startup = 0 },
		"startup -1s is not between":                           func(p *compute.PoolSpec) { p.Elastic.Startup = compute.Duration(-time.Second) },
		"idle -1s is not between":                              func(p *compute.PoolSpec) { p.Elastic.Idle = compute.Duration(-time.Second) },
		"node: set cpu and memory":                             func(p *compute.PoolSpec) { p.Elastic.Node = compute.ElasticNode{} },
		"elastic: node: ":                                      func(p *compute.PoolSpec) { p.Elastic.Node.CPU = -1 },
		"spot.interruptions_per_hour: -1":                      func(p *compute.PoolSpec) { p.Elastic.Spot = &compute.Spot{Interruptions: -1} },
		"transfer_gib_per_hour: -1":                            func(p *compute.PoolSpec) { p.Elastic.TransferRate = -1 },
		"simulated.capacity: -1":                               func(p *compute.PoolSpec) { p.Elastic.Simulated = &compute.ElasticSimulated{Capacity: &minus} },
		"nodes: not allowed in an elastic pool":                func(p *compute.PoolSpec) { p.Nodes = []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}} },
		"max: 10001 exceeds the limit of 10000 nodes per pool": func(p *compute.PoolSpec) { p.Elastic.Max = 10001 },
	} {
		if _, _, err := h.ApplyPool(t.Context(), "cloud", cloudy(edit)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// A pool with rented nodes stays elastic until they are gone.
	h.apply(func(p *compute.PoolSpec) { p.Elastic.Min = 1 })
	h.round()
	h.stands(1, 0, 1)
	if _, _, err := h.ApplyPool(t.Context(), "cloud", compute.PoolSpec{Nodes: []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}}}); !fault.Is(err, fault.Conflict) {
		t.Errorf("%v", err)
	}
	h.pass(time.Minute)
	h.round()
	h.apply(func(p *compute.PoolSpec) { p.Elastic.Max = 0 })
	h.round()
	h.pass(6 * time.Minute)
	h.round()
	h.pass(time.Second)
	h.round()
	h.stands(0, 0, 0)
	if _, _, err := h.ApplyPool(t.Context(), "cloud", compute.PoolSpec{Nodes: []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}}}); err != nil {
		t.Error(err)
	}
}

// TestBurstsWithinLimits: what may not be on the cloud, or may use and spend no more,
// rents nothing, however much waiting costs it.
func TestBurstsWithinLimits(t *testing.T) {
	for name, c := range map[string]struct {
		pool    func(*compute.PoolSpec)
		prepare func(*hybrid)
		request func(*compute.Request)
		why     string
	}{
		"zone":      {pool: func(p *compute.PoolSpec) { p.Zone = "DE" }, why: "no elastic pool accepts it"},
		"isolation": {pool: func(p *compute.PoolSpec) { p.Isolation = scheduler.Process }, why: "no elastic pool accepts it"},
		"pools":     {request: func(r *compute.Request) { r.Pools = []string{"home"} }, why: "no elastic pool accepts it"},
		"quota":     {prepare: func(h *hybrid) { h.quota = cores(2) }, why: "the quota of project p is used up"},
		"quota, where nothing else could take it": {
			prepare: func(h *hybrid) { h.quota = cores(2) }, request: func(r *compute.Request) { r.Pools = []string{"cloud"} }, why: "project p leaves too little",
		},
		"queue, where nothing else could take it": {
			prepare: func(h *hybrid) {
				h.queue(h.t, "lab", compute.QueueSpec{Quota: resource.LimitOf(cores(1))})
				h.submit(h.t, compute.Request{ID: "att_lab", Amount: cores(1), Queue: "lab", Pools: []string{"home"}, Priority: 9})
			},
			request: func(r *compute.Request) { r.Pools, r.Queue, r.Amount = []string{"cloud"}, "lab", cores(1) }, why: "queue lab leaves too little",
		},
		"budget": {
			prepare: func(h *hybrid) {
				if _, _, err := h.ApplyBudget(h.t.Context(), "p", compute.BudgetSpec{Amount: 1}); err != nil {
					h.t.Fatal(err)
				}
			},
			request: func(r *compute.Request) { r.Pools = []string{"cloud"} }, why: "the budget of p has 1.00 AED left",
		},
		"later": {request: func(r *compute.Request) { r.NotBefore = time.Date(2026, 11, 22, 13, 0, 0, 0, time.UTC) }, why: "retried after"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHybrid(t)
			if c.pool != nil {
				h.apply(c.pool)
			}
			if c.prepare != nil {
				c.prepare(h)
				h.round()
			}
			if !strings.HasPrefix(name, "queue") {
				h.full()
			}
			r := worth("att_1", 1)
			if c.request != nil {
				c.request(&r)
			}
			h.submit(t, r)
			for range 3 {
				h.round()
				h.pass(2 * time.Minute)
			}
			h.stands(0, 0, 0)
			if why := h.why("att_1"); !strings.Contains(why, c.why) || len(h.asked) > 0 {
				t.Errorf("it waits: %s; the cloud was asked %v", why, h.asked)
			}
		})
	}
}

// TestBurstHistories: jobs come and are cancelled, time goes by, the server dies and
// the cloud has trouble, at random. There are never more nodes than may be, a gang is
// where all of it is, and in the end all nodes are gone.
func TestBurstHistories(t *testing.T) {
	const histories = 25
	asked := 0
	for seed := range uint64(histories) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			capacity := 1 + r.IntN(4)
			h := newHybrid(t, func(p *compute.PoolSpec) {
				p.Elastic.Simulated = &compute.ElasticSimulated{Capacity: &capacity}
				if r.IntN(2) == 0 {
					p.Elastic.Simulated.InterruptAfter = compute.Duration(time.Duration(1+r.IntN(20)) * time.Minute)
				}
			})
			h.ctx, h.die = context.WithCancel(t.Context())
			h.full()
			var jobs []compute.WorkloadID
			check := func() {
				t.Helper()
				there := 0
				all, err := h.cloud.Nodes(t.Context(), provisioner.Pool{Name: "cloud", Max: 3})
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range all {
					if n.State != provisioner.Off {
						there++
					}
				}
				if there > min(3, capacity) {
					t.Fatalf("%d nodes: %+v", there, all)
				}
				for _, id := range jobs {
					w, err := h.Workload(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					if (w.State == compute.Placed || w.State == compute.Running) && len(w.Nodes) != w.Workers {
						t.Fatalf("%s has %d workers and %v", id, w.Workers, w.Nodes)
					}
				}
			}
			for step := range 30 {
				switch r.IntN(6) {
				case 0, 1:
					id := fmt.Sprint("att_", step)
					h.submit(t, worth(id, 1+r.IntN(3)))
					jobs = append(jobs, compute.WorkloadID(id))
				case 2:
					if len(jobs) > 0 {
						h.stop(t, jobs[r.IntN(len(jobs))], "cancelled")
					}
				case 3:
					h.dead = r.IntN(2) == 0
				case 4:
					h.again()
				case 5:
				}
				h.pass(time.Duration(r.IntN(200)) * time.Second)
				h.round()
				check()
			}
			h.dead = false
			for _, id := range jobs {
				h.stop(t, id, "cancelled")
			}
			for range 40 {
				h.pass(time.Minute)
				h.round()
				check()
			}
			h.stands(0, 0, 0)
			if all, err := h.cloud.Nodes(t.Context(), provisioner.Pool{Name: "cloud", Max: 3}); err != nil || slices.ContainsFunc(all, func(n provisioner.Node) bool { return n.State != provisioner.Off }) {
				t.Fatalf("left: %+v, %v", all, err)
			}
			h.die()
			asked += len(h.asked)
		})
	}
	if asked < 4*histories {
		t.Errorf("the cloud was asked only %d times", asked)
	}
}

// TestOnlyTheElectedRents: a process that does not schedule asks for nothing.
func TestOnlyTheElectedRents(t *testing.T) {
	h := newHybrid(t, func(p *compute.PoolSpec) { p.Elastic.Min = 1 })
	h.cfg.Elect, h.cfg.Holder = true, "one"
	h.restart(t)
	if err := h.Burst(t.Context()); !fault.Is(err, fault.Conflict) || len(h.asked) > 0 {
		t.Errorf("%v; the cloud was asked %v", err, h.asked)
	}
	h.cfg.Elect = false
	h.restart(t)
	if err := h.Burst(t.Context()); err != nil || !slices.Equal(h.asked, []string{"+cloud-1"}) {
		t.Errorf("%v; the cloud was asked %v", err, h.asked)
	}
}

// TestRentals: what the database keeps of rented nodes; a place has one at a time.
func TestRentals(t *testing.T) {
	db := database(t, computesql.Migrations)
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var s computesql.Store
	update := func(f func(ctx context.Context, tx *store.Tx) error) error { return db.Update(t.Context(), "", f) }
	save := func(r compute.Rental) error {
		return update(func(ctx context.Context, tx *store.Tx) error { return s.SaveRental(ctx, tx, r) })
	}
	first := compute.Rental{ID: "rnt_1", Pool: "cloud", Node: "cloud-1", For: "att_1", Asked: at}
	second := compute.Rental{ID: "rnt_2", Pool: "cloud", Node: "cloud-1", Asked: at.Add(time.Hour)}
	if err := save(first); err != nil {
		t.Fatal(err)
	}
	if err := save(second); !fault.Is(err, fault.Conflict) {
		t.Errorf("a place twice: %v", err)
	}
	first.Began, first.Ready, first.Opened, first.Leaving, first.Ended = at, at.Add(time.Minute), at.Add(time.Minute), at.Add(2*time.Minute), at.Add(3*time.Minute)
	first.Failed, first.Why = true, "why"
	for _, r := range []compute.Rental{first, second} {
		if err := save(r); err != nil {
			t.Fatal(err)
		}
	}
	wish := compute.Wish{Pool: "cloud", Nodes: 2, Why: []string{"a", "b"}, Decided: at}
	err := update(func(ctx context.Context, tx *store.Tx) error {
		for _, c := range []struct {
			since time.Time
			want  []compute.Rental
		}{{at, []compute.Rental{first, second}}, {at.Add(3 * time.Minute), []compute.Rental{second}}} {
			if got, err := s.Rentals(ctx, tx, c.since); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("since %s: %+v, %v", c.since, got, err)
			}
		}
		if err := s.SaveWish(ctx, tx, compute.Wish{Pool: "cloud"}); err != nil {
			return err
		}
		return s.SaveWish(ctx, tx, wish)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		got, err := s.Wishes(ctx, tx)
		if len(got) != 1 || !reflect.DeepEqual(got[0], wish) {
			t.Errorf("%+v", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
