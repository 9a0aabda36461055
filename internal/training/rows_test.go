package training_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// rows keeps what jobs leave for datasets in memory.
type rows struct {
	db    *store.DB
	mu    sync.Mutex
	files map[string]string // "dataset/file" → content
	fail  error
	lost  error // the first answer is lost, as in a crash
	specs []training.RowsSpec
}

func (r *rows) Check(_ context.Context, spec training.RowsSpec) error {
	if spec.Job.Spec.Into == "others" {
		return fault.New(fault.PermissionDenied, "dataset.import is refused")
	}
	return nil
}

func (r *rows) Save(ctx context.Context, spec training.RowsSpec) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.specs = append(r.specs, spec)
	if r.fail != nil {
		return "", r.fail
	}
	ref := spec.Job.Spec.Into + "@1"
	if err := r.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error { return spec.Made(ctx, tx, ref) }); err != nil {
		return "", err
	}
	if err := r.lost; err != nil {
		r.lost = nil
		return "", err
	}
	return ref, eachFile(spec.Dir, func(name, content string) { r.files[spec.Job.Spec.Into+"/"+name] = content })
}

// What a job leaves in rows/ becomes a version of the dataset that it names, and no
// artifact; what it leaves beside that is one.
func TestRowsOfAJob(t *testing.T) {
	w := newWorld(t)
	kept := &rows{db: w.cfg.DB, files: map[string]string{}}
	w.stop()
	w.cfg.Rows = kept
	w.start(t)
	leave := "rows/part-0.parquet"
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], leave), "rows")
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "notes.txt"), "notes")
		return enginetest.Exit{}
	})
	j := w.ended(t, w.submit(t, training.Spec{Into: "daily", Data: map[string]string{"a": "weather"}}).ID)
	if j.State != training.Succeeded || j.Dataset != "daily@1" || j.Model != "" || !maps.Equal(kept.files, map[string]string{"daily/part-0.parquet": "rows"}) {
		t.Errorf("%s %q %q: %v", j.State, j.Dataset, j.Reason, kept.files)
	}
	if w.runs.artifacts[j.Run+"/notes.txt"] != "notes" || w.runs.artifacts[j.Run+"/rows/part-0.parquet"] != "" {
		t.Errorf("artifacts: %v", w.runs.artifacts)
	}
	if j = w.ended(t, w.submit(t, training.Spec{}).ID); j.Dataset != "" || w.runs.artifacts[j.Run+"/rows/part-0.parquet"] != "rows" {
		t.Errorf("of a job that names none: %q %v", j.Dataset, w.runs.artifacts)
	}

	kept.fail = fault.New(fault.Invalid, "daily@2 is rejected").WithHint("Look at it.")
	if j = w.ended(t, w.submit(t, training.Spec{Into: "daily"}).ID); j.State != training.Failed || j.Class != training.Unstored || j.Hint != "Look at it." {
		t.Errorf("rejected rows: %+v", j)
	}
	if w.runs.artifacts[j.Run+"/rows/part-0.parquet"] != "rows" {
		t.Errorf("rejected rows are lost: %v", w.runs.artifacts)
	}
	kept.fail, kept.lost = nil, fault.New(fault.Unavailable, "the server was killed")
	before := len(kept.specs)
	if j = w.ended(t, w.submit(t, training.Spec{Into: "daily"}).ID); j.State != training.Succeeded || j.Dataset != "daily@1" || len(kept.specs) != before+1 {
		t.Errorf("rows were saved %d times: %+v", len(kept.specs)-before, j)
	}
	leave = "else.parquet"
	if j = w.ended(t, w.submit(t, training.Spec{Into: "daily"}).ID); j.State != training.Failed || j.Class != training.Unstored || j.Hint == "" {
		t.Errorf("no rows: %+v", j)
	}
	if _, err := w.Submit(alice(t.Context()), nyc, "train", training.Spec{Command: []string{"/bin/true"}, Into: "others"}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a dataset of others: %v", err)
	}
	if _, err := w.Submit(alice(t.Context()), nyc, "train", training.Spec{Command: []string{"/bin/true"}, Into: "../x"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no name: %v", err)
	}
}

