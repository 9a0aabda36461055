package sweep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

const demo = "demo"

// world is a service on a real database, with jobs that run as the test says.
type world struct {
	testing.TB
	*sweep.Service
	cfg  sweep.Config
	jobs *jobs
	time time.Time
}

func newWorld(tb testing.TB, db *store.DB) *world {
	tb.Helper()
	w := &world{TB: tb, jobs: &jobs{of: map[training.JobID]*training.Job{}, runs: map[training.JobID][]string{}, points: map[string]map[string][]sweep.Point{}}, time: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	w.cfg = sweep.Config{
		DB: db, Store: tuningsql.Sweeps{}, Studies: tuning.Studies{Store: tuningsql.Store{}, Now: w.now},
		Authorizer: &w.jobs.rights, Origins: &w.jobs.rights, Jobs: w.jobs, Runs: w.jobs, Costs: w.jobs, Now: w.now,
	}
	w.jobs.now = w.now
	w.restart()
	return w
}

func (w *world) now() time.Time { return w.time }

// restart is a new process.
func (w *world) restart() { w.Service = sweep.New(w.cfg) }

func (w *world) alice() context.Context {
	return identity.With(w.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice"})
}

// round is a round long after the last one.
func (w *world) round() {
	w.Helper()
	w.time = w.time.Add(10 * time.Second)
	if err := w.RunOnce(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) apply(name string, spec sweep.Spec) sweep.Sweep {
	w.Helper()
	s, _, err := w.Apply(w.alice(), demo, name, spec)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) one(name string) sweep.Summary {
	w.Helper()
	s, err := w.One(w.alice(), demo, name)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) trials(name string) []sweep.Shown {
	w.Helper()
	all, _, err := w.Trials(w.alice(), demo, name, 0, 1000, true)
	if err != nil {
		w.Fatal(err)
	}
	return all
}

// rights is what people may do.
type rights struct{ refuse policy.Action }

func (r *rights) Allow(_ context.Context, action policy.Action, _ policy.Object) error {
	if action == r.refuse {
		return fault.New(fault.PermissionDenied, "%s is not allowed", action)
	}
	return nil
}

// Admit is asked for jobs, whose label is internal.
func (r *rights) Admit(_ context.Context, _ project.Name, what string, _ residency.Label, classification string) error {
	if project.Classification(classification).Journalled() {
		return fault.New(fault.PermissionDenied, "%s is %s", what, classification)
	}
	return nil
}

// jobs are training, tracking and metering.
type jobs struct {
	rights  rights
	now     func() time.Time
	order   []training.JobID
	of      map[training.JobID]*training.Job
	points  map[string]map[string][]sweep.Point // by run and metric
	refuse  func() error                        // of submissions
	read    int                                 // points
	price   float64                             // of a job
	asked   int                                 // of how many jobs the price was
	free    []string                            // pools
	plans   int
	runs    map[training.JobID][]string // of attempts
	invalid error                       // of plans
}

func (j *jobs) CheckSource(context.Context, project.Name, string) error { return nil }

func (j *jobs) Plan(_ context.Context, p project.Name, name string, spec training.Spec) (training.Job, project.Change, error) {
	j.plans++
	inputs := []training.Input{}
	for n := range spec.Data {
		inputs = append(inputs, training.Input{Name: n, Ref: "dataset weather@3"})
	}
	return training.Job{Project: p, Name: name, Spec: spec, Inputs: inputs, Classification: "confidential"}, project.Created, j.invalid
}

func (j *jobs) SubmitTrial(ctx context.Context, p project.Name, name string, spec training.Spec, id training.JobID) (training.Job, error) {
	if j.refuse != nil {
		if err := j.refuse(); err != nil {
			return training.Job{}, err
		}
	}
	if err := spec.Validate(); err != nil {
		return training.Job{}, err
	}
	if j.of[id] != nil {
		return training.Job{}, fault.New(fault.Internal, "job %s is there", id)
	}
	who := identity.From(ctx)
	j.of[id] = &training.Job{ID: id, Project: p, Name: name, Spec: spec, State: training.Queued, By: training.Actor{ID: who.ID, Name: who.Name}}
	j.order = append(j.order, id)
	return *j.of[id], nil
}

func (j *jobs) One(_ context.Context, _ project.Name, id training.JobID) (training.Job, error) {
	if j.of[id] == nil {
		return training.Job{}, fault.New(fault.NotFound, "there is no job %s", id)
	}
	return *j.of[id], nil
}

func (j *jobs) Cancel(_ context.Context, _ project.Name, id training.JobID) (training.Job, error) {
	one := j.of[id]
	if one == nil {
		return training.Job{}, fault.New(fault.NotFound, "there is no job %s", id)
	}
	if one.State.Ended() {
		return *one, fault.New(fault.Conflict, "job %s has ended", id)
	}
	one.Stop = "cancelled"
	return *one, nil
}

func (j *jobs) Spent(_ context.Context, _ project.Name, ids []training.JobID) (map[training.JobID]float64, error) {
	j.asked += len(ids)
	of := map[training.JobID]float64{}
	for _, id := range ids {
		of[id] = j.price
	}
	return of, nil
}

func (j *jobs) Free(context.Context, training.Job) ([]string, error) { return j.free, nil }

func (j *jobs) Stamp(_ context.Context, _ project.Name, run, metric string) (string, error) {
	if p := j.points[run][metric]; len(p) > 0 {
		return strconv.Itoa(len(p)), nil
	}
	return "", nil
}

func (j *jobs) Points(_ context.Context, _ project.Name, job training.JobID, run, metric string, limit int) ([]sweep.Point, int, error) {
	runs := []string{run}
	if job != "" {
		runs = j.runs[job]
	}
	var all []sweep.Point
	for _, run := range runs {
		all = append(all, j.points[run][metric]...)
	}
	j.read += len(all)
	return latest(all, limit), len(j.points[run][metric]), nil
}

func (j *jobs) After(_ context.Context, _ project.Name, run, metric string, n, limit int) ([]sweep.Point, int, error) {
	all := j.points[run][metric]
	j.read += len(all) - n
	return latest(all[n:], limit), len(all), nil
}

// latest is of each step the last point.
func latest(all []sweep.Point, limit int) (out []sweep.Point) {
	at := map[int64]float64{}
	for _, p := range all {
		at[p.Step] = p.Value
	}
	steps := slices.Sorted(maps.Keys(at))
	for _, step := range steps[max(len(steps)-limit, 0):] {
		out = append(out, sweep.Point{Step: step, Value: at[step]})
	}
	return out
}

// running are the jobs that have not ended, in the order of their submission.
func (j *jobs) running() (all []*training.Job) {
	for _, id := range j.order {
		if !j.of[id].State.Ended() {
			all = append(all, j.of[id])
		}
	}
	return all
}

func (j *jobs) start(one *training.Job) {
	if one.Run == "" {
		one.State, one.Run, one.Attempt, one.StartedAt = training.Running, "run-"+string(one.ID), "att-1", j.now()
		j.points[one.Run] = map[string][]sweep.Point{}
		j.runs[one.ID] = append(j.runs[one.ID], one.Run)
	}
}

// preempt has a job wait for another attempt.
func (j *jobs) preempt(one *training.Job) { one.State, one.Attempt = training.Queued, "" }

// again begins that attempt, which continues the run, or has another where that was deleted.
func (j *jobs) again(one *training.Job, deleted bool) {
	one.State, one.Attempt = training.Running, "att-2"
	if !deleted {
		return
	}
	one.Run += "+"
	j.points[one.Run] = map[string][]sweep.Point{}
	j.runs[one.ID] = append(j.runs[one.ID], one.Run)
}

func (j *jobs) log(one *training.Job, metric string, step int64, value float64) {
	j.start(one)
	j.points[one.Run][metric] = append(j.points[one.Run][metric], sweep.Point{Step: step, Value: value})
}

func (j *jobs) end(one *training.Job, state training.State) {
	j.start(one)
	one.State, one.EndedAt = state, j.now()
	if one.Stop != "" {
		one.State = training.Cancelled
	}
}

// param is what a job was told.
func param(tb testing.TB, one *training.Job, name string) float64 {
	tb.Helper()
	b, err := json.Marshal(one.Spec.Params[name])
	if err != nil {
		tb.Fatal(err)
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func spec() sweep.Spec {
	return sweep.Spec{
		Job:        training.Spec{Command: []string{"train", "${params.x}"}, Data: map[string]string{"train": "weather"}},
		Parameters: []space.Parameter{{Name: "x", Type: space.Float, Low: -1, High: 3}},
		Objectives: []sweep.Objective{{Metric: "loss"}},
		Search:     search.Config{Seed: 3},
		Budget:     stop.Budget{Trials: 12},
	}
}

func each(t *testing.T, test func(t *testing.T, db *store.DB)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, storetest.SQLite(t, tuningsql.Migrations)) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, storetest.PostgreSQL(t, tuningsql.Migrations)) })
}

// TestSweep goes from a manifest to the best trial.
func TestSweep(t *testing.T) {
	each(t, func(t *testing.T, db *store.DB) {
		t.Helper()
		w := newWorld(t, db)
		s := spec()
		s.Parallel = 3
		if _, change, err := w.Plan(w.alice(), demo, "parabola", s); err != nil || change != project.Created {
			t.Fatal(change, err)
		}
		if _, err := w.One(w.alice(), demo, "parabola"); !fault.Is(err, fault.NotFound) {
			t.Fatalf("a plan made it: %v", err)
		}
		made := w.apply("parabola", s)
		if made.Data["train"] != "weather@3" || made.Classification != "confidential" {
			t.Errorf("%+v", made)
		}
		if _, change, err := w.Apply(w.alice(), demo, "parabola", s); err != nil || change != project.Unchanged {
			t.Errorf("again: %s, %v", change, err)
		}
		for w.one("parabola").State == sweep.Running {
			w.round()
			if n := len(w.jobs.running()); n > 3 {
				t.Fatalf("%d jobs at once", n)
			}
			for i, one := range w.jobs.running() {
				x := param(t, one, "x")
				w.jobs.log(one, "loss", 1, math.NaN())
				w.jobs.log(one, "loss", 2, (x-1)*(x-1))
				if i > 0 { // one runs on
					w.jobs.end(one, training.Succeeded)
				}
			}
			if len(w.jobs.order) == 12 {
				for _, one := range w.jobs.running() {
					w.jobs.end(one, training.Succeeded)
				}
			}
		}
		end := w.one("parabola")
		if end.State != sweep.Complete || end.Counts[trial.Complete] != 12 || len(end.Best) != 1 || end.Reason != "12 trials were started, of 12" {
			t.Fatalf("%+v", end)
		}
		all := w.trials("parabola")
		least := slices.MinFunc(all, func(a, b sweep.Shown) int { return int(math.Copysign(1, float64(a.Values[0]-b.Values[0]))) })
		if end.Best[0].Number != least.Number || len(least.Reports) != 2 || !math.IsNaN(float64(least.Reports[0].Value)) {
			t.Errorf("the best is %+v, not %+v", end.Best[0], least)
		}
		first := w.jobs.of[w.jobs.order[0]]
		if first.Name != "parabola-0" || first.Spec.Data["train"] != "weather@3" || first.By.ID != "usr_1" || string(first.ID) != all[0].Job {
			t.Errorf("%+v", first)
		}

		// More of it.
		s.Budget.Trials = 13
		if got := w.apply("parabola", s); got.State != sweep.Running {
			t.Fatalf("%+v", got)
		}
		w.round()
		if len(w.jobs.order) != 13 {
			t.Fatalf("%d jobs", len(w.jobs.order))
		}
		other := s
		other.Parameters = []space.Parameter{{Name: "x", Type: space.Float, Low: -1, High: 4}}
		if _, _, err := w.Apply(w.alice(), demo, "parabola", other); !fault.Is(err, fault.Conflict) {
			t.Errorf("another search: %v", err)
		}
		if err := w.Delete(w.alice(), demo, "parabola"); !fault.Is(err, fault.Conflict) {
			t.Errorf("deleted under way: %v", err)
		}
		if _, err := w.Stop(w.alice(), demo, "parabola"); err != nil {
			t.Fatal(err)
		}
		w.round()
		if got := w.one("parabola"); got.State != sweep.Running || w.jobs.running()[0].Stop == "" {
			t.Fatalf("its job has not ended: %+v", got)
		}
		w.jobs.end(w.jobs.running()[0], training.Succeeded)
		w.round()
		if got := w.one("parabola"); got.State != sweep.Stopped || got.Reason != "stopped by user alice (usr_1)" || got.Counts[trial.Stopped] != 1 {
			t.Fatalf("%+v", got)
		}
		if err := w.Delete(w.alice(), demo, "parabola"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.Trials(w.alice(), demo, "parabola", 0, 0, false); !fault.Is(err, fault.NotFound) {
			t.Errorf("deleted: %v", err)
		}
		w.apply("parabola", s) // the name is free
	})
}

// TestStopped: a rule stops a trial by what its job logs, at once, and its place is free.
func TestStopped(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Parallel, s.Stop = 3, stop.Rule{Kind: stop.ASHA}
	w.apply("asha", s)
	w.round()
	for i, one := range w.jobs.running() {
		w.jobs.log(one, "loss", 1, float64(i))
	}
	w.round()
	var stopped []string
	for _, one := range w.jobs.running() {
		if one.Stop != "" {
			stopped = append(stopped, one.Name)
		}
	}
	if !slices.Equal(stopped, []string{"asha-1", "asha-2"}) || len(w.jobs.order) != 5 {
		t.Fatalf("stopped %v, %d jobs", stopped, len(w.jobs.order))
	}
	if all := w.trials("asha"); all[1].State != trial.Stopped || !strings.Contains(all[1].Reason, "rung of step 1") {
		t.Errorf("%+v", all[1])
	}
	w.jobs.end(w.jobs.of[w.jobs.order[1]], training.Succeeded)
	w.round()
	if all := w.trials("asha"); all[1].State != trial.Stopped { // whatever its job made of it
		t.Errorf("%+v", all[1])
	}
}

// TestFailures: what makes a trial fail, in words.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(w *world, one *training.Job)
		reason string
	}{
		"it fails":        {func(w *world, one *training.Job) { one.Reason = "exit code 1"; w.jobs.end(one, training.Failed) }, "its job failed: exit code 1"},
		"it is cancelled": {func(w *world, one *training.Job) { one.Reason = "by bob"; w.jobs.end(one, training.Cancelled) }, "its job cancelled: by bob"},
		"it has no run":   {func(_ *world, one *training.Job) { one.State = training.Succeeded }, "it has no run"},
		"it logs nothing": {func(w *world, one *training.Job) { w.jobs.end(one, training.Succeeded) }, "it logged no loss"},
		"it logs NaN": {func(w *world, one *training.Job) {
			w.jobs.log(one, "loss", 0, math.NaN())
			w.jobs.end(one, training.Succeeded)
		}, "its loss is NaN"},
		"it logs other ones": {func(w *world, one *training.Job) {
			w.jobs.log(one, "accuracy", 0, 1)
			w.jobs.end(one, training.Succeeded)
		}, "it logged no loss"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
			w.apply("s", spec())
			for range 6 {
				w.round()
				for _, one := range w.jobs.running() {
					c.end(w, one)
				}
			}
			all := w.trials("s")
			if len(all) != 5 || all[0].State != trial.Failed || all[0].Reason != c.reason {
				t.Errorf("%d trials, the first %+v", len(all), all[0])
			}
			if got := w.one("s"); got.State != sweep.Failed || got.Reason != "the first 5 trials failed" ||
				!slices.Equal(got.Failures, []sweep.Failure{{Reason: c.reason, Trials: 5, Trial: 0, Job: all[0].Job}}) {
				t.Errorf("%+v", got)
			}
			if _, err := w.Resume(w.alice(), demo, "s", 3); err != nil {
				t.Fatal(err)
			}
			w.round()
			if got := w.one("s"); got.State != sweep.Running || got.Spec.Budget.Trials != 15 || len(w.jobs.order) != 6 {
				t.Errorf("resumed: %+v", got)
			}
		})
	}
}

