package training_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
)

func write(path, content string) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		panic(err)
	}
}

// A job may decide against its model, when it says why.
func TestNoModel(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "no-model.txt"), "the old one is better")
		return enginetest.Exit{}
	})
	if j := w.ended(t, w.submit(t, training.Spec{Register: "delay"}).ID); j.State != training.Succeeded || j.Model != "" || len(w.runs.models) != 0 {
		t.Fatalf("%+v", j)
	}
}

// A model is an input like a dataset: pinned, exported, and named to the program.
func TestAJobReadsAModel(t *testing.T) {
	w := newWorld(t)
	w.data.inputs["models:/delay@champion"] = training.Input{Ref: "model delay@3", Digest: "sha256:m", Residency: residency.Of("home"), Classification: project.Confidential}
	w.data.inputs["models:/delay/3"] = w.data.inputs["models:/delay@champion"]
	seen := make(chan map[string]string, 2)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		seen <- p.Spec.Env
		return enginetest.Exit{}
	})
	j := w.ended(t, w.submit(t, training.Spec{Data: map[string]string{"old-model": "models:/delay@champion"}}).ID)
	env := <-seen
	if j.State != training.Succeeded || j.Classification != project.Confidential || j.Inputs[0].Model() != "delay@3" || j.Inputs[0].Dataset() != "" {
		t.Errorf("%+v", j)
	}
	if _, dataset := env["FALAJ_DATASET_OLD_MODEL"]; dataset || env["FALAJ_MODEL_OLD_MODEL"] != "delay@3" || env["FALAJ_DATA_OLD_MODEL"] == "" {
		t.Errorf("%v", env)
	}
	if env["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] != "true" { // a link would lead into the job
		t.Errorf("MLflow prints links: %v", env)
	}
	if env["MLFLOW_EXPERIMENT_ID"] != "7" { // further runs of the program belong to that of its first
		t.Errorf("the experiment is %q", env["MLFLOW_EXPERIMENT_ID"])
	}
	again, err := w.Repeat(alice(t.Context()), nyc, j.ID)
	if err != nil || again.Spec.Data["old-model"] != "models:/delay/3" {
		t.Errorf("%+v %v", again, err)
	}
	w.ended(t, again.ID)
}

