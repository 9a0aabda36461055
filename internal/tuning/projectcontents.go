package tuning

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with sweeps is not deleted.
type Contents struct {
	Store interface {
		Studies(ctx context.Context, tx *store.Tx, p project.Name, after StudyID, limit int) ([]Study, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	all, err := c.Store.Studies(ctx, tx, p, 0, 1)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return "sweeps", nil
}
