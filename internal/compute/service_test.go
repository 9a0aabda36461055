package compute_test

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

func TestRunsToTheEnd(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	if id := w.awaitStart(t); id != "att_1" {
		t.Fatalf("started %s", id)
	}
	w.engine.Print(w.handles["att_1"], "hello\n")
	w.end("att_1", enginetest.Exit{Code: 3})
	got := w.wait(t, "att_1")
	if got.State != compute.Ended || got.Status.ExitCode != 3 || got.Outcome() != "exited with code 3" || got.Pool != compute.Home {
		t.Fatalf("ended as %+v", got)
	}
	w.owner.mu.Lock()
	changed := strings.Join(w.owner.changed, ", ")
	w.owner.mu.Unlock()
	if want := "att_1 placed, att_1 running, att_1 ended"; changed != want {
		t.Fatalf("the owner saw %q, want %q", changed, want)
	}
	usage, err := w.Usage(t.Context(), "p", time.Time{}, 10)
	if err != nil || len(usage) != 1 || usage[0].CPU != 2*time.Second || usage[0].PeakRSS != resource.GiB {
		t.Fatalf("usage %+v, %v", usage, err)
	}
	r, err := w.Logs(t.Context(), "att_1", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(r); string(b) != "hello\n" {
		t.Fatalf("logs %q", b)
	}
	events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	if got, want := strings.Join(kinds, " "), "pool.applied workload.placed workload.ended"; got != want {
		t.Fatalf("events %q, want %q", got, want)
	}
}

func TestWithoutOwnerItsOwnSpecRuns(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "qry_1", Kind: compute.Query, Timeout: time.Minute, Spec: &engine.Spec{Command: []string{"sql"}}})
	w.awaitStart(t)
	spec, _ := w.engine.Spec(w.handles["qry_1"])
	if spec.Command[0] != "sql" || spec.ID != "qry_1" || spec.Project != "p" || spec.Isolation != "sandbox" || spec.Timeout != time.Minute || spec.Resources.CPU != resource.Cores(1) {
		t.Fatalf("spec %+v", spec)
	}
	w.end("qry_1", enginetest.Exit{})
	w.wait(t, "qry_1")
}

func TestNothingIsPlacedTwice(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	big := resource.Amount{CPU: resource.Cores(2), Memory: resource.GiB}
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Amount: big})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Amount: big})
	why, err := w.Why(t.Context(), "att_2")
	if want := []string{"2 cpu wanted, 0 free on home; held by job_1"}; err != nil || !slices.Equal(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
	if n := len(w.engine.Started()); n != 0 {
		t.Fatalf("%d more were started", n)
	}
	w.end("att_1", enginetest.Exit{})
	if id := w.awaitStart(t); id != "att_2" {
		t.Fatalf("started %s", id)
	}
	pools, err := w.ListPools(t.Context())
	if err != nil || pools[0].Running != 1 || pools[0].Used.CPU != big.CPU || pools[0].Capacity.CPU != big.CPU {
		t.Fatalf("pools %+v, %v", pools, err)
	}
	// A submission of what exists already is no second workload.
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Amount: big})
	w.end("att_2", enginetest.Exit{})
	w.wait(t, "att_2")
	if n := w.engine.Launched("att_2"); n != 1 {
		t.Fatalf("started %d times", n)
	}
}

