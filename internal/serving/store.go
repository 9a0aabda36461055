package serving

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps deployments. One and Delete answer fault.NotFound.
type Store interface {
	Put(ctx context.Context, tx *store.Tx, d Deployment) error // inserts, or replaces the project's deployment of that name
	One(ctx context.Context, tx *store.Tx, project, name string) (Deployment, error)
	List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Deployment, error) // by name
	All(ctx context.Context, tx *store.Tx) ([]Deployment, error)
	Delete(ctx context.Context, tx *store.Tx, project, name string) error
}

// Authorizer decides who may.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Models hands over model versions whose signature was checked against the
// bytes returned. Errors: fault.NotFound; fault.Conflict when a file was changed.
type Models interface {
	OpenVerified(ctx context.Context, project, model, version string) (Model, error)
	// Still refuses a version that is no longer there, in the transaction that
	// deploys it. Error: fault.NotFound.
	Still(ctx context.Context, tx *store.Tx, project, model string, version int64) error
}

// Journal records answers of classified models.
type Journal interface {
	Record(ctx context.Context, e audit.Entry) error
}
