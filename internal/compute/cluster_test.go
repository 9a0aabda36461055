package compute_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// cluster is an engine on other machines, which tells its nodes and why what it
// was given waits.
type cluster struct {
	*enginetest.Fake
	mu      sync.Mutex
	nodes   []engine.Node
	away    error
	words   []string
	extra   []engine.Handle // that List gives as well
	stopped []engine.Handle
	pending atomic.Bool // nothing has started on it yet, and no time-out is kept
	asked   chan struct{}
}

func (c *cluster) Start(ctx context.Context, spec engine.Spec) (engine.Handle, error) {
	if c.pending.Load() {
		spec.Timeout = 0
	}
	return c.Fake.Start(ctx, spec)
}

func (c *cluster) Status(ctx context.Context, h engine.Handle) (engine.Status, error) {
	st, err := c.Fake.Status(ctx, h)
	if c.pending.Load() {
		st.State = engine.Pending
		select {
		case c.asked <- struct{}{}:
		case <-ctx.Done():
		}
	}
	return st, err
}

func (c *cluster) Stop(ctx context.Context, h engine.Handle, grace time.Duration) error {
	c.mu.Lock()
	c.stopped = append(c.stopped, h)
	c.mu.Unlock()
	return c.Fake.Stop(ctx, h, grace)
}

func (c *cluster) set(nodes []engine.Node, away error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes, c.away = nodes, away
}

func (c *cluster) Inventory(context.Context, map[string]string) ([]engine.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes), c.away
}

func (c *cluster) Explain(context.Context, engine.Handle) ([]string, error) { return c.words, nil }

func (c *cluster) List(ctx context.Context) ([]engine.Handle, error) {
	c.mu.Lock()
	away, extra := c.away, c.extra
	c.mu.Unlock()
	if away != nil {
		return nil, away
	}
	all, err := c.Fake.List(ctx)
	return append(all, extra...), err
}

func (c *cluster) Members(context.Context, engine.Handle) ([]engine.Member, error) {
	return []engine.Member{{Index: 0, Node: "n1"}, {Index: 1, Node: "n2"}}, nil
}

func fourNodes() []engine.Node {
	var nodes []engine.Node
	for n := range 4 {
		nodes = append(nodes, engine.Node{
			Name: fmt.Sprintf("N%d.site", n), Amount: resource.Amount{CPU: resource.Cores(2), Memory: 8 * resource.GiB}, Labels: map[string]string{"arch": "x86_64"},
		})
	}
	return nodes
}

// newCluster has a pool hpc of an engine elsewhere, whose nodes the engine tells.
func newCluster(t *testing.T, spec compute.PoolSpec, nodes []engine.Node, away error) (*world, *cluster) {
	t.Helper()
	c := &cluster{Fake: enginetest.NewFake(), nodes: nodes, away: away}
	w := newWorld(t, func(cfg *compute.Config) {
		cfg.Engines["hpc"] = compute.Engine{Kind: "slurm", Remote: true, Driver: c, Isolation: scheduler.Process, Check: func(o map[string]string) error {
			if o["partitoin"] != "" {
				return fault.New(fault.Invalid, "there is no option partitoin")
			}
			return nil
		}}
	})
	spec.Engine = "hpc"
	if _, _, err := w.ApplyPool(t.Context(), "hpc", spec); err != nil {
		t.Fatal(err)
	}
	return w, c
}

func gang(id compute.WorkloadID, least, most int) compute.Request {
	return compute.Request{
		ID: id, Label: string(id), Workers: least, MaxWorkers: most, Pools: []string{"hpc"}, Isolation: scheduler.Process,
		Amount: resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB},
	}
}

func (c *cluster) awaitStart(t *testing.T) (engine.Handle, engine.Spec) {
	t.Helper()
	select {
	case h := <-c.Started():
		spec, _ := c.Spec(h)
		return h, spec
	case <-t.Context().Done():
		t.Fatal("nothing was started")
		return "", engine.Spec{}
	}
}

