package signin

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	claimTime = time.Minute      // for one server to ask a provider
	retryTime = 30 * time.Second // after a provider did not answer

	unknownTime = 5 * time.Minute // for a provider that this server does not know

	askers    = 8   // questions at a time
	batch     = 100 // sessions that a round of Refresh takes
	maxClient = 200 // bytes of what a browser says of itself
	maxPage   = 1000
)

// keep records a session, with the refresh token sealed.
func (s *Service) keep(ctx context.Context, tx *store.Tx, p Provider, proof oidc.Proof, login Login, c Client) error {
	now := s.cfg.Now()
	session := Session{
		Token: login.Token.ID, Account: login.Account.ID, Provider: p.Name(), Subject: proof.Subject, ProviderSID: proof.Session, Refresh: []byte{},
		Address: c.Address, Client: fault.Clip(c.Agent, maxClient), AuthTime: proof.AuthTime, ACR: fault.Clip(proof.ACR, maxClient), CreatedAt: now,
	}
	if proof.Refresh != "" {
		sealed, err := s.seal(ctx, []byte(proof.Refresh), session.Token)
		if err != nil {
			return err
		}
		session.Refresh, session.DueAt = sealed, now.Add(p.Recheck)
	}
	return s.cfg.Store.InsertSession(ctx, tx, session)
}

// Refresh asks the providers about the sessions that are due. Call it every few seconds; it
// is one body of a loop, on every server.
func (s *Service) Refresh(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("login"))
	now := s.cfg.Now()
	var due []Session
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		due, err = s.cfg.Store.Due(ctx, tx, now, batch)
		return err
	})
	if err != nil {
		return err
	}
	var down sync.Map // providers that do not answer, by name: one question is enough
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(askers)
	for _, session := range due {
		work.Go(func() error { return s.refresh(ctx, session, &down) })
	}
	return work.Wait()
}

// Tidy removes what is left of sessions that ended. Call it every hour or so.
func (s *Service) Tidy(ctx context.Context) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.PruneSessions(ctx, tx, s.cfg.Now())
	})
}

// refresh asks the provider of one session. Only errors of ours are errors.
func (s *Service) refresh(ctx context.Context, session Session, down *sync.Map) error {
	claimed := s.cfg.Now().Add(claimTime).Truncate(time.Microsecond)
	var mine bool
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) (err error) {
		mine, err = s.cfg.Store.ClaimSession(ctx, tx, session, claimed)
		return err
	})
	if err != nil || !mine {
		return err
	}
	session.Claimed = claimed
	p, err := s.provider(session.Provider)
	if err != nil { // of another server's configuration, or a former one
		return s.later(ctx, session, session.Refresh, unknownTime)
	}
	if _, is := down.Load(p.Name()); is {
		return s.later(ctx, session, session.Refresh, retryTime)
	}
	token, err := s.open(ctx, session.Refresh, session.Token)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, claimTime/2)
	defer cancel()
	proof, failed := p.Refresh(asking, string(token), session.Subject)
	refresh := session.Refresh
	if proof.Refresh != "" { // the former one may work no more, whatever came after
		if refresh, err = s.seal(ctx, []byte(proof.Refresh), session.Token); err != nil {
			return err
		}
	}
	var left error
	if failed == nil {
		left = p.admits(proof)
	}
	switch {
	case left != nil:
		return errors.Join(s.withdraw(ctx, p, proof), s.drop(ctx, session, fault.Told(left)))
	case fault.Is(failed, fault.Unauthenticated):
		s.cfg.Log.InfoContext(ctx, "a session ends: its identity provider does not confirm it", slog.String("provider", p.Name()), slog.String("session", session.Token), slog.Any("error", failed))
		return s.drop(ctx, session, fault.Told(failed))
	case failed != nil:
		down.Store(p.Name(), true)
		s.logAway(ctx, p.Name(), failed)
		return s.later(ctx, session, refresh, retryTime)
	}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Accounts.Logins().Confirm(ctx, tx, session.Account, s.person(p, proof)); err != nil {
			return err
		}
		return s.cfg.Store.RefreshedSession(ctx, tx, session, refresh, s.cfg.Now().Add(p.Recheck))
	})
	switch fault.KindOf(err) {
	case fault.PermissionDenied, fault.Invalid, fault.NotFound: // disabled or deleted here, or what the provider says cannot be
		if err != nil {
			return s.drop(ctx, session, fault.Told(err))
		}
	default:
	}
	return err
}

