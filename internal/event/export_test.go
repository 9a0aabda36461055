package event

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

// TrimIn is Trim in a pass.
func TrimIn(ctx context.Context, db *store.DB, before time.Time, pass lifecycle.Pass) error {
	return trim(ctx, db, before, pass)
}

// SetLease shortens the time until another process takes over.
func (s *Subscription) SetLease(d time.Duration) { s.lease = d }
