package training_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/profile"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// seeing is an engine that can look at workers.
type seeing struct {
	*enginetest.Fake
	asked profiler.Request
	seen  profiler.Result
	err   error
}

func (s *seeing) Profile(_ context.Context, _ engine.Handle, r profiler.Request) (profiler.Result, error) {
	s.asked = r
	return s.seen, s.err
}

// TestProfile: what an engine has seen is kept with the job, as a summary and as
// artifacts of the run.
func TestProfile(t *testing.T) {
	all := "thread (7): MainThread;step (t.py:1) 60\nthread (7): MainThread;rest (t.py:2) 40\n"
	e := &seeing{Fake: enginetest.NewFake(), seen: profiler.Result{
		Tool: profiler.PySpy, Version: "py-spy 1", Rate: 50, Processes: 1,
		Files: []profiler.File{{Name: profiler.AllStacks, Data: []byte(all)}, {Name: profiler.RunningStacks, Data: []byte("thread (7): MainThread;step (t.py:1) 60\n")}},
	}}
	w := newWorld(t, e)
	w.fake = e.Fake
	ctx := alice(t.Context())
	j := w.submit(t, training.Spec{Workers: training.Exactly(2), Resources: resource.Amount{CPU: resource.Cores(1)}})
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{Tool: "gdb"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("another tool: %v", err)
	}
	h := w.started(t)
	deadline := time.Now().Add(20 * time.Second)
	var got training.Profile
	for {
		var err error
		if got, err = w.Profile(ctx, nyc, j.ID, profile.Look{Worker: 1}); err == nil {
			break
		}
		if !fault.Is(err, fault.Conflict) || time.Now().After(deadline) { // it does not run yet
			t.Fatal(err)
		}
	}
	if e.asked.Worker != 1 || e.asked.Seconds != 30 || e.asked.Tool != profiler.PySpy || e.asked.ID != string(got.ID) {
		t.Errorf("%+v", e.asked)
	}
	attempt := strings.TrimPrefix(string(h), "fake:")
	under := "profiles/" + string(got.ID) + "/"
	want := training.Profile{
		ID: got.ID, Job: j.ID, Project: nyc, Attempt: training.AttemptID(attempt), Number: 1, Pool: "home", Run: "run_" + attempt, Artifacts: []string{under + "all.folded", under + "running.folded"}, At: got.At,
		By: training.Actor{ID: "usr_alice", Name: "alice"},
		Seen: profile.Seen{Worker: 1, Tool: profiler.PySpy, Version: "py-spy 1", Seconds: 30, Summary: profile.Summary{Compute: 0.6, Idle: 0.4, Basis: 100, Processes: 1, Top: []profile.Function{
			{Name: "step", Where: "t.py:1", Kind: profile.Compute, Share: 0.6},
			{Name: "rest", Where: "t.py:2", Kind: profile.Idle, Share: 0.4, Waiting: 0.4},
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if kept := w.runs.artifacts["run_"+attempt+"/"+under+"all.folded"]; kept != all {
		t.Errorf("the artifact is %q", kept)
	}
	d, err := w.Describe(ctx, nyc, j.ID)
	if err != nil || len(d.Profiles) != 1 || !cmp.Equal(d.Profiles[0], got) {
		t.Errorf("%+v %v", d.Profiles, err)
	}
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{Worker: 2}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "worker 2 does not exist") {
		t.Errorf("a worker that is not: %v", err)
	}
	e.seen.Files[0].Data = []byte("nothing\n")
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("nothing was seen: %v", err)
	}
	e.err = fault.New(fault.Unsupported, "no py-spy")
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
	e.err, e.seen.Files[0].Data = nil, []byte(all)
	for range 99 {
		if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
		t.Errorf("one more than may be: %v", err)
	}
	every, err := w.Profiles(ctx, nyc, j.ID)
	if d, e := w.Describe(ctx, nyc, j.ID); e != nil || err != nil || len(d.Profiles) != 10 || !cmp.Equal(d.Profiles, every[90:]) {
		t.Errorf("%d %v %v", len(d.Profiles), e, err)
	}
	w.auth.refuse(training.ActionProfile)
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, j.ID)
	w.auth.refuse("")
	if _, err := w.Profile(ctx, nyc, j.ID, profile.Look{}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
	if all, err := w.Profiles(ctx, nyc, j.ID); err != nil || len(all) != 100 {
		t.Errorf("%+v %v", all, err)
	}
}

// refuse refuses only this action; an empty one refuses none.
func (a *authorizer) refuse(action policy.Action) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.deny)
	if action != "" {
		a.deny[action] = true
	}
}