func TestAJobFromDataToModel(t *testing.T) {
	w := newWorld(t)
	seen := make(chan engine.Spec, 1)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		seen <- p.Spec
		if b, err := os.ReadFile(filepath.Join(p.Spec.Env["FALAJ_DATA_TRAIN"], "part-0.parquet")); err != nil || string(b) != "rows of dataset flights@1" {
			return enginetest.Exit{Code: 9}
		}
		fmt.Fprintln(p.Log, "learning")
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "plots", "roc.txt"), "a plot")
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "model", "model.onnx"), "a model")
		return enginetest.Exit{}
	})
	j := w.submit(t, training.Spec{
		Environment: "py", Script: "print(1)", Command: []string{"--depth=3"},
		Data:     map[string]string{"train": "flights", "wind-data": "weather"},
		Register: "delay", Env: map[string]string{"X": "1"}, Network: []string{"mirror.example:443"},
	})
	if j.State != training.Queued || !j.Residency.Same(residency.Of("home")) || j.Classification != project.Confidential || j.By.ID != "usr_alice" {
		t.Fatalf("submitted as %+v", j)
	}
	spec := <-seen
	j = w.ended(t, j.ID)
	if j.State != training.Succeeded || j.Model != "delay@1" || j.Attempts != 1 || j.Failures != 0 || j.EnvDigest != "sha256:e" || j.Pool != compute.Home {
		t.Fatalf("ended as %+v", j)
	}

	// What the process got.
	env := spec.Env
	a := spec.ID
	if spec.Command[0] != "/env/bin/python" || filepath.Base(spec.Command[1]) != "main.py" || spec.Command[2] != "--depth=3" {
		t.Errorf("command %q", spec.Command)
	}
	for k, want := range map[string]string{
		"FALAJ_TOKEN": "secret of " + a, "MLFLOW_TRACKING_TOKEN": "secret of " + a, "MLFLOW_RUN_ID": "run_" + a, "FALAJ_ATTEMPT": a,
		"FALAJ_JOB": string(j.ID), "FALAJ_PROJECT": "nyc", "X": "1", "OMP_NUM_THREADS": "1", "FALAJ_DATASET_WIND_DATA": "weather@1",
	} {
		if env[k] != want {
			t.Errorf("%s is %q, want %q", k, env[k], want)
		}
	}
	if !spec.Network.API || !slices.Equal(spec.Network.Allow, []string{"mirror.example:443"}) || env["FALAJ_DATA_WIND_DATA"] == "" {
		t.Errorf("network %+v, env %v", spec.Network, env)
	}
	for _, m := range spec.Mounts {
		if readOnly := strings.HasSuffix(m.Path, "/data"); m.Writable == readOnly {
			t.Errorf("mount %+v", m)
		}
	}
	if w.data.who.ID != "training" || !strings.Contains(w.data.who.Name, a) {
		t.Errorf("exported as %+v", w.data.who)
	}

	// What was taken from it.
	run := "run_" + a
	want := map[string]string{run + "/plots/roc.txt": "a plot", run + "/logs/attempt-1.log": "learning\n"}
	if !maps.Equal(w.runs.artifacts, want) {
		t.Errorf("artifacts %q, want %q", w.runs.artifacts, want)
	}
	m := w.runs.models[0]
	if w.runs.files["model.onnx"] != "a model" || m.Register != "delay" || !m.Residency.Same(residency.Of("home")) || m.Classification != project.Confidential || m.Run != run || len(m.Inputs) != 2 {
		t.Errorf("model %+v with %v", m, w.runs.files)
	}
	if w.runs.ended[run] != "FINISHED" || len(w.runs.specs) != 1 || w.runs.specs[0].Experiment != "train" {
		t.Errorf("runs %+v ended %v", w.runs.specs, w.runs.ended)
	}

	// What is left of it.
	if got := strings.Join(w.tokens.events, ", "); got != "issued "+a+", revoked "+a {
		t.Errorf("tokens: %s", got)
	}
	if _, err := w.compute.Wait(t.Context(), compute.WorkloadID(a)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"attempts", "checkpoints"} {
		if entries, err := os.ReadDir(filepath.Join(w.cfg.Dir, dir)); err != nil || len(entries) != 0 {
			t.Errorf("%s still holds %v (%v)", dir, entries, err)
		}
	}
	d, err := w.Describe(alice(t.Context()), nyc, j.ID)
	if err != nil || len(d.Tries) != 1 || d.Tries[0].State != training.AttemptEnded || d.Tries[0].Class != training.Done || d.Why[0] != "succeeded" {
		t.Errorf("description %+v, %v", d, err)
	}
}

// TestEndsAndRepetitions has programs end in every way.
func TestEndsAndRepetitions(t *testing.T) {
	t.Parallel()
	checkpoint := func(name string) func(p *enginetest.Process) {
		return func(p *enginetest.Process) {
			write(filepath.Join(p.Spec.Env["FALAJ_CHECKPOINT_DIR"], name, "x"), p.Spec.ID)
		}
	}
	for name, c := range map[string]struct {
		act      func(p *enginetest.Process) // each attempt, before its exit
		exits    []enginetest.Exit           // of one attempt after the other
		state    training.State
		class    training.Class
		attempts int
		says     string
	}{
		"user error":    {exits: []enginetest.Exit{{Code: 1}}, state: training.Failed, class: training.UserError, attempts: 1, says: "exited with code 1"},
		"segfault":      {exits: []enginetest.Exit{{Signal: syscall.SIGSEGV}}, state: training.Failed, class: training.UserError, attempts: 1, says: "killed by"},
		"out of memory": {exits: []enginetest.Exit{{OutOfMemory: true}}, state: training.Failed, class: training.OutOfMemory, attempts: 1, says: "memory limit of 1GiB"},
		"not started":   {exits: []enginetest.Exit{{NotStarted: "no such program"}}, state: training.Failed, class: training.Unprepared, attempts: 1, says: "no such program"},
		"saved once":    {act: checkpoint("step-1"), exits: []enginetest.Exit{{Code: 75}, {}}, state: training.Succeeded, class: training.Done, attempts: 2},
		"unfinished save": {
			act: checkpoint("step-1.tmp"), exits: []enginetest.Exit{{Code: 75}, {Code: 75}}, state: training.Failed, class: training.Idle, attempts: 2,
			says: "without a new checkpoint (failed 2 of at most 2 attempts)",
		},
		"killed once":  {exits: []enginetest.Exit{{Signal: syscall.SIGKILL}, {}}, state: training.Succeeded, class: training.Done, attempts: 2},
		"killed twice": {exits: []enginetest.Exit{{Signal: syscall.SIGKILL}, {Signal: syscall.SIGKILL}}, state: training.Failed, class: training.Killed, attempts: 2, says: "failed 2 of at most 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := 0
			w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				if c.act != nil {
					c.act(p)
				}
				n++
				return c.exits[n-1]
			})
			j := w.submit(t, training.Spec{MaxAttempts: 2})
			j = w.ended(t, j.ID)
			if j.State != c.state || j.Class != c.class || j.Attempts != c.attempts || !strings.Contains(j.Reason, c.says) {
				t.Fatalf("%s (%s) after %d attempts: %s", j.State, j.Class, j.Attempts, j.Reason)
			}
			if j.State == training.Failed && j.Class != training.Killed && j.Hint == "" && j.Class != training.Unprepared {
				t.Error("there is no hint")
			}
		})
	}
}

