package privacy

import (
	"context"

	"github.com/falaj-ml/falaj/internal/store"
)

// Row is an erasure as the database keeps it.
type Row struct {
	Erasure
	// Sealed is the person's key and what the participants prepared, until the erasure
	// is done.
	Sealed []byte   `json:"sealed,omitempty"`
	Tokens []string `json:"tokens,omitempty"`
	Where  Where    `json:"where,omitzero"`
}

// Store is what the service needs of a database. Methods run in the caller's
// transaction; what is not there is fault.NotFound.
type Store interface {
	Find(ctx context.Context, tx *store.Tx, id ID) (Row, error)
	// Put inserts an erasure or takes the place of the one with its ID. A transaction
	// that takes the sealed bytes away is scrubbed.
	Put(ctx context.Context, tx *store.Tx, r Row) error
	// Document is an erasure as it was put: JSON with the fields of then.
	Document(ctx context.Context, tx *store.Tx, id ID) ([]byte, error)
	// Erased are the erasures of the person that ended as done, in part too, oldest first.
	Erased(ctx context.Context, tx *store.Tx, project, entity, pseudonym string) ([]Row, error)
	// Open lists erasures that have not ended, of all projects, oldest first.
	Open(ctx context.Context, tx *store.Tx, limit int) ([]Row, error)
	// CountOpen is how many these are.
	CountOpen(ctx context.Context, tx *store.Tx) (int, error)
	// Same finds the open erasure of a person.
	Same(ctx context.Context, tx *store.Tx, project, entity, pseudonym string) (Row, error)
	// List gives a project's, newest first, before an ID.
	List(ctx context.Context, tx *store.Tx, project string, before ID, limit int) ([]Row, error)
	// Lines is the highest line of the ledger that the database knows of, with its hash.
	Lines(ctx context.Context, tx *store.Tx) (number int64, hash string, err error)
}
