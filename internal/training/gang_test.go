package training_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/worker/launch"
)

func TestWorkersAreANumberOrARange(t *testing.T) {
	for text, want := range map[string]training.Workers{
		"4": {Min: 4, Max: 4}, `{"min":2,"max":4}`: {Min: 2, Max: 4}, `{"min":3,"max":3}`: {Min: 3, Max: 3}, "0": {Min: -1, Max: -1},
	} {
		var w training.Workers
		if err := json.Unmarshal([]byte(text), &w); err != nil || w != want {
			t.Errorf("%s: %+v, %v", text, w, err)
		}
	}
	for _, text := range []string{`"4"`, `[2,4]`, `{"min":2,"most":4}`, `1.5`, `99999999999999999999`} {
		var w training.Workers
		if err := json.Unmarshal([]byte(text), &w); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %+v, %v", text, w, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(1, 100).Draw(t, "min")
		w := training.Workers{Min: least, Max: least + rapid.IntRange(0, 100).Draw(t, "more")}
		b, err := json.Marshal(w)
		var back training.Workers
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		if err != nil || back != w {
			t.Fatalf("%s: %+v is %+v, %v", b, w, back, err)
		}
	})
}

// TestParallelFits: what passes can be shared out at every size, and what does
// not cannot at some.
func TestParallelFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
		s := training.Spec{
			Command: []string{"/bin/x"}, Framework: launch.Torchrun, Environment: "py", Processes: draw("processes", 4),
			Workers:  training.Workers{Min: 1 + draw("min", 5)},
			Parallel: training.Parallel{Data: draw("data", 4), Tensor: draw("tensor", 3), Pipeline: draw("pipeline", 3)},
		}
		s.Workers.Max = s.Workers.Min + draw("more", 3)
		all := true
		for n := s.Workers.Min; n <= s.Workers.Max; n++ {
			world, model := n*max(s.Processes, 1), max(s.Parallel.Tensor, 1)*max(s.Parallel.Pipeline, 1)
			all = all && world%model == 0 && (s.Parallel.Data == 0 || s.Parallel.Data*model == world)
		}
		err := s.Validate()
		if all != (err == nil) && s.Parallel != (training.Parallel{}) {
			t.Fatalf("%+v: %v", s, err)
		}
		if err != nil && fault.HintOf(err) == "" {
			t.Fatalf("%v has no hint", err)
		}
	})
}

func TestAGangIsPrepared(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.compute.ApplyPool(alice(t.Context()), "home", compute.PoolSpec{Env: map[string]string{"NCCL_DEBUG": "WARN", "BOTH": "pool"}}); err != nil {
		t.Fatal(err)
	}
	j := w.submit(t, training.Spec{
		Environment: "py", Script: "print(1)", Framework: launch.Torchrun, Workers: training.Exactly(2), Processes: 2,
		Resources: resource.Amount{CPU: resource.Cores(1)}, Parallel: training.Parallel{Tensor: 2}, Precision: "bf16", Accumulate: 4,
		Env: map[string]string{"BOTH": "job"}, Grace: compute.Duration(time.Minute),
	})
	h := w.started(t)
	spec, _ := w.fake.Spec(h)
	if spec.Workers != 2 || spec.Launch.Framework != launch.Torchrun || spec.Launch.Processes != 2 || spec.Launch.Python != "/env/bin/python" ||
		spec.Launch.Run != string(j.Attempt) || spec.Launch.Grace != 60 || !slices.Equal(spec.Launch.Command, spec.Command) {
		t.Fatalf("%+v", spec)
	}
	for k, v := range map[string]string{
		"NCCL_DEBUG": "WARN", "BOTH": "job", "FALAJ_PRECISION": "bf16", "FALAJ_ACCUMULATE": "4", "FALAJ_PARALLEL_DATA": "2",
		"FALAJ_PARALLEL_TENSOR": "2", "FALAJ_PARALLEL_PIPELINE": "1", "OMP_NUM_THREADS": "1",
	} {
		if spec.Env[k] != v {
			t.Errorf("%s is %q, not %q", k, spec.Env[k], v)
		}
	}
	roles := map[engine.MountRole]string{}
	for _, m := range spec.Mounts {
		roles[m.Role] = filepath.Base(m.Path)
	}
	if roles[engine.Output] != "output" || roles[engine.Scratch] != "scratch" || roles[engine.Checkpoints] != string(j.ID) {
		t.Errorf("mounts %+v", spec.Mounts)
	}
	if p := w.runs.specs[0].Params; p["falaj.workers"] != "2" || p["falaj.precision"] != "bf16" || p["falaj.parallel.data"] != "2" {
		t.Errorf("the run's parameters are %v", p)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, j.ID)
	d, err := w.Describe(alice(t.Context()), nyc, j.ID)
	if err != nil || d.Tries[0].Workers != 2 || len(d.Tries[0].Members) == 0 {
		t.Fatalf("%+v, %v", d.Tries, err)
	}
}

