package gateway

import (
	"context"

	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps gateways. What is not there is fault.NotFound.
type Store interface {
	Put(ctx context.Context, tx *store.Tx, g Gateway) error // inserts, or replaces all but Seen
	One(ctx context.Context, tx *store.Tx, project, name string) (Gateway, error)
	List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Gateway, error) // by name
	Delete(ctx context.Context, tx *store.Tx, project, name string) error                        // with its positions
	Saw(ctx context.Context, tx *store.Tx, project, name string, seen Seen) error

	Position(ctx context.Context, tx *store.Tx, project, gateway string, deployment serving.ID) (Position, error)
	PutPosition(ctx context.Context, tx *store.Tx, p Position) error
}