func TestGang(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{PricePerHour: 3600, Options: map[string]string{"partition": "main"}}, fourNodes(), nil)
	w.Start(t.Context())
	w.submit(t, gang("att_1", 2, 6))
	h, spec := c.awaitStart(t)
	if spec.Workers != 6 || len(spec.Nodes) != 6 || spec.Resources.CPU != resource.Cores(1) || spec.Options["partition"] != "main" {
		t.Fatalf("started as %+v", spec)
	}
	if _, err := w.Logs(t.Context(), "att_1", 0, true); err != nil { // returns once it runs
		t.Fatal(err)
	}
	got, err := w.Workload(t.Context(), "att_1")
	if err != nil || got.Placed != 6 || !slices.Equal(got.Nodes, spec.Nodes) || got.Workers != 2 || got.MaxWorkers != 6 {
		t.Fatalf("%+v, %v", got, err)
	}
	p, err := w.Pool(t.Context(), "hpc")
	if err != nil || p.Used.CPU != resource.Cores(6) || p.Running != 1 || p.Capacity.CPU != resource.Cores(8) || !p.Remote {
		t.Fatalf("pool %+v, %v", p, err)
	}
	members, err := w.Members(t.Context(), "att_1")
	if err != nil || len(members) != 2 {
		t.Errorf("members %+v, %v", members, err)
	}
	if d, err := w.Driver(t.Context(), "att_1"); err != nil || d != engine.Driver(c) {
		t.Errorf("driver %v, %v", d, err)
	}

	// The rest is too little for three, and the line is kept.
	w.submit(t, gang("att_2", 3, 3))
	w.submit(t, gang("att_3", 1, 1))
	why, err := w.Why(t.Context(), "att_2")
	if err != nil || why[0] != "3 workers of 1 cpu, 1GiB memory wanted, capacity for 2 on pool hpc; held by att_1" {
		t.Fatalf("why %q, %v", why, err)
	}
	if why, err = w.Why(t.Context(), "att_3"); err != nil || why[0] != "behind att_2, which has a reservation on hpc" {
		t.Fatalf("why %q, %v", why, err)
	}
	c.Finish(h, enginetest.Exit{})
	w.wait(t, "att_1")
	usage, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if err != nil || len(usage) != 1 || usage[0].Workers != 6 {
		t.Fatalf("usage %+v, %v", usage, err)
	}
	// Half of a node each, six times.
	if want := 3600 * 0.5 * 6 * usage[0].Wall.Hours(); usage[0].Cost < 0.999*want || usage[0].Cost > 1.001*want {
		t.Errorf("cost %g, want %g", usage[0].Cost, want)
	}
	for range 2 {
		h, _ := c.awaitStart(t)
		c.Finish(h, enginetest.Exit{})
	}
	w.wait(t, "att_2")
	w.wait(t, "att_3")
	if n := w.Watchers(); n != 0 {
		t.Errorf("%d workloads are watched by nobody", n)
	}
}

