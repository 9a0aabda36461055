package ingestion_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

// What a run has read of somebody who was erased since is read again, from a source
// that does not have them any more, while the run waits and while it is at it.
func TestReread(t *testing.T) {
	for _, underWay := range []bool{false, true} {
		w := newWorld(t)
		fill(w, 60)
		w.apply(t, spec(source.Full))
		under, goOn := make(chan struct{}), make(chan struct{})
		steps := 0
		w.driver.step = func() error {
			if steps++; steps != 10 {
				return nil
			}
			if !underWay {
				return fault.New(fault.Unavailable, "the network is away")
			}
			close(under)
			<-goOn
			return nil
		}
		run, err := w.Start(datasettest.Context(t), p, "orders", false)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- w.RunOnce(t.Context()) }()
		if underWay {
			<-under
		} else if err := <-done; err != nil {
			t.Fatal(err)
		}
		find := func(before time.Time) []ingestion.Run {
			t.Helper()
			found, err := w.ReadBefore(t.Context(), p, before)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		began := w.now
		found := find(began.Add(time.Second))
		if len(found) != 1 || found[0].ID != run.ID || len(find(began.Add(-time.Second))) != 0 {
			t.Fatalf("found %+v", found)
		}
		gone := w.driver.rows[1]
		w.driver.mu.Lock()
		w.driver.rows = slices.Delete(slices.Clone(w.driver.rows), 1, 2)
		w.driver.mu.Unlock()
		reread := make(chan error, 1)
		go func() {
			reread <- w.Reread(identity.With(t.Context(), identity.Loop("erasure")), found[0], "erasure ers_1")
		}()
		for underWay && !find(began.Add(time.Second))[0].Progress.Drop {
			runtime.Gosched() // until the attempt is kept out
		}
		close(goOn)
		if err := <-reread; err != nil {
			t.Fatal(err)
		}
		if !underWay {
			if left := find(began.Add(time.Second)); len(left) != 0 {
				t.Errorf("left %+v", left)
			}
			for _, key := range w.h.Files.List(t) {
				t.Errorf("left behind: %s", key)
			}
		} else if err := <-done; err != nil {
			t.Fatal(err)
		}
		r, err := w.Run(datasettest.Context(t), p, run.ID)
		for err == nil && !r.State.Ended() {
			w.now = w.now.Add(2 * time.Minute)
			if err = w.RunOnce(t.Context()); err == nil {
				r, err = w.Run(datasettest.Context(t), p, run.ID)
			}
		}
		if err != nil || r.State != ingestion.Succeeded || r.Rows != 59 {
			t.Fatalf("%+v, %v", r, err)
		}
		if got := w.rows(t); len(got) != 59 || slices.Contains(got, texts([]row{gone})[0]) {
			t.Errorf("the dataset has %d rows:\n%s", len(got), strings.Join(got, "\n"))
		}
	}
}
