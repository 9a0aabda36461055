package compute_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/scheduler"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
	"github.com/falaj-ml/falaj/internal/store"
)

func viewer(reads bool) compute.Viewer {
	return compute.Viewer{
		Reads: func(context.Context, project.Name) (bool, error) { return reads, nil },
		Left: func(_ context.Context, ids []compute.WorkloadID) (map[compute.WorkloadID]compute.Left, error) {
			return map[compute.WorkloadID]compute.Left{"att_1": {Time: time.Minute, Basis: replay.Pace}}, nil
		},
	}
}

// TestSnapshot: what runs and waits comes out such that it can be played, and what
// was decided is what a play decides.
func TestSnapshot(t *testing.T) {
	w := newWorld(t, func(c *compute.Config) {
		c.Quotas = func(context.Context, *store.Tx) (map[string]resource.Limit, error) {
			return map[string]resource.Limit{"p": resource.LimitOf(cores(7)), "idle": resource.LimitOf(cores(1))}, nil
		}
	})
	w.queue(t, "q", compute.QueueSpec{Quota: resource.LimitOf(cores(9))})
	w.Start(t.Context())
	w.submit(t, compute.Request{ID: "att_1", Label: "job_1", Amount: cores(2), User: "alia", Queue: "q", Timeout: time.Hour})
	w.awaitStart(t)
	w.submit(t, compute.Request{ID: "att_2", Label: "job_2", Amount: cores(1), User: "alia", Queue: "q", Timeout: time.Hour})
	if _, err := w.Why(t.Context(), "att_2"); err != nil {
		t.Fatal(err)
	}
	for _, reads := range []bool{true, false} {
		s, err := w.Snapshot(t.Context(), viewer(reads))
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(b); strings.Contains(text, `"p"`) != reads || strings.Contains(text, "alia") != reads || strings.Contains(text, "idle") != reads {
			t.Errorf("reads %v: %s", reads, text)
		}
		snapshot, start, err := replay.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		world, about := snapshot.World(start, replay.Assumptions{Takes: 10 * time.Minute, Over: true, Leave: time.Second})
		if len(about) != 2 || about[0].Basis != replay.Pace || about[0].State != "running" || about[1].Basis != replay.Assumed || about[1].State != "waiting" {
			t.Errorf("%+v", about)
		}
		played, err := replay.Play(t.Context(), world)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []time.Duration{time.Minute, 11 * time.Minute} {
			if got := played.Fates[i].End.Sub(start.Now); got != want {
				t.Errorf("%s ends after %s, want %s", played.Fates[i].ID, got, want)
			}
		}
		quota := start.Quotas[start.Started[0].Project]
		if !quota.Equal(resource.LimitOf(cores(7))) || len(start.Queues) != 1 || len(start.Pools) != 1 {
			t.Errorf("%+v", start)
		}
	}
	// One that was cancelled does not come back.
	w.stop(t, "att_1", "cancelled")
	s, err := w.Snapshot(t.Context(), viewer(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range s.Works {
		if x.ID == scheduler.ID("att_1") && (x.State != "leaving" || !x.Gone) {
			t.Errorf("%+v", x)
		}
	}
}

func TestSnapshotNeedsPermission(t *testing.T) {
	w := newWorld(t)
	w.cfg.Authorizer = allowNone{}
	w.restart(t)
	if _, err := w.Snapshot(t.Context(), viewer(true)); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
}

func TestPropose(t *testing.T) {
	w := newWorld(t)
	work, err := w.Propose(t.Context(), compute.Request{ID: "x", Kind: compute.JobAttempt, Project: "p", Amount: cores(1), Timeout: time.Hour})
	if err != nil || work.Project != "p" || work.Isolation != scheduler.Sandbox || work.Workers != 1 || len(work.Residency) == 0 {
		t.Errorf("%+v, %v", work, err)
	}
	if _, err := w.Propose(t.Context(), compute.Request{}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}
