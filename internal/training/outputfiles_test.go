package training_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
)

// filing is an engine whose workers are on other machines.
type filing struct {
	*enginetest.Fake
	listing outputdir.Listing
	err     error
	most    int64
}

func (f *filing) ListOutput(_ context.Context, _ engine.Handle, below string) (outputdir.Listing, error) {
	if below != "." {
		return outputdir.Listing{}, fault.New(fault.NotFound, "nothing at %s", below)
	}
	return f.listing, f.err
}

func (f *filing) OpenOutput(_ context.Context, _ engine.Handle, path string, most int64) (io.ReadCloser, error) {
	f.most = most
	return io.NopCloser(strings.NewReader("content of " + path)), f.err
}

// TestOutputFilesElsewhere: the files of a job on other machines come from its engine, with
// the words and the limits of those that are here.
func TestOutputFilesElsewhere(t *testing.T) {
	e := &filing{Fake: enginetest.NewFake(), listing: outputdir.Listing{Files: []outputdir.OutputFile{{Path: "events/tfevents.1", Size: 3}}, More: true}}
	w := newWorld(t, e)
	w.fake = e.Fake
	w.stop()
	far := w.ccfg.Engines["local"]
	far.Remote = true
	w.ccfg.Engines["local"] = far
	w.start(t)
	j := w.submit(t, training.Spec{Disk: engine.Disk{Output: 1000}})
	h := w.started(t)
	ctx := alice(t.Context())
	out, err := w.Files.List(ctx, nyc, string(j.ID), "/")
	for fault.Is(err, fault.Conflict) && ctx.Err() == nil { // it is started, and not on record yet
		out, err = w.Files.List(ctx, nyc, string(j.ID), "/")
	}
	if err != nil || len(out.Files) != 1 || out.Files[0].Path != "events/tfevents.1" || !out.More || out.Number != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := w.Files.List(ctx, nyc, string(j.ID), "none"); !fault.Is(err, fault.NotFound) || !strings.Contains(fault.HintOf(err), "falaj job files") {
		t.Errorf("%v", err)
	}
	r, err := w.Files.Open(ctx, nyc, string(j.ID), "../events//a")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "content of events/a" || e.most != 1000 {
		t.Errorf("%q of at most %d, %v", b, e.most, err)
	}
	e.err = fault.New(fault.Timeout, "no answer")
	if _, err := w.Files.List(ctx, nyc, string(j.ID), ""); !fault.Is(err, fault.Timeout) {
		t.Errorf("%v", err)
	}
	w.auth.deny[training.ActionLogs] = true
	if _, err := w.Files.Open(ctx, nyc, string(j.ID), "a"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("%v", err)
	}
	w.auth.deny[training.ActionLogs] = false
	e.Finish(h, enginetest.Exit{})
	w.ended(t, j.ID)
	if _, err := w.Files.Open(ctx, nyc, string(j.ID), "a"); !fault.Is(err, fault.Gone) {
		t.Errorf("%v", err)
	}
}

