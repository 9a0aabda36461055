package compute_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/simulated"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// clouds gives the engine local the simulated cloud, and another provisioner, which brings
// machines of its own.
func clouds(t *testing.T) func(*compute.Config) {
	t.Helper()
	cloud, err := simulated.New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *compute.Config) {
		withFar(c)
		local := c.Engines["local"]
		local.Provisioners = map[string]provisioner.Provisioner{"simulated": cloud, "rented": cloud}
		c.Engines["local"] = local
		c.Machine = "server/5a93d7e2c014"
	}
}

func rentedFrom(provisioner string) *compute.Elastic {
	return &compute.Elastic{
		Provisioner: provisioner, Max: 1, Startup: compute.Duration(time.Second),
		Node: compute.ElasticNode{CPU: resource.Cores(2), Memory: 4 * resource.GiB},
	}
}

// TestZoneOfAPool: a pool on the server's machine is in the server's zone.
func TestZoneOfAPool(t *testing.T) {
	for name, c := range map[string]struct {
		server  residency.Zone
		spec    compute.PoolSpec
		refused string
		zone    residency.Zone
		machine residency.Zone
	}{
		"by default home":                       {zone: "home", machine: "home"},
		"by default the server's":               {server: "AE", zone: "AE", machine: "AE"},
		"the server's":                          {server: "AE", spec: compute.PoolSpec{Zone: "AE"}, zone: "AE", machine: "AE"},
		"another":                               {spec: compute.PoolSpec{Zone: "IE"}, refused: "which is in home, not in IE"},
		"another than the server's":             {server: "AE", spec: compute.PoolSpec{Zone: "home"}, refused: "which is in AE, not in home"},
		"another, of nodes that are not there":  {spec: compute.PoolSpec{Zone: "IE", Nodes: []compute.Node{{Name: "dublin1", CPU: 1000, Memory: resource.GiB}}}, refused: "which is in home, not in IE"},
		"another, of an engine that is there":   {spec: compute.PoolSpec{Zone: "IE", Engine: "far"}, zone: "IE", machine: "IE"},
		"another, simulated":                    {spec: compute.PoolSpec{Zone: "IE", Elastic: rentedFrom("simulated")}, zone: "IE", machine: "home"},
		"another, of machines that are rented":  {spec: compute.PoolSpec{Zone: "IE", Elastic: rentedFrom("rented")}, zone: "IE", machine: "IE"},
		"by default, of an engine elsewhere":    {server: "AE", spec: compute.PoolSpec{Engine: "far"}, zone: "AE", machine: "AE"},
		"another case of the name is another":   {spec: compute.PoolSpec{Zone: "Home"}, refused: "not in Home"},
		"delegated does not change the machine": {spec: compute.PoolSpec{Zone: "IE", Mode: compute.Delegated}, refused: "not in IE"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, clouds(t), func(cfg *compute.Config) { cfg.Zone = c.server })
			_, _, planned := w.PlanPool(t.Context(), "x", c.spec)
			p, _, err := w.ApplyPool(t.Context(), "x", c.spec)
			if (planned == nil) != (err == nil) {
				t.Errorf("planned: %v; applied: %v", planned, err)
			}
			if c.refused != "" {
				server := cmp.Or(c.server, residency.Home)
				hint := fault.HintOf(err)
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.refused) || !strings.Contains(hint, "zone to "+string(server)+",") || !strings.Contains(hint, "slurm, kube or ray") {
					t.Errorf("%v, %q", err, hint)
				}
				return
			}
			if err != nil || p.Zone != c.zone || p.MachineZone != c.machine || p.Misplaced != "" {
				t.Errorf("in %s, machine in %s, misplaced %q, %v", p.Zone, p.MachineZone, p.Misplaced, err)
			}
		})
	}
}

