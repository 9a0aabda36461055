package compute_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/scheduler"
)

// watch is a time that the test moves.
type watch struct {
	mu sync.Mutex
	at time.Time
}

func (w *watch) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

func (w *watch) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = w.at.Add(d)
}

// runs returns once a workload is recorded as running.
func (w *world) runs(t *testing.T, id compute.WorkloadID) {
	t.Helper()
	r, err := w.Logs(t.Context(), id, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTiresias: who had 16 hours of service leaves for who had not, and waits behind
// it when it goes on, because what it had is metered.
func TestTiresias(t *testing.T) {
	at := &watch{at: time.Now()}
	w := newWorld(t, func(c *compute.Config) { c.Policy, c.Now = scheduler.Tiresias, at.now })
	w.engine.vague.Store(true) // else it counts by its own clock
	w.Start(t.Context())
	all := cores(2)
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Amount: all, Preemptible: true})
	w.awaitStart(t)
	w.runs(t, "att_1")
	at.pass(9 * time.Hour)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Amount: all, Preemptible: true})
	got := w.wait(t, "att_1")
	if got.Status.Reason != engine.Preempted || got.Outcome() != "preempted by its engine: job_2 had less than 16 hours of service, this workload 18.0 core-hours" {
		t.Fatalf("%+v: %s", got.Status, got.Outcome())
	}
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_3", Label: "job_1", Amount: all, Preemptible: true, After: "att_1"})
	w.submit(t, compute.Request{ID: "att_4", Label: "job_4", Amount: all})
	if got, err := w.Workload(t.Context(), "att_3"); err != nil || got.Served < 17.99*3600 || got.Served > 18.01*3600 {
		t.Fatalf("%g %v", got.Served, err)
	}
	why, err := w.Why(t.Context(), "att_3")
	if err != nil || !strings.Contains(strings.Join(why, "\n"), "it had 18.0 core-hours: workloads with less than 16 come first") {
		t.Fatalf("%q %v", why, err)
	}
	for _, next := range []string{"att_2", "att_4", "att_3"} {
		if next != "att_2" {
			if id := w.awaitStart(t); id != next {
				t.Fatalf("started %s, not %s", id, next)
			}
		}
		w.end(next, enginetest.Exit{})
		w.wait(t, compute.WorkloadID(next))
	}
}
