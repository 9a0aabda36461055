package account

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
)

// entry is a token as the cache holds it. It is shared by callers and changes
// only in lastUsed.
type entry struct {
	token     string
	principal identity.Principal
	expires   time.Time
	read      time.Time    // before the database was asked; monotonic
	expired   rejection    // what is recorded of it once it has expired
	lastUsed  atomic.Int64 // Unix seconds
}

// unknown is what the cache holds of a secret that does not work.
type unknown struct {
	rejection
	read time.Time // as of entry
}

// Authenticate finds who holds the secret. Safe for concurrent use; a cached
// answer takes about a microsecond. Errors: fault.Unauthenticated with one text
// for every secret that does not work, of which a record is made; fault.Exhausted for
// an address that sends too many of these; fault.Unavailable or others when the
// database could not be asked, or a failure not be recorded.
func (s *Service) Authenticate(ctx context.Context, bearer string) (identity.Principal, error) {
	if bearer == "" { // no attempt
		return identity.Principal{}, errBearer()
	}
	_, d, ok := parse(bearer)
	if !ok {
		return identity.Principal{}, s.reject(ctx, rejection{why: "malformed"})
	}
	known, ok := s.known.Get(d)
	if ok && (time.Since(known.read) < s.cfg.CacheTTL || s.cfg.DB.Bridges(known.read)) {
		return s.admit(ctx, known)
	}
	if u, ok := s.unknown.Get(d); ok && time.Since(u.read) < s.cfg.CacheTTL {
		return identity.Principal{}, s.reject(ctx, u.rejection)
	}
	e, refused, err := s.lookup(ctx, d)
	switch {
	case fault.Is(err, fault.NotFound):
		return identity.Principal{}, s.reject(ctx, refused)
	case err != nil && ok && s.cfg.DB.Bridges(known.read):
		return s.admit(ctx, known)
	case err != nil:
		return identity.Principal{}, fault.Wrap(err, "authenticate")
	}
	return s.admit(ctx, e)
}

// lookup asks the database and remembers the answer, unless a revocation in
// this process came between the two. With fault.NotFound it says what was refused.
func (s *Service) lookup(ctx context.Context, d digest) (*entry, rejection, error) {
	refused := rejection{why: "unknown"}
	read, generation := time.Now(), s.generation()
	var t Token
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		var clock time.Time
		t, clock, err = s.cfg.Store.TokenByHash(ctx, tx, d[:])
		s.clock.raise(clock)
		return err
	})
	if err == nil && !t.RevokedAt.IsZero() {
		refused = rejection{why: "revoked"}.of(t)
		err = fault.New(fault.NotFound, "revoked")
	} else if err == nil && !t.HolderDisabled.IsZero() {
		refused = rejection{why: "of a disabled account"}.of(t)
		err = fault.New(fault.NotFound, "disabled")
	}
	if fault.Is(err, fault.NotFound) {
		s.unknown.Add(d, unknown{refused, read})
		s.known.Remove(d)
	}
	if err != nil {
		return nil, refused, err
	}
	e := &entry{token: t.ID, principal: t.principal(), expires: t.ExpiresAt, read: read, expired: rejection{why: "expired"}.of(t)}
	if until := t.HolderUntil; !until.IsZero() && until.Before(e.expires) {
		e.expires, e.expired = until, rejection{why: "of a person whom the identity provider has not confirmed since " + until.Format(time.RFC3339)}.of(t)
	}
	e.lastUsed.Store(t.LastUsedAt.Unix())
	s.remember(d, e, generation)
	return e, rejection{}, nil
}

func (s *Service) generation() uint64 {
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	return s.revocations
}

// remember caches what was read at the generation, unless a revocation came
// since. Looking and adding are one step: a revocation between the two would
// come back for as long as the cache holds.
func (s *Service) remember(d digest, e *entry, generation uint64) {
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	if s.revocations == generation {
		s.known.Add(d, e)
	}
}

// admit checks what a cache cannot know: the time.
func (s *Service) admit(ctx context.Context, e *entry) (identity.Principal, error) {
	now := s.clock.now()
	if !now.Before(e.expires) {
		return identity.Principal{}, s.reject(ctx, e.expired)
	}
	if last := e.lastUsed.Load(); now.Unix()-last >= int64(coarse/time.Second) && e.lastUsed.CompareAndSwap(last, now.Unix()) {
		s.note(e.token, now)
	}
	return e.principal, nil
}

func (t Token) principal() identity.Principal {
	kind := identity.User
	switch t.Kind {
	case ServiceToken:
		kind = identity.Service
	case AttemptToken:
		kind = identity.Attempt
	case FirstRun, UserToken, SessionToken:
	}
	return identity.Principal{Kind: kind, ID: t.Principal, Name: t.Name, Project: t.Project, Behalf: t.Behalf, Bound: t.Bound, Token: t.ID, Scopes: t.Scopes, Expires: t.ExpiresAt}
}

// forget drops tokens from the cache, now that their end is durable.
func (s *Service) forget(tokens []Token) {
	ended := make(map[string]bool, len(tokens))
	for _, t := range tokens {
		ended[t.ID] = true
	}
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	s.revocations++ // a lookup under way must not put back what follows removes
	for _, d := range s.known.Keys() {
		if e, ok := s.known.Peek(d); ok && ended[e.token] {
			s.known.Remove(d)
		}
	}
}

// forgetHolder drops the tokens of an account from the cache, now that it is disabled or
// enabled.
func (s *Service) forgetHolder(principal string) {
	s.cacheMu.Lock()
	defer s.cacheMu.Unlock()
	s.revocations++
	for _, d := range s.known.Keys() {
		if e, ok := s.known.Peek(d); ok && e.principal.ID == principal {
			s.known.Remove(d)
		}
	}
	s.unknown.Purge()
}

// clock is a wall clock that does not go back.
type clock struct {
	wall    func() time.Time
	highest atomic.Int64 // Unix microseconds
}

func (c *clock) now() time.Time {
	return time.UnixMicro(c.raise(c.wall())).UTC()
}

func (c *clock) raise(t time.Time) int64 {
	at := t.UnixMicro()
	for {
		high := c.highest.Load()
		if at <= high {
			return high
		}
		if c.highest.CompareAndSwap(high, at) {
			return at
		}
	}
}