func TestWorkersThatCannotBe(t *testing.T) {
	for name, r := range map[string]compute.Request{
		"negative": {Workers: -1}, "less than the least": {Workers: 4, MaxWorkers: 2}, "too many": {Workers: compute.MaxWorkers + 1},
	} {
		r.ID, r.Kind = "att_1", compute.JobAttempt
		if err := r.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInPlace: what needs the files of the server goes to no other machine.
func TestInPlace(t *testing.T) {
	w, _ := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.Start(t.Context())
	r := gang("bld_1", 1, 1)
	r.Pools, r.InPlace = nil, true
	w.submit(t, r)
	w.awaitStart(t) // on the local engine
	r = gang("bld_2", 1, 1)
	r.InPlace = true
	w.submit(t, r)
	why, err := w.Why(t.Context(), "bld_2")
	if err != nil || !slices.Contains(why, "pool hpc is remote, and the workload needs files of the server") {
		t.Fatalf("why %q, %v", why, err)
	}
}

// TestIsolationOfAPool: what wants more than the pool's is refused with words.
func TestIsolationOfAPool(t *testing.T) {
	w, _ := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.Start(t.Context())
	r := gang("att_1", 1, 1)
	r.Isolation = "" // sandbox
	w.submit(t, r)
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || !slices.Contains(why, "pool hpc provides isolation process, weaker than the required sandbox") {
		t.Fatalf("why %q, %v", why, err)
	}
	_, _, err = w.ApplyPool(t.Context(), "hpc", compute.PoolSpec{Engine: "hpc", Isolation: scheduler.Container})
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("a promise that the engine cannot keep: %v", err)
	}
}

func TestNodesOfTheEngine(t *testing.T) {
	nodes := fourNodes()
	nodes[0].Down, nodes[1].Busy = "drained for maintenance", "1 cpu held by job 7 of bob"
	w, c := newCluster(t, compute.PoolSpec{}, append(nodes, engine.Node{Name: "bad name"}), nil)
	w.Start(t.Context())
	p, err := w.Pool(t.Context(), "hpc")
	if err != nil || len(p.Nodes) != 4 || p.Nodes[0].Down == "" || p.Nodes[1].Busy == "" || p.Nodes[2].Labels["arch"] != "x86_64" {
		t.Fatalf("%+v, %v", p, err)
	}
	if c, err := w.change(t, compute.PoolSpec{}); err != nil || c != project.Unchanged {
		t.Errorf("applied again: %s, %v", c, err)
	}
	// Nothing is placed on the node that is down, until it is back.
	w.submit(t, gang("att_1", 8, 8))
	why, err := w.Why(t.Context(), "att_1")
	want := "pool hpc is too small: 8 workers of 1 cpu, 1GiB memory wanted, capacity for 6 in all; node N0.site is unschedulable: down: drained for maintenance"
	if err != nil || !slices.Contains(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
	c.set(nodes, fault.New(fault.Unavailable, "the controller is away"))
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, err = w.Pool(t.Context(), "hpc"); err != nil || len(p.Nodes) != 4 || !strings.Contains(p.Trouble, "the controller is away") {
		t.Fatalf("while the controller is away: %+v, %v", p, err)
	}
	nodes[0].Down = ""
	c.set(nodes, nil)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, spec := c.awaitStart(t)
	if spec.Workers != 8 {
		t.Fatalf("%+v", spec)
	}
	if p, err = w.Pool(t.Context(), "hpc"); err != nil || p.Trouble != "" {
		t.Errorf("%+v, %v", p, err)
	}
}

func (w *world) change(t *testing.T, spec compute.PoolSpec) (project.Change, error) {
	t.Helper()
	spec.Engine = "hpc"
	_, c, err := w.ApplyPool(t.Context(), "hpc", spec)
	return c, err
}

// TestEngineIsAwayAtApply: the pool is made, and its nodes come later.
func TestEngineIsAwayAtApply(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, nil, fault.New(fault.Unavailable, "the controller is away"))
	w.Start(t.Context())
	w.submit(t, gang("att_1", 1, 1))
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || !slices.ContainsFunc(why, func(s string) bool { return strings.Contains(s, "the controller is away") }) {
		t.Fatalf("why %q, %v", why, err)
	}
	c.set(fourNodes(), nil)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitStart(t)
}

// TestListedNodes: the manifest says how much Falaj may use, the engine which of
// the nodes are up.
func TestListedNodes(t *testing.T) {
	nodes := fourNodes()
	nodes[1].Down = "no power"
	listed := []compute.Node{
		{Name: "N0.site", CPU: resource.Cores(1), Memory: resource.GiB, Labels: map[string]string{"arch": "mine", "rack": "2"}},
		{Name: "N1.site", CPU: resource.Cores(1), Memory: resource.GiB},
		{Name: "gone", CPU: resource.Cores(1), Memory: resource.GiB},
	}
	w, _ := newCluster(t, compute.PoolSpec{Nodes: listed}, nodes, nil)
	p, err := w.Pool(t.Context(), "hpc")
	if err != nil || len(p.Nodes) != 3 || p.Nodes[0].CPU != resource.Cores(1) || p.Nodes[0].Labels["arch"] != "mine" || p.Nodes[1].Labels["arch"] != "x86_64" {
		t.Fatalf("%+v, %v", p, err)
	}
	if p.Nodes[0].Down != "" || p.Nodes[1].Down != "no power" || p.Nodes[2].Down != "unknown to its engine" {
		t.Errorf("%+v", p.Nodes)
	}
	if c, err := w.change(t, compute.PoolSpec{Nodes: listed}); err != nil || c != project.Unchanged {
		t.Errorf("applied again: %s, %v", c, err)
	}
}

func (w *world) blame(t *testing.T, pool compute.PoolName, node string, until time.Time) {
	t.Helper()
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return w.Blame(ctx, tx, pool, node, "two attempts hung here", until)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestQuarantine(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.Start(t.Context())
	until := time.Now().Add(time.Hour)
	w.blame(t, "hpc", "N0.site", until)
	w.blame(t, "hpc", "N1.site", until)
	w.blame(t, "hpc", "N2.site", until)         // more than half
	w.blame(t, "hpc", "nowhere", until)         // no node of it
	w.blame(t, compute.Home, "local", until)    // the server's own machine
	w.blame(t, "hpc", "N1.site", until.Add(-1)) // again
	p, err := w.Pool(t.Context(), "hpc")
	if err != nil {
		t.Fatal(err)
	}
	var held []string
	for _, n := range p.Nodes {
		if n.Quarantine != nil {
			held = append(held, n.Name)
		}
	}
	if !slices.Equal(held, []string{"N0.site", "N1.site"}) {
		t.Fatalf("in quarantine: %q", held)
	}
	if home, err := w.Pool(t.Context(), compute.Home); err != nil || home.Nodes[0].Quarantine != nil {
		t.Errorf("%+v, %v", home, err)
	}
	b, err := json.Marshal(p.Nodes[0])
	if err != nil || !strings.Contains(string(b), `"quarantine":{"reason":"two attempts hung here"`) {
		t.Errorf("%s, %v", b, err)
	}
	w.submit(t, gang("att_1", 5, 5))
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || !strings.Contains(strings.Join(why, "\n"), "capacity for 4 in all; node N0.site is unschedulable: quarantined until") {
		t.Fatalf("why %q, %v", why, err)
	}
	if err := w.Release(t.Context(), "hpc", "N0.site"); err != nil {
		t.Fatal(err)
	}
	if _, spec := c.awaitStart(t); slices.Contains(spec.Nodes, "N1.site") {
		t.Errorf("placed on %q", spec.Nodes)
	}
	if err := w.Release(t.Context(), "hpc", "N0.site"); !fault.Is(err, fault.NotFound) {
		t.Errorf("released twice: %v", err)
	}
}

// TestQuarantineEnds: what waits for a node starts when its time is over.
func TestQuarantineEnds(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes()[:2], nil)
	w.blame(t, "hpc", "N0.site", time.Now().Add(200*time.Millisecond))
	w.Start(t.Context())
	w.submit(t, gang("att_1", 4, 4))
	c.awaitStart(t)
}

// TestQuarantineWhereTheEnginePicks: it is told which nodes to leave out.
func TestQuarantineWhereTheEnginePicks(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{Mode: compute.Delegated, Options: map[string]string{"exclude": "N3.site"}}, fourNodes(), nil)
	c.words = []string{"on slurm: Resources"}
	w.blame(t, "hpc", "N0.site", time.Now().Add(time.Hour))
	w.Start(t.Context())
	w.owner.prepare = func(context.Context, compute.Workload) (engine.Spec, error) {
		return engine.Spec{Command: []string{"x"}, Options: map[string]string{"modules": "gcc"}}, nil
	}
	w.submit(t, gang("att_1", 2, 2))
	_, spec := c.awaitStart(t)
	if spec.Options["modules"] != "gcc" || spec.Options["exclude"] != "N3.site,N0.site" || spec.Workers != 2 || len(spec.Nodes) != 0 {
		t.Fatalf("%+v", spec)
	}
	if _, err := w.Logs(t.Context(), "att_1", 0, true); err != nil { // returns once it runs
		t.Fatal(err)
	}
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || len(why) < 2 || why[1] != "on slurm: Resources" {
		t.Fatalf("why %q, %v", why, err)
	}
}

