package checkpoint_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/checkpoint"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

func model(seed uint64) files {
	return files{
		"model.pt": noise(seed, 5000), "optim/state.pt": noise(seed+1, 1024), "empty/": "", "!run.sh": "#!/bin/sh\n",
		"optim/zero": "", "checkpoint.json": `{"step": 100, "metrics": {"loss": 0.25}}`, "a/b/c/deep": noise(seed+2, 700),
	}
}

func TestTakeAndRestore(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{KeepBest: 1, Best: checkpoint.Best{Metric: "loss"}})
	want := model(1)
	w.write(t, job, "step-100", want)
	w.runOnce(t)
	all := w.list(t, job)
	if len(all) != 1 {
		t.Fatalf("kept: %+v", all)
	}
	r := all[0]
	if r.Name != "step-100" || *r.Step != 100 || *r.Metric != 0.25 || r.Files != 7 || r.Attempt != job+".1" || r.Kept != "newest" ||
		r.Bytes != r.Stored || r.Bytes < 6724 || r.Classification != project.Confidential || !r.TakenAt.Equal(w.clock) {
		t.Errorf("%+v", r)
	}
	for _, k := range w.keys(t) {
		o, err := w.objects.Open(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(o); bytes.Contains(b, []byte(want["model.pt"][:64])) {
			t.Errorf("%s is not encrypted", k)
		}
	}

	// What is there is left alone; what is lost comes back as it was.
	if notes, err := w.Restore(t.Context(), job); err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	w.lose(t, job, "")
	w.restart()
	notes, err := w.Restore(t.Context(), job)
	if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "checkpoint step-100 was restored") {
		t.Fatal(notes, err)
	}
	if diff := cmp.Diff(want, read(t, w.path(job, "step-100"))); diff != "" {
		t.Error(diff)
	}
	// Neither that nor writing the same again makes another record.
	w.runOnce(t)
	w.write(t, job, "step-100", want)
	w.runOnce(t)
	if again := w.list(t, job); len(again) != 1 || again[0].Number != 1 {
		t.Errorf("%+v", again)
	}
}

