package serving

import (
	"context"
	"time"
)

// Drain waits until shadows have seen what was shown to them.
func (s *Service) Drain() { s.shadows.all.Wait() }

// ScaleAt is ScaleOnce at another time.
func (s *Service) ScaleAt(ctx context.Context, now time.Time) error { return s.scale(ctx, now) }

// Settled waits until versions that were set aside have been dealt with.
func (s *Service) Settled() { s.scaler.loading.Wait() }

// Hasten has the loader try again at once what did not load.
func (s *Service) Hasten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, f := range s.failures {
		f.retry = time.Time{}
		s.failures[a] = f
	}
}

// Age moves back since when versions do not load.
func (s *Service) Age(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, f := range s.failures {
		f.since = f.since.Add(-d)
		s.failures[a] = f
	}
}
