package webhook

import (
	"context"

	"github.com/falaj-ml/falaj/internal/store"
)

// Store is what the package needs of a database. All methods run in the caller's
// transaction.
type Store interface {
	// Put inserts or replaces a webhook.
	Put(ctx context.Context, tx *store.Tx, w Webhook) error
	// One finds a webhook. Error: fault.NotFound.
	One(ctx context.Context, tx *store.Tx, project string, id ID) (Webhook, error)
	// List is a page of a project's, the newest first.
	List(ctx context.Context, tx *store.Tx, project string, offset, limit int) ([]Webhook, error)
	// Delete removes one. Error: fault.NotFound.
	Delete(ctx context.Context, tx *store.Tx, project string, id ID) error
	// Forget deletes all that a project has.
	Forget(ctx context.Context, tx *store.Tx, project string) error
}
