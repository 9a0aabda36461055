package environment

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store is what this package needs from a database. Single objects that do not
// exist are fault.NotFound; an update of a row that somebody else changed is
// fault.Conflict, and raises the revision otherwise.
type Store interface {
	Insert(ctx context.Context, tx *store.Tx, e Environment) error
	One(ctx context.Context, tx *store.Tx, id ID) (Environment, error)
	// Named is the newest environment of a name; with a digest, the newest of
	// that content.
	Named(ctx context.Context, tx *store.Tx, p project.Name, name string, d Digest) (Environment, error)
	// List gives the newest environment of each name above after, by name.
	List(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]Environment, error)
	// Lines gives what a search reads of those: the names.
	Lines(ctx context.Context, tx *store.Tx, p project.Name, after string, limit int) ([]store.Line, error)
	Update(ctx context.Context, tx *store.Tx, e Environment) error
	// Newest lists the newest environment of each name of every project.
	Newest(ctx context.Context, tx *store.Tx) ([]Environment, error)
	// Images gives the contents that images have or had, by the image's pinned
	// reference.
	Images(ctx context.Context, tx *store.Tx) (map[string][]Digest, error)
	// Unfinished lists environments that are being locked or built.
	Unfinished(ctx context.Context, tx *store.Tx) ([]Environment, error)
}
