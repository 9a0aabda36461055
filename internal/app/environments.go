package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// heldEnvironments are those of jobs that have not ended: they are not pruned,
// however long ago the job was submitted or its attempt began.
func (a *App) heldEnvironments(ctx context.Context) (held []environment.Digest, err error) {
	err = a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		jobs, err := trainingsql.Store{}.Alive(ctx, tx)
		for _, j := range jobs {
			if j.EnvDigest != "" {
				held = append(held, j.EnvDigest)
			}
		}
		return err
	})
	return held, err
}
