package dataset

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with datasets is not deleted.
type Contents struct {
	Store interface {
		Datasets(ctx context.Context, tx *store.Tx, p project.Name, only []string, after string, limit int) ([]Dataset, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.Datasets(ctx, tx, p, nil, "", 1)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "datasets", nil
}
