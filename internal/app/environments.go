package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// heldEnvironments are those of jobs that run or wait to run again: they are
// not pruned, however long ago their attempt began.
func (a *App) heldEnvironments(ctx context.Context) (held []environment.Digest, err error) {
	err = a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs, err := trainingsql.Store{}.Underway(ctx, tx)
		if err != nil {
			return err
		}
		waiting, err := trainingsql.Store{}.Unstarted(ctx, tx)
		for _, j := range append(jobs, waiting...) {
			if j.EnvDigest != "" {
				held = append(held, j.EnvDigest)
			}
		}
		return err
	})
	return held, err
}