func TestOnlyFinishedOnesCount(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	for _, name := range []string{".hidden", "step-1.tmp", "step-1.partial"} {
		w.write(t, job, name, files{"model": "half"})
	}
	for _, name := range []string{".hidden.ckpt", "last.ckpt.tmp", "tmp-last.ckpt", "last.ckpt.part", "last.ckpt.incomplete"} {
		if err := os.WriteFile(w.path(job, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.runOnce(t)
	if all := w.list(t, job); len(all) > 0 {
		t.Errorf("kept: %v", names(all))
	}
}

func TestWhatCannotBeKept(t *testing.T) {
	make1 := func(act func(dir string) error) func(t *testing.T, w *world, job string) {
		return func(t *testing.T, w *world, job string) {
			t.Helper()
			w.write(t, job, "bad", files{"model": "x"})
			if err := act(w.path(job, "bad")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, w *world, job string)
		want string
	}{
		"link":      {make1(func(dir string) error { return os.Symlink("/etc/passwd", dir+"/link") }), "neither a plain file nor a directory"},
		"pipe":      {make1(func(dir string) error { return syscall.Mkfifo(dir+"/pipe", 0o600) }), "neither a plain file nor a directory"},
		"too large": {make1(func(dir string) error { return os.Truncate(dir+"/model", 2<<20) }), "more than 10000 files or 1048576 bytes"},
		"long path": {make1(func(dir string) error {
			return os.MkdirAll(dir+strings.Repeat("/"+strings.Repeat("d", 100), 12), 0o700)
		}), "the path "},
		"a file that is no UTF-8": {make1(func(dir string) error { return os.WriteFile(dir+"/\xff", nil, 0o600) }), "is not UTF-8"},
		"a name with an escape": {func(t *testing.T, w *world, job string) {
			t.Helper()
			w.write(t, job, "\x1b[2J", files{"model": "x"})
		}, "contains control characters"},
		"a name that is no UTF-8": {func(t *testing.T, w *world, job string) {
			t.Helper()
			w.write(t, job, "\xfe", files{"model": "x"})
		}, "contains control characters"},
		"long name": {func(t *testing.T, w *world, job string) {
			t.Helper()
			w.write(t, job, strings.Repeat("n", 230), files{"model": "x"})
		}, "its name has 230 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			job := w.job(t, "job_a", checkpoint.Rules{})
			w.write(t, job, "good", files{"model": "y"})
			c.make(t, w, job)
			w.runOnce(t)
			if all := w.list(t, job); len(all) != 1 || all[0].Name != "good" {
				t.Errorf("kept: %v", names(all))
			}
			notes := w.Notes(job)
			if len(notes) != 1 || !strings.Contains(notes[0], c.want) || strings.Contains(notes[0], "retried") {
				t.Errorf("notes: %q", notes)
			}
			// It does not keep the directory of an ended job for ever.
			w.end(t, job)
			w.runOnce(t)
			if _, err := os.Stat(w.path(job)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory of an ended job: %v", err)
			}
		})
	}
}

func TestALinkInPlaceOfACheckpointLeadsNowhere(t *testing.T) {
	w := newWorld(t)
	job, other := w.job(t, "job_a", checkpoint.Rules{}), w.job(t, "job_b", checkpoint.Rules{})
	w.write(t, other, ".secret", files{"key": "secret"})
	if err := os.Symlink(w.path(other, ".secret"), w.path(job, "step-1")); err != nil {
		t.Fatal(err)
	}
	w.runOnce(t)
	if err := w.Settle(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if all := w.list(t, job); len(all) > 0 {
		t.Errorf("kept: %+v", all)
	}
}

func TestWhatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"a file grows":    func(dir string) error { return os.WriteFile(dir+"/model", []byte(noise(7, 3000)), 0o600) },
		"a file shrinks":  func(dir string) error { return os.WriteFile(dir+"/model", []byte("x"), 0o600) },
		"a file comes":    func(dir string) error { return os.WriteFile(dir+"/other", []byte("x"), 0o600) },
		"a file goes":     func(dir string) error { return os.Remove(dir + "/second") },
		"a file is moved": func(dir string) error { return os.Rename(dir+"/second", dir+"/third") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			job := w.job(t, "job_a", checkpoint.Rules{})
			w.write(t, job, "step-1", files{"model": noise(1, 2500), "second": noise(2, 10)})
			var once sync.Once
			w.blobs.before(func(blob.Ref) (err error) {
				once.Do(func() { err = change(w.path(job, "step-1")) })
				return err
			})
			w.runOnce(t)
			if all := w.list(t, job); len(all) > 0 {
				t.Fatalf("kept what changed: %+v", all)
			}
			if notes := w.Notes(job); len(notes) != 1 || !strings.Contains(notes[0], "while it was read") {
				t.Errorf("notes: %q", notes)
			}
			want := read(t, w.path(job, "step-1"))
			w.clock = w.clock.Add(time.Minute)
			w.runOnce(t)
			if notes := w.Notes(job); len(notes) > 0 {
				t.Errorf("notes: %q", notes)
			}
			w.lose(t, job, "step-1")
			if _, err := w.Restore(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, read(t, w.path(job, "step-1"))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheSameBytesAreStoredOnce(t *testing.T) {
	w := newWorld(t)
	job, other := w.job(t, "job_a", checkpoint.Rules{}), w.job(t, "job_b", checkpoint.Rules{})
	frozen := noise(1, 50_000)
	w.write(t, job, "step-1", files{"frozen": frozen, "head": noise(2, 1000)})
	w.runOnce(t)
	w.write(t, job, "step-2", files{"frozen": frozen, "head": noise(3, 1000)})
	w.runOnce(t)
	all := w.list(t, job)
	if all[0].Stored != 51_000 || all[1].Stored != 1000 || all[1].Bytes != 51_000 {
		t.Errorf("stored %d, then %d of %d", all[0].Stored, all[1].Stored, all[1].Bytes)
	}
	// Also in another job; zeros are stored once within one checkpoint.
	w.write(t, other, "warm", files{"frozen": frozen, "zeros": strings.Repeat("\x00", 10<<10)})
	w.runOnce(t)
	if r := w.list(t, other)[0]; r.Stored != 1<<10 {
		t.Errorf("stored %d bytes", r.Stored)
	}
	// Chunks go when nobody needs them, and not before.
	before := len(w.keys(t))
	if err := w.Delete(alice(t.Context()), nyc, job, "step-1"); err != nil {
		t.Fatal(err)
	}
	if left := len(w.keys(t)); left != before-1 {
		t.Errorf("%d chunks, then %d", before, left)
	}
}

func TestDamage(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	older, newer := model(1), model(50)
	w.write(t, job, "step-1", older)
	w.runOnce(t)
	w.write(t, job, "step-2", newer)
	w.runOnce(t)
	all := w.list(t, job)
	w.damage(t, checkpoint.ChunkKeys(all[1], w.manifest(t, all[1]))[2])
	w.lose(t, job, "")

	notes, err := w.Restore(t.Context(), job)
	if err != nil || len(notes) != 2 || !strings.Contains(notes[0], "step-2 cannot be restored") || !strings.Contains(notes[1], "step-1 was restored") {
		t.Fatal(notes, err)
	}
	if diff := cmp.Diff(older, read(t, w.path(job, "step-1"))); diff != "" {
		t.Error(diff)
	}
	if left, err := os.ReadDir(w.path(job)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	all = w.list(t, job)
	if all[1].Damaged == "" || all[0].Kept != "newest" {
		t.Errorf("%+v", all)
	}
	_, err = w.Resolve(alice(t.Context()), nyc, job+"/step-2")
	if !fault.Is(err, fault.Conflict) {
		t.Errorf("resolving a damaged one: %v", err)
	}
	// A process that starts later knows the chunk, stores it anew when it comes
	// again, and the old record can be restored.
	w.restart()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.write(t, job, "step-2b", newer)
	w.runOnce(t)
	for _, r := range w.list(t, job) {
		if r.Damaged != "" {
			t.Errorf("%s: %s", r.Name, r.Damaged)
		}
	}
	w.lose(t, job, "")
	if _, err := w.Restore(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newer, read(t, w.path(job, "step-2b"))); diff != "" {
		t.Error(diff)
	}
}

func TestALostChunk(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	w.write(t, job, "step-1", model(1))
	w.runOnce(t)
	r := w.list(t, job)[0]
	if err := w.objects.Delete(t.Context(), blob.Key(checkpoint.ChunkKeys(r, w.manifest(t, r))[0])); err != nil {
		t.Fatal(err)
	}
	w.lose(t, job, "")
	notes, err := w.Restore(t.Context(), job)
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "cannot be restored") {
		t.Fatal(notes, err)
	}
	// The last one is not dropped for being damaged: its chunk may come back.
	if all := w.list(t, job); len(all) != 1 || all[0].Kept == "" {
		t.Errorf("%+v", all)
	}
}

func TestFullDisk(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	w.blobs.before(func(blob.Ref) error { return fault.New(fault.Exhausted, "the disk is full") })
	want := model(1)
	w.write(t, job, "step-1", want)
	w.runOnce(t)
	if notes := w.Notes(job); len(notes) != 1 || !strings.Contains(notes[0], "not stored yet: ") || !strings.Contains(notes[0], "the disk is full") {
		t.Errorf("notes: %q", notes)
	}
	// The job ends meanwhile: what it left stays until it is kept.
	if err := w.Settle(t.Context(), job); !fault.Is(err, fault.Exhausted) {
		t.Errorf("settled: %v", err)
	}
	w.end(t, job)
	w.runOnce(t)
	if diff := cmp.Diff(want, read(t, w.path(job, "step-1"))); diff != "" {
		t.Error(diff)
	}
	w.blobs.before(nil)
	w.runOnce(t) // too early
	if all := w.list(t, job); len(all) > 0 {
		t.Error("tried again without a pause")
	}
	w.clock = w.clock.Add(time.Minute)
	w.runOnce(t)
	if all := w.list(t, job); len(all) != 1 {
		t.Errorf("kept: %v", names(all))
	}
	if _, err := os.Stat(w.path(job)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestEndedJobs(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{KeepBest: 1, Best: checkpoint.Best{Metric: "loss"}})
	for i, loss := range []string{"0.5", "0.1", "0.4"} {
		w.write(t, job, "step-"+string(rune('1'+i)), files{"model": noise(uint64(i), 3000), "checkpoint.json": `{"metrics":{"loss":` + loss + `}}`})
		w.runOnce(t)
		w.clock = w.clock.Add(time.Hour)
	}
	if got := names(w.list(t, job)); !slices.Equal(got, []string{"step-1", "step-2", "step-3"}) {
		t.Errorf("under way: %v", got)
	}
	w.end(t, job)
	w.runOnce(t)
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(w.list(t, job)); !slices.Equal(got, []string{"step-2", "step-3"}) {
		t.Errorf("the best and the last stay: %v", got)
	}
	w.clock = w.clock.Add(31 * 24 * time.Hour)
	if err := w.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, left := names(w.list(t, job)), w.keys(t); len(got)+len(left) > 0 {
		t.Errorf("after 30 days: %v, %v", got, left)
	}
}

// What the rules dropped is not taken again because its directory is still there:
// it would count as the newest.
func TestWhatWasDroppedStaysDropped(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{KeepLast: 1})
	for i := range uint64(3) {
		w.write(t, job, "step-"+string(rune('1'+i)), model(i*10))
		w.runOnce(t)
	}
	w.restart()
	w.runOnce(t)
	if err := w.Settle(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if got := names(w.list(t, job)); !slices.Equal(got, []string{"step-3"}) {
		t.Errorf("under way: %v", got)
	}
	w.end(t, job)
	w.runOnce(t)
	if got := w.list(t, job); len(got) != 1 || got[0].Name != "step-3" || got[0].Number != 3 {
		t.Errorf("ended: %+v", got)
	}
}

func TestADirectoryOfNobody(t *testing.T) {
	w := newWorld(t)
	if err := os.MkdirAll(w.path("job_gone", "step-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Release(t.Context(), "job_gone"); err != nil {
		t.Fatal(err)
	}
	w.runOnce(t)
	if _, err := os.Stat(w.path("job_gone")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestJunkGoesFirst: what an ended job left beside its checkpoints fills the disk, and goes
// before they are kept.
func TestJunkGoesFirst(t *testing.T) {
	w := newWorld(t)
	junk := w.path("job_a", "half.tmp")
	w.cfg.Room = func(int64, int64) error {
		if _, err := os.Stat(junk); err == nil {
			return fault.New(fault.Exhausted, "the disk is full: %w", syscall.ENOSPC)
		}
		return nil
	}
	w.restart()
	job := w.job(t, "job_a", checkpoint.Rules{})
	w.write(t, job, "step-1", model(1))
	if err := os.WriteFile(junk, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Settle(t.Context(), job); !fault.NoSpace(err) {
		t.Fatalf("under way, on a full disk: %v", err)
	}
	w.end(t, job)
	w.clock = w.clock.Add(time.Hour) // when it is tried again
	w.runOnce(t)
	if got := names(w.list(t, job)); !slices.Equal(got, []string{"step-1"}) {
		t.Errorf("kept: %v", got)
	}
}

func TestDeleteAndPermissions(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	for i := range uint64(2) {
		w.write(t, job, "step-"+string(rune('1'+i)), model(i*10))
		w.runOnce(t)
	}
	ctx := alice(t.Context())
	if err := w.Delete(ctx, nyc, job, "step-2"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the one that the job goes on from: %v", err)
	}
	for what, err := range map[string]error{
		"another project": w.Delete(ctx, "oslo", job, "step-1"), "no such checkpoint": w.Delete(ctx, nyc, job, "step-9"), "no such job": w.Delete(ctx, nyc, "job_x", "step-1"),
	} {
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.auth[checkpoint.ActionDelete] = true
	if err := w.Delete(ctx, nyc, job, "step-1"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("without leave: %v", err)
	}
	w.auth[checkpoint.ActionDelete] = false
	if err := w.Delete(ctx, nyc, job, w.list(t, job)[0].ID); err != nil {
		t.Error(err)
	}
	w.auth[checkpoint.ActionRead], w.auth[checkpoint.ActionList] = true, true
	if _, err := w.List(ctx, nyc, job); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("listing without leave: %v", err)
	}
	if _, _, err := w.Archive(ctx, nyc, job, "step-2"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("reading without leave: %v", err)
	}
	if _, err := w.Resolve(ctx, nyc, job); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("resolving without leave: %v", err)
	}
}

func TestArchive(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	want := model(1)
	w.write(t, job, "step-1", want)
	w.runOnce(t)
	r, write, err := w.Archive(alice(t.Context()), nyc, job, "step-1")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.journal.entries); n != 1 || w.journal.entries[0].Object != "job "+job {
		t.Errorf("the read of something confidential is not in the journal: %+v", w.journal.entries)
	}
	var b bytes.Buffer
	if err := write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	got := files{}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		name := h.Name
		if h.Typeflag == tar.TypeReg && h.Mode&0o100 != 0 {
			name = "!" + name
		}
		got[name] = string(content)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	w.damage(t, checkpoint.ChunkKeys(r, w.manifest(t, r))[0])
	if err := write(t.Context(), io.Discard); !errors.Is(err, blob.ErrDamaged) {
		t.Errorf("a damaged one: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	want := model(1)
	w.write(t, job, "step-1", want)
	w.runOnce(t)
	r, err := w.Resolve(alice(t.Context()), nyc, job+"/step-1")
	if err != nil {
		t.Fatal(err)
	}
	newest, err := w.Resolve(alice(t.Context()), nyc, job)
	if err != nil || newest.ID != r.ID {
		t.Errorf("the newest: %+v, %v", newest, err)
	}
	next := w.job(t, "job_b", checkpoint.Rules{})
	adopt := func(r checkpoint.Record) error {
		return w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			return w.Adopt(ctx, tx, r, checkpoint.Job{ID: next, Residency: residency.Of("home"), Classification: project.Restricted})
		})
	}
	if err := adopt(r); err != nil {
		t.Fatal(err)
	}
	// It stays although the first job's goes.
	w.end(t, job)
	w.runOnce(t)
	w.clock = w.clock.Add(31 * 24 * time.Hour)
	if err := errors.Join(w.Sweep(t.Context()), w.CollectProject(t.Context(), nyc)); err != nil {
		t.Fatal(err)
	}
	if all := w.list(t, job); len(all) > 0 {
		t.Errorf("of the first job: %v", names(all))
	}
	notes, err := w.Restore(t.Context(), next)
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "of job_a/step-1") {
		t.Error(notes, err)
	}
	if diff := cmp.Diff(want, read(t, w.path(next, "step-1"))); diff != "" {
		t.Error(diff)
	}
	w.runOnce(t)
	if all := w.list(t, next); len(all) != 1 || all[0].From != "job_a/step-1" || all[0].Classification != project.Restricted {
		t.Errorf("%+v", all)
	}
	if err := adopt(r); !fault.Is(err, fault.Conflict) {
		t.Errorf("adopting what went: %v", err)
	}
}

// What a take has stored, or found stored, is not collected before its record is
// there.
func TestCollectingInTheMiddleOfATake(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	var collected atomic.Int32
	w.blobs.before(func(blob.Ref) error {
		collected.Add(1)
		return w.CollectProject(t.Context(), nyc)
	})
	want := model(1)
	for i := range 2 {
		want["more"] = noise(uint64(100+i), 3000)
		w.write(t, job, "step-1", want)
		w.runOnce(t)
	}
	w.lose(t, job, "step-1")
	if notes, err := w.Restore(t.Context(), job); err != nil || len(notes) != 1 || collected.Load() < 3 {
		t.Fatal(notes, err, collected.Load())
	}
	if diff := cmp.Diff(want, read(t, w.path(job, "step-1"))); diff != "" {
		t.Error(diff)
	}
}

// A chunk that a take relies on is not collected under it, at any interleaving.
func TestTakingWhileCollecting(t *testing.T) {
	w := newWorld(t)
	a, b := w.job(t, "job_a", checkpoint.Rules{KeepLast: 1}), w.job(t, "job_b", checkpoint.Rules{KeepLast: 1})
	ctx := t.Context()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := w.CollectProject(ctx, nyc); err != nil {
				t.Error(err)
				return
			}
		}
	})
	// Both jobs write the same few contents again and again, so that each drops
	// chunks which the other is about to need.
	var writers sync.WaitGroup
	for i, job := range []string{a, b} {
		writers.Go(func() {
			for n := range 15 {
				name := "step-" + string(rune('a'+n%26))
				w.write(t, job, name, files{"model": noise(uint64((n+i)%3), 4000), "n": noise(uint64(n), 10)})
				if err := w.Settle(ctx, job); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	wg.Wait()
	for _, job := range []string{a, b} {
		all := w.list(t, job)
		last := all[len(all)-1].Name
		want := read(t, w.path(job, last))
		w.lose(t, job, last)
		if notes, err := w.Restore(ctx, job); err != nil || len(notes) != 1 {
			t.Fatal(notes, err)
		}
		if diff := cmp.Diff(want, read(t, w.path(job, last))); diff != "" {
			t.Error(diff)
		}
	}
}

// The loop finds what is there, goes on after it failed, and stops.
func TestLoop(t *testing.T) {
	w := newWorld(t)
	w.cfg.Every, w.cfg.Now = time.Millisecond, nil
	w.restart()
	job := w.job(t, "job_a", checkpoint.Rules{})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	changed := w.db.Changed("event")
	w.write(t, job, "step-1", model(1))
	for len(w.list(t, job)) == 0 {
		select {
		case <-changed:
			changed = w.db.Changed("event")
		case <-t.Context().Done():
			t.Fatal("it was not taken")
		}
	}
	w.end(t, job)
	for {
		if _, err := os.Stat(w.path(job)); errors.Is(err, os.ErrNotExist) {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the directory did not go")
		}
	}
	w.Stop()
	w.Stop()
}

func TestRulesAreThoseOfTheJob(t *testing.T) {
	for name, r := range map[string]checkpoint.Rules{
		"negative": {KeepLast: -1}, "many": {KeepBest: 1001, Best: checkpoint.Best{Metric: "x"}}, "mode": {Best: checkpoint.Best{Mode: "most"}},
		"no metric": {KeepBest: 1}, "interval": {Interval: "1s"}, "after": {After: "soon"},
	} {
		if err := r.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		spec := training.Spec{Command: []string{"/bin/true"}, Checkpoints: r}
		if err := spec.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s in a job: %v", name, err)
		}
	}
	good := checkpoint.Rules{KeepLast: 5, KeepBest: 2, Best: checkpoint.Best{Metric: "acc", Mode: "max"}, Interval: "30m", After: "30d", Restore: 2}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestStoreErrors(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_a", checkpoint.Rules{})
	w.write(t, job, "step-1", model(1))
	w.runOnce(t)
	r := w.list(t, job)[0]
	s := trainingsql.Checkpoints{}
	for name, c := range map[string]struct {
		act  func(ctx context.Context, tx *store.Tx) error
		want fault.Kind
	}{
		"no record":   {func(ctx context.Context, tx *store.Tx) error { _, err := s.Checkpoint(ctx, tx, "ckp_x"); return err }, fault.NotFound},
		"no manifest": {func(ctx context.Context, tx *store.Tx) error { _, err := s.Manifest(ctx, tx, "ckp_x"); return err }, fault.NotFound},
		"no job":      {func(ctx context.Context, tx *store.Tx) error { _, err := s.Job(ctx, tx, "job_x"); return err }, fault.NotFound},
		"old update": {func(ctx context.Context, tx *store.Tx) error {
			old := r
			old.Revision = 7
			return s.UpdateCheckpoint(ctx, tx, old)
		}, fault.Conflict},
		"old delete": {func(ctx context.Context, tx *store.Tx) error {
			old := r
			old.Revision = 7
			return s.DeleteCheckpoint(ctx, tx, old)
		}, fault.Conflict},
	} {
		if err := w.db.Update(t.Context(), "", c.act); !fault.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhoLeftIt: a checkpoint that is taken when the next attempt is under way is
// of the one before.
func TestWhoLeftIt(t *testing.T) {
	w := newWorld(t)
	job := w.job(t, "job_1", checkpoint.Rules{KeepLast: 10})
	w.write(t, job, "step-1", model(1))
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		return trainingsql.Store{}.InsertAttempt(ctx, tx, training.Attempt{ID: "att_2", Job: training.JobID(job), Number: 2, Made: time.Now().Add(time.Hour)})
	})
	if err != nil {
		t.Fatal(err)
	}
	w.runOnce(t)
	if all := w.list(t, job); len(all) != 1 || all[0].Attempt != job+".1" {
		t.Fatalf("%+v", all)
	}
}
