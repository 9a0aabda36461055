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
		s, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		return s.Digest
	}
	sweep := func(after time.Duration, want int) {
		t.Helper()
		later = after
		if n, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err != nil || n != want {
			t.Errorf("after %s: removed %d, %v; want %d", after, n, err, want)
		}
	}
	has := func(digest string) bool { return w.CheckSource(ctx, nyc, digest) == nil }
	const day = 24 * time.Hour

	unused, ofJob, ofSweep, again, late := upload("unused"), upload("job"), upload("sweep"), upload("again"), upload("late")
	w.submit(t, training.Spec{Source: ofJob})
	traces.named = []string{ofSweep}
	old := "sha256:" + strings.Repeat("ab", 32) // of an earlier release: it is not on record
	w.sources.m["nyc"+old], w.sources.m["sfo"+old] = nil, nil

	sweep(6*day, 0)
	upload("again")
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
	if has(again) || has(late) || has(old) || w.sources.m["sfo"+old] != nil {
		t.Errorf("left are %v", w.sources.m)
	}
	traces.named = nil
	sweep(17*day, 1)
	if !has(ofJob) {
		t.Error("the archive of the job is gone")
	}
}

// TestSourceArchivesOfAKilledServer: an archive whose removal was cut off cannot be named, goes
// the next time, and may be uploaded again before.
func TestSourceArchivesOfAKilledServer(t *testing.T) {
	w := newWorld(t)
	w.stop()
	began, later := time.Now(), time.Duration(0)
	w.cfg.Now = func() time.Time { return began.Add(later) }
	w.start(t)
	ctx := alice(t.Context())
	var digests []string
	for _, text := range []string{"a", "b"} {
		s, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, s.Digest)
	}
	later = 8 * 24 * time.Hour
	w.sources.deleting = func() error { return errors.New("killed") }
	if _, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err == nil {
		t.Fatal("no error")
	}
	w.sources.deleting = nil
	if _, err := w.Submit(ctx, nyc, "train", training.Spec{Command: []string{"/bin/true"}, Source: digests[0]}); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "is being removed") {
		t.Errorf("a job with an archive that is being removed: %v", err)
	}
	if _, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, "a"))); err != nil {
		t.Fatal(err)
	}
	w.submit(t, training.Spec{Source: digests[0]})
	if n, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); n != 1 || err != nil || w.CheckSource(ctx, nyc, digests[0]) != nil || w.CheckSource(ctx, nyc, digests[1]) == nil {
		t.Errorf("removed %d, %v", n, err)
	}
}

// TestSourceArchivesNamedAgain: an archive whose removal was cut off stays when a sweep names
// it meanwhile, unless it is gone already.
func TestSourceArchivesNamedAgain(t *testing.T) {
	w := newWorld(t)
	w.stop()
	began, later, traces := time.Now(), time.Duration(0), &sweeps{}
	w.cfg.Now = func() time.Time { return began.Add(later) }
	w.cfg.Traces = traces
	w.start(t)
	ctx := alice(t.Context())
	var digests []string
	for _, text := range []string{"a", "b"} {
		s, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, text)))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, s.Digest)
	}
	later = 8 * 24 * time.Hour
	w.sources.deleting = func() error { return errors.New("killed") }
	if _, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); err == nil {
		t.Fatal("no error")
	}
	w.sources.deleting = nil
	traces.named = digests
	delete(w.sources.m, string(nyc)+digests[1])
	if n, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now)); n != 0 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	w.submit(t, training.Spec{Source: digests[0]})
	w.sources.m[string(nyc)+digests[1]] = packed(t, "b") // so that its record is asked
	if _, err := w.Submit(ctx, nyc, "train", training.Spec{Command: []string{"/bin/true"}, Source: digests[1]}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a job with an archive that was gone: %v", err)
	}
	if _, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, "b"))); err != nil {
		t.Fatal(err)
	}
	w.submit(t, training.Spec{Source: digests[1]})
}

// TestUploadsWhileArchivesGo: an upload waits only while its own archive is removed, and no
// longer than its caller.
func TestUploadsWhileArchivesGo(t *testing.T) {
	w := newWorld(t)
	w.stop()
	var later atomic.Int64
	began := time.Now()
	w.cfg.Now = func() time.Time { return began.Add(time.Duration(later.Load())) }
	w.start(t)
	ctx := alice(t.Context())
	upload := func(ctx context.Context, text string) (string, error) {
		s, err := w.UploadSource(ctx, nyc, bytes.NewReader(packed(t, text)))
		return s.Digest, err
	}
	digest, err := upload(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	later.Store(int64(8 * 24 * time.Hour))
	deletes, goOn := make(chan struct{}), make(chan struct{})
	w.sources.deleting = func() error {
		close(deletes)
		<-goOn
		return nil
	}
	swept := make(chan error, 1)
	go func() {
		_, err := w.SweepSources(t.Context(), nyc, lifecycle.NewPass(w.cfg.Now))
		swept <- err
	}()
	<-deletes
	if _, err := upload(ctx, "b"); err != nil {
		t.Errorf("another archive: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	waits := make(chan error, 1)
	go func() {
		_, err := upload(short, "a")
		waits <- err
	}()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("the same archive: %v", err)
	}
	go func() {
		_, err := upload(ctx, "a")
		waits <- err
	}()
	close(goOn)
	if err := errors.Join(<-swept, <-waits); err != nil {
		t.Fatal(err)
	}
	if err := w.CheckSource(ctx, nyc, digest); err != nil {
		t.Errorf("what was uploaded meanwhile is gone: %v", err)
	}
}
