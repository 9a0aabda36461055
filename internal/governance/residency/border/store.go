package border

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps zones and widenings. Every method works in the caller's
// transaction. What is not there is fault.NotFound.
type Store interface {
	Zone(ctx context.Context, tx *store.Tx, z residency.Zone) (residency.Place, error)
	Zones(ctx context.Context, tx *store.Tx) ([]residency.Place, error)
	PutZone(ctx context.Context, tx *store.Tx, p residency.Place) error

	Widening(ctx context.Context, tx *store.Tx, id string) (Widening, error)
	// Widenings lists the newest first; an empty state means all.
	Widenings(ctx context.Context, tx *store.Tx, in project.Name, state State, before string, limit int) ([]Widening, error)
	PutWidening(ctx context.Context, tx *store.Tx, w Widening) error
}
