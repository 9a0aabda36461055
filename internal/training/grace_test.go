package training_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestFinishedInItsGrace: a job that ends with 0 after it was asked to stop has succeeded in
// its first attempt, with its output; only one that was cancelled has not.
func TestFinishedInItsGrace(t *testing.T) {
	for name, c := range map[string]struct {
		spec  training.Spec
		ask   func(ctx context.Context, w *world, j training.Job) error
		state training.State
	}{
		"resized": {training.Spec{}, func(ctx context.Context, w *world, j training.Job) error {
			_, err := w.Resize(ctx, nyc, j.ID, training.Exactly(2))
			return err
		}, training.Succeeded},
		"moved": {training.Spec{Pools: []string{"home"}}, func(ctx context.Context, w *world, j training.Job) error {
			if _, _, err := w.compute.ApplyPool(ctx, "second", compute.PoolSpec{}); err != nil {
				return err
			}
			_, err := w.Move(ctx, nyc, j.ID, []string{"second"})
			return err
		}, training.Succeeded},
		"timed out":   {training.Spec{Timeout: compute.Duration(300 * time.Millisecond)}, nil, training.Succeeded},
		"no progress": {training.Spec{Progress: compute.Duration(time.Second)}, nil, training.Succeeded},
		"cancelled": {training.Spec{}, func(ctx context.Context, w *world, j training.Job) error {
			_, err := w.Cancel(ctx, nyc, j.ID)
			return err
		}, training.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
				<-p.Term
				return enginetest.Exit{}
			})
			c.spec.Grace = compute.Duration(time.Minute)
			j := w.submit(t, c.spec)
			w.started(t)
			if c.ask != nil {
				if err := c.ask(alice(t.Context()), w, j); err != nil && !fault.Is(err, fault.Conflict) {
					t.Fatal(err)
				}
			}
			if j = w.ended(t, j.ID); j.State != c.state || j.Attempts != 1 || c.state == training.Succeeded && j.Hint != "" {
				t.Errorf("%+v", j)
			}
		})
	}
}

// TestSavedAtItsTimeout: a job that saves when it reaches its time-out and leaves with 75
// resumes in a new attempt, and what it saved is named there.
func TestSavedAtItsTimeout(t *testing.T) {
	w := newWorld(t)
	attempts := 0
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		if attempts++; attempts == 3 {
			return enginetest.Exit{}
		}
		<-p.Term
		if err := os.WriteFile(filepath.Join(p.Spec.Env["FALAJ_CHECKPOINT_DIR"], "last.ckpt"), []byte(strings.Repeat("x", attempts)), 0o600); err != nil {
			return enginetest.Exit{Code: 1}
		}
		return enginetest.Exit{Code: 75}
	})
	j := w.submit(t, training.Spec{Timeout: compute.Duration(300 * time.Millisecond), Grace: compute.Duration(time.Minute), MaxAttempts: 1})
	if j = w.ended(t, j.ID); j.State != training.Succeeded || j.Attempts != 3 || j.Failures != 0 {
		t.Fatalf("%+v", j)
	}
	d, err := w.Describe(alice(t.Context()), nyc, j.ID)
	if err != nil || d.Tries[0].Class != training.Saved || !strings.Contains(d.Tries[0].Reason, "time-out") {
		t.Errorf("%+v, %v", d.Tries, err)
	}
}

// TestTimedOutWithoutACheckpoint is final, and the hint does not advise what the program did.
func TestTimedOutWithoutACheckpoint(t *testing.T) {
	w := newWorld(t)
	w.fake.Behave(func(p *enginetest.Process) enginetest.Exit {
		<-p.Term
		return enginetest.Exit{Code: 75}
	})
	j := w.submit(t, training.Spec{Timeout: compute.Duration(300 * time.Millisecond)})
	if j = w.ended(t, j.ID); j.State != training.Failed || j.Class != training.TimedOut || !strings.Contains(j.Hint, "write a checkpoint") {
		t.Errorf("%+v", j)
	}
}
