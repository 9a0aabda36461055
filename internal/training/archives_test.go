package training_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/source"
)

// packed is a source archive with one file.
func packed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: "main.py", Mode: 0o600, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sweeps name source archives.
type sweeps struct {
	training.Traces
	named []string
}

func (s *sweeps) Sources(_ context.Context, _ *store.Tx, _ project.Name, digests []string) (named []string, err error) {
	return slices.DeleteFunc(slices.Clone(digests), func(d string) bool { return !slices.Contains(s.named, d) }), nil
}

// TestSourceArchivesGo: what neither a job nor a sweep names goes a week after its last use, and
// nothing else does.
func TestSourceArchivesGo(t *testing.T) {
	w := newWorld(t)
	w.stop()
	began, later, traces := time.Now(), time.Duration(0), &sweeps{}
	w.cfg.Now = func() time.Time { return began.Add(later) }
	w.cfg.Traces = traces
	w.start(t)
	ctx := alice(t.Context())
	upload := func(text string) string {
		t.Helper()
		s, err := w.Upload(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest
	}
	sweep := func(after time.Duration, want int) {
		t.Helper()
		later = after
		if n, err := w.Sweep(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err != nil || n != want {
			t.Errorf("after %s: removed %d, %v; want %d", after, n, err, want)
		}
	}
	has := func(digest string) bool { return w.Check(ctx, nyc, digest) == nil }
	const day = 24 * time.Hour

	unused, ofJob, ofSweep, again, late := upload("unused"), upload("job"), upload("sweep"), upload("again"), upload("late")
	w.submit(t, training.Spec{Source: ofJob})
	traces.named = []string{ofSweep}
	old := "sha256:" + strings.Repeat("ab", 32) // of an earlier release: it is not on record
	ofOld := func(p project.Name) stored { return stored{p, source.Stored{Digest: old}} }
	w.sources.m[ofOld(nyc)], w.sources.m[ofOld("sfo")] = nil, nil

	sweep(6*day, 0)
	upload("again")
	if n := len(w.sources.of(again)); n != 1 {
		t.Errorf("%d objects of one archive", n)
	}
	sweep(8*day, 2) // unused and late
	if has(unused) || has(late) || !has(ofJob) || !has(ofSweep) || !has(again) || !has(old) {
		t.Errorf("left are %v", w.sources.m)
	}
	if _, err := w.Submit(ctx, nyc, "train", training.Spec{Command: []string{"/bin/true"}, Source: late}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a job with an archive that is gone: %v", err)
	}
	upload("late")
	sweep(12*day, 0)
	sweep(16*day, 3) // again, late, and the old one, a week after it was found
	if has(again) || has(late) || has(old) || len(w.sources.of(old)) != 1 {
		t.Errorf("left are %v", w.sources.m)
	}
	traces.named = nil
	sweep(17*day, 1)
	if !has(ofJob) {
		t.Error("the archive of the job is gone")
	}
}

// TestSourceArchivesOfAKilledServer: an archive whose removal was cut off cannot be named; its
// object goes the next time, and it may be uploaded again before. So does an object whose upload
// was cut off, once it is a day old.
func TestSourceArchivesOfAKilledServer(t *testing.T) {
	w := newWorld(t)
	w.stop()
	began, later := time.Now(), time.Duration(0)
	w.cfg.Now = func() time.Time { return began.Add(later) }
	w.start(t)
	ctx := alice(t.Context())
	upload := func(text string) string {
		t.Helper()
		s, err := w.Upload(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest
	}
	a, b := upload("a"), upload("b")
	later = 8 * 24 * time.Hour
	w.sources.deleting = func() error { return errors.New("killed") }
	if _, err := w.Sweep(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err == nil {
		t.Fatal("no error")
	}
	w.sources.deleting = nil
	if _, err := w.Submit(ctx, nyc, "train", training.Spec{Command: []string{"/bin/true"}, Source: a}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a job with an archive that is being removed: %v", err)
	}
	upload("a")
	w.submit(t, training.Spec{Source: a})
	if _, err := w.Sweep(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err != nil || w.Check(ctx, nyc, a) != nil || len(w.sources.of(a)) != 1 || len(w.sources.of(b)) != 0 {
		t.Errorf("%v; left are %v", err, w.sources.m)
	}

	short, cancel := context.WithCancel(ctx)
	w.sources.saved = cancel
	if _, err := w.Upload(short, nyc, bytes.NewReader(packed(t, "c"))); err == nil {
		t.Fatal("the upload was not cut off")
	}
	w.sources.saved = nil
	if len(w.sources.m) != 2 {
		t.Fatalf("stored are %v", w.sources.m)
	}
	for _, c := range []struct {
		after time.Duration // of the upload
		left  int
	}{{23 * time.Hour, 2}, {25 * time.Hour, 1}} {
		later = c.after
		if _, err := w.Sweep(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err != nil || len(w.sources.m) != c.left {
			t.Errorf("after %s: %v; left are %v", c.after, err, w.sources.m)
		}
	}
}

// TestDamagedSourceArchives: the upload of an archive that is damaged or gone stores it again.
func TestDamagedSourceArchives(t *testing.T) {
	w := newWorld(t)
	ctx := alice(t.Context())
	for range 2 {
		s, err := w.Upload(ctx, nyc, bytes.NewReader(packed(t, "a")))
		if err != nil {
			t.Fatal(err)
		}
		w.submit(t, training.Spec{Source: s.Digest})
		for _, k := range w.sources.of(s.Digest) {
			delete(w.sources.m, k)
		}
	}
}

// TestSourceArchivesOfTwoServers: two servers on one database and one store sweep, and receive
// uploads of the same archives, at the same time. No archive is lost that an upload has
// acknowledged.
func TestSourceArchivesOfTwoServers(t *testing.T) {
	w := newWorld(t)
	w.stop()
	var later atomic.Int64
	began := time.Now()
	w.cfg.Now = func() time.Time { return began.Add(time.Duration(later.Load())) }
	w.start(t)
	ctx := alice(t.Context())
	cfg := w.cfg
	cfg.Dir = t.TempDir()
	other := training.New(cfg).SourceArchives
	upload := func(s *source.Archives, text string) string {
		t.Helper()
		up, err := s.Upload(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		return up.Digest
	}
	sweep := func(s *source.Archives) {
		t.Helper()
		if _, err := s.Sweep(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err != nil {
			t.Fatal(err)
		}
	}
	usable := func(what, digest string) {
		t.Helper()
		sweep(w.Archives)
		sweep(other)
		for _, s := range []*source.Archives{w.Archives, other} {
			if err := s.Check(ctx, nyc, digest); err != nil {
				t.Errorf("%s: the archive is lost: %v", what, err)
			}
		}
	}

	digest := upload(w.Archives, "a")
	later.Add(int64(8 * 24 * time.Hour))
	w.sources.deleting = func() error {
		w.sources.deleting = nil
		upload(other, "a")
		return nil
	}
	sweep(w.Archives)
	if w.sources.deleting != nil {
		t.Fatal("nothing was deleted")
	}
	usable("uploaded to one server while the other deletes it", digest)

	later.Store(0) // objects are named by the clock of the machine
	w.sources.saved = func() {
		w.sources.saved = nil
		sweep(other)
	}
	usable("not on record yet while the other server sweeps", upload(w.Archives, "b"))

	w.sources.saved = func() {
		w.sources.saved = nil
		upload(other, "c")
	}
	digest = upload(w.Archives, "c")
	usable("uploaded to both servers", digest)
	later.Add(int64(8 * 24 * time.Hour))
	if err := w.Check(ctx, nyc, digest); err != nil {
		t.Fatal(err)
	}
	usable("named a week later", digest)
	if n := len(w.sources.of(digest)); n != 1 {
		t.Errorf("%d objects of one archive are left", n)
	}
}
