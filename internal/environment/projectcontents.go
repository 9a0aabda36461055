package environment

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with environments is not deleted.
type Contents struct {
	Store interface {
		List(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]Environment, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.List(ctx, tx, p, "", 1)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "environments", nil
}

// Records implements tenancy.Records.
func (Contents) Records() {}
