package training_test

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/scheduler/replay"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestRemaining: nothing is known of the first of its name; of the second, how long
// the first took; and the pace wins over that.
func TestRemaining(t *testing.T) {
	w := newWorld(t)
	left := func(j training.Job) (compute.Left, bool) {
		t.Helper()
		d, err := w.Describe(alice(t.Context()), nyc, j.ID)
		if err != nil {
			t.Fatal(err)
		}
		id := compute.WorkloadID(d.Tries[len(d.Tries)-1].ID)
		all, err := w.Remaining(t.Context(), []compute.WorkloadID{id, "bld_other"})
		if err != nil || len(all) > 1 {
			t.Fatal(all, err)
		}
		l, known := all[id]
		return l, known
	}
	first := w.submit(t, training.Spec{Steps: 100})
	h := w.started(t)
	if l, known := left(first); known {
		t.Errorf("of the first %+v is known", l)
	}
	w.fake.Finish(h, enginetest.Exit{})
	first = w.ended(t, first.ID)

	r, foreseen, err := w.Propose(alice(t.Context()), nyc, "train", training.Spec{Command: []string{"/bin/true"}})
	took := first.EndedAt.Sub(first.StartedAt)
	if err != nil || r.Amount.CPU == 0 || foreseen.Basis != replay.History || (foreseen.Time-took).Abs() > time.Millisecond {
		t.Errorf("%+v %+v after %s, %v", r, foreseen, took, err)
	}
	if _, _, err := w.Propose(alice(t.Context()), nyc, "train", training.Spec{}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}

	now := time.Now()
	w.runs.mu.Lock()
	w.runs.progress = training.Progress{First: training.Point{Step: 10, At: now.Add(-time.Minute)}, Last: training.Point{Step: 70, At: now}}
	w.runs.mu.Unlock()
	second := w.submit(t, training.Spec{Steps: 100_000})
	h = w.started(t)
	logs, err := w.Logs(alice(t.Context()), nyc, second.ID, 0, 0, true) // returns when it runs
	if err != nil {
		t.Fatal(err)
	}
	logs.Close()
	if l, known := left(second); !known || l.Basis != replay.Pace || l.Time > 99_930*time.Second || l.Time < 90_000*time.Second {
		t.Errorf("%+v, %v", l, known)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, second.ID)
}