// before records a pool as an earlier release could, which checked no zone.
func (w *world) before(t *testing.T, name compute.PoolName, zone residency.Zone) {
	t.Helper()
	if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		p, err := w.cfg.Store.Pool(ctx, tx, name)
		if fault.Is(err, fault.NotFound) {
			p, err = w.cfg.Store.Pool(ctx, tx, compute.Home)
			p.Name = name
		}
		if err != nil {
			return err
		}
		p.Zone = zone
		return w.cfg.Store.SavePool(ctx, tx, p)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestMisplacedPool: nothing is placed in a pool of another zone that an earlier release
// made, nor started where that one placed it, and the pool says why.
func TestMisplacedPool(t *testing.T) {
	w := newWorld(t)
	w.before(t, "dublin", "IE")
	const why = "engine local runs workloads on the server's machine, which is in home, not in IE"
	both := residency.Of("IE", "home")
	w.submit(t, compute.Request{ID: "att_waits", Residency: both, Pools: []string{"dublin"}})
	w.submit(t, compute.Request{ID: "att_placed", Residency: both})
	if err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		wl, err := w.cfg.Store.Workload(ctx, tx, "att_placed")
		if err != nil {
			return err
		}
		wl.State, wl.Pool, wl.Placed, wl.Nodes = compute.Placed, "dublin", 1, []string{"local"}
		return w.cfg.Store.UpdateWorkload(ctx, tx, wl)
	}); err != nil {
		t.Fatal(err)
	}
	w.Start(t.Context())
	if id := w.awaitStart(t); id != "att_placed" {
		t.Errorf("%s started", id)
	}
	if got, err := w.Workload(t.Context(), "att_placed"); err != nil || got.Pool != compute.Home || got.Zone != "home" {
		t.Errorf("in pool %s, zone %s, %v", got.Pool, got.Zone, err)
	}
	words, err := w.Why(t.Context(), "att_waits")
	if err != nil || !slices.Contains(words, "pool dublin is closed: "+why) {
		t.Errorf("it waits: %q, %v", words, err)
	}
	if p, err := w.Pool(t.Context(), "dublin"); err != nil || p.Misplaced != why || p.NotOpen() != why || p.Running != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if err := w.CheckPools(t.Context(), []string{"dublin"}, scheduler.Process, both); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), why) {
		t.Errorf("named by a job: %v", err)
	}
	if free, err := w.Free(t.Context(), nil, scheduler.Process, both); err != nil || slices.Contains(free, "dublin") {
		t.Errorf("free %v, %v", free, err)
	}
	// It is put right while work runs, since its machine does not move.
	if p, change, err := w.ApplyPool(t.Context(), "dublin", compute.PoolSpec{}); err != nil || change != project.Updated || p.Misplaced != "" || p.Zone != "home" {
		t.Errorf("%s, %+v, %v", change, p, err)
	}
}

// TestServerInAnotherZone: when the zone of the server changes at a restart, the pool of
// its machine follows, also under running work; others are closed, and what is placed and
// may not be in the new zone does not start.
func TestServerInAnotherZone(t *testing.T) {
	w := newWorld(t, withFar)
	for name, spec := range map[compute.PoolName]compute.PoolSpec{"spare": {}, "hpc": {Engine: "far"}} {
		if _, _, err := w.ApplyPool(t.Context(), name, spec); err != nil {
			t.Fatal(err)
		}
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Pools: []string{"home"}, Residency: residency.Of("home", "AE")})
	w.awaitStart(t)
	w.cfg.Zone = "AE"
	w.restart(t)
	p, err := w.EnsureHome(t.Context(), "local")
	if err != nil || p.Zone != "AE" || p.MachineZone != "AE" || p.Misplaced != "" {
		t.Fatalf("home: %+v, %v", p, err)
	}
	for name, misplaced := range map[compute.PoolName]bool{"home": false, "spare": true, "hpc": false} {
		if p, err := w.Pool(t.Context(), name); err != nil || (p.Misplaced != "") != misplaced {
			t.Errorf("%s: %q, %v", name, p.Misplaced, err)
		}
	}
	w.submit(t, compute.Request{ID: "att_2", Pools: []string{"home"}})
	w.Start(t.Context())
	why, err := w.Why(t.Context(), "att_2")
	if want := "pool home is in AE, outside the data's residency home"; err != nil || !slices.Contains(why, want) {
		t.Errorf("why %q, %v", why, err)
	}
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
}

// placed are the audit entries of a workload's placement and end, in short.
func (w *world) placed(t *testing.T, id compute.WorkloadID) (out []string) {
	t.Helper()
	all, _, err := w.db.ReadStream(t.Context(), "audit", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		var b struct {
			Object string
			Detail struct{ Pool, Zone, Machine string }
		}
		if err := json.Unmarshal(e.Body, &b); err != nil {
			t.Fatal(err)
		}
		if b.Object == "workload "+string(id) {
			out = append(out, fmt.Sprintf("%s pool=%s zone=%s machine=%s", e.Kind, b.Detail.Pool, b.Detail.Zone, b.Detail.Machine))
		}
	}
	return out
}

