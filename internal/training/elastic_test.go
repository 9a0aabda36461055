package training_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// goodput is a world under that policy, whose clock the test moves.
func goodput(t *testing.T) (*world, *clock) {
	t.Helper()
	w, e, at := still(t)
	e.uses(engine.Member{})
	w.stop()
	w.ccfg.Now, w.ccfg.Policy, w.cfg.Sizes = at.now, scheduler.Goodput, true
	w.start(t)
	return w, at
}

// saves records that an attempt has saved what it did.
func (w *world) saves(t *testing.T, id training.AttemptID, at time.Time) {
	t.Helper()
	err := w.cfg.DB.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return w.compute.Saved(ctx, tx, compute.WorkloadID(id), at)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAJobGetsTheWorkersThatPay: under goodput a job of which nothing is known begins
// with the least, tries more where there is room, keeps what pays, and goes on with
// fewer for one that waits: each time as another attempt.
func TestAJobGetsTheWorkersThatPay(t *testing.T) {
	w, at := goodput(t)
	ctx := alice(t.Context())
	// What T workers do: 1, 1.9, 3.4 and no more than that.
	rate := map[int]float64{1: 10, 2: 19, 3: 27, 4: 34}
	begin := at.now()
	half := resource.Amount{CPU: resource.CPU(500)}
	spec := training.Spec{Resources: half, Pools: []string{"home"}, Workers: training.Workers{Min: 1, Max: 4}, Batch: 64, Command: []string{"/bin/true"}}
	// would is how many workers another would get.
	would := func(want int) {
		t.Helper()
		if out, err := w.Outlook(ctx, nyc, "train", spec); err != nil || !out.Runs || out.Workers != want {
			t.Errorf("%+v, %v: %d workers are wanted", out, err, want)
		}
	}
	j := w.submit(t, spec)
	attempt := func() training.Attempt {
		t.Helper()
		d, err := w.Describe(ctx, nyc, j.ID)
		if err != nil {
			t.Fatal(err)
		}
		return d.Tries[len(d.Tries)-1]
	}
	// works lets an attempt work for a while, and save now and then.
	works := func(h engine.Handle, workers int, long time.Duration) {
		t.Helper()
		if spec, _ := w.fake.Spec(h); spec.Workers != workers {
			t.Fatalf("%d workers, not %d", spec.Workers, workers)
		}
		w.running(t, j.ID)
		a := attempt()
		for end := at.now().Add(long); at.now().Before(end); {
			at.pass(time.Minute)
			w.runs.mu.Lock()
			steps := int64(rate[workers] * at.now().Sub(a.Started).Seconds())
			w.runs.progress = training.Progress{First: training.Point{Step: 0, At: a.Started}, Last: training.Point{Step: steps, At: at.now()}}
			w.runs.mu.Unlock()
			w.saves(t, a.ID, at.now())
			if err := w.MeasureOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.compute.Wake()
	}
	h := w.started(t)
	would(1) // nothing is known of it
	works(h, 1, 17*time.Minute)
	h = w.started(t)
	would(2) // one is known, and twice as many are tried
	works(h, 2, 17*time.Minute)
	h = w.started(t)
	works(h, 4, 5*time.Minute)

	// A rigid one waits for one core: two workers make room for it, but not at once.
	other := w.submit(t, training.Spec{Resources: resource.Amount{CPU: resource.Cores(1)}, Pools: []string{"home"}})
	works(h, 4, 12*time.Minute)
	rigid, h := w.started(t), w.started(t)
	if spec, _ := w.fake.Spec(rigid); spec.Workers != 1 {
		rigid, h = h, rigid // both had room at once
	}
	works(h, 2, time.Minute)
	w.fake.Finish(rigid, enginetest.Exit{})
	w.ended(t, other.ID)

	d, err := w.Describe(ctx, nyc, j.ID)
	if err != nil || len(d.Tries) != 4 {
		t.Fatalf("%+v, %v", d.Tries, err)
	}
	for i, want := range []string{"2 workers instead of 1 make progress 1.3 times as fast", "4 workers instead of 2 make progress ", string(other.ID) + " needs the capacity of 2 of its workers"} {
		if a := d.Tries[i]; a.Class != training.Resized || !strings.Contains(a.Reason, want) {
			t.Errorf("%d: %s, %s", i, a.Class, a.Reason)
		}
	}
	got := told[compute.WorkloadEvent](t, w, "workload.resized")
	if len(got) != 3 || got[0].Workers != 1 || got[0].Target != 2 || got[0].For != "" || got[2].Workers != 4 || got[2].Target != 2 || got[2].For != compute.WorkloadID(other.Attempt) {
		t.Errorf("%+v", got)
	}
	for i := range got {
		if !strings.HasSuffix(d.Tries[i].Reason, got[i].Reason) || got[i].Reason == "" {
			t.Errorf("%d: %q is not told as %q", i, d.Tries[i].Reason, got[i].Reason)
		}
	}
	if d.Failures != 0 || at.now().Sub(begin) < 50*time.Minute {
		t.Errorf("%+v", d.Job)
	}
}

// TestAResizeToTheSizeThatAJobHas: it goes on as it is, within its new bounds.
func TestAResizeToTheSizeThatAJobHas(t *testing.T) {
	w, at := goodput(t)
	ctx := alice(t.Context())
	rate := map[int]float64{1: 10, 2: 19, 4: 34}
	j := w.submit(t, training.Spec{Resources: resource.Amount{CPU: resource.CPU(500)}, Pools: []string{"home"}, Workers: training.Workers{Min: 1, Max: 4}, Batch: 64})
	attempt := func() training.Attempt {
		t.Helper()
		d, err := w.Describe(ctx, nyc, j.ID)
		if err != nil {
			t.Fatal(err)
		}
		return d.Tries[len(d.Tries)-1]
	}
	works := func(long time.Duration) {
		t.Helper()
		w.running(t, j.ID)
		a := attempt()
		for end := at.now().Add(long); at.now().Before(end); {
			at.pass(time.Minute)
			w.runs.mu.Lock()
			steps := int64(rate[a.Workers] * at.now().Sub(a.Started).Seconds())
			w.runs.progress = training.Progress{First: training.Point{Step: 0, At: a.Started}, Last: training.Point{Step: steps, At: at.now()}}
			w.runs.mu.Unlock()
			w.saves(t, a.ID, at.now())
			if err := w.MeasureOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.compute.RunOnce(ctx); err != nil {
			t.Fatal(err)
		}
	}
	w.started(t)
	works(17 * time.Minute)
	w.started(t)
	works(time.Minute)
	if a := attempt(); a.Workers != 2 || a.Number != 2 {
		t.Fatalf("%+v", a)
	}

	// With two it stays, although four would pay.
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(2)); err != nil {
		t.Fatal(err)
	}
	works(time.Hour)
	if a := attempt(); a.Number != 2 || a.State != training.Executing {
		t.Fatalf("it was resized again: %+v", a)
	}
	got, err := w.compute.Workload(ctx, compute.WorkloadID(attempt().ID))
	if err != nil || got.Workers != 2 || got.MaxWorkers != 2 || got.Placed != 2 || got.Stop != "" {
		t.Fatalf("%+v, %v", got, err)
	}

	// With four it stays, and how fast it is with fewer is found for the new least.
	if _, err := w.Resize(ctx, nyc, j.ID, training.Workers{Min: 1, Max: 4}); err != nil {
		t.Fatal(err)
	}
	for w.started(t); ; w.started(t) { // two on the way, where nothing was learnt of them
		w.running(t, j.ID)
		if attempt().Workers == 4 {
			break
		}
		works(17 * time.Minute)
	}
	works(17 * time.Minute)
	if _, err := w.Resize(ctx, nyc, j.ID, training.Workers{Min: 2, Max: 4}); err != nil {
		t.Fatal(err)
	}
	works(20 * time.Minute)
	a := attempt()
	if a.Workers != 4 || a.State != training.Executing {
		t.Fatalf("%+v", a)
	}
	// A rigid one waits for one core. Half of the workers do 0.54 of what four do.
	w.submit(t, training.Spec{Resources: resource.Amount{CPU: resource.Cores(1)}, Pools: []string{"home"}})
	works(time.Minute)
	w.started(t)
	w.started(t)
	d, err := w.Describe(ctx, nyc, j.ID)
	if err != nil || !strings.Contains(d.Tries[a.Number-1].Reason, "with 2 it runs at 0.5") {
		t.Fatalf("%+v, %v", d.Tries, err)
	}
}
