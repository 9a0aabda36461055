package sweeps

import (
	"context"
	"reflect"
	"testing"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// TestSweepRuns: what a run logs is read from where it was.
func TestSweepRuns(t *testing.T) {
	db := storetest.SQLite(t, trackingsql.Migrations)
	runs := Runs{DB: db, Metrics: trackingsql.Store{}, Attempts: trainingsql.Store{}}
	logged := func(metrics ...tracking.Metric) {
		t.Helper()
		for i := range metrics {
			metrics[i].Key = "loss"
		}
		err := db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
			return trackingsql.Store{}.InsertMetrics(ctx, tx, "run_1", metrics)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	logged(tracking.Metric{At: 1, Step: 1, Value: 5}, tracking.Metric{At: 2, Step: 2, Value: 4}, tracking.Metric{At: 3, Step: 2, Value: 3})
	all, n, err := runs.Points(t.Context(), "p", "", "run_1", "loss", 100)
	if want := []sweep.Point{{Step: 1, Value: 5}, {Step: 2, Value: 3}}; err != nil || n != 3 || !reflect.DeepEqual(all, want) {
		t.Fatalf("%v, %d values, %v", all, n, err)
	}
	if some, next, err := runs.After(t.Context(), "p", "run_1", "loss", n, 100); err != nil || next != 3 || len(some) != 0 {
		t.Errorf("nothing new: %v, %d, %v", some, next, err)
	}
	logged(tracking.Metric{At: 4, Step: 1, Value: 1}, tracking.Metric{At: 5, Step: 3, Value: 2})
	some, next, err := runs.After(t.Context(), "p", "run_1", "loss", n, 100)
	if want := []sweep.Point{{Step: 1, Value: 1}, {Step: 3, Value: 2}}; err != nil || next != 5 || !reflect.DeepEqual(some, want) {
		t.Errorf("%v, %d, %v", some, next, err)
	}
	if last, _, err := runs.Points(t.Context(), "p", "", "run_1", "loss", 1); err != nil || !reflect.DeepEqual(last, []sweep.Point{{Step: 3, Value: 2}}) {
		t.Errorf("the last: %v, %v", last, err)
	}
	if none, n, err := runs.Points(t.Context(), "p", "", "run_2", "loss", 100); err != nil || n != 0 || len(none) != 0 {
		t.Errorf("another run: %v, %d, %v", none, n, err)
	}
}

// TestStampOfAttempts: each point that a run gets changes its stamp, also of an attempt that
// began at an earlier step than the one before it reached, and whose clock is behind.
func TestStampOfAttempts(t *testing.T) {
	db := storetest.SQLite(t, trackingsql.Migrations)
	s := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}}})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"": true}
	logged := func(step int64, at tracking.Millis) {
		t.Helper()
		if err := s.Logging.Log(ctx, "p", r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: "loss", Value: 1, Step: step, At: at}}}); err != nil {
			t.Fatal(err)
		}
		stamp, err := Runs{DB: db, Metrics: trackingsql.Store{}, Attempts: trainingsql.Store{}}.Stamp(ctx, "p", string(r.ID), "loss")
		if err != nil || seen[stamp] {
			t.Errorf("step %d at %d: stamp %q, %v", step, at, stamp, err)
		}
		seen[stamp] = true
	}
	if stamp, err := (Runs{DB: db, Metrics: trackingsql.Store{}, Attempts: trainingsql.Store{}}).Stamp(ctx, "p", string(r.ID), "loss"); err != nil || stamp != "" {
		t.Errorf("a run without points: %q, %v", stamp, err)
	}
	for step := range int64(5) {
		logged(step, 100+tracking.Millis(step))
	}
	logged(2, 200) // the same attempt goes back
	logged(3, 201)
	if _, err := s.Runs.Continue(ctx, "p", r.ID, "att_2", 2); err != nil {
		t.Fatal(err)
	}
	for step := range int64(3) {
		logged(step, 50+tracking.Millis(step))
	}
	for step := range int64(3) {
		logged(step, 300+tracking.Millis(step))
	}
}

// TestJobEnded: the end of a job fails the trials of studies that it left running, and wakes the
// loop of sweeps; what is no event of a job is an error, and not lost.
func TestJobEnded(t *testing.T) {
	db := storetest.SQLite(t, trackingsql.Migrations, tuningsql.Migrations)
	may := trackingtest.Policy{"att_1": {"p": {"*"}}}
	runs := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: may})
	studies := tuning.New(tuning.Config{DB: db, Store: tuningsql.Store{}, Authz: may, Origins: runs.Origins})
	loop := identity.With(t.Context(), identity.Loop("test"))
	if _, err := runs.Runs.CreateRun(loop, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}}); err != nil {
		t.Fatal(err)
	}
	job := identity.With(t.Context(), identity.Principal{Kind: identity.Attempt, ID: "att_1", Name: "job_1", Project: "p"})
	study, err := studies.Create(job, tuning.Study{Project: "p", Name: "s", Directions: []tuning.Direction{tuning.Minimize}})
	if err != nil {
		t.Fatal(err)
	}
	trial, err := studies.CreateTrial(job, "p", study, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	woken := 0
	handle := JobEnded(studies, func() { woken++ })
	ends := func(body string) error {
		return db.Update(t.Context(), "p", func(ctx context.Context, tx *store.Tx) error {
			return handle(ctx, tx, event.Event{Name: training.JobFinished, Project: "p", Body: []byte(body)})
		})
	}
	for _, c := range []struct {
		body  string
		state tuning.State
	}{{`{"job": "job_2", "project": "p"}`, tuning.Running}, {`{"job": "job_1", "project": "p", "state": "failed"}`, tuning.Failed}} {
		if err := ends(c.body); err != nil {
			t.Fatal(err)
		}
		if got, err := studies.Trial(loop, "p", trial); err != nil || got.State != c.state {
			t.Errorf("after %s: %s, %v", c.body, got.State, err)
		}
	}
	if err := ends("x"); err == nil || woken < 3 {
		t.Errorf("%v, woken %d times", err, woken)
	}
}
