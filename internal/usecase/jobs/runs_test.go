package jobs

import (
	"context"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/quota"
	"github.com/falaj-ml/falaj/internal/fault"
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
	r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1"}})
	if err == nil {
		err = s.Runs.DeleteRun(ctx, "p", r.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	runs := Runs{Tracking: s}
	if gone, err := s.Maintenance.Prune(ctx, "p", 0, false); err != nil || gone.Runs != 0 {
		t.Errorf("the run of a job that goes on: %+v, %v", gone, err)
	}
	if err := runs.Finish(ctx, "p", string(r.ID), "FINISHED", time.Now()); err != nil {
		t.Errorf("a deleted run: %v", err)
	}
	if gone, err := s.Maintenance.Prune(ctx, "p", 0, false); err != nil || gone.Runs != 1 {
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
	r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{Origin: tracking.Origin{Job: "job_1", Attempt: "att_1"}, AttemptNumber: 1})
	if err != nil {
		t.Fatal(err)
	}
	runs := Runs{Tracking: s}
	log := func(key string, step int64, at tracking.Millis, value float64) {
		t.Helper()
		if err := s.Logging.Log(ctx, "p", r.ID, tracking.Batch{Metrics: []tracking.Metric{{Key: key, Value: value, Step: step, At: at}}}); err != nil {
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
	if _, err := s.Runs.Continue(ctx, "p", r.ID, "att_2", 2); err != nil {
		t.Fatal(err)
	}
	second := time.UnixMilli(2000)
	log("loss", 30, 2001, 0.5)
	want(second, 30)
	log("loss", 40, 2002, math.NaN())
	want(second, 40, "loss")
}

// TestRewriteAtTheQuota: a text goes from a log also of a project that may store nothing more.
func TestRewriteAtTheQuota(t *testing.T) {
	var limit quota.Limit
	objects := quota.New(func(context.Context, string) (quota.Limit, error) { return limit, nil }).Over(&blobtest.Memory{})
	s := tracking.New(tracking.Config{
		DB: storetest.SQLite(t, trackingsql.Migrations), Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}},
		Objects: blob.New(objects, blobtest.NewSealer()),
	})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	r, err := s.Runs.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	place := tracking.Place{Run: r.ID}
	if _, err := s.Artifacts.PutArtifact(ctx, "p", place, "logs/out.txt", strings.NewReader("carla-4711 bought")); err != nil {
		t.Fatal(err)
	}
	limit = quota.Limit{Bytes: 1, Objects: 1}
	if _, err := s.Artifacts.PutArtifact(ctx, "p", place, "logs/more.txt", strings.NewReader("more")); !fault.Full(err) {
		t.Errorf("another file: %v", err)
	}
	err = LogFiles{s.Artifacts}.Rewrite(ctx, "p", string(r.ID), func(content []byte) []byte {
		return []byte(strings.ReplaceAll(string(content), "carla-4711", "**********"))
	})
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := s.Artifacts.OpenArtifact(ctx, "p", place, "logs/out.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "********** bought" {
		t.Errorf("%q, %v", got, err)
	}
}
