package keys

import (
	"context"

	"github.com/falaj-ml/falaj/internal/store"
)

// Row is a key as the database keeps it.
type Row struct {
	Key
	Sealed []byte // material sealed by the key above; zeros once destroyed
}

// Check is how the database recognises its master key.
type Check struct {
	Salt []byte // 32 bytes
	MAC  []byte // HMAC-SHA-256 over the salt under a key derived from the master
}

// Store is what the service needs from a database. All methods run in the
// caller's transaction.
type Store interface {
	// Find gives a scope's row; fault.NotFound when it was never made.
	Find(ctx context.Context, tx *store.Tx, project, owner string) (Row, error)
	// Insert adds a row; a scope has one row for ever.
	Insert(ctx context.Context, tx *store.Tx, row Row) error
	// Destroy overwrites the sealed bytes of a scope with zeros and marks it;
	// for an empty owner, of the whole project. It gives the rows it changed,
	// without their sealed bytes. The transaction is scrubbed (Tx.Scrub), also
	// when nothing was left to change: the time before may not have ended well.
	Destroy(ctx context.Context, tx *store.Tx, project, owner string, at store.Time) ([]Key, error)
	// List gives keys in the order of (project, owner), those after a scope or,
	// for nil, from the first.
	List(ctx context.Context, tx *store.Tx, f Filter, after *Scope, limit int) ([]Key, error)
	// Check and SetCheck keep the master key's check; fault.NotFound before the first.
	Check(ctx context.Context, tx *store.Tx) (Check, error)
	SetCheck(ctx context.Context, tx *store.Tx, c Check) error
}