// TestRolesArePrepared: each role has its command, its variables and its threads;
// what the job says holds where a role does not say.
func TestRolesArePrepared(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{
		Command: []string{"/bin/sh", "train"}, Framework: launch.TensorFlow, Resources: resource.Amount{CPU: resource.CPU(250)}, Env: map[string]string{"BOTH": "job", "OMP_NUM_THREADS": "7"},
		Roles: []training.Role{
			{Name: "chief", Resources: resource.Amount{CPU: resource.CPU(1500)}},
			{Name: "ps", Workers: 2, Resources: resource.Amount{Memory: resource.GiB / 2}, Command: []string{"/bin/sh", "ps"}, Env: map[string]string{"BOTH": "role"}},
		},
	})
	h := w.started(t)
	spec, _ := w.fake.Spec(h)
	want := []engine.Role{
		{Name: "chief", Workers: 1, Resources: resource.Amount{CPU: resource.CPU(1500), Memory: resource.GiB}},
		{Name: "ps", Workers: 2, Resources: resource.Amount{CPU: resource.CPU(250), Memory: resource.GiB / 2}},
	}
	if spec.Workers != 3 || !reflect.DeepEqual(spec.Roles, want) || len(spec.Launch.Roles) != 2 || spec.Total().CPU != resource.Cores(2) || spec.Of(2).Memory != resource.GiB/2 {
		t.Fatalf("%+v", spec)
	}
	chief, ps := spec.Launch.Roles[0], spec.Launch.Roles[1]
	if chief.Serves || !ps.Serves || chief.Command != nil || !slices.Equal(ps.Command, []string{"/bin/sh", "ps"}) || !slices.Equal(spec.Command, []string{"/bin/sh", "train"}) {
		t.Errorf("%+v", spec.Launch)
	}
	if spec.Env["BOTH"] != "job" || ps.Env["BOTH"] != "role" || chief.Env["MKL_NUM_THREADS"] != "2" || ps.Env["MKL_NUM_THREADS"] != "1" || ps.Env["OMP_NUM_THREADS"] != "7" {
		t.Errorf("%v, %+v", spec.Env, spec.Launch.Roles)
	}
	if _, err := w.Resize(alice(t.Context()), nyc, j.ID, training.Exactly(4)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "has roles") {
		t.Errorf("resized: %v", err)
	}
	if advice, err := w.Advice(alice(t.Context()), nyc, j.ID); err != nil || !strings.Contains(advice.Sentence, "no advice for jobs with roles") {
		t.Errorf("%+v, %v", advice, err) // also of one that was not measured
	}
	w.fake.Finish(h, enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded {
		t.Fatalf("%+v", j)
	}
}

