package account

import (
	"context"
	"log/slog"
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

// Run writes last uses and prunes old attempt tokens every Config.Upkeep, until
// ctx ends; what is pending then is written before it returns.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Upkeep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			return s.Flush(last)
		case <-tick.C:
			if err := s.Flush(ctx); err != nil {
				s.cfg.Log.WarnContext(ctx, "upkeep of tokens failed, trying again", slog.Any("error", err))
			}
		}
	}
}

// Flush does one round of upkeep. An idle server writes nothing.
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