func TestCheckpointsStayBetweenAttempts(t *testing.T) {
	w := newWorld(t)
	var listed []string
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		dir := p.Spec.Env["FALAJ_CHECKPOINT_DIR"]
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			listed = append(listed, e.Name())
		}
		if len(entries) > 0 {
			return enginetest.Exit{}
		}
		write(filepath.Join(dir, "step-1", "x"), "weights")
		write(filepath.Join(dir, "step-2.tmp", "x"), "half of the weights")
		return enginetest.Exit{Code: 75}
	})
	j := w.submit(t, training.Spec{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	if !slices.Equal(listed, []string{"step-1"}) {
		t.Fatalf("the second attempt saw %q", listed)
	}
}

func TestCancel(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	running := w.submit(t, training.Spec{Resources: twoCores})
	queued := w.submit(t, training.Spec{Resources: twoCores})
	r, err := w.Logs(ctx, nyc, running.ID, 0, 0, true) // returns when it runs
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.started(t)
	why, err := w.Why(ctx, nyc, queued.ID)
	for err == nil && slices.Equal(why, []string{"about to be scheduled"}) && ctx.Err() == nil {
		why, err = w.Why(ctx, nyc, queued.ID) // it waits for a cycle, but not for ever
	}
	if want := "2 cpu wanted, 0 free on home; "; err != nil || len(why) != 1 || !strings.HasPrefix(why[0], want) || !strings.Contains(why[0], string(running.ID)) {
		t.Fatalf("why %q, %v", why, err)
	}
	for _, id := range []training.JobID{queued.ID, running.ID} {
		if _, err := w.Cancel(ctx, nyc, id); err != nil {
			t.Fatal(err)
		}
		j := w.ended(t, id)
		if j.State != training.Cancelled || j.Reason != "cancelled by user alice (usr_alice)" {
			t.Fatalf("%+v", j)
		}
		if _, err := w.Cancel(ctx, nyc, id); err != nil {
			t.Fatalf("cancelling again: %v", err)
		}
	}
	if n := w.fake.Launched(string(queued.Attempt)); n != 0 {
		t.Fatalf("the queued job was started %d times", n)
	}
	done := w.submit(t, training.Spec{})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, done.ID)
	if _, err := w.Cancel(ctx, nyc, done.ID); !fault.Is(err, fault.Conflict) {
		t.Fatalf("cancelling what succeeded: %v", err)
	}
}

func TestResidency(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	_, err := w.Submit(ctx, nyc, "train", training.Spec{Command: []string{"/bin/true"}, Data: map[string]string{"a": "flights", "b": "abroad"}})
	if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "dataset flights@1 (AE, home) and dataset abroad@1 (DE)") {
		t.Fatalf("no common zone: %v", err)
	}
	if _, _, err := w.compute.ApplyPool(ctx, "cheap", compute.PoolSpec{Engine: "far", Zone: "DE", Nodes: []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}}}); err != nil {
		t.Fatal(err)
	}
	j := w.submit(t, training.Spec{Data: map[string]string{"a": "flights"}})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, j.ID)
	why, err := w.Why(ctx, nyc, j.ID)
	if want := "pool cheap is in DE, outside the data's residency AE, home"; err != nil || !slices.Contains(why, want) {
		t.Fatalf("why %q, %v", why, err)
	}
	if w.runs.specs[0].Residency.String() != "AE, home" {
		t.Fatalf("run %+v", w.runs.specs[0])
	}
}

