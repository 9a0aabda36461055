package compute_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

var errNoSuchNodes = engine.Refuse(fault.New(fault.Invalid, "sbatch refused: Requested node configuration is not available").WithHint("See the pool."))

// TestRefusedStart: a workload that an engine refuses to start waits again, and another
// of its pools comes first.
func TestRefusedStart(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.ApplyPool(t.Context(), "other", compute.PoolSpec{Engine: "local", PricePerHour: 1}); err != nil {
		t.Fatal(err)
	}
	w.engine.FailNext(fault.Wrap(errNoSuchNodes, "starting on hpc"))
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	w.awaitStart(t)
	running, err := w.Why(t.Context(), "att_1")
	if said := strings.Join(running, "; "); err != nil || !strings.Contains(said, "pool home did not start it") || !strings.Contains(said, "node configuration is not available (See the pool.)") {
		t.Errorf("why: %q, %v", said, err)
	}
	w.end("att_1", enginetest.Exit{})
	if got := w.wait(t, "att_1"); got.Pool != "other" || got.Outcome() != "succeeded" && got.Status.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
}

// TestRefusedEverywhere: with one pool only it waits with the reason, longer each time,
// also after a restart.
func TestRefusedEverywhere(t *testing.T) {
	var ahead atomic.Int64
	now := time.Now()
	w := newWorld(t, func(c *compute.Config) {
		c.Now = func() time.Time { return now.Add(time.Duration(ahead.Load())) }
	})
	w.submit(t, compute.Request{ID: "att_1"})
	for _, wait := range []time.Duration{time.Minute, 2 * time.Minute} {
		w.engine.FailNext(errNoSuchNodes)
		w.Start(t.Context())
		until := w.refused(t, "att_1")
		if got := until.Sub(w.cfg.Now()); got != wait {
			t.Errorf("waits for %s, not %s", got, wait)
		}
		w.Stop()
		w.restart(t)
		ahead.Add(int64(wait))
	}
	w.Start(t.Context())
	w.awaitStart(t)
	w.end("att_1", enginetest.Exit{})
	if got := w.wait(t, "att_1"); got.Status.ExitCode != 0 || len(got.Refusals) != 0 {
		t.Errorf("%+v", got)
	}
}

// refused waits until a workload waits after a refusal, and gives when it is tried again.
func (w *world) refused(t *testing.T, wid compute.WorkloadID) time.Time {
	t.Helper()
	for {
		got, err := w.Workload(t.Context(), wid)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Refusals) == 1 && got.State == compute.Queued && got.Refusals[0].Until.After(w.cfg.Now()) {
			break
		}
		if _, err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	why, err := w.Why(t.Context(), wid)
	if said := strings.Join(why, "; "); err != nil || !strings.Contains(said, "pool home did not start it and is retried after") {
		t.Errorf("why: %q, %v", said, err)
	}
	got, _ := w.Workload(t.Context(), wid)
	return got.Refusals[0].Until
}
