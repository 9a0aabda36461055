package training_test

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestDeadline: a deadline is a time or a duration; how long a job runs is what it
// says, or what its earlier runs took.
func TestDeadline(t *testing.T) {
	w := newWorld(t)
	command := []string{"/bin/true"}
	first := w.submit(t, training.Spec{Command: command, Deadline: "6h"})
	if took := first.Due.Sub(first.SubmittedAt); took != 6*time.Hour || first.Expected != 0 {
		t.Errorf("due after %s, expected %s", took, time.Duration(first.Expected))
	}
	w.fake.Finish(w.started(t), enginetest.Exit{})
	was := w.ended(t, first.ID)
	second := w.submit(t, training.Spec{Command: command, Deadline: "2100-01-01T06:00:00Z"})
	if want := was.EndedAt.Sub(was.StartedAt); time.Duration(second.Expected) != want || second.Due.Year() != 2100 {
		t.Errorf("expected %s and not %s; due %s", time.Duration(second.Expected), want, second.Due)
	}
	third := w.submit(t, training.Spec{Command: command, Deadline: "1d", Expected: compute.Duration(time.Hour)})
	if time.Duration(third.Expected) != time.Hour {
		t.Errorf("expected %s", time.Duration(third.Expected))
	}
	for _, deadline := range []string{"soon", "-1h", "0", "2001-01-01T00:00:00Z", "25:00"} {
		if _, err := w.Submit(alice(t.Context()), nyc, "train", training.Spec{Command: command, Deadline: deadline}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", deadline, err)
		}
	}
}