func TestResizeOfAJob(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	small := resource.Amount{CPU: resource.CPU(500)}
	j := w.submit(t, training.Spec{Workers: training.Workers{Min: 1, Max: 4}, Resources: small, MaxAttempts: 1})
	h := w.started(t)
	if spec, _ := w.fake.Spec(h); spec.Workers != 4 {
		t.Fatalf("%d workers where four fit", spec.Workers)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Workers{}); !fault.Is(err, fault.Invalid) {
		t.Fatalf("to none: %v", err)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(50)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "50 workers") {
		t.Fatalf("to more than any pool holds: %v", err)
	}
	if j, err := w.One(ctx, nyc, j.ID); err != nil || j.State.Ended() || j.Workers == training.Exactly(50) {
		t.Fatalf("it does not go on as it was: %+v, %v", j, err)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(2)); err != nil {
		t.Fatal(err)
	}
	h = w.started(t)
	if spec, _ := w.fake.Spec(h); spec.Workers != 2 {
		t.Fatalf("%d workers after the resize to two", spec.Workers)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(2)); err != nil { // as it is
		t.Fatal(err)
	}
	w.fake.Finish(h, enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 2 || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(3)); !fault.Is(err, fault.Conflict) {
		t.Fatalf("after its end: %v", err)
	}
	d, err := w.Describe(ctx, nyc, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := w.compute.Workload(ctx, compute.WorkloadID(d.Tries[1].ID)); err != nil || second.Served <= 0 {
		t.Fatalf("what the first had does not count: %g, %v", second.Served, err)
	}
	waiting := w.submit(t, training.Spec{Workers: training.Exactly(8), Resources: small}) // for ever: four fit
	if _, err := w.Resize(ctx, nyc, waiting.ID, training.Exactly(1)); err != nil {
		t.Fatal(err)
	}
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, waiting.ID); j.State != training.Succeeded {
		t.Fatalf("%+v", j)
	}
}

// TestAJobGrows: once its pool has had room for a while, at a checkpoint.
func TestAJobGrows(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.cfg.GrowAfter = 50 * time.Millisecond
	w.start(t)
	half := resource.Amount{CPU: resource.CPU(500)}
	other := w.submit(t, training.Spec{Resources: resource.Amount{CPU: resource.Cores(1)}})
	held := w.started(t)
	j := w.submit(t, training.Spec{Workers: training.Workers{Min: 1, Max: 4}, Resources: half, MaxAttempts: 1})
	h := w.started(t)
	if spec, _ := w.fake.Spec(h); spec.Workers != 2 {
		t.Fatalf("%d workers where two fit", spec.Workers)
	}
	w.fake.Finish(held, enginetest.Exit{})
	w.ended(t, other.ID)
	for { // it says so, and waits for a checkpoint
		why, err := w.Why(alice(t.Context()), nyc, j.ID)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(why, func(s string) bool { return strings.Contains(s, "after its next checkpoint") }); i >= 0 {
			if !strings.Contains(why[i], "capacity for 4 workers instead of 2") {
				t.Fatalf("why %q", why)
			}
			break
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("why %q", why)
		}
	}
	for n := 0; ; n++ {
		if err := os.Mkdir(filepath.Join(w.cfg.Dir, "checkpoints", string(j.ID), fmt.Sprint("step-", n)), 0o700); err != nil {
			t.Fatal(err)
		}
		select {
		case h = <-w.fake.Started():
		case <-time.After(30 * time.Millisecond):
			continue
		case <-t.Context().Done():
			t.Fatal("it does not grow")
		}
		break
	}
	if spec, _ := w.fake.Spec(h); spec.Workers != 4 {
		t.Fatalf("%d workers after it has grown", spec.Workers)
	}
	w.fake.Finish(h, enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 2 || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	d, err := w.Describe(alice(t.Context()), nyc, j.ID)
	if err != nil || d.Tries[0].Class != training.Resized || !strings.Contains(d.Tries[0].Reason, "grows from 2 workers: pool home has capacity for 4") {
		t.Fatalf("%+v, %v", d.Tries, err)
	}
}

// TestACancelledJobIsNotResized: the wish to end it wins.
func TestACancelledJobIsNotResized(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		<-p.Kill
		return enginetest.Exit{Code: 75}
	})
	j := w.submit(t, training.Spec{Grace: compute.Duration(200 * time.Millisecond)})
	w.started(t)
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Cancel(ctx, nyc, j.ID); err != nil {
		t.Fatal(err)
	}
	if j = w.ended(t, j.ID); j.State != training.Cancelled {
		t.Fatalf("%+v", j)
	}
	if _, err := w.Resize(ctx, nyc, j.ID, training.Exactly(1)); !fault.Is(err, fault.Conflict) {
		t.Fatal(err)
	}
}