// What is no directory, or may not be read, ends the job with a reason, and stays.
func TestOutputOfAnotherKind(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.cfg.Rows = &rows{db: w.cfg.DB, files: map[string]string{}}
	w.start(t)
	for name, c := range map[string]struct {
		spec  training.Spec
		leave func(output string) error
		says  string // empty succeeds
		kept  string
	}{
		"rows that are a file":   {training.Spec{Into: "daily"}, func(o string) error { return os.WriteFile(filepath.Join(o, "rows"), []byte("x"), 0o600) }, "output rows is a file", "rows"},
		"a model that is a file": {training.Spec{Register: "delay"}, func(o string) error { return os.WriteFile(filepath.Join(o, "model"), []byte("x"), 0o600) }, "output model is a file", "model"},
		"both": {training.Spec{Into: "daily", Register: "delay"}, func(o string) error {
			write(filepath.Join(o, "rows/a.parquet"), "x")
			return os.WriteFile(filepath.Join(o, "model"), []byte("x"), 0o600)
		}, "output model is a file", "model"},
		"an output that is a file": {training.Spec{}, func(o string) error { return errors.Join(os.RemoveAll(o), os.WriteFile(o, []byte("x"), 0o600)) }, "neither a plain file nor a directory", ""},
		"a name that is no text": {training.Spec{Into: "daily"}, func(o string) error {
			write(filepath.Join(o, "rows/a.parquet"), "x")
			write(filepath.Join(o, "a\xff/notes.txt"), "x")
			return nil
		}, "not UTF-8", ""},
		"files without rights": {training.Spec{Into: "daily"}, func(o string) error {
			write(filepath.Join(o, "rows/a.parquet"), "x")
			write(filepath.Join(o, "deep/notes.txt"), "x")
			return errors.Join(os.Chmod(filepath.Join(o, "deep/notes.txt"), 0), os.Chmod(filepath.Join(o, "deep"), 0), os.Chmod(filepath.Join(o, "rows/a.parquet"), 0), os.Chmod(filepath.Join(o, "rows"), 0))
		}, "", "deep/notes.txt"},
	} {
		var failed error
		w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
			failed = c.leave(p.Spec.Env["FALAJ_OUTPUT_DIR"])
			return enginetest.Exit{}
		})
		j := w.ended(t, w.submit(t, c.spec).ID)
		if failed != nil {
			t.Fatal(failed)
		}
		if c.says == "" && j.State != training.Succeeded || c.says != "" && (j.State != training.Failed || j.Class != training.Unstored || !strings.Contains(j.Reason, c.says) || j.Hint == "") {
			t.Errorf("%s: %s %s %q (%s)", name, j.State, j.Class, j.Reason, j.Hint)
		}
		if c.kept != "" && w.runs.artifacts[j.Run+"/"+c.kept] != "x" {
			t.Errorf("%s: %v", name, w.runs.artifacts)
		}
	}
}

// Rows of an attempt that failed become no version, and are artifacts.
func TestRowsOfAFailure(t *testing.T) {
	w := newWorld(t)
	w.stop()
	kept := &rows{db: w.cfg.DB, files: map[string]string{}}
	w.cfg.Rows = kept
	w.start(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "rows/a.parquet"), "x")
		return enginetest.Exit{Code: 1}
	})
	j := w.ended(t, w.submit(t, training.Spec{Into: "daily"}).ID)
	if j.State != training.Failed || j.Dataset != "" || len(kept.specs) != 0 || w.runs.artifacts[j.Run+"/rows/a.parquet"] != "x" {
		t.Errorf("%s %q %v %v", j.State, j.Dataset, kept.specs, w.runs.artifacts)
	}
}