// later frees a session, to be asked about again.
func (s *Service) later(ctx context.Context, session Session, refresh []byte, after time.Duration) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return s.cfg.Store.RefreshedSession(ctx, tx, session, refresh, s.cfg.Now().Add(after))
	})
}

// drop ends a session.
func (s *Service) drop(ctx context.Context, session Session, reason string) error {
	return s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return s.end(ctx, tx, session, reason)
	})
}

func (s *Service) end(ctx context.Context, tx *store.Tx, session Session, reason string) error {
	if err := s.cfg.Store.DeleteSession(ctx, tx, session.Token); err != nil {
		return err
	}
	return s.cfg.Accounts.Logins().EndSessions(ctx, tx, reason, session.Token)
}

// Logout ends the caller's session, and says where the browser goes to log out at the
// provider, too. The provider goes on to confirm the person for the account's tokens. Error:
// fault.Invalid for a caller without a session.
func (s *Service) Logout(ctx context.Context) (providerURL string, err error) {
	who := identity.From(ctx)
	provider := ""
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		sessions, err := s.cfg.Store.Sessions(ctx, tx, who.ID, s.cfg.Now(), "", maxPage)
		if err != nil {
			return err
		}
		for _, session := range sessions {
			if session.Token == who.Token {
				provider = session.Provider
			}
		}
		if provider == "" {
			return fault.New(fault.Invalid, "this is no login at an identity provider").WithHint("`falaj token revoke` ends a token.")
		}
		if err := audit.Append(ctx, tx, audit.Entry{Action: ActionLogout, Object: "user " + who.Name}); err != nil {
			return err
		}
		return s.cfg.Accounts.Logins().EndSessions(ctx, tx, "logged out", who.Token)
	})
	if err != nil {
		return "", err
	}
	if p, err := s.provider(provider); err == nil {
		providerURL = p.EndSessionURL(ctx)
	}
	return providerURL, nil
}

// BackChannel ends the sessions that a provider's logout token names: one, or, where it names
// the person, all of theirs. Errors: fault.NotFound; fault.Invalid; fault.Unavailable.
func (s *Service) BackChannel(ctx context.Context, provider, token string) error {
	p, err := s.provider(provider)
	if err != nil {
		return err
	}
	if err := s.rates.Take(share.AddressKey(identity.CallOf(ctx).Address)); err != nil {
		return err
	}
	l, err := p.Logout(ctx, token)
	if err != nil {
		return err
	}
	if _, known := s.logouts.Get(provider + " " + l.ID); known {
		return nil // the same message again
	}
	sid := l.Session
	if l.Subject != "" {
		sid = "" // Keycloak names one session, and means all
	}
	ctx = identity.With(ctx, identity.Loop("login"))
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		sessions, err := s.cfg.Store.SessionsOf(ctx, tx, provider, sid, l.Subject)
		for _, session := range sessions {
			err = errors.Join(err, s.end(ctx, tx, session, "logged out at "+provider))
		}
		return err
	})
	if err == nil {
		s.logouts.Add(provider+" "+l.ID, l.Expires)
	}
	return err
}

// Sessions lists sessions, newest first: the caller's own, else those of an account, named as
// for account.Resolve, or of all, which needs token.read in the installation.
func (s *Service) Sessions(ctx context.Context, own bool, ref, pageToken string) (sessions []Session, next string, err error) {
	who := identity.From(ctx)
	object := policy.Object{Kind: "token"}
	if own {
		object = policy.Object{Project: string(who.Project), Kind: "token", Owner: who.ID}
	}
	if err := s.cfg.Authorizer.Allow(ctx, "token.read", object); err != nil {
		return nil, "", err
	}
	const page = 100
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		of := who.ID
		if !own {
			of = ""
			if ref != "" {
				a, err := s.cfg.Accounts.Resolve(ctx, tx, "", ref)
				if err != nil {
					return err
				}
				of = a.ID
			}
		}
		sessions, err = s.cfg.Store.Sessions(ctx, tx, of, s.cfg.Now(), pageToken, page+1)
		return err
	})
	if len(sessions) > page {
		sessions = sessions[:page]
		next = sessions[page-1].Token
	}
	return sessions, next, err
}