// TestRecordsNameTheMachine: placement and end of a workload name its machine, and the
// zone of that machine.
func TestRecordsNameTheMachine(t *testing.T) {
	node := func(name string) compute.Node { return compute.Node{Name: name, CPU: 1000, Memory: resource.GiB} }
	for name, c := range map[string]struct {
		spec    compute.PoolSpec
		request compute.Request
		want    []string
	}{
		"the server's": {
			spec: compute.PoolSpec{},
			want: []string{"workload.place pool=x zone=home machine=server/5a93d7e2c014", "workload.end pool=x zone=home machine=server/5a93d7e2c014"},
		},
		"the server's, under another name": {
			spec: compute.PoolSpec{Nodes: []compute.Node{node("dublin1")}},
			want: []string{"workload.place pool=x zone=home machine=server/5a93d7e2c014", "workload.end pool=x zone=home machine=server/5a93d7e2c014"},
		},
		"a node elsewhere": {
			spec:    compute.PoolSpec{Engine: "far", Zone: "IE", Nodes: []compute.Node{node("dublin1")}},
			request: compute.Request{Residency: residency.Of("IE")},
			want:    []string{"workload.place pool=x zone=IE machine=dublin1", "workload.end pool=x zone=IE machine=dublin1"},
		},
		"nodes of a gang": {
			spec:    compute.PoolSpec{Engine: "far", Zone: "IE", Nodes: []compute.Node{node("dublin2"), node("dublin1")}},
			request: compute.Request{Residency: residency.Of("IE"), Workers: 2, Amount: resource.Amount{CPU: 1000}},
			want:    []string{"workload.place pool=x zone=IE machine=dublin1, dublin2", "workload.end pool=x zone=IE machine=dublin1, dublin2"},
		},
		"picked by the engine": {
			spec:    compute.PoolSpec{Engine: "far", Zone: "IE", Mode: compute.Delegated, Nodes: []compute.Node{node("dublin1")}},
			request: compute.Request{Residency: residency.Of("IE")},
			want:    []string{"workload.place pool=x zone=IE machine=picked by the engine", "workload.end pool=x zone=IE machine=dublin1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, clouds(t), func(cfg *compute.Config) {
				far := cfg.Engines["far"]
				far.Driver = telling{far.Driver.(*fake)}
				cfg.Engines["far"] = far
			})
			if _, _, err := w.ApplyPool(t.Context(), "x", c.spec); err != nil {
				t.Fatal(err)
			}
			c.request.ID, c.request.Pools = "att_1", []string{"x"}
			w.Start(t.Context())
			w.submit(t, c.request)
			w.awaitStart(t)
			w.end("att_1", enginetest.Exit{})
			w.wait(t, "att_1")
			if got := w.placed(t, "att_1"); !slices.Equal(got, c.want) {
				t.Errorf("%q\nnot %q", got, c.want)
			}
		})
	}
}

// telling is an engine that tells on which node it ran what it was given.
type telling struct{ *fake }

func (telling) Members(context.Context, engine.Handle) ([]engine.Member, error) {
	return []engine.Member{{Node: "dublin1"}}, nil
}

// TestSimulatedElsewhere: the nodes of a simulated cloud are the server's machine. Its data
// must be permitted in both zones, and the record says where it was.
func TestSimulatedElsewhere(t *testing.T) {
	h := newHybrid(t, func(p *compute.PoolSpec) { p.Zone = "DE" })
	h.submit(t, compute.Request{ID: "att_de", Amount: cores(2), Pools: []string{"cloud"}, Residency: residency.Of("DE"), Timeout: time.Hour})
	h.submit(t, compute.Request{ID: "att_home", Amount: cores(2), Pools: []string{"cloud"}, Timeout: time.Hour})
	h.submit(t, compute.Request{ID: "att_both", Amount: cores(2), Pools: []string{"cloud"}, Residency: residency.Of("DE", "home"), Timeout: time.Hour})
	h.submit(t, compute.Request{ID: "att_any", Amount: cores(9), Timeout: time.Hour})
	for range 4 {
		h.round()
		h.pass(time.Minute)
	}
	if id := h.awaitStart(t); id != "att_both" {
		t.Errorf("%s started", id)
	}
	if got, want := h.placed(t, "att_both"), "workload.place pool=cloud zone=home machine=local"; !slices.Contains(got, want) {
		t.Errorf("%q", got)
	}
	if why := h.why("att_any"); !strings.Contains(why, "pool cloud is in DE, outside the data's residency home") {
		t.Errorf("one that names no pool is not told of the cloud: %s", why)
	}
	for id, want := range map[compute.WorkloadID]string{
		"att_de":   "pool cloud runs its workloads on a machine in home, outside the data's residency DE",
		"att_home": "pool cloud is in DE, outside the data's residency home",
	} {
		if why := h.why(id); !strings.Contains(why, want) {
			t.Errorf("%s waits: %s", id, why)
		}
		wl, err := h.Workload(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.CheckPools(t.Context(), []string{"cloud"}, scheduler.Process, wl.Residency); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
}