func TestPoolSettings(t *testing.T) {
	w, _ := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	long := map[string]string{"x": strings.Repeat("x", 5000)}
	for name, bad := range map[string]compute.PoolSpec{
		"option":          {Options: map[string]string{"partitoin": "x"}},
		"long option":     {Options: long},
		"empty option":    {Options: map[string]string{"": "x"}},
		"variable":        {Env: map[string]string{"A B": "x"}},
		"long variable":   {Env: long},
		"ours":            {Env: map[string]string{"FALAJ_TOKEN": "x"}},
		"ours, too":       {Env: map[string]string{"MLFLOW_TRACKING_URI": "x"}},
		"label":           {Nodes: []compute.Node{{Name: "a", CPU: 1, Memory: 1, Labels: long}}},
		"name of a node":  {Nodes: []compute.Node{{Name: "../a", CPU: 1, Memory: 1}}},
		"less than none":  {Ahead: -0.5},
		"no number":       {Ahead: math.NaN()},
		"too far ahead":   {Ahead: 11},
		"nameless worker": {Nodes: []compute.Node{{CPU: 1, Memory: 1}}},
	} {
		if _, err := w.change(t, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := w.ApplyPool(t.Context(), "own", compute.PoolSpec{Engine: "local", Ahead: 0.5}); !fault.Is(err, fault.Invalid) {
		t.Errorf("nothing can wait on this machine: %v", err)
	}
	good := compute.PoolSpec{Ahead: 0.5, Options: map[string]string{"partition": "main"}, Env: map[string]string{"NCCL_SOCKET_IFNAME": "ib0"}}
	for _, want := range []project.Change{project.Updated, project.Unchanged} {
		if c, err := w.change(t, good); err != nil || c != want {
			t.Errorf("%s, %v", c, err)
		}
	}
	if p, err := w.Pool(t.Context(), "hpc"); err != nil || p.Env["NCCL_SOCKET_IFNAME"] != "ib0" || p.Options["partition"] != "main" {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestGivenUpAndLostAreStopped: after compute has given up on an engine that
// does not answer, nothing of it may run on once it is back.
func TestGivenUpAndLostAreStopped(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.Start(t.Context())
	w.submit(t, gang("att_1", 1, 1))
	lost, _ := c.awaitStart(t)
	if _, err := w.Logs(t.Context(), "att_1", 0, true); err != nil {
		t.Fatal(err)
	}
	w.submit(t, gang("att_2", 1, 1))
	wanted, _ := c.awaitStart(t)
	// The engine took it, and the answer never came.
	unknown, err := c.Start(t.Context(), engine.Spec{ID: "att_0", Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	err = w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		wl, err := w.cfg.Store.Workload(ctx, tx, "att_1")
		if err != nil {
			return err
		}
		wl.State, wl.EndedAt, wl.Settled, wl.Status = compute.Ended, time.Now(), true, engine.Status{State: engine.Lost}
		return w.cfg.Store.UpdateWorkload(ctx, tx, wl)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.set(nil, fault.New(fault.Unavailable, "away"))
	if err := w.Sweep(t.Context()); err == nil {
		t.Error("an engine that is away was looked through")
	}
	c.set(nil, nil)
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(t.Context(), lost); err != nil || st.State != engine.Ended {
		t.Errorf("the lost one: %+v, %v", st, err)
	}
	if _, err := c.Status(t.Context(), unknown); !fault.Is(err, fault.NotFound) {
		t.Errorf("the unknown one: %v", err)
	}
	if st, err := c.Status(t.Context(), wanted); err != nil || st.State != engine.Running {
		t.Errorf("the wanted one: %+v, %v", st, err)
	}
}

// TestEngineThatIsNoLongerConfigured holds nobody for ever: what runs there can
// be cancelled, and what has ended is settled without what it left.
func TestEngineThatIsNoLongerConfigured(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.Start(t.Context())
	w.submit(t, gang("att_1", 2, 2))
	c.awaitStart(t)
	if _, err := w.Logs(t.Context(), "att_1", 0, true); err != nil { // returns once it runs
		t.Fatal(err)
	}
	w.Stop()
	delete(w.cfg.Engines, "hpc")
	w.restart(t)
	w.Start(t.Context())
	if _, err := w.Members(t.Context(), "att_1"); !fault.Is(err, fault.Unavailable) { // it may come back
		t.Errorf("members: %v", err)
	}
	w.stop(t, "att_1", "nobody wants it")
	got := w.wait(t, "att_1")
	if got.Status.State != engine.Lost || !strings.Contains(got.Outcome(), "not configured") {
		t.Errorf("%+v", got)
	}
	if _, err := w.Members(t.Context(), "att_1"); !fault.Is(err, fault.Gone) {
		t.Errorf("members: %v", err)
	}
	if _, err := w.Logs(t.Context(), "att_1", 0, false); !fault.Is(err, fault.Gone) {
		t.Errorf("logs: %v", err)
	}
}

// TestStartInDoubtIsNoOrphan: what an engine may have taken although its answer
// did not come is asked for again, and not stopped.
func TestStartInDoubtIsNoOrphan(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	c.extra = []engine.Handle{"att_1", "att_0"}
	w.submit(t, gang("att_1", 1, 1))
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		wl, err := w.cfg.Store.Workload(ctx, tx, "att_1")
		if err != nil {
			return err
		}
		wl.State, wl.Pool, wl.Placed = compute.Placed, "hpc", 1
		return w.cfg.Store.UpdateWorkload(ctx, tx, wl)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.stopped, []engine.Handle{"att_0"}) {
		t.Errorf("stopped %q", c.stopped)
	}
}

// TestTimeoutCountsFromTheStart: waiting in the engine's own queue is no running.
func TestTimeoutCountsFromTheStart(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	w.SetOverdue(0)
	c.asked = make(chan struct{})
	c.pending.Store(true)
	w.Start(t.Context())
	r := gang("att_1", 1, 1)
	r.Timeout, r.Grace = time.Millisecond, time.Millisecond
	w.submit(t, r)
	for range 3 {
		<-c.asked
	}
	if got, err := w.Workload(t.Context(), "att_1"); err != nil || got.State != compute.Running {
		t.Fatalf("%+v, %v", got, err)
	}
	c.pending.Store(false)
	go func() { // a question that was under way
		select {
		case <-c.asked:
		case <-t.Context().Done():
		}
	}()
	if got := w.wait(t, "att_1"); got.Status.Reason != engine.TimedOut {
		t.Errorf("%+v", got)
	}
}
