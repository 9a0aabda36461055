package app

import (
	"context"
	"io"
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

// TestRewriteAtTheQuota: a text goes from a log also of a project that may store nothing more.
func TestRewriteAtTheQuota(t *testing.T) {
	var limit quota.Limit
	objects := quota.New(func(context.Context, string) (quota.Limit, error) { return limit, nil }).Over(&blobtest.Memory{})
	s := tracking.New(tracking.Config{
		DB: storetest.SQLite(t, trackingsql.Migrations), Store: trackingsql.Store{}, Authz: trackingtest.Policy{"loop": {"p": {"*"}}},
		Artifacts: blob.New(objects, blobtest.NewSealer()),
	})
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.System, ID: "loop"})
	r, err := s.CreateRun(ctx, "p", tracking.RunSpec{}, tracking.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	place := tracking.Place{Run: r.ID}
	if _, err := s.PutArtifact(ctx, "p", place, "logs/out.txt", strings.NewReader("carla-4711 bought")); err != nil {
		t.Fatal(err)
	}
	limit = quota.Limit{Bytes: 1, Objects: 1}
	if _, err := s.PutArtifact(ctx, "p", place, "logs/more.txt", strings.NewReader("more")); !fault.Full(err) {
		t.Errorf("another file: %v", err)
	}
	err = runLogs{s}.Rewrite(ctx, "p", string(r.ID), func(content []byte) []byte {
		return []byte(strings.ReplaceAll(string(content), "carla-4711", "**********"))
	})
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := s.OpenArtifact(ctx, "p", place, "logs/out.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != "********** bought" {
		t.Errorf("%q, %v", got, err)
	}
}
