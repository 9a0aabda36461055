package compute_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/store"
)

func cores(n int64) resource.Amount { return resource.Amount{CPU: resource.Cores(n)} }

func (w *world) queue(t *testing.T, name string, spec compute.QueueSpec) {
	t.Helper()
	if _, change, err := w.ApplyQueue(t.Context(), name, spec); err != nil || change != project.Created {
		t.Fatalf("%s %v", change, err)
	}
}

func TestApplyQueue(t *testing.T) {
	w := newWorld(t)
	spec := compute.QueueSpec{Quota: resource.LimitOf(cores(2)), Borrow: &resource.Amount{}, Projects: []project.Name{"p"}}
	if q, change, err := w.PlanQueue(t.Context(), "bank", spec); err != nil || change != project.Created || q.Revision != 1 {
		t.Fatalf("%+v %s %v", q, change, err)
	}
	if _, err := w.Queue(t.Context(), "bank"); !fault.Is(err, fault.NotFound) {
		t.Fatalf("a plan made it: %v", err)
	}
	w.queue(t, "bank", spec)
	w.queue(t, "risk", compute.QueueSpec{Parent: "bank"})
	if _, change, err := w.ApplyQueue(t.Context(), "bank", spec); err != nil || change != project.Unchanged {
		t.Fatalf("%s %v", change, err)
	}
	spec.Borrow = nil
	if q, change, err := w.ApplyQueue(t.Context(), "bank", spec); err != nil || change != project.Updated || q.Revision != 2 {
		t.Fatalf("%+v %s %v", q, change, err)
	}
	no := false
	for want, refused := range map[string]compute.QueueSpec{
		"parent: cycle of queues: bank below risk below bank": {Parent: "risk"},
		"resources must not be negative":                      {Quota: resource.LimitOf(resource.Amount{CPU: -1})},
		"order: unknown order \"random\"":                     {Order: "random"},
		"weight: must be between 0 and":                       {Weight: -1},
		"idle_end: set idle_reclaim as well":                  {IdleEnd: true},
		"idle_reclaim -1ns is not between":                    {IdleReclaim: -1},
		"half_life and min_runtime":                           {HalfLife: -1, Preempt: &no},
	} {
		if _, _, err := w.ApplyQueue(t.Context(), "bank", refused); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q, not %q", err, want)
		}
	}
	if _, _, err := w.ApplyQueue(t.Context(), "bank", compute.QueueSpec{Parent: "nobody"}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	for name, want := range map[string]fault.Kind{"bank": fault.Invalid, "nobody": fault.Invalid} {
		if err := w.CheckQueue(t.Context(), "p", name); !fault.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.CheckQueue(t.Context(), "p", "risk"); err != nil {
		t.Error(err)
	}
	if err := w.DeleteQueue(t.Context(), "bank"); !fault.Is(err, fault.Conflict) {
		t.Errorf("a queue with queues below it: %v", err)
	}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Queue: "risk"})
	if err := w.DeleteQueue(t.Context(), "risk"); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "job_1") {
		t.Errorf("a queue with works in it: %v", err)
	}
	if _, _, err := w.ApplyQueue(t.Context(), "below", compute.QueueSpec{Parent: "risk"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a queue below one with works in it: %v", err)
	}
	w.queue(t, "fraud", compute.QueueSpec{Projects: []project.Name{"p"}})
	if err := w.CheckQueue(t.Context(), "q", "fraud"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("not for that project: %v", err)
	}
	if err := w.DeleteQueue(t.Context(), "fraud"); err != nil {
		t.Error(err)
	}
	if err := w.DeleteQueue(t.Context(), "fraud"); !fault.Is(err, fault.NotFound) {
		t.Errorf("twice: %v", err)
	}
}

