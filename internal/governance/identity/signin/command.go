package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// challengeLen is the length of a PKCE challenge: SHA-256 in base64url.
const challengeLen = 43

// Allow lets a command log in as the caller: the browser hands it the code, and it trades
// the code and the verifier of the challenge for a token. label says which command, for
// lists of tokens. Needs what a token for oneself needs. Errors: fault.Invalid;
// fault.PermissionDenied.
func (s *Service) Allow(ctx context.Context, challenge, label string) (code string, err error) {
	who := identity.From(ctx)
	raw, err := base64.RawURLEncoding.DecodeString(challenge)
	if err != nil || len(challenge) != challengeLen || len(raw) != sha256.Size {
		return "", fault.New(fault.Invalid, "the challenge is no SHA-256 in base64url").WithHint("Run falaj login again, and follow its link.")
	}
	if who.Kind != identity.User || who.Narrowed() || who.Project != "" {
		return "", fault.New(fault.PermissionDenied, "%s cannot let a command log in", who).WithHint("Log in to the console as yourself.")
	}
	if err := s.cfg.Authorizer.Allow(ctx, "token.create", policy.Object{Kind: "token", Owner: who.ID}); err != nil {
		return "", err
	}
	code = rand.Text()
	hash := sha256.Sum256([]byte(code))
	c := Code{Hash: hash[:], Account: who.ID, Token: who.Token, Challenge: challenge, Label: fault.Clip(label, 150), ExpiresAt: s.cfg.Now().Add(codeTime)}
	err = s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		if err := audit.Append(ctx, tx, audit.Entry{Action: ActionLogin, Object: "user " + who.Name, Reason: "allowed a command to log in", Detail: map[string]any{"command": c.Label}}); err != nil {
			return err
		}
		return s.cfg.Store.InsertCode(ctx, tx, c)
	})
	return code, err
}

// Redeem trades a code for a token of the person who allowed it. A code works once, also
// where the verifier is wrong. Errors: fault.Unauthenticated; fault.Exhausted.
func (s *Service) Redeem(ctx context.Context, code, verifier string) (t account.Token, secret string, err error) {
	if err := s.rates.Take(share.AddressKey(identity.CallOf(ctx).Address)); err != nil {
		return t, "", err
	}
	wrong := fault.New(fault.Unauthenticated, "the code is wrong, was used or is older than %s", codeTime).WithHint("Run falaj login again.")
	if code == "" || len(code) > 128 || len(verifier) > 128 {
		return t, "", wrong
	}
	hash := sha256.Sum256([]byte(code))
	refused := false
	err = s.update(ctx, func(ctx context.Context, tx *store.Tx) error {
		refused = false
		c, err := s.cfg.Store.TakeCode(ctx, tx, hash[:], s.cfg.Now())
		if fault.Is(err, fault.NotFound) {
			refused = true
			return nil
		}
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(verifier))
		if subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(c.Challenge)) != 1 {
			refused = true
			return nil // the code is gone all the same
		}
		t, secret, err = s.cfg.Accounts.Logins().CommandToken(ctx, tx, c.Token, "falaj login on "+c.Label)
		return err
	})
	if err == nil && refused {
		err = s.refuse(ctx, "a command", "", wrong)
	}
	return t, secret, err
}
