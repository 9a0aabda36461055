package serving

import (
	"context"
	"time"
)

// Drain waits until shadows have seen what was shown to them.
func (s *Loader) Drain() { s.shadows.all.Wait() }

// ScaleAt is ScaleOnce at another time.
func (s *Loader) ScaleAt(ctx context.Context, now time.Time) error { return s.scale(ctx, now) }

// Settled waits until versions that were set aside have been dealt with.
func (s *Loader) Settled() { s.scaler.loading.Wait() }

// SetTimeout bounds inferences from now on.
func (s *Inference) SetTimeout(d time.Duration) { s.cfg.Timeout = d }

// Hasten has the loader try again at once what did not load.
func (s *Loader) Hasten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, f := range s.failures {
		f.retry = time.Time{}
		s.failures[a] = f
	}
}

// Age moves back since when versions do not load.
func (s *Loader) Age(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, f := range s.failures {
		f.since = f.since.Add(-d)
		s.failures[a] = f
	}
}