func TestCancel(t *testing.T) {
	w := newWorld(t)
	preparing := make(chan struct{}, 1)
	w.owner.prepare = func(ctx context.Context, wl compute.Workload) (engine.Spec, error) {
		if wl.Label == "slow" {
			preparing <- struct{}{}
			<-ctx.Done()
			return engine.Spec{}, ctx.Err()
		}
		return engine.Spec{Command: []string{"x"}}, nil
	}
	w.submit(t, compute.Request{ID: "att_queued"})
	w.stop(t, "att_queued", "cancelled by alice")
	w.Start(t.Context())
	if got := w.wait(t, "att_queued"); got.Outcome() != "cancelled by alice" || got.Handle != "" {
		t.Fatalf("queued: %+v", got)
	}

	w.submit(t, compute.Request{ID: "att_running"})
	w.awaitStart(t)
	w.engine.quiet.Store(true) // the first Stop fails
	w.stop(t, "att_running", "cancelled by bob")
	if got := w.wait(t, "att_running"); got.Outcome() != "cancelled by bob" || got.Status.Reason != engine.Stopped {
		t.Fatalf("running: %+v", got)
	}

	w.submit(t, compute.Request{ID: "att_placed", Label: "slow"})
	<-preparing
	w.stop(t, "att_placed", "cancelled by carol")
	if got := w.wait(t, "att_placed"); got.Outcome() != "cancelled by carol" || w.engine.Launched("att_placed") != 0 {
		t.Fatalf("placed: %+v", got)
	}
	// A second cancellation of what has ended is no change.
	w.stop(t, "att_placed", "again")
}

func TestPreparationThatFails(t *testing.T) {
	w := newWorld(t)
	w.owner.prepare = func(context.Context, compute.Workload) (engine.Spec, error) {
		return engine.Spec{}, fault.New(fault.Gone, "the data is gone").WithHint("Import it again.")
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	got := w.wait(t, "att_1")
	if got.Outcome() != "not started: the data is gone" || got.Failure != "gone" || got.Hint != "Import it again." {
		t.Fatalf("%+v", got)
	}
}

func TestEngineThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	w := newWorld(t)
	w.engine.FailNext(fault.New(fault.Unavailable, "away"))
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	w.awaitStart(t)
	w.engine.FailNext(errors.New("broken"))
	w.submit(t, compute.Request{ID: "att_2"})
	if got := w.wait(t, "att_2"); got.Outcome() != "not started: broken" {
		t.Fatalf("%+v", got)
	}
}

func TestEngineThatNeverAnswers(t *testing.T) {
	w := newWorld(t, func(c *compute.Config) { c.PrepareTimeout = time.Nanosecond })
	w.engine.FailNext(fault.New(fault.Unavailable, "away"))
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	if got := w.wait(t, "att_1"); !strings.HasPrefix(got.Outcome(), "not started: away") {
		t.Fatalf("%+v", got)
	}
}