// TestUnknownAccelerators: a name that no pool has is warned of, with the one that
// is meant; a work that asks for it cannot run as things are, and one that waits for
// room can.
func TestUnknownAccelerators(t *testing.T) {
	w := newWorld(t)
	w.price(t, compute.PoolSpec{}) // 2 cores, 2 "gpu"
	gpu := func(name string) compute.PoolSpec {
		return compute.PoolSpec{Nodes: []compute.Node{{Name: "n", CPU: resource.Cores(1), Memory: resource.GiB, Accelerators: map[string]int64{name: 1}}}}
	}
	if _, _, err := w.ApplyPool(t.Context(), "p9", gpu("nvidia.com/mig-1g.5gb")); err != nil {
		t.Fatal(err)
	}
	asks := func(names ...string) (out resource.Amount) {
		out.Accelerators = map[string]int64{}
		for _, name := range names {
			out.Accelerators[name] = 1
		}
		return out
	}
	limits := compute.QueueSpec{Quota: resource.LimitOf(asks("gpu")), PerUser: resource.LimitOf(asks("gpus")), Lend: &resource.Amount{Accelerators: map[string]int64{"a100": 1}}}
	for want, got := range map[string][]string{
		`no pool has the accelerator "a100"|no pool has the accelerator "gpus"; did you mean "gpu"?`: w.WarnUnknownAccelerators(t.Context(), limits.Amounts()...),
		"": w.WarnUnknownAccelerators(t.Context(), asks("gpu", "nvidia.com/mig-1g.5gb"), cores(1)),
		`no other pool has the accelerator "nvdia.com/gpu"; did you mean "nvidia.com/gpu"?`: w.WarnUnknownPoolAccelerators(t.Context(), "new", gpu("nvdia.com/gpu")),
	} {
		if text := strings.Join(got, "|"); text != want {
			t.Errorf("%q, want %q", text, want)
		}
	}
	for _, first := range []string{"nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.org/tpu", "gpu"} {
		if got := w.WarnUnknownPoolAccelerators(t.Context(), "new", gpu(first)); len(got) > 0 {
			t.Errorf("the first pool with %s: %q", first, got)
		}
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Amount: cores(2)})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Amount: cores(2)})
	odd := asks("gpus")
	odd.CPU = resource.Cores(1)
	w.submit(t, compute.Request{ID: "att_3", Amount: odd})
	for id, want := range map[compute.WorkloadID]bool{"att_1": true, "att_2": true, "att_3": false} {
		why, err := w.Why(t.Context(), id)
		if _, possible := w.Waits(id); err != nil || possible != want {
			t.Errorf("%s is possible: %v, %v", id, possible, err)
		}
		if id == "att_3" && !slices.Equal(why, []string{"no pool has gpus; did you mean gpu?"}) {
			t.Errorf("%q", why)
		}
	}
}

// TestQueueHolds: a work waits for the quota of its queue, and starts when that is
// larger.
func TestQueueHolds(t *testing.T) {
	w := newWorld(t)
	w.queue(t, "bank", compute.QueueSpec{Quota: resource.LimitOf(cores(1))})
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Queue: "bank"})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Queue: "bank"})
	why, err := w.Why(t.Context(), "att_2")
	if want := []string{"the quota of queue bank is used up: 1 cpu wanted, 0 left"}; err != nil || !slices.Equal(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
	q, err := w.Queue(t.Context(), "bank")
	if err != nil || q.Used.CPU != resource.Cores(1) || q.Running != 1 || q.Waiting != 1 || q.First != "job_2" {
		t.Fatalf("%+v, %v", q, err)
	}
	if _, _, err := w.ApplyQueue(t.Context(), "bank", compute.QueueSpec{Quota: resource.LimitOf(cores(2))}); err != nil {
		t.Fatal(err)
	}
	if id := w.awaitStart(t); id != "att_2" {
		t.Fatalf("started %s", id)
	}
	w.end("att_1", enginetest.Exit{})
	w.end("att_2", enginetest.Exit{})
	w.wait(t, "att_2")
}

// TestPreempt: one of lower priority is asked to leave, says that it was
// preempted, and its place goes to the other.
func TestPreempt(t *testing.T) {
	w := newWorld(t)
	w.queue(t, "bank", compute.QueueSpec{})
	w.Start(t.Context())
	all := cores(2)
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Queue: "bank", Amount: all, Preemptible: true})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Queue: "bank", Amount: all, Priority: 5})
	got := w.wait(t, "att_1")
	if got.Status.Reason != engine.Preempted || got.Outcome() != "preempted by its engine: job_2 has priority 5, this workload 0" {
		t.Fatalf("ended as %+v: %s", got.Status, got.Outcome())
	}
	if id := w.awaitStart(t); id != "att_2" {
		t.Fatalf("started %s", id)
	}
	if n := w.engine.Launched("att_1"); n != 1 {
		t.Fatalf("started %d times", n)
	}
	w.end("att_2", enginetest.Exit{})
	w.wait(t, "att_2")
}

