package app

import (
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