// What is made of a job's rows knows the tables as they were, and the jobs before it; a
// step is what Falaj recorded, and no script.
func TestWhatRowsAreMadeOf(t *testing.T) {
	w := newWorld(t)
	w.stop()
	kept := &rows{db: w.cfg.DB, files: map[string]string{}}
	w.cfg.Rows, w.cfg.Checkpoints = kept, adopted{}
	w.data.inputs["weather@1"] = w.data.inputs["weather"]
	w.start(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "rows/a.parquet"), "x")
		return enginetest.Exit{}
	})
	last := func() training.RowsSpec { return kept.specs[len(kept.specs)-1] }
	first := w.ended(t, w.submit(t, training.Spec{Data: map[string]string{"a": "weather"}}).ID)
	second := w.ended(t, w.submit(t, training.Spec{Resume: string(first.ID) + "/a"}).ID)
	third := w.ended(t, w.submit(t, training.Spec{Resume: string(second.ID) + "/a", Into: "daily", Tables: []string{"late", "fresh"}}).ID)
	got := last()
	if len(got.Earlier) != 2 || got.Earlier[0].ID != second.ID || got.Earlier[1].ID != first.ID || got.Earlier[1].Inputs[0].Ref != "dataset weather@1" {
		t.Errorf("the jobs before: %+v", got.Earlier)
	}
	if len(third.Tables) != 1 || third.Tables[0].Name != "late" || third.Tables[0].Ref != "dataset late@1" || got.Job.Tables[0].Ref != "dataset late@1" {
		t.Errorf("its tables: %+v", third.Tables)
	}
	step := training.Step{SQL: "FROM a", Tables: map[string]string{"a": "t1"}}
	spec := training.Spec{Script: "x", Environment: "py", Into: "daily", Data: map[string]string{"t1": "weather"}}
	named, asked := training.JobID(id.New("job")), time.Now().Add(-time.Minute)
	j, err := w.SubmitStep(alice(t.Context()), nyc, "daily", spec, step, named, asked)
	if err != nil {
		t.Fatal(err)
	}
	if j.ID != named || !j.SubmittedAt.Equal(asked) {
		t.Errorf("job %s of %s is not the one that was named before, %s of %s", j.ID, j.SubmittedAt, named, asked)
	}
	if j = w.ended(t, j.ID); j.Step == nil || j.Step.SQL != "FROM a" || last().Job.Step == nil {
		t.Errorf("the step: %+v", j.Step)
	}
	if j, err = w.Repeat(alice(t.Context()), nyc, j.ID); err != nil || j.Step == nil || j.ID <= named {
		t.Errorf("the step again: %+v, %v", j.Step, err)
	}
	w.ended(t, j.ID)
	if j, err = w.Submit(alice(t.Context()), nyc, "daily", spec); err != nil || j.Step != nil {
		t.Errorf("the same script: %+v, %v", j.Step, err)
	}
	w.ended(t, j.ID)
}

// adopted has every checkpoint.
type adopted struct{ training.Checkpoints }

func (adopted) Restore(context.Context, string) (r checkpoint.Restored, err error) { return r, nil }
func (adopted) Halting(string)                                                     {}
func (adopted) Halted(context.Context, string, settled.End, bool) error            { return nil }
func (adopted) Release(context.Context, string) error                              { return nil }
func (adopted) Notes(string) []string                                              { return nil }

func (adopted) Resolve(_ context.Context, _ project.Name, ref string) (checkpoint.Record, error) {
	job, name, _ := strings.Cut(ref, "/")
	return checkpoint.Record{Job: job, Name: name}, nil
}

func (adopted) Adopt(context.Context, *store.Tx, checkpoint.Record, checkpoint.Job) error { return nil }

// A disk that is full of what a job had for itself is not in the way of storing what it left.
func TestScratchGoesFirst(t *testing.T) {
	w := newWorld(t)
	w.runs.refuse = fault.New(fault.Exhausted, "the disk is full")
	scratch := make(chan string, 1)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		dir := p.Spec.Env["FALAJ_SCRATCH_DIR"]
		write(filepath.Join(dir, "large"), "x")
		write(filepath.Join(p.Spec.Env["FALAJ_OUTPUT_DIR"], "notes.txt"), "x")
		scratch <- dir
		return enginetest.Exit{}
	})
	id := w.submit(t, training.Spec{}).ID
	dir := <-scratch
	for {
		j, err := w.Wait(alice(t.Context()), nyc, id, 20*time.Millisecond)
		if err != nil || t.Context().Err() != nil || j.State.Ended() {
			t.Fatalf("%s %v", j.State, err)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	w.runs.mu.Lock()
	w.runs.refuse = nil
	w.runs.mu.Unlock()
	if j := w.ended(t, id); j.State != training.Succeeded || w.runs.artifacts[j.Run+"/notes.txt"] != "x" {
		t.Errorf("%s: %v", j.State, w.runs.artifacts)
	}
}
