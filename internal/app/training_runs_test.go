package app

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// TestFinishRun: a job ends also when somebody has deleted its run, which ends with it, or
// removed it.
func TestFinishRun(t *testing.T) {
	s := tracking.New(tracking.Config{
		DB: storetest.SQLite(t, trackingsql.Migrations), Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}},
	})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	r, err := s.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1"}})
	if err == nil {
		err = s.DeleteRun(ctx, "p", r.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	runs := trainingRuns{tracking: s}
	if gone, err := s.Prune(ctx, "p", 0, false); err != nil || gone.Runs != 0 {
		t.Errorf("the run of a job that goes on: %+v, %v", gone, err)
	}
	if err := runs.Finish(ctx, "p", string(r.ID), "FINISHED", time.Now()); err != nil {
		t.Errorf("a deleted run: %v", err)
	}
	if gone, err := s.Prune(ctx, "p", 0, false); err != nil || gone.Runs != 1 {
		t.Errorf("after its end: %+v, %v", gone, err)
	}
	if err := runs.Finish(ctx, "p", string(r.ID), "FINISHED", time.Now()); err != nil {
		t.Errorf("a run that is gone: %v", err)
	}
}

// TestProgressOfAttempt: what a run says of an attempt's progress, and which metrics are no
// numbers, is of that attempt, whatever steps the one before it reached.
func TestProgressOfAttempt(t *testing.T) {
	s := tracking.New(tracking.Config{
		DB: storetest.SQLite(t, trackingsql.Migrations), Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}, "progress": {"p": {"*"}}},
	})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	r, err := s.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1})
	if err != nil {
		t.Fatal(err)
	}
	runs := trainingRuns{tracking: s}
	log := func(key string, step int64, at tracking.Millis, value float64) {
		t.Helper()
		if err := s.Log(ctx, "p", r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: key, Value: value, Step: step, At: at}}}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(since time.Time, step int64, noNumbers ...string) {
		t.Helper()
		p, err := runs.Progress(ctx, "p", string(r.ID), since)
		if err != nil || p.Last.Step != step || !slices.Equal(p.NoNumbers, noNumbers) {
			t.Errorf("%+v, %v; want step %d, without numbers %v", p, err, step, noNumbers)
		}
	}
	log("loss", 100, 1000, math.NaN())
	log("norm", 100, 1000, math.Inf(1))
	want(time.Time{}, 100, "loss", "norm")
	if _, err := s.Continue(ctx, "p", r.ID, "att_2", 2); err != nil {
		t.Fatal(err)
	}
	second := time.UnixMilli(2000)
	log("loss", 30, 2001, 0.5)
	want(second, 30)
	log("loss", 40, 2002, math.NaN())
	want(second, 40, "loss")
}
