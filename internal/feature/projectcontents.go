package feature

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Contents implements tenancy.Contents: a project with feature definitions is not deleted.
type Contents struct {
	Store interface {
		Latest(ctx context.Context, tx *store.Tx, p project.Name, k Kind, after string, limit int) ([]Definition, error)
	}
}

// Contents implements tenancy.Contents.
func (c Contents) Contents(ctx context.Context, tx *store.Tx, p project.Name) (string, error) {
	for _, kind := range []Kind{EntityKind, ViewKind, ServiceKind} {
		all, err := c.Store.Latest(ctx, tx, p, kind, "", 1)
		if err != nil {
			return "", err
		}
		if len(all) > 0 {
			return "feature definitions", nil
		}
	}
	return "", nil
}

// Records implements tenancy.Records.
func (Contents) Records() {}
