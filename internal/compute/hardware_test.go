package compute_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

// TestHardware: on what is out of support nothing new starts, unless the pool says
// so; people are told before, once.
func TestHardware(t *testing.T) {
	w, c := newCluster(t, compute.PoolSpec{}, fourNodes(), nil)
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	apply := func(h compute.Hardware) error {
		_, err := w.change(t, compute.PoolSpec{Hardware: &h})
		return err
	}
	for _, bad := range []compute.Hardware{{EndOfSupport: "2027"}, {EndOfSupport: "2027-02-30"}, {UseAfter: true}, {Generation: strings.Repeat("x", 101)}} {
		if err := apply(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	told := func() (words []string) {
		t.Helper()
		if err := w.WarnOfSupport(t.Context()); err != nil {
			t.Fatal(err)
		}
		events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == compute.EventSupportEnds {
				words = append(words, string(e.Body))
			}
		}
		return words
	}
	for i, step := range []struct {
		h     compute.Hardware
		says  string
		times int // that people were told by then
	}{
		{compute.Hardware{Generation: "hopper"}, "hopper", 0},
		{compute.Hardware{Generation: "hopper", EndOfSupport: day(120)}, "hopper, supported until " + day(120), 0},
		{compute.Hardware{EndOfSupport: day(30)}, "supported until " + day(30) + ", in 30 days: afterwards no new workloads start here", 1},
		{compute.Hardware{EndOfSupport: day(30), UseAfter: true}, "supported until " + day(30) + ", in 30 days: afterwards workloads still start here", 1},
		{compute.Hardware{EndOfSupport: day(0)}, ", today: afterwards", 2},
		{compute.Hardware{EndOfSupport: day(-1)}, "out of support since " + day(-1) + ": no new workloads start here", 3},
	} {
		if err := apply(step.h); err != nil {
			t.Fatal(err)
		}
		p, err := w.Pool(t.Context(), "hpc")
		if err != nil || !strings.Contains(p.Support, step.says) {
			t.Errorf("step %d: %q, %v", i, p.Support, err)
		}
		told()
		if words := told(); len(words) != step.times {
			t.Errorf("step %d: told %q", i, words)
		}
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Isolation: scheduler.Process, Pools: []string{"hpc"}})
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || len(why) != 1 || !strings.Contains(why[0], "pool hpc is closed: its hardware is out of support since "+day(-1)) {
		t.Errorf("why %q, %v", why, err)
	}
	if err := apply(compute.Hardware{EndOfSupport: day(-1), UseAfter: true}); err != nil {
		t.Fatal(err)
	}
	c.awaitStart(t)
}

// TestMemoryBandwidth: what was measured of this machine, or else is declared, is given
// once; where nobody knows it, nobody is limited.
func TestMemoryBandwidth(t *testing.T) {
	w := newWorld(t, func(c *compute.Config) {
		e := c.Engines["local"]
		e.Machine.MemoryBandwidth = 100e9
		c.Engines["local"] = e
	})
	w.Start(t.Context())
	node := compute.Node{Name: "n1", CPU: resource.Cores(8), Memory: 8 * resource.GiB}
	for name, bandwidth := range map[compute.PoolName]resource.Bandwidth{"declared": 50e9, "unknown": 0} {
		n := node
		n.MemoryBandwidth = bandwidth
		if _, _, err := w.ApplyPool(t.Context(), name, compute.PoolSpec{Engine: "local", Zone: residency.Home, Nodes: []compute.Node{n}}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	asks := func(pool string, bandwidth resource.Bandwidth) compute.WorkloadID {
		t.Helper()
		n++
		id := compute.WorkloadID(fmt.Sprint("att_", n))
		w.submit(t, compute.Request{ID: id, Pools: []string{pool}, Amount: resource.Amount{CPU: 100, Memory: resource.MiB, MemoryBandwidth: bandwidth}})
		return id
	}
	for _, c := range []struct {
		pool string
		each resource.Bandwidth
		runs int
		why  string
	}{
		{"home", 60e9, 1, "60GB/s memory bandwidth wanted, 40GB/s free on home; held by att_1"},
		{"home", 20e9, 2, "20GB/s memory bandwidth wanted, 0 free on home; held by att_1"},
		{"declared", 60e9, 0, "pool declared has no node large enough: 60GB/s memory bandwidth wanted, 50GB/s on its largest"},
		{"unknown", 10e12, 3, ""},
	} {
		for range c.runs {
			id := asks(c.pool, c.each)
			if got := w.awaitStart(t); got != string(id) {
				t.Fatalf("started %s, not %s", got, id)
			}
		}
		if c.why == "" {
			continue
		}
		id := asks(c.pool, c.each)
		if why, err := w.Why(t.Context(), id); err != nil || !slices.Contains(why, c.why) {
			t.Errorf("%q, %v", why, err)
		}
		w.stop(t, id, "seen")
	}
	pools, err := w.ListPools(t.Context())
	if err != nil || pools[1].Name != compute.Home || pools[1].Capacity.MemoryBandwidth != 100e9 || pools[1].Used.MemoryBandwidth != 100e9 || pools[2].Capacity.MemoryBandwidth != 0 {
		t.Errorf("%+v, %v", pools, err)
	}
}