// TestResume: what would end at once is not resumed.
func TestResume(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	run := func(name string) {
		t.Helper()
		for w.one(name).State == sweep.Running {
			w.round()
			for _, one := range w.jobs.running() {
				w.jobs.log(one, "loss", 0, 1)
				w.jobs.end(one, training.Succeeded)
			}
		}
	}
	s := spec()
	s.Budget.Trials = 2
	w.apply("trials", s)
	run("trials")
	if _, err := w.Resume(w.alice(), demo, "trials", 0); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "2 trials were started, of 2") {
		t.Errorf("without more trials: %v", err)
	}
	if _, err := w.Resume(w.alice(), demo, "trials", 1); err != nil {
		t.Error(err)
	}
	run("trials")
	if got := w.one("trials"); got.Counts[trial.Complete] != 3 {
		t.Errorf("%+v", got)
	}
	s.Budget = stop.Budget{Time: compute.Duration(15 * time.Second)}
	w.apply("time", s)
	run("time")
	if _, err := w.Resume(w.alice(), demo, "time", 0); !fault.Is(err, fault.Conflict) {
		t.Errorf("its time has passed: %v", err)
	}
	if _, err := w.Resume(w.alice(), demo, "time", 3); !fault.Is(err, fault.Invalid) {
		t.Errorf("trials where they are not bounded: %v", err)
	}
}

