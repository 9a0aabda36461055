package compute_test

import (
	"context"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store"
)

// TestTwoSchedulers: of two that share a database one schedules. One that was
// elected and does not know yet that another is now, cannot act.
func TestTwoSchedulers(t *testing.T) {
	elect := func(c *compute.Config) { c.Elect, c.Holder = true, "one" }
	w := newWorld(t, elect)
	w.SetLease(300 * time.Millisecond)
	cfg := w.cfg
	cfg.Holder = "other"
	other := newServices(cfg)
	other.RegisterOwner(compute.JobAttempt, w.owner)
	other.SetLease(300 * time.Millisecond)
	t.Cleanup(other.Stop)

	// Nobody is elected: nobody acts.
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	for _, s := range []*services{w.services, other} {
		if _, err := s.RunOnce(t.Context()); !fault.Is(err, fault.Conflict) {
			t.Fatalf("one that is not elected acts: %v", err)
		}
	}

	// Both start, and it is placed and started once.
	w.Start(t.Context())
	other.Start(t.Context())
	if id := w.awaitStart(t); id != "att_1" {
		t.Fatal(id)
	}

	// A third takes the lease away from whoever has it, as after a long pause.
	thief := steal(t, w.db)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2"})
	for _, s := range []*services{w.services, other} {
		s.Anew()
		if _, err := s.RunOnce(t.Context()); err != nil && !fault.Is(err, fault.Conflict) {
			t.Fatalf("a former one: %v", err)
		}
	}
	if got, err := w.Workload(t.Context(), "att_2"); err != nil || got.State != compute.Queued {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := len(w.engine.Started()); n != 0 {
		t.Fatalf("%d were started", n)
	}

	// Neither tells what it found when it was elected.
	for _, s := range []*services{w.services, other} {
		for end := time.Now().Add(time.Minute); ; {
			_, err := s.DryRun(t.Context(), compute.Request{ID: "att_3", Kind: compute.JobAttempt, Project: "p", Amount: cores(1)})
			if fault.Is(err, fault.Unavailable) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("it still tells: %v", err)
			}
		}
	}

	// It gives it back, and one of the two goes on, with the first as well.
	if err := thief.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id := w.awaitStart(t); id != "att_2" {
		t.Fatal(id)
	}
	for _, id := range []compute.WorkloadID{"att_1", "att_2"} {
		w.end(string(id), enginetest.Exit{})
		w.wait(t, id)
		if n := w.engine.Launched(string(id)); n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
}

// steal makes the lease expire and takes it, until nobody else is quicker.
func steal(t *testing.T, db *store.DB) *store.Lease {
	t.Helper()
	for {
		err := db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.NewRaw(`UPDATE store_lease SET expires = 0 WHERE name = 'compute.schedule'`).Exec(ctx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := db.Lease(t.Context(), "compute.schedule", "thief", time.Hour)
		if err == nil {
			return lease
		}
		if !fault.Is(err, fault.Conflict) {
			t.Fatal(err)
		}
	}
}
