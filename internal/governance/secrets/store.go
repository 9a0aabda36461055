package secrets

import (
	"context"

	"github.com/falaj-ml/falaj/internal/store"
)

// Row is a secret as the database keeps it.
type Row struct {
	Secret
	Sealed []byte // the values, sealed
}

// Store is what the service needs of a database. Methods run in the caller's
// transaction; what is not there is fault.NotFound.
type Store interface {
	Find(ctx context.Context, tx *store.Tx, project, name string) (Row, error)
	// Put inserts a secret or takes the place of the one with its ID; the
	// transaction is scrubbed when it does.
	Put(ctx context.Context, tx *store.Tx, r Row) error
	// Delete removes a secret; the transaction is scrubbed.
	Delete(ctx context.Context, tx *store.Tx, id ID) error
	// List gives a project's secrets by name, without what is sealed.
	List(ctx context.Context, tx *store.Tx, project, after string, limit int) ([]Secret, error)
}