// What a job could read of its tables confines it, and it gets their directories.
func TestTablesOfAJob(t *testing.T) {
	w := newWorld(t)
	seen := make(chan engine.Spec, 1)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		seen <- p.Spec
		return enginetest.Exit{}
	})
	j := w.submit(t, training.Spec{Data: map[string]string{"a": "weather"}, Tables: []string{"late", "new"}})
	if !j.Residency.Same(residency.Of("home")) || len(j.Inputs) != 1 {
		t.Errorf("a job that may read late@1: %+v", j)
	}
	if j = w.ended(t, j.ID); j.State != training.Succeeded {
		t.Fatalf("ended as %+v", j)
	}
	got := (<-seen).Mounts
	got = got[slices.IndexFunc(got, func(m engine.Mount) bool { return strings.HasSuffix(m.Path, "/data") })+1:]
	dir := w.tables.dir
	want := []engine.Mount{{Path: dir + "/late"}, {Path: dir + "/late/data", Writable: true}, {Path: dir + "/new"}, {Path: dir + "/new/data", Writable: true}}
	if !slices.Equal(got, want) {
		t.Errorf("mounts %+v, want %+v", got, want)
	}
	w.fake.Behave(nil)

	if _, _, err := w.compute.ApplyPool(alice(t.Context()), "far", compute.PoolSpec{
		Zone: "home", Engine: "far", Nodes: []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}},
	}); err != nil {
		t.Fatal(err)
	}
	spec := training.Spec{Command: []string{"/bin/true"}, Tables: []string{"late"}}
	_, err := w.Submit(alice(t.Context()), nyc, "train", spec)
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "pool far is remote") || !strings.Contains(fault.HintOf(err), " home.") {
		t.Errorf("a job that may be placed elsewhere: %v", err)
	}
	spec.Pools = []string{"home"}
	if _, err := w.Submit(alice(t.Context()), nyc, "train", spec); err != nil {
		t.Errorf("a job that may not: %v", err)
	}
}

