package account

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

const (
	coarse      = time.Minute // resolution of a token's last use
	keepAttempt = 7 * 24 * time.Hour
	pruneBatch  = 1000
)

// note remembers that a token was used, until Flush writes it down.
func (s *Service) note(token string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[token] = at
}

// Flush does one round of upkeep: it writes last uses and prunes
// old attempt tokens. An idle server writes nothing. Call it every minute or so, and when the
// process ends: what is not written then is lost.
func (s *Service) Flush(ctx context.Context) error {
	s.mu.Lock()
	used := s.used
	s.used = map[string]time.Time{}
	s.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	now := s.clock.now()
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		for token, at := range used {
			if err := s.cfg.Store.Used(ctx, tx, token, at); err != nil {
				return err
			}
		}
		if _, err := s.cfg.Store.Prune(ctx, tx, AttemptToken, now.Add(-keepAttempt), pruneBatch); err != nil {
			return err
		}
		return s.cfg.Store.RaiseClock(ctx, tx, now)
	})
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for token, at := range used {
			if _, newer := s.used[token]; !newer {
				s.used[token] = at
			}
		}
	}
	return err
}
