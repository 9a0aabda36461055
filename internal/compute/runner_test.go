package compute_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// runner is an owner that runs its workloads itself.
type runner struct {
	owner
	own *enginetest.Fake
}

func (r *runner) Driver(compute.Workload) engine.Driver { return r.own }

// TestRunner: what its owner runs takes its place on the pool, the pool's engine knows
// nothing of it, it is stopped by its owner, and what the owner does not know any more
// has ended.
func TestRunner(t *testing.T) {
	w := newWorld(t)
	r := &runner{own: enginetest.NewFake()}
	w.RegisterOwner(compute.Replica, r)
	w.Start(t.Context())
	both := resource.Amount{CPU: resource.Cores(2), Memory: resource.GiB}
	w.submit(t, compute.Request{ID: "rep_1", Kind: compute.Replica, Label: "a replica", Amount: both, Preemptible: true})
	h := <-r.own.Started()
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Amount: both})
	why, err := w.Why(t.Context(), "att_1")
	if want := []string{"2 cpu wanted, 0 free on home; held by a replica"}; err != nil || !slices.Equal(why, want) {
		t.Errorf("why %q, %v", why, err)
	}
	if all, err := w.engine.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the engine has %v, %v", all, err)
	}
	if err := w.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	w.stop(t, "rep_1", "not wanted any more")
	if got := w.wait(t, "rep_1"); got.Status.Reason != engine.Stopped || r.finished["rep_1"] != 1 {
		t.Errorf("%+v", got)
	}
	if st, err := r.own.Status(t.Context(), h); err != nil || st.State != engine.Ended {
		t.Errorf("%+v, %v", st, err)
	}
	w.awaitStart(t)
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")

	w.submit(t, compute.Request{ID: "rep_2", Kind: compute.Replica, Label: "a replica", Amount: both})
	<-r.own.Started()
	if _, err := w.await(t, "rep_2", compute.Running); err != nil {
		t.Fatal(err)
	}
	w.restart(t)
	next := &runner{own: enginetest.NewFake()} // knows nothing
	w.RegisterOwner(compute.Replica, next)
	w.Start(t.Context())
	if got := w.wait(t, "rep_2"); got.Status.State != engine.Lost || !strings.Contains(got.Outcome(), "lost") {
		t.Errorf("%+v", got)
	}
	w.submit(t, compute.Request{ID: "att_2", Amount: both})
	w.awaitStart(t)
	if _, err := w.Logs(t.Context(), "rep_2", 0, false); !fault.Is(err, fault.NotFound) {
		t.Errorf("its log: %v", err)
	}
}

// await waits until a workload is in a state.
func (w *world) await(t *testing.T, id compute.WorkloadID, s compute.State) (got compute.Workload, err error) {
	t.Helper()
	for {
		err = w.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			got, err = w.cfg.Store.Workload(ctx, tx, id)
			return err
		})
		if err != nil || got.State == s || t.Context().Err() != nil {
			return got, err
		}
	}
}

// TestForget: an engine keeps the traces of what has ended for a while; those of replicas
// not as long. A pass ends in time, and the next removes what is left.
func TestForget(t *testing.T) {
	compute.SetForgetBatch(t, 1) // all that is old goes in one round, however small a batch is
	now := time.Now()
	var clock, tick atomic.Int64 // tick passes each time that the clock is read
	w := newWorld(t, func(c *compute.Config) {
		c.Retention = 24 * time.Hour
		c.Now = func() time.Time { return now.Add(time.Duration(clock.Add(tick.Load()))) }
	})
	w.RegisterOwner(compute.Replica, w.owner)
	w.Start(t.Context())
	one := resource.Amount{CPU: resource.Cores(1), Memory: resource.GiB}
	w.submit(t, compute.Request{ID: "rep_1", Kind: compute.Replica, Label: "a replica", Amount: one})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_1", Amount: one})
	w.awaitStart(t)
	end := func(id string) {
		w.end(id, enginetest.Exit{})
		w.wait(t, compute.WorkloadID(id))
	}
	end("att_1")
	w.submit(t, compute.Request{ID: "att_2", Amount: one})
	w.awaitStart(t)
	end("rep_1")
	end("att_2")
	for _, c := range []struct {
		after, tick time.Duration
		held        int
	}{{time.Minute, 0, 3}, {time.Hour, 0, 2}, {25 * time.Hour, 11 * time.Minute, 1}, {30 * time.Hour, 0, 0}} {
		clock.Store(int64(c.after))
		tick.Store(int64(c.tick))
		if err := w.Forget(t.Context()); err != nil {
			t.Error(err)
		}
		if held, err := w.engine.List(t.Context()); err != nil || len(held) != c.held {
			t.Errorf("after %s the engine has %v, %v", c.after, held, err)
		}
		tick.Store(0)
	}
	if _, err := w.Logs(t.Context(), "rep_1", 0, false); !fault.Is(err, fault.Gone) || !strings.Contains(err.Error(), "10m") {
		t.Errorf("its log: %v", err)
	}
}