func TestRefusedAtSubmission(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	base := training.Spec{Command: []string{"/bin/true"}}
	with := func(edit func(*training.Spec)) training.Spec {
		s := base
		edit(&s)
		return s
	}
	for name, c := range map[string]struct {
		spec training.Spec
		kind fault.Kind
	}{
		"nothing to run":       {training.Spec{}, fault.Invalid},
		"rejected version":     {with(func(s *training.Spec) { s.Data = map[string]string{"a": "bad"} }), fault.Conflict},
		"unknown dataset":      {with(func(s *training.Spec) { s.Data = map[string]string{"a": "none"} }), fault.NotFound},
		"unknown environment":  {with(func(s *training.Spec) { s.Environment = "none" }), fault.NotFound},
		"script without one":   {training.Spec{Script: "x"}, fault.Invalid},
		"data name":            {with(func(s *training.Spec) { s.Data = map[string]string{"../a": "weather"} }), fault.Invalid},
		"same variable":        {with(func(s *training.Spec) { s.Data = map[string]string{"a-b": "weather", "a_b": "weather"} }), fault.Invalid},
		"reserved variable":    {with(func(s *training.Spec) { s.Env = map[string]string{"FALAJ_TOKEN": "x"} }), fault.Invalid},
		"odd variable":         {with(func(s *training.Spec) { s.Env = map[string]string{"A=B": "x"} }), fault.Invalid},
		"network":              {with(func(s *training.Spec) { s.Network = []string{"evil.example:443"} }), fault.PermissionDenied},
		"isolation":            {with(func(s *training.Spec) { s.Isolation = "none" }), fault.Invalid},
		"framework":            {with(func(s *training.Spec) { s.Framework = "magic" }), fault.Invalid},
		"priority":             {with(func(s *training.Spec) { s.Priority = 1e6 }), fault.Invalid},
		"timeout":              {with(func(s *training.Spec) { s.Timeout = -1 }), fault.Invalid},
		"source":               {with(func(s *training.Spec) { s.Source = "sha256:x" }), fault.Invalid},
		"absent source":        {with(func(s *training.Spec) { s.Source = "sha256:" + strings.Repeat("0", 64) }), fault.NotFound},
		"model name":           {with(func(s *training.Spec) { s.Register = "../x" }), fault.Invalid},
		"table name":           {with(func(s *training.Spec) { s.Tables = []string{"../late"} }), fault.Invalid},
		"a version of a table": {with(func(s *training.Spec) { s.Tables = []string{"late@1"} }), fault.Invalid},
		"table twice":          {with(func(s *training.Spec) { s.Tables = []string{"late", "late"} }), fault.Invalid},
		"many tables":          {with(func(s *training.Spec) { s.Tables = slices.Repeat([]string{"late"}, 17) }), fault.Invalid},
		"sealed table":         {with(func(s *training.Spec) { s.Tables = []string{"sealed"} }), fault.PermissionDenied},
		"unknown pool":         {with(func(s *training.Spec) { s.Pools = []string{"home", "nowhere"} }), fault.Invalid},
		"pool name":            {with(func(s *training.Spec) { s.Pools = []string{"a b"} }), fault.Invalid},
	} {
		if _, err := w.Submit(ctx, nyc, "train", c.spec); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v (%s), want %s", name, err, fault.KindOf(err), c.kind)
		}
	}
	if _, err := w.Submit(ctx, nyc, "../x", base); !fault.Is(err, fault.Invalid) {
		t.Errorf("name: %v", err)
	}
	jobs, _, err := w.List(ctx, nyc, training.Filter{})
	if err != nil || len(jobs) != 0 {
		t.Fatalf("%d jobs were kept (%v)", len(jobs), err)
	}
}