// TestWaits: while jobs cannot be submitted the sweep says why.
func TestWaits(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	w.apply("s", spec())
	w.jobs.refuse = func() error { return fault.New(fault.Unavailable, "the bucket is away") }
	for range 3 {
		w.time = w.time.Add(10 * time.Second)
		if err := w.RunOnce(w.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := w.one("s")
	if got.State != sweep.Running || !strings.Contains(got.Reason, "trial 0") || !strings.Contains(got.Reason, "the bucket is away") {
		t.Errorf("%+v", got)
	}
	w.round()
	if again := w.one("s"); again.Revision != got.Revision {
		t.Errorf("it is written each round: revision %d, then %d", got.Revision, again.Revision)
	}
	w.jobs.refuse = nil
	w.round()
	w.round()
	if got := w.one("s"); got.Reason != "" || len(w.jobs.running()) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestRights: the jobs of a sweep are submitted with the rights of whoever applied it;
// when they are gone, it ends and says so.
func TestRights(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	for _, action := range []policy.Action{sweep.ActionApply, sweep.ActionRead, sweep.ActionDelete} {
		w.jobs.rights.refuse = ""
		w.apply("s", spec())
		w.jobs.rights.refuse = action
		var err error
		switch action {
		case sweep.ActionApply:
			_, _, err = w.Apply(w.alice(), demo, "t", spec())
			if _, err := w.Stop(w.alice(), demo, "s"); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("stop: %v", err)
			}
			if _, err := w.Resume(w.alice(), demo, "s", 0); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("resume: %v", err)
			}
		case sweep.ActionRead:
			_, err = w.One(w.alice(), demo, "s")
			if _, _, err := w.List(w.alice(), demo, 0, 0); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("list: %v", err)
			}
		default:
			err = w.Delete(w.alice(), demo, "s")
		}
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", action, err)
		}
	}
	w.jobs.rights.refuse = ""
	w.jobs.refuse = func() error {
		return fault.New(fault.PermissionDenied, "job.submit is not allowed").WithHint("Ask for it.")
	}
	w.round()
	w.round()
	if got := w.one("s"); got.State != sweep.Failed || !strings.Contains(got.Reason, "trial 0 cannot start") || got.Hint != "Ask for it." {
		t.Errorf("%+v", got)
	}
	w.jobs.refuse = nil
	w.jobs.invalid = fault.New(fault.NotFound, "there is no dataset weather")
	if _, _, err := w.Apply(w.alice(), demo, "u", spec()); !fault.Is(err, fault.NotFound) {
		t.Errorf("a sweep whose jobs cannot be: %v", err)
	}
}

