package account

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

const (
	coarse      = time.Minute // resolution of a token's last use
	keepAttempt = 7 * 24 * time.Hour
	keepSession = 30 * 24 * time.Hour
	pruneBatch  = 1000
	pruneEvery  = time.Hour // it reads every token that is kept
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
		return err
	}
	return s.prune(ctx, now)
}

// prune removes the tokens that ended long ago, all of them, a batch at a time. The audit
// log has who made and who revoked them.
func (s *Service) prune(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	due := now.Sub(s.pruned) >= pruneEvery
	if due {
		s.pruned = now
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	ended := map[Kind]time.Duration{AttemptToken: keepAttempt, SessionToken: keepSession}
	if s.cfg.KeepEnded > 0 {
		ended[UserToken], ended[ServiceToken] = s.cfg.KeepEnded, s.cfg.KeepEnded
		ended[AttemptToken] = min(keepAttempt, s.cfg.KeepEnded)
		ended[SessionToken] = min(keepSession, s.cfg.KeepEnded)
	}
	for kind, age := range ended {
		for n := pruneBatch; n == pruneBatch; {
			err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) (err error) {
				n, err = s.cfg.Store.Prune(ctx, tx, kind, now.Add(-age), pruneBatch)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
