package compute_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
)

func racks() []compute.Node {
	var nodes []compute.Node
	for i, rack := range []string{"a", "a", "b", "b"} {
		nodes = append(nodes, compute.Node{
			Name: []string{"N0.site", "N1.site", "N2.site", "N3.site"}[i], CPU: resource.Cores(2), Memory: 4 * resource.GiB, Labels: map[string]string{"rack": rack},
		})
	}
	return nodes
}

// TestTopology: a gang stands in one rack, or on as many nodes as it has workers,
// if it says so.
func TestTopology(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{Nodes: racks(), Topology: []string{"rack"}}, fourNodes(), nil)
	w.Start(t.Context())
	whole := resource.Amount{CPU: resource.Cores(2), Memory: resource.GiB}
	w.submit(t, compute.Request{ID: "att_1", Isolation: scheduler.Process, Amount: whole, Pools: []string{"hpc"}})
	_, spec := c.awaitStart(t)
	alone := spec.Nodes
	w.submit(t, compute.Request{ID: "att_2", Isolation: scheduler.Process, Amount: whole, Workers: 2, Within: "rack", Pools: []string{"hpc"}})
	_, spec = c.awaitStart(t)
	if slices.Contains(spec.Nodes, alone[0]) || len(spec.Nodes) != 2 || spec.Nodes[0] != "N2.site" || spec.Nodes[1] != "N3.site" {
		t.Fatalf("the gang is on %q, beside %q", spec.Nodes, alone)
	}
	w.submit(t, compute.Request{ID: "att_3", Isolation: scheduler.Process, Amount: whole, Workers: 3, Within: "rack", Pools: []string{"hpc"}})
	why, err := w.Why(t.Context(), "att_3")
	if err != nil || !strings.Contains(strings.Join(why, ";"), "capacity for 2 in one rack") {
		t.Errorf("why %q, %v", why, err)
	}
}

// TestMaintenance: what would run into it does not start; when it begins, what saves
// is asked to leave, and nothing starts until it is over.
func TestMaintenance(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	hour := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
	window := func(from, until int) compute.PoolSpec {
		return compute.PoolSpec{Maintenance: []compute.Window{{From: hour(from), Until: hour(until), Reason: "new drivers"}}}
	}
	for _, bad := range []compute.PoolSpec{window(2, 1), {Maintenance: []compute.Window{{}}}, {Topology: []string{"node"}}, {Topology: []string{"rack", "rack"}}, {Topology: []string{""}}} {
		if _, err := w.change(t, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := w.change(t, window(1, 2)); err != nil {
		t.Fatal(err)
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Isolation: scheduler.Process, Preemptible: true, Pools: []string{"hpc"}})
	c.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Isolation: scheduler.Process, Timeout: 2 * time.Hour, Pools: []string{"hpc"}})
	why, err := w.Why(t.Context(), "att_2")
	if err != nil || len(why) != 1 || !strings.Contains(why[0], "closes for maintenance at") {
		t.Errorf("why %q, %v", why, err)
	}
	s, err := w.Snapshot(t.Context(), viewer(true))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	s, start, err := replay.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	world, _ := s.World(start, replay.Assumptions{Takes: 90 * time.Minute, Over: true, Leave: time.Minute})
	if played, err := replay.Play(t.Context(), world); err != nil || len(played.Fates) != 2 || played.Fates[1].Start().Before(hour(2).Add(-time.Minute)) {
		t.Errorf("%+v, %v", played, err) // as above, and in the end it runs
	}
	if _, err := w.change(t, window(-1, 1)); err != nil {
		t.Fatal(err)
	}
	got := w.wait(t, "att_1")
	if out := got.Outcome(); !strings.Contains(out, "maintenance until") || !strings.Contains(out, "new drivers") {
		t.Errorf("%q", out)
	}
	why, err = w.Why(t.Context(), "att_2")
	if err != nil || len(why) != 1 || !strings.Contains(why[0], "has no open node") {
		t.Errorf("why %q, %v", why, err)
	}
	if _, err := w.change(t, compute.PoolSpec{}); err != nil {
		t.Fatal(err)
	}
	h, spec := c.awaitStart(t)
	if spec.ID != "att_2" {
		t.Errorf("started %s", spec.ID)
	}
	c.Finish(h, enginetest.Exit{})
	w.wait(t, "att_2")
}
