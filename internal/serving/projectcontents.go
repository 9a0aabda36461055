package serving

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with deployments is not deleted.
type Contents struct {
	Store interface {
		List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Deployment, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.List(ctx, tx, string(p), "", 1)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "deployments", nil
}
