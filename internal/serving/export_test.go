package serving

import (
	"context"
	"time"
)

// Drain waits until shadows have seen what was shown to them.
func (s *Service) Drain() { s.shadows.all.Wait() }

// ScaleAt is ScaleOnce at another time.
func (s *Service) ScaleAt(ctx context.Context, now time.Time) error { return s.scale(ctx, now) }
