package monitoring

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with monitors is not deleted.
type Contents struct {
	Store interface {
		List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Monitor, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.List(ctx, tx, string(p), "", 1<<20)
	if err != nil {
		return "", err
	}
	for _, m := range all {
		if !m.Automatic { // those that came with deployments go after them
			return "monitors", nil
		}
	}
	return "", nil
}
