package training_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

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
		out, err := w.OutputFiles(ctx, nyc, j.ID, below)
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
		r, err := w.OpenOutput(ctx, nyc, j.ID, path)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(r)
		return string(b), errors.Join(err, r.Close())
	}
	if got, err := read("notes.txt"); got != "notes" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	open, err := w.OpenOutput(ctx, nyc, j.ID, "events/tfevents.1")
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
	if _, err := w.OutputFiles(ctx, "other", j.ID, ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("of another project: %v", err)
	}
}
