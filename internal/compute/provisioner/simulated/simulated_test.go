package simulated_test

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/provisionertest"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/simulated"
	"github.com/falaj-ml/falaj/internal/fault"
)

// clock goes when it is told to.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func open(t *testing.T, dir string, c *clock) *simulated.Cloud {
	t.Helper()
	p, err := simulated.New(dir, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) {
	c := &clock{time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	provisionertest.Run(t, provisionertest.Options{
		Open: func(t *testing.T, dir string) provisioner.Provisioner { t.Helper(); return open(t, dir, c) },
		Pool: provisioner.Pool{Name: "cloud", Max: 3, Simulated: &provisioner.Simulated{Startup: time.Minute, Capacity: 3}},
		Tick: func() { c.at = c.at.Add(10 * time.Second) },
	})
}

// TestTrouble: a cloud without capacity says so, and a node that is taken away is
// announced, and then gone.
func TestTrouble(t *testing.T) {
	c := &clock{time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	cloud := open(t, t.TempDir(), c)
	p := provisioner.Pool{Name: "cloud", Max: 3, Simulated: &provisioner.Simulated{Startup: time.Minute, Capacity: 1, InterruptAfter: 10 * time.Minute, Notice: 2 * time.Minute}}
	if err := cloud.Rent(t.Context(), p, "cloud-1"); err != nil {
		t.Fatal(err)
	}
	if err := cloud.Rent(t.Context(), p, "cloud-2"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("more than there are: %v", err)
	}
	for _, step := range []struct {
		after time.Duration
		want  provisioner.State
	}{{59 * time.Second, provisioner.Coming}, {time.Minute, provisioner.Ready}, {9 * time.Minute, provisioner.Leaving}, {11 * time.Minute, provisioner.Off}} {
		at := c.at
		c.at = at.Add(step.after)
		all, err := cloud.Nodes(t.Context(), p)
		if err != nil || all[0].State != step.want {
			t.Errorf("after %s: %+v, %v", step.after, all, err)
		}
		if step.want == provisioner.Leaving && (!all[0].Until.Equal(at.Add(11*time.Minute)) || all[0].Why == "") {
			t.Errorf("%+v", all[0])
		}
		c.at = at
	}
	// Fewer places than before: those above are known until they are given back.
	p.Simulated.Capacity = 3
	if err := cloud.Rent(t.Context(), p, "cloud-3"); err != nil {
		t.Fatal(err)
	}
	p.Max = 1
	if all, err := cloud.Nodes(t.Context(), p); err != nil || len(all) != 2 || all[1].Name != "cloud-3" {
		t.Errorf("%+v, %v", all, err)
	}
}