func TestAJobThatDoesNothing(t *testing.T) {
	w := newWorld(t)
	j := w.submit(t, training.Spec{Progress: compute.Duration(time.Second), MaxAttempts: 1})
	w.fake.Print(w.started(t), "begin\n")
	if j = w.ended(t, j.ID); j.State != training.Failed || j.Class != training.Hung || !strings.Contains(j.Reason, "made no progress for 1s: last line of output at") || j.Hint == "" {
		t.Fatalf("%+v", j)
	}
}

// TestAJobThatOnlySaves lives: a checkpoint is a sign of life, as a line is.
func TestAJobThatOnlySaves(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		for i := range 9 {
			tick := time.NewTimer(time.Second)
			select {
			case <-tick.C:
			case <-p.Term:
				return enginetest.Exit{Code: 1}
			}
			write(filepath.Join(p.Spec.Env["FALAJ_CHECKPOINT_DIR"], "step-"+string(rune('0'+i)), "x"), "weights")
		}
		return enginetest.Exit{}
	})
	j := w.submit(t, training.Spec{Progress: compute.Duration(6 * time.Second), MaxAttempts: 1})
	if j = w.ended(t, j.ID); j.State != training.Succeeded {
		t.Fatalf("%+v", j)
	}
}

func TestRepeatIsTheSame(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	w.fake.Behave(func(*enginetest.Process) enginetest.Exit { return enginetest.Exit{} })
	w.data.inputs["weather@1"] = w.data.inputs["weather"]
	j := w.submit(t, training.Spec{Environment: "py", Script: "x", Data: map[string]string{"a": "weather"}})
	w.ended(t, j.ID)
	again, err := w.Repeat(ctx, nyc, j.ID)
	if err != nil || again.From != j.ID || again.ID == j.ID || again.Spec.Data["a"] != "weather@1" || again.Spec.Environment != "py@sha256:e" {
		t.Fatalf("%+v, %v", again, err)
	}
	in := w.data.inputs["weather@1"]
	in.Digest = "sha256:other"
	w.data.inputs["weather@1"] = in
	if _, err := w.Repeat(ctx, nyc, j.ID); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "weather@1 has changed") {
		t.Fatalf("with other data: %v", err)
	}
	if _, err := w.Repeat(ctx, nyc, "job_absent"); !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
}

func TestTopTellsThePace(t *testing.T) {
	w := newWorld(t)
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	w.runs.progress = training.Progress{First: training.Point{Step: 10, At: at}, Last: training.Point{Step: 30, At: at.Add(10 * time.Second)}}
	j := w.submit(t, training.Spec{Steps: 100})
	h := w.started(t)
	r, err := w.Logs(alice(t.Context()), nyc, j.ID, 0, 0, true) // returns when it runs
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	top, err := w.Top(alice(t.Context()), nyc, j.ID)
	if err != nil || top.Step != 30 || top.PerStep != 2 || top.Left != 35*time.Second || len(top.Workers) != 1 {
		t.Fatalf("%+v, %v", top, err)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, j.ID)
	if top, err = w.Top(alice(t.Context()), nyc, j.ID); err != nil || top.Left != 0 || top.State != training.Succeeded || len(top.Workers) != 1 {
		t.Fatalf("%+v, %v", top, err)
	}
}

func TestScriptThatIsMissing(t *testing.T) {
	w := newWorld(t)
	j := w.ended(t, w.submit(t, training.Spec{Command: []string{"python3", "train.py"}}).ID)
	if j.State != training.Failed || j.Class != training.UserError || !strings.Contains(j.Reason, `file "train.py" is not in the job's source`) || !strings.Contains(j.Hint, "the job has no source") {
		t.Fatalf("%+v", j)
	}
}