func TestApplyIsIdempotent(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	spec := training.Spec{Command: []string{"/bin/true"}, Data: map[string]string{"a": "weather"}}
	plan := func(want project.Change, id training.JobID) {
		t.Helper()
		before, _, _ := w.List(ctx, nyc, training.Filter{})
		j, c, err := w.Plan(ctx, nyc, "train", spec)
		if err != nil || c != want || j.ID != id {
			t.Errorf("planned: %s, %q, %v; not %s, %q", c, j.ID, err, want, id)
		}
		if after, _, err := w.List(ctx, nyc, training.Filter{}); err != nil || len(after) != len(before) {
			t.Errorf("a plan left %d jobs, %v", len(after), err)
		}
	}
	plan(project.Created, "")
	if _, _, err := w.Plan(ctx, nyc, "train", training.Spec{Command: spec.Command, Data: map[string]string{"a": "absent"}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("planned with data that is not there: %v", err)
	}
	first, c, err := w.Apply(ctx, nyc, "train", spec)
	if err != nil || c != project.Created {
		t.Fatalf("%s, %v", c, err)
	}
	plan(project.Unchanged, first.ID)
	again, c, err := w.Apply(ctx, nyc, "train", spec)
	if err != nil || c != project.Unchanged || again.ID != first.ID {
		t.Fatalf("%s, %s, %v", c, again.ID, err)
	}
	w.fake.Finish(w.started(t), enginetest.Exit{Code: 1})
	w.ended(t, first.ID)
	retry, c, err := w.Apply(ctx, nyc, "train", spec) // what failed is tried again
	if err != nil || c != project.Created || retry.ID == first.ID {
		t.Fatalf("%s, %s, %v", c, retry.ID, err)
	}
	// A new version of the data is another job.
	in := w.data.inputs["weather"]
	in.Ref, in.Digest = "dataset weather@2", "sha256:new"
	w.data.inputs["weather"] = in
	newer, c, err := w.Apply(ctx, nyc, "train", spec)
	if err != nil || c != project.Created || newer.ID == retry.ID {
		t.Fatalf("%s, %s, %v", c, newer.ID, err)
	}
}

func TestAJobWaitsForItsEnvironment(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	w.envs.usable.State, w.envs.usable.Digest = environment.Building, ""
	j := w.submit(t, training.Spec{Environment: "py", Script: "x"})
	if why, err := w.Why(ctx, nyc, j.ID); err != nil || why[0] != "environment py is building: downloading and installing 3 packages" {
		t.Fatalf("why %q, %v", why, err)
	}
	seen := "environment py is building: downloading and installing 3 packages"
	if now, phase, err := w.PhaseAfter(ctx, nyc, j.ID, "-", time.Minute); err != nil || phase != seen || now.State != training.Queued {
		t.Fatalf("phase %q of a job that is %s, %v", phase, now.State, err)
	}
	if _, phase, err := w.PhaseAfter(ctx, nyc, j.ID, seen, 0); err != nil || phase != seen {
		t.Fatalf("the same phase: %q, %v", phase, err)
	}
	cancelled := w.submit(t, training.Spec{Environment: "py", Script: "y"})
	if c, err := w.Cancel(ctx, nyc, cancelled.ID); err != nil || c.State != training.Cancelled {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, phase, err := w.PhaseAfter(ctx, nyc, cancelled.ID, "cancelled", time.Minute); err != nil || phase != "cancelled" {
		t.Fatalf("phase of one that has ended: %q, %v", phase, err)
	}
	w.envs.become(environment.Ready, nil)
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.EnvDigest != "sha256:e" {
		t.Fatalf("%+v", j)
	}

	w.envs.become(environment.Building, nil)
	j = w.submit(t, training.Spec{Environment: "py", Script: "z"})
	w.envs.become(environment.Failed, fault.New(fault.Invalid, "environment py could not be built: no such package").WithHint("Check the name."))
	if j = w.ended(t, j.ID); j.State != training.Failed || j.Class != training.Unprepared || !strings.Contains(j.Reason, "no such package") || j.Hint == "" {
		t.Fatalf("%+v", j)
	}
}

func TestPreparationThatFails(t *testing.T) {
	w := newWorld(t)
	w.data.fail = fault.New(fault.Unavailable, "the disk is away")
	w.fake.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	spec := training.Spec{Data: map[string]string{"a": "weather"}}
	if j := w.ended(t, w.submit(t, spec).ID); j.State != training.Succeeded || j.Attempts != 2 || j.Failures != 1 {
		t.Fatalf("what was away was not asked again: %+v", j)
	}
	w.data.fail = errors.New("broken")
	if j := w.ended(t, w.submit(t, spec).ID); j.State != training.Failed || j.Class != training.Unprepared || !strings.Contains(j.Reason, "broken") {
		t.Fatalf("%+v", j)
	}
	j, err := w.Submit(alice(t.Context()), nyc, "train", training.Spec{Command: []string{"no-such-program"}})
	if err != nil {
		t.Fatal(err)
	}
	if j = w.ended(t, j.ID); j.State != training.Failed || !strings.Contains(j.Reason, "no-such-program") {
		t.Fatalf("%+v", j)
	}
}

func TestOutputThatCannotBeKept(t *testing.T) {
	for name, act := range map[string]func(out string){
		"link":     func(out string) { _ = os.Symlink("/etc/passwd", filepath.Join(out, "passwd")) },
		"no model": func(string) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				act(p.Spec.Env["FALAJ_OUTPUT_DIR"])
				return enginetest.Exit{}
			})
			j := w.ended(t, w.submit(t, training.Spec{Register: "delay"}).ID)
			if j.State != training.Failed || j.Class != training.Unstored || j.Hint == "" {
				t.Fatalf("%+v", j)
			}
			if s := w.runs.ended[j.Run]; s != "FAILED" {
				t.Fatalf("the run is %s", s)
			}
		})
	}
}

func TestFailureIsNotHiddenByItsOutput(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		_ = os.Symlink("/etc/passwd", filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "passwd"))
		return enginetest.Exit{Code: 3}
	})
	j := w.ended(t, w.submit(t, training.Spec{}).ID)
	if j.Class == training.Unstored || !strings.Contains(j.Reason, "code 3") || !strings.Contains(j.Reason, "passwd") {
		t.Fatalf("%+v", j)
	}
}

func TestJobThatCannotStartHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	w.envs.become(environment.Building, nil)
	first := w.submit(t, training.Spec{Environment: "py"})
	w.envs.become(environment.Building, errors.New("the database is away"))
	if j := w.ended(t, w.submit(t, training.Spec{}).ID); j.State != training.Succeeded {
		t.Fatalf("behind it: %+v", j)
	}
	if err := w.RunOnce(identity.With(t.Context(), identity.Loop("training"))); err == nil {
		t.Error("the round hides that a job could not be started")
	}
	if why, err := w.Why(alice(t.Context()), nyc, first.ID); err != nil || len(why) != 1 || !strings.Contains(why[0], "the database is away; it is retried") {
		t.Errorf("why it waits: %q, %v", why, err)
	}
	w.envs.become(environment.Building, fault.New(fault.Gone, "its files are missing"))
	w.Wake()
	if j := w.ended(t, first.ID); j.Class != training.Unprepared || !strings.Contains(j.Reason, "missing") {
		t.Fatalf("%+v", j)
	}
}

// TestRestart ends the process of Falaj while attempts run, and again between
// the end of an attempt and the record of it.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{Data: map[string]string{"a": "weather"}})
	h, attempt := w.started(t), string(j.Attempt)
	w.stop()
	left := filepath.Join(w.cfg.Dir, "attempts", "att_left")
	write(filepath.Join(left, "data", "secret.parquet"), "rows")
	w.start(t)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Fatalf("leftovers of a crash are still there: %v", err)
	}
	w.runs.mu.Lock()
	w.runs.refuse = fault.New(fault.Unavailable, "not now") // as if killed in Finish
	w.runs.mu.Unlock()
	w.fake.Finish(h, enginetest.Exit{})
	w.stop()
	w.runs.mu.Lock()
	w.runs.refuse = nil
	w.runs.mu.Unlock()
	w.start(t)
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 1 || w.fake.Launched(attempt) != 1 || w.data.exports != 1 {
		t.Fatalf("%+v, launched %d times, exported %d times", j, w.fake.Launched(attempt), w.data.exports)
	}
}

func TestLostIsRepeated(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{})
	w.fake.Lose(w.started(t))
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 2 || j.Failures != 1 {
		t.Fatalf("%+v", j)
	}
	d, err := w.Describe(alice(t.Context()), nyc, j.ID)
	if err != nil || d.Tries[0].Class != training.NodeLost {
		t.Fatalf("%+v, %v", d, err)
	}
}