// TestDefaultQueue: a job that names no queue is in that of its project, or of all,
// and may be preempted if its queue says so.
func TestDefaultQueue(t *testing.T) {
	w := newWorld(t)
	w.RegisterOwner(compute.Build, w.owner)
	yes := true
	w.queue(t, "all", compute.QueueSpec{Default: true, Preemptible: &yes})
	w.queue(t, "fraud", compute.QueueSpec{Default: true, Projects: []project.Name{"q", "r"}})
	for name, spec := range map[string]compute.QueueSpec{
		"queue fraud is already the default of project r":        {Default: true, Projects: []project.Name{"r"}},
		"queue all is already the default of every project":      {Default: true},
		"queue all is a default, so it cannot have child queues": {Parent: "all"},
	} {
		if _, _, err := w.ApplyQueue(t.Context(), "other", spec); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, not %q", err, name)
		}
	}
	in := func(r compute.Request) compute.Workload {
		t.Helper()
		w.submit(t, r)
		got, err := w.Workload(t.Context(), r.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := in(compute.Request{ID: "att_1", Kind: compute.JobAttempt, Project: "p"}); got.Queue != "all" || !got.Preemptible {
		t.Errorf("%q, preemptible %t", got.Queue, got.Preemptible)
	}
	if got := in(compute.Request{ID: "att_2", Kind: compute.JobAttempt, Project: "q"}); got.Queue != "fraud" || got.Preemptible {
		t.Errorf("%q, preemptible %t", got.Queue, got.Preemptible)
	}
	if got := in(compute.Request{ID: "bld_1", Kind: compute.Build, Project: "q"}); got.Queue != "" {
		t.Errorf("a build is in queue %q", got.Queue)
	}
	if _, change, err := w.ApplyQueue(t.Context(), "fraud", compute.QueueSpec{}); err != nil || change != project.Updated {
		t.Fatal(change, err)
	}
	if got := in(compute.Request{ID: "att_3", Kind: compute.JobAttempt, Project: "q"}); got.Queue != "all" {
		t.Errorf("in %q after its default is none", got.Queue)
	}
}

// TestSaved: what was saved is not lost with a workload that leaves, also for the
// process after this one.
func TestSaved(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	w.awaitStart(t)
	w.runs(t, "att_1")
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	for _, when := range []time.Time{at, at.Add(-time.Minute)} {
		err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return w.Saved(ctx, tx, "att_1", when) })
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := w.Workload(t.Context(), "att_1")
	if err != nil || !got.SavedAt.Equal(at) {
		t.Fatalf("saved at %s, not %s, %v", got.SavedAt, at, err)
	}
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
}

// TestReadAnew: while the world is to be read anew, which where processes share a database
// is every two seconds, readers are told what the last cycle found.
func TestReadAnew(t *testing.T) {
	w := newWorld(t)
	w.queue(t, "bank", compute.QueueSpec{Quota: resource.LimitOf(cores(1))})
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Queue: "bank"})
	odd := compute.Request{ID: "att_2", Kind: compute.JobAttempt, Project: "p", Label: "job_2", Queue: "bank", Amount: cores(3)}
	w.submit(t, odd)
	if _, err := w.DryRun(t.Context(), odd); !fault.Is(err, fault.Unavailable) {
		t.Errorf("before the first cycle: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		anew func()
		why  string
	}{
		{func() {}, "has no node large enough"},
		{w.Anew, "about to be scheduled"},
		{func() {
			if _, err := w.RunOnce(over); err == nil {
				t.Error("a cycle that cannot read comes to its end")
			}
		}, "about to be scheduled"},
	} {
		if _, err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.anew()
		if why, err := w.Why(t.Context(), "att_2"); err != nil || !strings.Contains(strings.Join(why, "\n"), c.why) {
			t.Errorf("why: %q, %v", why, err)
		}
		q, err := w.Queue(t.Context(), "bank")
		if err != nil || q.Used.CPU != resource.Cores(1) || q.Running != 1 || q.Waiting != 1 {
			t.Errorf("%+v, %v", q, err)
		}
		if of, possible := w.Waits("att_2"); len(of) == 0 || possible {
			t.Errorf("it waits for %v, possible: %v", of, possible)
		}
		if got, err := w.DryRun(t.Context(), odd); err != nil || got.Runs || got.Possible {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// TestPastUse: what a queue used before counts for the process after that one.
func TestPastUse(t *testing.T) {
	w := newWorld(t)
	w.queue(t, "bank", compute.QueueSpec{HalfLife: compute.Duration(time.Hour)})
	past := map[string]scheduler.Used{"bank": {Until: time.Now(), Amount: map[string]float64{"cpu": 1000}}}
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error { return computesql.Store{}.SavePast(ctx, tx, past) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Half of a core of two, that it has nothing of now.
	if q, err := w.Queue(t.Context(), "bank"); err != nil || math.Abs(q.Share-0.25) > 0.001 {
		t.Fatalf("share %g, %v", q.Share, err)
	}
}