// TestCrashes: whatever is cut off, no trial has two jobs, no budget is passed, and what
// is tried is what an undisturbed sweep tries.
func TestCrashes(t *testing.T) {
	tries := func(t *testing.T, disturb *rand.Rand) (tried []float64) {
		t.Helper()
		w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
		w.apply("s", spec())
		if disturb != nil {
			w.jobs.refuse = func() error {
				switch disturb.IntN(3) {
				case 0:
					return fault.New(fault.Unavailable, "the database is busy")
				case 1:
					return context.Canceled
				}
				return nil
			}
		}
		for n := 0; w.one("s").State == sweep.Running; n++ {
			if n > 500 {
				t.Fatalf("it does not end: %+v", w.one("s"))
			}
			ctx, cancel := context.WithCancel(t.Context())
			w.time = w.time.Add(10 * time.Second)
			if disturb != nil && disturb.IntN(4) == 0 {
				w.jobs.now = func() time.Time { cancel(); return w.time }
			}
			if err := w.RunOnce(ctx); err != nil && disturb == nil {
				t.Fatal(err)
			}
			cancel()
			w.jobs.now = w.now
			if disturb != nil && disturb.IntN(3) == 0 {
				w.restart()
			}
			running := w.jobs.running()
			if len(running) > 1 {
				t.Fatalf("%d jobs at once", len(running))
			}
			for _, one := range running {
				x := param(t, one, "x")
				w.jobs.log(one, "loss", 0, (x-1)*(x-1))
				w.jobs.end(one, training.Succeeded)
			}
		}
		for _, id := range w.jobs.order {
			tried = append(tried, param(t, w.jobs.of[id], "x"))
		}
		return tried
	}
	want := tries(t, nil)
	if len(want) != 12 {
		t.Fatalf("%d trials", len(want))
	}
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			if got := tries(t, rand.New(rand.NewPCG(seed, 0))); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// TestBudgets: money and time end a sweep, and running trials are waited for.
func TestBudgets(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Budget = stop.Budget{Money: 3}
	w.apply("money", s)
	s.Budget = stop.Budget{Time: compute.Duration(25 * time.Second)}
	w.apply("time", s)
	w.jobs.price = 1
	for range 8 {
		w.round()
		for _, one := range w.jobs.running() {
			w.jobs.log(one, "loss", 0, 1)
			w.jobs.end(one, training.Succeeded)
		}
	}
	if got := w.one("money"); got.State != sweep.Complete || got.Reason != "3.00 were spent, of 3.00" || got.Counts[trial.Complete] != 3 {
		t.Errorf("%+v", got)
	}
	if got := w.one("time"); got.State != sweep.Complete || got.Counts[trial.Complete] != 2 {
		t.Errorf("%+v", got)
	}
}

// TestManyPoints: a trial that logs very much is read as it goes on, is judged at each rung,
// and its best value is found wherever it was.
func TestManyPoints(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Budget.Trials, s.Stop = 2, stop.Rule{Kind: stop.ASHA, MinResource: 5000, Reduction: 4}
	s.Objectives[0].Value = sweep.Best
	w.apply("s", s)
	w.round()
	for n, one := range []float64{1, 2} { // the second is worse, but for its first value
		job := w.jobs.running()[0]
		w.jobs.log(job, "loss", 1, 1-one)
		for step := int64(2); step <= 25_000 && job.Stop == ""; step++ {
			w.jobs.log(job, "loss", step, one+2)
			if step%5000 == 0 {
				w.jobs.read = 0
				w.round()
				if w.jobs.read > 5000 {
					t.Fatalf("%d points were read at step %d", w.jobs.read, step)
				}
			}
		}
		if n == 1 && job.Stop == "" {
			break
		}
		w.jobs.end(job, training.Succeeded)
		w.round()
		w.round()
	}
	all := w.trials("s")
	if all[0].Values[0] != 0 || all[1].State != trial.Stopped || !strings.Contains(all[1].Reason, "rung of step 5000") {
		t.Errorf("%+v, %+v", all[0].Values, all[1].Reason)
	}
	if last := all[0].Reports[len(all[0].Reports)-1]; last.Step != 20_000 {
		t.Errorf("the last report kept is of step %d", last.Step)
	}
}

// TestMoney: what trials cost is asked once they have ended, not in each round again; after
// a restart the sum is the same.
func TestMoney(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Budget, s.Parallel = stop.Budget{Money: 60}, 3
	w.apply("s", s)
	w.jobs.price = 1
	for n := range 100 {
		if n%7 == 6 {
			w.restart()
			w.jobs.asked = -len(w.jobs.order)
		}
		w.round()
		if w.jobs.asked > 6 {
			t.Fatalf("round %d asked of %d jobs", n, w.jobs.asked)
		}
		w.jobs.asked = 0
		for _, one := range w.jobs.running() {
			w.jobs.log(one, "loss", 0, 1)
			w.jobs.end(one, training.Succeeded)
		}
	}
	if got := w.one("s"); got.State != sweep.Complete || got.Reason != "60.00 were spent, of 60.00" || got.Counts[trial.Complete] != 60 {
		t.Errorf("%+v", got)
	}
}

// TestMoneyWithoutPrices: a sweep that only money bounds does not go on for ever where
// nothing costs any.
func TestMoneyWithoutPrices(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Budget = stop.Budget{Money: 3}
	made := w.apply("priced", s)
	w.jobs.free = []string{"home"}
	if _, change, err := w.Apply(w.alice(), demo, "priced", s); err != nil || change != project.Unchanged {
		t.Errorf("the same again: %s, %v", change, err)
	}
	if _, _, err := w.Apply(w.alice(), demo, "free", s); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "without a price: home") || !strings.Contains(fault.HintOf(err), "budget") {
		t.Errorf("money only: %v", err)
	}
	s.Parallel = 2
	if _, _, err := w.Plan(w.alice(), demo, "priced", s); !fault.Is(err, fault.Invalid) {
		t.Errorf("a change: %v", err)
	}
	for name, b := range map[string]stop.Budget{"trials": {Money: 3, Trials: 4}, "time": {Money: 3, Time: compute.Duration(time.Hour)}} {
		s.Budget = b
		if _, _, err := w.Plan(w.alice(), demo, name, s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Budget, s.Search.Algorithm = stop.Budget{Money: 3}, search.Grid
	if _, _, err := w.Plan(w.alice(), demo, "grid", s); err != nil {
		t.Errorf("a grid: %v", err)
	}
	// Prices that were there once.
	long(t, w.cfg.DB, made, 1000)
	w.round()
	w.round()
	if got := w.one("priced"); got.State != sweep.Failed || got.Reason != "1000 trials had no cost, and the budget limits only money" {
		t.Errorf("%+v", got)
	}
}

// TestEnvironment: one that is being built when the sweep is applied is for all trials that
// which the first gets, whatever has its name later.
func TestEnvironment(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Job.Environment, s.Parallel = "torch", 4
	if made := w.apply("s", s); made.Environment != "torch" {
		t.Fatalf("%+v", made)
	}
	w.round()
	w.round()
	if len(w.jobs.order) != 1 {
		t.Fatalf("%d jobs before the environment is built", len(w.jobs.order))
	}
	w.jobs.end(w.jobs.running()[0], training.Failed) // before it was
	w.round()
	first := w.jobs.running()[0]
	if len(w.jobs.order) != 2 || first.Spec.Environment != "torch" {
		t.Fatalf("%+v", first.Spec)
	}
	first.EnvDigest = "sha256:e"
	w.round()
	w.restart()
	w.round()
	if got := w.one("s"); got.Environment != "torch@sha256:e" || len(w.jobs.running()) != 4 {
		t.Errorf("%s, %d jobs", got.Environment, len(w.jobs.running()))
	}
	for _, one := range w.jobs.running()[1:] {
		if one.Spec.Environment != "torch@sha256:e" {
			t.Errorf("%s runs in %s", one.Name, one.Spec.Environment)
		}
	}
}

// TestWarmStart: what an earlier sweep learnt is used.
func TestWarmStart(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	run := func(name string, s sweep.Spec) (distance float64) {
		w.apply(name, s)
		for w.one(name).State == sweep.Running {
			w.round()
			for _, one := range w.jobs.running() {
				x := param(t, one, "x")
				w.jobs.log(one, "loss", 0, (x-1)*(x-1))
				w.jobs.end(one, training.Succeeded)
			}
		}
		for _, shown := range w.trials(name)[:5] {
			distance += float64(shown.Values[0]) / 5
		}
		return distance
	}
	s := spec()
	s.Budget.Trials = 40
	cold := run("first", s)
	s.Budget.Trials, s.WarmStart = 5, []string{"first"}
	if warm := run("second", s); warm > cold/2 {
		t.Errorf("five trials are %v away, without what was learnt %v", warm, cold)
	}
	s.WarmStart = []string{"third"}
	if _, _, err := w.Apply(w.alice(), demo, "fourth", s); !fault.Is(err, fault.NotFound) {
		t.Errorf("a sweep that is not there: %v", err)
	}
	s.WarmStart, s.Objectives = []string{"first"}, []sweep.Objective{{Metric: "loss", Direction: trial.Maximize}}
	if _, _, err := w.Apply(w.alice(), demo, "fourth", s); !fault.Is(err, fault.Invalid) {
		t.Errorf("another direction: %v", err)
	}
}

// TestClients: a client of Optuna's can add trials, which are learnt from, hold no place
// and use no budget.
func TestClients(t *testing.T) {
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	first := spec()
	first.Search.First = []space.Params{{"x": 2.5}}
	made := w.apply("s", first)
	err := db.Update(t.Context(), demo, func(ctx context.Context, tx *store.Tx) error {
		id, _, err := w.cfg.Studies.CreateTrial(ctx, tx, demo, made.Study, nil, "")
		if err != nil {
			return err
		}
		d := tuning.Distribution(`{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 9.0, "log": false}}`)
		return w.cfg.Studies.SetParam(ctx, tx, demo, id, "other", tuning.Param{Value: 3, Distribution: d})
	})
	if err != nil {
		t.Fatal(err)
	}
	w.round()
	all := w.trials("s")
	if len(all) != 2 || all[0].Job != "" || all[1].Job == "" || len(w.jobs.order) != 1 || w.jobs.of[w.jobs.order[0]].Name != "s-1" {
		t.Errorf("%+v", all)
	}
	if all[1].Params["x"] != 2.5 {
		t.Errorf("the first of ours tries %v", all[1].Params)
	}
	for w.one("s").State == sweep.Running {
		w.round()
		for _, one := range w.jobs.running() {
			w.jobs.log(one, "loss", 0, 1)
			w.jobs.end(one, training.Succeeded)
		}
	}
	if n := len(w.jobs.order); n != 12 {
		t.Errorf("%d jobs, with a budget of 12 trials", n)
	}
}

// TestForeignValues: what a client's trial has of other ranges and choices is not taken for
// values of the sweep's.
func TestForeignValues(t *testing.T) {
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	s := spec()
	s.Parameters = append(s.Parameters, space.Parameter{Name: "opt", Type: space.Categorical, Choices: space.Choices{"adam", "sgd"}})
	s.Search.Startup = 1
	made := w.apply("s", s)
	const (
		wide   = tuning.Distribution(`{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 9.0, "log": false}}`)
		others = tuning.Distribution(`{"name": "CategoricalDistribution", "attributes": {"choices": ["lion", "sgd", "adam"]}}`)
	)
	err := db.Update(t.Context(), demo, func(ctx context.Context, tx *store.Tx) error {
		for _, params := range []map[string]tuning.Param{
			{"x": {Value: 2, Distribution: wide}, "opt": {Value: 2, Distribution: others}},
			{"x": {Value: 9, Distribution: wide}, "opt": {Value: 0, Distribution: others}},
			{"x": {Value: 1, Distribution: others}, "opt": {Value: 5, Distribution: wide}},
		} {
			t := tuning.Trial{State: tuning.Complete, Values: []float64{-1}, Params: params}
			if _, _, err := w.cfg.Studies.CreateTrial(ctx, tx, demo, made.Study, &t, ""); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.round()
	w.round()
	all := w.trials("s")
	for n, want := range []space.Params{{"x": 2.0, "opt": "adam"}, {}, {}} {
		if !reflect.DeepEqual(all[n].Params, want) {
			t.Errorf("trial %d has %v, not %v", n, all[n].Params, want)
		}
	}
	if len(w.jobs.order) != 1 {
		t.Errorf("%d jobs", len(w.jobs.order))
	}
}

// TestStudies: a study of Optuna's is seen as a sweep, and is its clients' to drive.
func TestStudies(t *testing.T) {
	each(t, func(t *testing.T, db *store.DB) {
		t.Helper()
		w := newWorld(t, db)
		w.apply("ours", spec())
		const name = "team/a study"
		err := db.Update(t.Context(), demo, func(ctx context.Context, tx *store.Tx) error {
			id, _, err := w.cfg.Studies.Create(ctx, tx, tuning.Study{Project: demo, Name: name, Directions: []tuning.Direction{tuning.Maximize}, Owner: "usr_2"})
			if err != nil {
				return err
			}
			d := tuning.Distribution(`{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 9.0, "log": false}}`)
			for i := range 4 {
				one, _, err := w.cfg.Studies.CreateTrial(ctx, tx, demo, id, nil, "")
				if err != nil {
					return err
				}
				if err := w.cfg.Studies.SetParam(ctx, tx, demo, one, "x", tuning.Param{Value: float64(i), Distribution: d}); err != nil {
					return err
				}
				if of, ok := map[int][2]string{2: {"constraints", "[-1.0, 0.0]"}, 3: {"constraints:size", "0.5"}}[i]; ok { // the highest violates one
					if err := w.cfg.Studies.SetTrialAttribute(ctx, tx, demo, one, tuning.System, of[0], of[1]); err != nil {
						return err
					}
				}
				if _, _, err := w.cfg.Studies.SetState(ctx, tx, demo, one, tuning.Complete, []float64{float64(i)}, ""); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		first, next, err := w.List(w.alice(), demo, 0, 1)
		if err != nil || len(first) != 1 || first[0].Name != "ours" || next == 0 {
			t.Fatalf("%+v, %d, %v", first, next, err)
		}
		second, next, err := w.List(w.alice(), demo, next, 1)
		if err != nil || len(second) != 1 || second[0].Name != name || second[0].State != sweep.Client || second[0].Trials != 4 || next != 0 {
			t.Fatalf("%+v, %d, %v", second, next, err)
		}
		for _, called := range []string{name, fmt.Sprint(second[0].Study)} {
			one := w.one(called)
			if one.Name != name || one.Best[0].Number != 2 || one.Best[0].Params["x"] != 2.0 || one.Spec.Parameters[0].High != 9 {
				t.Errorf("%s: %+v", called, one)
			}
		}
		if metric := w.one(name).Spec.Objectives[0].Metric; metric != "value" {
			t.Errorf("a study without names of metrics has %q", metric)
		}
		for names, want := range map[string]string{`["loss"]`: "loss", `["loss", "time"]`: "value", `{}`: "value", `["the loss"]`: "the loss"} {
			err := w.cfg.DB.Update(w.alice(), demo, func(ctx context.Context, tx *store.Tx) error {
				return w.cfg.Studies.SetStudyAttribute(ctx, tx, demo, second[0].Study, tuning.System, "study:metric_names", names)
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := w.one(name).Spec.Objectives[0].Metric; got != want {
				t.Errorf("%s: %q", names, got)
			}
		}
		if err := w.cfg.DB.Update(w.alice(), demo, func(ctx context.Context, tx *store.Tx) error {
			return w.cfg.Studies.SetStudyAttribute(ctx, tx, demo, second[0].Study, tuning.System, "study:metric_names", "null")
		}); err != nil {
			t.Fatal(err)
		}
		if page, err := w.Report(w.alice(), demo, name); err != nil || !strings.Contains(string(page), "History of value") {
			t.Errorf("%v\n%.200s", err, page)
		}
		if _, err := w.Stop(w.alice(), demo, name); !fault.Is(err, fault.Conflict) {
			t.Errorf("stop: %v", err)
		}
		if _, _, err := w.Apply(w.alice(), demo, "ours", spec()); err != nil {
			t.Error(err)
		}
		if one := w.one(fmt.Sprint(first[0].Study)); one.Name != "ours" || one.State != sweep.Running {
			t.Errorf("ours by its number: %+v", one)
		}
		if err := w.Delete(w.alice(), demo, name); err != nil {
			t.Fatal(err)
		}
		if _, err := w.One(w.alice(), demo, name); !fault.Is(err, fault.NotFound) {
			t.Errorf("deleted: %v", err)
		}
	})
}

// TestPreempted: a trial whose job waits for its next attempt is not silent, and what its
// earlier attempts logged counts.
func TestPreempted(t *testing.T) {
	for name, deleted := range map[string]bool{"one run": false, "its run was deleted": true} {
		t.Run(name, func(t *testing.T) { testPreempted(t, deleted) })
	}
}

func testPreempted(t *testing.T, deleted bool) {
	t.Helper()
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Stop = stop.Rule{ReportWithin: compute.Duration(time.Minute)}
	s.Objectives = []sweep.Objective{{Metric: "loss", Value: sweep.Best}, {Metric: "size"}}
	s.Watch = "loss"
	w.apply("s", s)
	w.round()
	one := w.jobs.running()[0]
	w.jobs.log(one, "loss", 1, 0.25)
	w.jobs.log(one, "loss", 2, 0.5)
	w.jobs.log(one, "size", 2, 7)
	w.round()
	w.jobs.preempt(one)
	for range 12 { // two minutes
		w.round()
	}
	one.Attempt = "att-2"
	for range 12 { // its environment is built
		w.round()
	}
	w.jobs.again(one, deleted)
	for range 5 {
		w.round()
	}
	if all := w.trials("s"); all[0].State != trial.Running {
		t.Fatalf("%+v", all[0])
	}
	w.jobs.log(one, "loss", 3, 0.75)
	w.jobs.end(one, training.Succeeded) // it had no size left to tell
	w.round()
	all := w.trials("s")
	if all[0].State != trial.Complete || all[0].Values[0] != 0.25 || all[0].Values[1] != 7 || len(all[0].Reports) != 3 {
		t.Errorf("%+v", all[0])
	}
	two := w.jobs.running()[0]
	w.jobs.start(two)
	for range 8 {
		w.round()
	}
	if all := w.trials("s"); all[1].State != trial.Stopped || !strings.Contains(all[1].Reason, "not reported") {
		t.Errorf("a silent one: %+v", all[1])
	}
}

// TestLabels: who writes to the study of a sweep narrows it, what a sweep learns from
// narrows it, and no job reads what would narrow it.
func TestLabels(t *testing.T) {
	each(t, func(t *testing.T, db *store.DB) {
		t.Helper()
		w := newWorld(t, db)
		made := w.apply("first", spec())
		err := db.Update(t.Context(), demo, func(ctx context.Context, tx *store.Tx) error {
			return w.cfg.Studies.Store.Relabel(ctx, tx, demo, made.Study, made.Residency, "restricted")
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := w.one("first"); got.Classification != project.Restricted {
			t.Errorf("it is %s", got.Classification)
		}
		all, _, err := w.List(w.alice(), demo, 0, 0)
		if err != nil || all[0].Classification != project.Restricted {
			t.Errorf("listed: %+v, %v", all, err)
		}
		s := spec()
		w.apply("second", s)
		if got := w.one("second"); got.Classification != project.Confidential {
			t.Errorf("the second is %s", got.Classification)
		}
		s.WarmStart = []string{"first"}
		w.apply("second", s)
		w.apply("third", s)
		for _, name := range []string{"second", "third"} {
			if got := w.one(name); got.Classification != project.Restricted {
				t.Errorf("%s is %s", name, got.Classification)
			}
		}
		job := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1"})
		if _, err := w.One(job, demo, "first"); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("a job reads it: %v", err)
		}
		if _, err := w.Report(job, demo, "first"); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("a job draws it: %v", err)
		}
		if all, _, err := w.List(job, demo, 0, 0); err != nil || len(all) != 0 {
			t.Errorf("a job lists %+v, %v", all, err)
		}

		// What is gone teaches nothing, and keeps nobody from applying the same again.
		if _, err := w.Stop(w.alice(), demo, "first"); err != nil {
			t.Fatal(err)
		}
		w.round()
		for _, one := range w.jobs.running() {
			if one.Stop != "" {
				w.jobs.end(one, training.Succeeded)
			}
		}
		w.round()
		if err := w.Delete(w.alice(), demo, "first"); err != nil {
			t.Fatal(err)
		}
		w.apply("third", s)
		w.round()
		if got := w.one("third"); got.State != sweep.Running || len(w.trials("third")) == 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestProjects: trials have the same numbers in two projects, and their reports are not
// taken for one another.
func TestProjects(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, tuningsql.Migrations))
	s := spec()
	s.Stop = stop.Rule{ReportWithin: compute.Duration(time.Minute)}
	for _, p := range []project.Name{demo, "other"} {
		if _, _, err := w.Apply(w.alice(), p, "s", s); err != nil {
			t.Fatal(err)
		}
	}
	w.round()
	for _, one := range w.jobs.running() {
		w.jobs.log(one, "loss", 1, 1)
	}
	for range 9 {
		w.round()
	}
	for _, one := range w.jobs.running()[:2] {
		if one.Stop == "" {
			t.Errorf("the silent job %s of %s goes on", one.Name, one.Project)
		}
	}
}

// TestBroken: what will not mend ends a sweep, with why.
func TestBroken(t *testing.T) {
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	first := spec()
	first.Search.First = []space.Params{{"x": 2.5}}
	made := w.apply("s", first)
	err := db.Update(t.Context(), demo, func(ctx context.Context, tx *store.Tx) error {
		return w.cfg.Studies.Declare(ctx, tx, demo, made.Study, "x", `{"name": "CategoricalDistribution", "attributes": {"choices": [1]}}`)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.round()
	w.round()
	if got := w.one("s"); got.State != sweep.Failed || !strings.Contains(got.Reason, "it cannot continue") {
		t.Errorf("%+v", got)
	}
}

// TestTwoServers: of two processes on one database one sees to the sweeps.
func TestTwoServers(t *testing.T) {
	w := newWorld(t, storetest.PostgreSQL(t, tuningsql.Migrations))
	s := spec()
	s.Parallel = 3
	w.apply("s", s)
	other := sweep.New(w.cfg)
	for w.one("s").State == sweep.Running {
		w.round()
		if err := other.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, one := range w.jobs.running() {
			w.jobs.log(one, "loss", 0, 1)
			w.jobs.end(one, training.Succeeded)
		}
	}
	if got := w.one("s"); got.State != sweep.Complete || got.Counts[trial.Complete] != 12 || len(w.jobs.order) != 12 {
		t.Errorf("%+v, %d jobs", got, len(w.jobs.order))
	}
	w.apply("t", spec())
	if err := w.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.RunOnce(t.Context()); err != nil || len(w.jobs.order) != 13 {
		t.Errorf("the other does not take over: %d jobs, %v", len(w.jobs.order), err)
	}
}
