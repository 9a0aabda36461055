package registry

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with models is not deleted.
type Contents struct {
	Store interface {
		SearchModels(ctx context.Context, tx *store.Tx, p project.Name, q Query) ([]Model, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.SearchModels(ctx, tx, p, Query{Limit: 1})
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "models", nil
}

// Records implements tenancy.Records.
func (Contents) Records() {}
