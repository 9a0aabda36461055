package oidc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Logout is what a logout token says: who, or which session of the provider, is logged out.
type Logout struct {
	Subject string // empty is not said
	Session string // empty is not said
	ID      string // of the token: the same id is the same message
	Expires time.Time
}

// maxLogout bounds a logout token, in bytes.
const maxLogout = 16 << 10

// Logout reads the token of a back-channel logout. Errors: fault.Invalid for a token that
// is none; fault.Unavailable.
func (p *Provider) Logout(ctx context.Context, raw string) (Logout, error) {
	wrong := func(err error) error {
		return fault.New(fault.Invalid, "the logout token is not valid").WithCause(err)
	}
	if raw == "" || len(raw) > maxLogout {
		return Logout{}, wrong(errors.New("missing, or too long"))
	}
	m, err := p.metadata(ctx)
	if err != nil {
		return Logout{}, err
	}
	now := p.cfg.Now()
	verifier := oidc.NewVerifier(p.cfg.Issuer, m.keys, &oidc.Config{ClientID: p.cfg.ClientID, SupportedSigningAlgs: m.algorithms, Now: p.cfg.Now})
	t, err := verifier.VerifyLogout(p.context(ctx), raw)
	if err != nil {
		if strings.Contains(err.Error(), unavailableKeys) {
			return Logout{}, p.away(err)
		}
		return Logout{}, wrong(err)
	}
	if t.IssuedAt.Before(now.Add(-slack)) || t.IssuedAt.After(now.Add(skew)) {
		return Logout{}, wrong(errors.New("it is of another time"))
	}
	return Logout{Subject: t.Subject, Session: t.SessionID, ID: t.TokenID, Expires: t.Expiry}, nil
}

// EndSessionURL is where a browser goes to log out at the provider, too; empty where the
// provider has no such page or does not answer.
func (p *Provider) EndSessionURL(ctx context.Context) string {
	m, err := p.metadata(ctx)
	if err != nil || CheckURL(m.EndSession) != nil {
		return ""
	}
	return m.EndSession
}
