package training

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with jobs is not deleted.
type Contents struct {
	Store interface {
		Jobs(ctx context.Context, tx *store.Tx, p project.Name, f Filter) ([]Job, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.Jobs(ctx, tx, p, Filter{Limit: 1})
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "jobs", nil
}

// Records implements tenancy.Records.
func (Contents) Records() {}