// A restored server has no places of attempts: one that had ended well is repeated, and
// did not succeed with nothing.
func TestWhatIsNotInABackupIsRepeated(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{})
	h := w.started(t)
	if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "attempts")); err != nil {
		t.Fatal(err)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 2 {
		t.Fatalf("%+v", j)
	}
	if d, err := w.Describe(alice(t.Context()), nyc, j.ID); err != nil || d.Tries[0].Class != training.NodeLost {
		t.Fatalf("%+v, %v", d, err)
	}
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	j := w.submit(t, training.Spec{Data: map[string]string{"a": "flights"}})
	h := w.started(t)
	w.fake.Print(h, "one\n")
	r, err := w.Logs(ctx, nyc, j.ID, 0, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "one\n" {
		t.Fatalf("%q, %v", first, err)
	}
	w.fake.Print(h, "two\n")
	w.fake.Finish(h, enginetest.Exit{})
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "two\n" {
		t.Fatalf("%q, %v", rest, err)
	}
	r.Close()
	w.ended(t, j.ID)
	if _, err := w.Logs(ctx, nyc, j.ID, 7, 0, false); !fault.Is(err, fault.NotFound) {
		t.Fatalf("an attempt that never was: %v", err)
	}
	if len(w.journal.entries) != 2 || w.journal.entries[0].Action != "job.logs" || w.journal.entries[0].Actor.ID != "usr_alice" {
		t.Fatalf("reads of a confidential log: %+v", w.journal.entries)
	}
}

// TestLinesAreOfTheLog: the lines that a failed job is described with need job.logs, as its log
// does; the diagnosis needs job.read alone.
func TestLinesAreOfTheLog(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	j := w.submit(t, training.Spec{MaxAttempts: 1})
	h := w.started(t)
	w.fake.Print(h, "secret of the log\n")
	w.fake.Finish(h, enginetest.Exit{Code: 3})
	w.ended(t, j.ID)
	lines := func() (n int, reason string) {
		d, err := w.Describe(ctx, nyc, j.ID)
		if err != nil || len(d.Tries) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		return len(d.Tries[0].Lines), d.Tries[0].Reason
	}
	if n, reason := lines(); n == 0 || reason == "" {
		t.Fatalf("with job.logs: %d lines, %q", n, reason)
	}
	w.auth.refuse(training.ActionLogs)
	if n, reason := lines(); n != 0 || reason == "" {
		t.Fatalf("without job.logs: %d lines, %q", n, reason)
	}
}

// TestEnvironmentRef: a specification that names a version of an environment, as those of
// trials do, has the same reference as one that names the environment.
func TestEnvironmentRef(t *testing.T) {
	for spec, want := range map[string]string{"py": "py@sha256:e", "py@sha256:e": "py@sha256:e", "": ""} {
		if got := (training.Job{Spec: training.Spec{Environment: spec}, EnvDigest: "sha256:e"}).EnvironmentRef(); got != want {
			t.Errorf("%q: %q", spec, got)
		}
	}
	if got := (training.Job{Spec: training.Spec{Environment: "py"}}).EnvironmentRef(); got != "" {
		t.Errorf("before the environment is known: %q", got)
	}
}

func TestPermissions(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	j := w.submit(t, training.Spec{})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, j.ID)
	for _, a := range []policy.Action{training.ActionRead, training.ActionSubmit, training.ActionCancel, training.ActionLogs} {
		w.auth.deny[a] = true
	}
	calls := map[string]error{}
	_, calls["one"] = w.One(ctx, nyc, j.ID)
	_, _, calls["list"] = w.List(ctx, nyc, training.Filter{})
	_, calls["why"] = w.Why(ctx, nyc, j.ID)
	_, calls["describe"] = w.Describe(ctx, nyc, j.ID)
	_, calls["wait"] = w.Wait(ctx, nyc, j.ID, time.Millisecond)
	_, calls["cancel"] = w.Cancel(ctx, nyc, j.ID)
	_, calls["logs"] = w.Logs(ctx, nyc, j.ID, 0, 0, false)
	_, calls["submit"] = w.Submit(ctx, nyc, "x", training.Spec{Command: []string{"/bin/true"}})
	_, _, calls["apply"] = w.Apply(ctx, nyc, "x", training.Spec{Command: []string{"/bin/true"}})
	_, calls["upload"] = w.Upload(ctx, nyc, strings.NewReader(""))
	for name, err := range calls {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	clear(w.auth.deny)
	if _, err := w.One(ctx, "other", j.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project's job: %v", err)
	}
}

func TestListPages(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	w.fake.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	var ids []training.JobID
	for range 5 {
		ids = append([]training.JobID{w.submit(t, training.Spec{}).ID}, ids...)
	}
	var got []training.JobID
	f := training.Filter{Limit: 2}
	for {
		jobs, next, err := w.List(ctx, nyc, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			got = append(got, j.ID)
		}
		if next == "" {
			break
		}
		f.Before = next
	}
	if !slices.Equal(got, ids) {
		t.Fatalf("listed %v, want %v", got, ids)
	}
	for _, id := range ids {
		w.ended(t, id)
	}
	if jobs, _, err := w.List(ctx, nyc, training.Filter{State: training.Failed}); err != nil || len(jobs) != 0 {
		t.Fatalf("%v, %v", jobs, err)
	}
}

// TestDivergenceIsSaid: a job that succeeds with NaN to the end says so.
func TestDivergenceIsSaid(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	for want, metrics := range map[string][]string{
		"": nil,
		"the last value of loss is NaN or infinite":            {"loss"},
		"the last value of a, b, c, 2 more is NaN or infinite": {"a", "b", "c", "d", "e"},
	} {
		w.runs.mu.Lock()
		w.runs.progress = training.Progress{NoNumbers: metrics}
		w.runs.mu.Unlock()
		j := w.ended(t, w.submit(t, training.Spec{}).ID)
		d, err := w.Describe(alice(t.Context()), nyc, j.ID)
		if err != nil || j.State != training.Succeeded || len(d.Tries) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		if notes := strings.Join(d.Tries[0].Notes, "\n"); want == "" && notes != "" || !strings.Contains(notes, want) {
			t.Errorf("%v: notes %q, want %q", metrics, notes, want)
		}
	}
}