// TestOutputFiles: what a job has written can be listed and read while it runs; what is no
// plain file of it cannot, and nobody waits for a pipe.
func TestOutputFiles(t *testing.T) {
	w := newWorld(t)
	written, grow, grown, end := make(chan string, 1), make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		out := p.Spec.Env["FALAJ_OUTPUT_DIR"]
		write(filepath.Join(out, "events", "tfevents.1"), "one")
		write(filepath.Join(out, "notes.txt"), "notes")
		big, err := os.Create(filepath.Join(out, "holes"))
		if err == nil {
			err = errors.Join(big.Truncate(1<<40), big.Close())
		}
		err = errors.Join(err, syscall.Mkfifo(filepath.Join(out, "pipe"), 0o600), os.Symlink("/etc/passwd", filepath.Join(out, "link")),
			os.Symlink("notes.txt", filepath.Join(out, "inner")), os.Symlink("/etc", filepath.Join(out, "dir")))
		written <- out
		if err != nil {
			t.Error(err)
		}
		<-grow
		write(filepath.Join(out, "events", "tfevents.1"), "one, two")
		close(grown)
		<-end
		_ = errors.Join(os.Remove(filepath.Join(out, "pipe")), os.Remove(filepath.Join(out, "link")), os.Remove(filepath.Join(out, "inner")), os.Remove(filepath.Join(out, "dir")), os.Remove(filepath.Join(out, "holes")))
		return enginetest.Exit{}
	})
	j := w.submit(t, training.Spec{})
	out := <-written
	ctx := alice(t.Context())
	list := func(below string) (string, error) {
		out, err := w.Files.List(ctx, nyc, string(j.ID), below)
		var names []string
		for _, f := range out.Files {
			names = append(names, f.Path)
		}
		return strings.Join(names, " "), err
	}
	for below, want := range map[string]string{
		"": "events/tfevents.1 holes notes.txt", "events": "events/tfevents.1", "notes.txt": "notes.txt", "../../..": "events/tfevents.1 holes notes.txt", "/events/": "events/tfevents.1",
	} {
		if got, err := list(below); err != nil || got != want {
			t.Errorf("%q: %s, %v", below, got, err)
		}
	}
	for _, below := range []string{"nothing", "dir/passwd"} {
		if got, err := list(below); err == nil && got != "" || err != nil && !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %s, %v", below, got, err)
		}
	}
	read := func(path string) (string, error) {
		r, err := w.Files.Open(ctx, nyc, string(j.ID), path)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(r)
		return string(b), errors.Join(err, r.Close())
	}
	if got, err := read("notes.txt"); got != "notes" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	open, err := w.Files.Open(ctx, nyc, string(j.ID), "events/tfevents.1")
	if err != nil {
		t.Fatal(err)
	}
	close(grow)
	<-grown
	if b, err := io.ReadAll(open); string(b) != "one" || err != nil {
		t.Errorf("as it was: %q, %v", b, err)
	}
	_ = open.Close()
	if got, err := read("events/tfevents.1"); got != "one, two" || err != nil {
		t.Errorf("as it is: %q, %v", got, err)
	}
	for path, kind := range map[string]fault.Kind{
		"pipe": fault.NotFound, "link": fault.NotFound, "dir/passwd": fault.NotFound, "events": fault.NotFound,
		"../../../etc/passwd": fault.NotFound, "": fault.NotFound, "holes": fault.TooLarge,
	} {
		if got, err := read(path); !fault.Is(err, kind) || fault.HintOf(err) == "" {
			t.Errorf("%q: %q, %v", path, got, err)
		}
	}
	// The directory itself is swapped, as a job without a sandbox can.
	elsewhere := t.TempDir()
	write(filepath.Join(elsewhere, "secret"), "secret")
	if err := errors.Join(os.Rename(out, out+".aside"), os.Symlink(elsewhere, out)); err != nil {
		t.Fatal(err)
	}
	if got, err := list(""); !fault.Is(err, fault.NotFound) {
		t.Errorf("of a directory that was swapped: %s, %v", got, err)
	}
	if got, err := read("secret"); !fault.Is(err, fault.NotFound) {
		t.Errorf("of a directory that was swapped: %q, %v", got, err)
	}
	if err := errors.Join(os.Remove(out), os.Rename(out+".aside", out)); err != nil {
		t.Fatal(err)
	}
	close(end)
	j = w.ended(t, j.ID)
	if _, err := list(""); !fault.Is(err, fault.Gone) || !strings.Contains(fault.HintOf(err), "falaj run files "+j.Run) {
		t.Errorf("after its end: %v (%s)", err, fault.HintOf(err))
	}
	if _, err := w.Files.List(ctx, "other", string(j.ID), ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("of another project: %v", err)
	}
}