func TestFinishIsCalledUntilItSucceeds(t *testing.T) {
	w := newWorld(t)
	var why []string
	w.owner.finish = func(wl compute.Workload) error {
		if w.owner.finished[wl.ID] < 2 {
			return errors.New("not yet")
		}
		why, _ = w.Why(t.Context(), wl.ID)
		return nil
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1"})
	w.awaitStart(t)
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	if n := w.owner.finished["att_1"]; n != 2 {
		t.Fatalf("finished %d times", n)
	}
	if len(why) != 2 || !strings.Contains(why[1], "not yet; retried at") {
		t.Errorf("why, meanwhile: %q", why)
	}
}

func TestRestartFindsRunningAgain(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	for _, id := range []compute.WorkloadID{"att_ends", "att_lost"} {
		w.submit(t, compute.Request{ID: id})
		w.awaitStart(t)
		if _, err := w.Logs(t.Context(), id, 0, true); err != nil { // returns once it runs
			t.Fatal(err)
		}
	}
	w.Stop()
	w.end("att_ends", enginetest.Exit{Code: 7})
	w.engine.Lose(w.handles["att_lost"])
	w.restart(t)
	w.Start(t.Context())
	if got := w.wait(t, "att_ends"); got.Status.ExitCode != 7 {
		t.Fatalf("%+v", got)
	}
	if got := w.wait(t, "att_lost"); got.Status.State != engine.Lost || !strings.HasPrefix(got.Outcome(), "lost") {
		t.Fatalf("%+v", got)
	}
	if w.engine.Launched("att_ends") != 1 {
		t.Fatal("started a second time")
	}
}

// TestKilledBetweenStartAndRecord has the engine run a workload whose handle
// was never recorded, because the process was killed in between.
func TestKilledBetweenStartAndRecord(t *testing.T) {
	w := newWorld(t)
	w.submit(t, compute.Request{ID: "att_1"})
	w.submit(t, compute.Request{ID: "att_2"})
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		for _, id := range []string{"att_1", "att_2"} {
			wl, err := w.cfg.Store.Workload(ctx, tx, compute.WorkloadID(id))
			if err != nil {
				return err
			}
			wl.State, wl.Pool, wl.Placed, wl.Nodes = compute.Placed, compute.Home, 1, []string{"local"}
			if id == "att_2" {
				wl.Stop = "cancelled"
			}
			if err := w.cfg.Store.UpdateWorkload(ctx, tx, wl); err != nil {
				return err
			}
			if _, err := w.engine.Start(ctx, engine.Spec{ID: id, Command: []string{"x"}}); err != nil {
				return err
			}
		}
		_, err := w.engine.Start(ctx, engine.Spec{ID: "att_unknown", Command: []string{"x"}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.awaitStart(t)
	}
	w.Start(t.Context())
	// Nobody wants the one; the other was cancelled before its handle was known.
	for _, id := range []string{"att_unknown", "att_2"} {
		st, err := w.engine.Fake.Wait(t.Context(), w.handles[id])
		if err == nil && st.Reason != engine.Stopped || err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatalf("%s: %+v, %v", id, st, err)
		}
	}
	w.end("att_1", enginetest.Exit{})
	if got := w.wait(t, "att_1"); got.Status.Reason != engine.Exited || w.engine.Launched("att_1") != 1 {
		t.Fatalf("%+v, started %d times", got, w.engine.Launched("att_1"))
	}
}

func TestResidency(t *testing.T) {
	w := newWorld(t, withFar)
	if _, _, err := w.ApplyPool(t.Context(), "gpu-de", compute.PoolSpec{Engine: "far", Zone: "DE", Isolation: "sandbox"}); err != nil {
		t.Fatal(err)
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	w.awaitStart(t)
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || !slices.Contains(why, "pool gpu-de is in DE, outside the data's residency home") {
		t.Fatalf("why %q, %v", why, err)
	}
	w.submit(t, compute.Request{ID: "att_2", Residency: residency.Of("AE")})
	why, err = w.Why(t.Context(), "att_2")
	want := []string{"pool gpu-de is in DE, outside the data's residency AE", "pool home is in home, outside the data's residency AE"}
	if err != nil || !slices.Equal(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
}

// TestTheDoorChecksAgain places a workload where its data may not be, as a
// pool that moved between plan and start would.
func TestTheDoorChecksAgain(t *testing.T) {
	w := newWorld(t, withFar)
	if _, _, err := w.ApplyPool(t.Context(), "gpu-de", compute.PoolSpec{Engine: "far", Zone: "DE"}); err != nil {
		t.Fatal(err)
	}
	w.submit(t, compute.Request{ID: "att_1"})
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		wl, err := w.cfg.Store.Workload(ctx, tx, "att_1")
		if err != nil {
			return err
		}
		wl.State, wl.Pool, wl.Placed, wl.Nodes = compute.Placed, "gpu-de", 1, []string{"local"}
		return w.cfg.Store.UpdateWorkload(ctx, tx, wl)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Start(t.Context())
	w.awaitStart(t)
	w.end("att_1", enginetest.Exit{})
	if got := w.wait(t, "att_1"); got.Pool != compute.Home {
		t.Fatalf("ran on %s", got.Pool)
	}
	if e := w.journal.entries; len(e) != 1 || e[0].Outcome != audit.Refused || !strings.Contains(e[0].Reason, "pool gpu-de is in DE") {
		t.Fatalf("journal %+v", e)
	}
}

func TestDenialsAreJournalled(t *testing.T) {
	w := newWorld(t)
	open := engine.Denial{Kind: "open", Target: "/data/keys/master", PID: 9}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1"})
	w.awaitStart(t)
	for _, d := range []engine.Denial{open, open, {Kind: "connect", Target: "10.0.0.1:22"}} {
		w.engine.Deny(w.handles["att_1"], d)
	}
	w.end("att_1", enginetest.Exit{})
	got := w.wait(t, "att_1")
	if got.Denials != 2 || len(w.journal.entries) != 2 {
		t.Fatalf("%d denials, journal %+v", got.Denials, w.journal.entries)
	}
	e := w.journal.entries[0]
	if e.Actor.ID != "att_1" || e.Action != "workload.open" || e.Object != open.Target || e.Outcome != audit.Refused || e.Project != "p" {
		t.Fatalf("entry %+v", e)
	}
}

func TestDelayedStart(t *testing.T) {
	w := newWorld(t)
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", NotBefore: time.Now().Add(time.Hour)})
	why, err := w.Why(t.Context(), "att_1")
	if err != nil || !strings.HasPrefix(why[0], "retried after") {
		t.Fatalf("why %q, %v", why, err)
	}
	w.submit(t, compute.Request{ID: "att_2", NotBefore: time.Now().Add(150 * time.Millisecond)})
	if id := w.awaitStart(t); id != "att_2" {
		t.Errorf("%s started", id)
	}
}

func TestApplyPool(t *testing.T) {
	w := newWorld(t, withFar)
	apply := func(spec compute.PoolSpec) (project.Change, error) {
		_, c, err := w.ApplyPool(t.Context(), "x", spec)
		return c, err
	}
	spec := compute.PoolSpec{Engine: "far", Zone: "DE", PricePerHour: 0.5}
	plan := func(want project.Change) {
		t.Helper()
		before, _ := w.ListPools(t.Context())
		p, c, err := w.PlanPool(t.Context(), "x", spec)
		if err != nil || c != want || p.Zone != spec.Zone || p.PricePerHour != spec.PricePerHour {
			t.Errorf("planned: %s, %+v, %v; not %s", c, p, err, want)
		}
		if after, err := w.ListPools(t.Context()); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("a plan changed the pools to %+v, %v", after, err)
		}
	}
	for _, want := range []project.Change{project.Created, project.Unchanged} {
		plan(want)
		if c, err := apply(spec); err != nil || c != want {
			t.Fatalf("%s, %v", c, err)
		}
	}
	spec.PricePerHour = 1
	plan(project.Updated)
	if c, err := apply(spec); err != nil || c != project.Updated {
		t.Fatalf("%s, %v", c, err)
	}
	for name, bad := range map[string]compute.PoolSpec{
		"engine":    {Engine: "slurm"},
		"isolation": {Isolation: "container"},
		"unknown":   {Isolation: "very"},
		"mode":      {Mode: "own"},
		"price":     {PricePerHour: -1},
		"zone":      {Zone: "../x"},
		"elsewhere": {Zone: "DE"},
		"node":      {Nodes: []compute.Node{{Name: "a"}}},
		"twice":     {Nodes: []compute.Node{{Name: "a", CPU: 1, Memory: 1}, {Name: "a", CPU: 1, Memory: 1}}},
	} {
		if _, err := apply(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := w.PlanPool(t.Context(), "x", bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s, planned: %v", name, err)
		}
	}
	if _, _, err := w.ApplyPool(t.Context(), "../x", spec); !fault.Is(err, fault.Invalid) {
		t.Errorf("name: %v", err)
	}
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Residency: residency.Of("DE")})
	w.awaitStart(t)
	spec.Zone = "AE"
	if _, err := apply(spec); !fault.Is(err, fault.Conflict) {
		t.Errorf("moved under a running workload: %v", err)
	}
	if _, _, err := w.PlanPool(t.Context(), "x", spec); !fault.Is(err, fault.Conflict) {
		t.Errorf("planned to be moved under a running workload: %v", err)
	}
	if _, err := w.Pool(t.Context(), "nowhere"); !fault.Is(err, fault.NotFound) {
		t.Errorf("pool: %v", err)
	}
}

// A world that is forgotten in the middle of a cycle would be one without pools.
func TestForgettingTheWorldWaitsForTheCycle(t *testing.T) {
	forgotten := make(chan struct{})
	var forget func()
	w := newWorld(t, func(c *compute.Config) {
		c.Quotas = func(context.Context, *store.Tx) (map[string]resource.Limit, error) {
			if forget != nil {
				go forget()
				forget = nil
				select {
				case <-forgotten:
				case <-time.After(100 * time.Millisecond):
				}
			}
			return nil, nil
		}
	})
	if _, err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	forget = func() { w.Anew(); close(forgotten) }
	w.submit(t, compute.Request{ID: "att_1"})
	if _, err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-forgotten
	if got, err := w.Workload(t.Context(), "att_1"); err != nil || got.State == compute.Queued {
		t.Fatalf("it is %s, %v", got.State, err)
	}
}

func TestPoolsNeedPermission(t *testing.T) {
	w := newWorld(t)
	w.cfg.Authorizer = allowNone{}
	s := newServices(w.cfg)
	_, err1 := s.ListPools(t.Context())
	_, _, err2 := s.ApplyPool(t.Context(), "x", compute.PoolSpec{})
	_, err3 := s.Usage(t.Context(), "p", time.Time{}, 1)
	_, err4 := s.Pool(t.Context(), "home")
	for i, err := range []error{err1, err2, err3, err4} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestTransitions holds the diagram in the comment of State against the table.
func TestTransitions(t *testing.T) {
	src, err := os.ReadFile("workload.go")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[[2]compute.State]bool{}
	for _, m := range regexp.MustCompile(`//\s+(\w+) --> (\w+)`).FindAllStringSubmatch(string(src), -1) {
		drawn[[2]compute.State{compute.State(m[1]), compute.State(m[2])}] = true
	}
	states := []compute.State{compute.Queued, compute.Placed, compute.Running, compute.Ended}
	for _, a := range states {
		for _, b := range states {
			if a.CanBecome(b) != drawn[[2]compute.State{a, b}] {
				t.Errorf("%s to %s: table %t, diagram %t", a, b, a.CanBecome(b), drawn[[2]compute.State{a, b}])
			}
		}
	}
}

func TestOverdueIsStopped(t *testing.T) {
	w := newWorld(t)
	w.SetOverdue(0)
	w.engine.tardy.Store(true)
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Timeout: time.Millisecond, Grace: time.Millisecond})
	if got := w.wait(t, "att_1"); got.Status.Reason != engine.TimedOut || got.Outcome() != "stopped after its time-out of 1ms" {
		t.Fatalf("%+v", got)
	}
}

// TestWhatWasToldIsForgotten: what owners tell of a workload while it runs goes with
// it, also when the cycle that would have seen its end reads the world anew.
func TestWhatWasToldIsForgotten(t *testing.T) {
	w := newWorld(t)
	for _, id := range []compute.WorkloadID{"att_1", "att_2"} {
		w.submit(t, compute.Request{ID: id})
	}
	if _, err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []compute.WorkloadID{"att_1", "att_2"} {
		w.awaitStart(t)
		w.Idle(id, time.Now())
		w.Pace(id, 1, []float64{1, 2}, 0)
	}
	w.end("att_1", enginetest.Exit{})
	w.wait(t, "att_1")
	w.Anew()
	if _, err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.Told(); n != 2 { // of the one that runs
		t.Errorf("%d are kept", n)
	}
	w.end("att_2", enginetest.Exit{})
	w.wait(t, "att_2")
}