// TestNamedPoolsAreTakenAsTheyAre: a job that names pools runs where these
// promise less than the installation demands of others.
func TestNamedPoolsAreTakenAsTheyAre(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	if _, _, err := w.compute.ApplyPool(ctx, "weak", compute.PoolSpec{Isolation: "process"}); err != nil {
		t.Fatal(err)
	}
	j := w.submit(t, training.Spec{Pools: []string{"weak"}})
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, j.ID); j.Pool != "weak" {
		t.Fatalf("%+v", j)
	}
	for range 3 { // and others never
		j := w.submit(t, training.Spec{})
		w.fake.Finish(w.started(t), enginetest.Exit{})
		if j = w.ended(t, j.ID); j.Pool != "home" {
			t.Fatalf("%+v", j)
		}
	}
	if _, err := w.Submit(ctx, nyc, "x", training.Spec{Command: []string{"/bin/true"}, Isolation: "process"}); !fault.Is(err, fault.Invalid) {
		t.Fatalf("less than the installation's, anywhere: %v", err)
	}
}

// TestMove: a job goes on in other pools, with what it demands.
func TestMove(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	for name, spec := range map[compute.PoolName]compute.PoolSpec{"weak": {Isolation: "process"}, "abroad": {Engine: "far", Zone: "DE", Nodes: []compute.Node{{Name: "n", CPU: 1000, Memory: resource.GiB}}}, "second": {}} {
		if _, _, err := w.compute.ApplyPool(ctx, name, spec); err != nil {
			t.Fatal(err)
		}
	}
	j := w.submit(t, training.Spec{Pools: []string{"home"}, Isolation: "sandbox", MaxAttempts: 1, Data: map[string]string{"a": "flights"}})
	h := w.started(t)
	for name, pools := range map[string][]string{"nowhere": nil, "nothing": {"nothing"}, "weak": {"weak"}, "abroad": {"abroad"}, "bad": {"a b"}} {
		if _, err := w.Move(ctx, nyc, j.ID, pools); !fault.Is(err, fault.Invalid) {
			t.Errorf("moved to %s: %v", name, err)
		}
	}
	if st, err := w.fake.Status(ctx, h); err != nil || st.State != engine.Running {
		t.Fatalf("what cannot move is left alone: %+v, %v", st, err)
	}
	if _, err := w.Move(ctx, nyc, j.ID, []string{"second", "home"}); err != nil { // where it is
		t.Fatal(err)
	}
	if _, err := w.Move(ctx, nyc, j.ID, []string{"weak", "second"}); err != nil {
		t.Fatal(err)
	}
	w.fake.Finish(w.started(t), enginetest.Exit{})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Pool != "second" || j.Attempts != 2 || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	d, err := w.Describe(ctx, nyc, j.ID)
	if err != nil || d.Tries[0].Class != training.Moved || d.Tries[0].Pool != "home" || !strings.Contains(d.Tries[0].Reason, "moved to weak, second by") {
		t.Fatalf("%+v, %v", d.Tries, err)
	}
	if _, err := w.Move(ctx, nyc, j.ID, []string{"home"}); !fault.Is(err, fault.Conflict) {
		t.Fatalf("after its end: %v", err)
	}
}

// TestEnvironmentOfAnImage is not looked for on this machine, and says where it
// does not fit before anything queues.
func TestEnvironmentOfAnImage(t *testing.T) {
	w := newWorld(t)
	w.envs.usable.Image, w.envs.usable.Python, w.envs.usable.Bin, w.envs.usable.Modules = "registry/x@sha256:1", "/opt/python", "", []string{"cuda/12", "gcc"}
	for _, c := range []struct{ command, want []string }{
		{[]string{"python", "-V"}, []string{"/opt/python", "-V"}},
		{[]string{"only-there", "x"}, []string{"/usr/bin/env", "only-there", "x"}},
	} {
		j := w.submit(t, training.Spec{Environment: "py", Command: c.command})
		h := w.started(t)
		spec, _ := w.fake.Spec(h)
		if _, set := spec.Env["PATH"]; set || spec.Image != "registry/x@sha256:1" || spec.Options["modules"] != "cuda/12 gcc" || !slices.Equal(spec.Command, c.want) {
			t.Errorf("%+v", spec)
		}
		w.fake.Finish(h, enginetest.Exit{})
		w.ended(t, j.ID)
	}
	w.envs.unfit = fault.New(fault.Invalid, "pool home: its driver is too old")
	if _, err := w.Submit(alice(t.Context()), nyc, "x", training.Spec{Environment: "py", Script: "x"}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "too old") {
		t.Fatal(err)
	}
}
