package training_test

import (
	"context"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/enginetest"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// TestAlive: a job uses its environment from when it is submitted until it has
// ended, also while its attempt waits for room.
func TestAlive(t *testing.T) {
	w := newWorld(t)
	alive := func() (ids []training.JobID) {
		err := w.cfg.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			jobs, err := trainingsql.Store{}.Alive(ctx, tx)
			for _, j := range jobs {
				if j.EnvDigest != "sha256:e" {
					t.Errorf("%+v", j)
				}
				ids = append(ids, j.ID)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	all := resource.Amount{CPU: resource.Cores(2), Memory: resource.GiB}
	first := w.submit(t, training.Spec{Environment: "py", Resources: all})
	h := w.started(t)
	second := w.submit(t, training.Spec{Environment: "py", Resources: all})
	for second.Attempt == "" { // it waits behind the first
		if t.Context().Err() != nil {
			t.Fatal("the second job has no attempt")
		}
		j, err := w.One(alice(t.Context()), nyc, second.ID)
		if err != nil {
			t.Fatal(err)
		}
		second = j
	}
	if got := alive(); !slices.Equal(got, []training.JobID{first.ID, second.ID}) || second.State != training.Queued {
		t.Errorf("%v; the second is %s", got, second.State)
	}
	w.fake.Finish(h, enginetest.Exit{})
	w.ended(t, first.ID)
	if got := alive(); !slices.Equal(got, []training.JobID{second.ID}) {
		t.Errorf("%v", got)
	}
	w.fake.Finish(w.started(t), enginetest.Exit{})
	w.ended(t, second.ID)
	if got := alive(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
