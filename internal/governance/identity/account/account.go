// Package account is the service of identity: users, service accounts, and the
// tokens that prove a caller is one of them.
//
// # Map
//
//   - account.go: Account, Token and what may be asked of them.
//   - secret.go: the grammar of token secrets, checked before anything is asked
//     of a database.
//   - authenticate.go: from a secret to a Principal, with the caches.
//   - person.go: accounts of people who sign in at an identity provider, their groups and
//     sessions; accounts that are disabled.
//   - service.go: everything that changes accounts and tokens; Bootstrap makes
//     the first administrator.
//   - upkeep.go: Flush, the loop body that writes last uses and removes old attempt tokens.
//   - store.go, events.go: what it needs of a database, what it tells others.
//
// # Guarantees
//
// A secret is 256 random bits, shown once and kept only as its SHA-256.
// Every token expires. A revoked token stops working at once in this process
// and within CacheTTL (at most 5 s) in others. A clock that goes back brings no
// expired token to life. Authenticate tells a caller nothing about why a token
// did not work. A token never makes one that may do more than itself, nor
// one of the same account that outlives it; those end with it at the latest, and
// are revoked with it.
package account

import (
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Account is a person or a service.
type Account struct {
	ID   string        `json:"id"`   // "usr_01J…" or "svc_01J…"
	Kind identity.Kind `json:"kind"` // User or Service
	Name string        `json:"name"` // unique by kind and project
	// Project owns a service account; its administrators may make tokens for
	// it. Empty for users and for services of the installation.
	Project   project.Name `json:"project,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	CreatedBy string       `json:"created_by"`
	External
	// DisabledAt is since when the account's tokens do not work; zero where they do.
	DisabledAt     time.Time `json:"disabled_at,omitzero"`
	DisabledReason string    `json:"disabled_reason,omitempty"`
}

// External is what an account has from an identity provider; the zero External is a local
// account.
type External struct {
	Provider string `json:"provider,omitempty"` // its name in the configuration
	// Issuer and Subject are whom the account is for, and no other account is.
	Issuer      string `json:"issuer,omitempty"`
	Subject     string `json:"subject,omitempty"`
	DisplayName string `json:"display_name,omitempty"`
	Email       string `json:"email,omitempty"` // to reach the person; it proves nothing
	// ProvedUntil is when the account's tokens stop working, unless the provider confirms
	// the person before.
	ProvedUntil time.Time `json:"proved_until,omitzero"`
}

// Token is what is known of a token; its secret is not.
type Token struct {
	ID   string `json:"id"` // "tok_01J…"
	Kind Kind   `json:"kind"`
	// Principal is whom it proves: an account's id, or the attempt.
	Principal string `json:"principal"`
	Name      string `json:"name,omitempty"`  // the principal's name
	Label     string `json:"label,omitempty"` // what the token is for
	// Behalf is, of an attempt's token, the account that submitted its job.
	Behalf string `json:"on_behalf_of,omitempty"`
	// Bound tokens of attempts work only where the attempt's sandbox reaches Falaj.
	Bound     bool         `json:"bound,omitempty"`
	Project   project.Name `json:"project,omitempty"` // bound to it; empty: all of the principal's
	Scopes    []string     `json:"scopes,omitempty"`  // empty: all that the roles allow
	CreatedAt time.Time    `json:"created_at"`
	CreatedBy string       `json:"created_by"`
	// Parent is the token that made it, if one did. One of the same principal
	// is revoked with its parent.
	Parent    string    `json:"parent,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
	// LastUsedAt is coarse: it lags by up to a minute and the loop's period.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	RevokedBy  string    `json:"revoked_by,omitempty"`
	// HolderUntil is how long the account's tokens work; zero is for ever. HolderDisabled is
	// since when they do not. Both are set where a token is looked up by its secret.
	HolderUntil    time.Time `json:"-"`
	HolderDisabled time.Time `json:"-"`
	// State is set in lists: whether the token works.
	State TokenState `json:"state,omitempty"`
}

// TokenState says whether a token works.
type TokenState string

// The states.
const (
	StateLive    TokenState = "live"
	StateRevoked TokenState = "revoked"
	StateExpired TokenState = "expired"
)

// StateAt is the state at the instant.
func (t Token) StateAt(at time.Time) TokenState {
	switch {
	case t.Live(at):
		return StateLive
	case !t.RevokedAt.IsZero():
		return StateRevoked
	}
	return StateExpired
}

// Live reports whether the token works at the instant.
func (t Token) Live(at time.Time) bool {
	return t.RevokedAt.IsZero() && at.Before(t.ExpiresAt)
}

// TokenSpec asks for a token.
type TokenSpec struct {
	// For is whose token: "user/alice", "service/ci" or an account id; empty is
	// the caller's own.
	For string `json:"for,omitempty" doc:"Owner of the token: user/alice, service/ci or an account id; default your own account"`
	// Create makes the account that For names by kind and name, when it does not
	// exist: a service in Project.
	Create  bool          `json:"create,omitempty" doc:"Create the account if it does not exist"`
	Label   string        `json:"label,omitempty" doc:"Purpose of the token"`
	Project project.Name  `json:"project,omitempty" doc:"Bind the token to one project"`
	Scopes  []string      `json:"scopes,omitempty" doc:"Narrow the token to actions such as run.write or dataset.query:weather"`
	TTL     time.Duration `json:"ttl,omitempty" doc:"Lifetime; default 90 days; a token for yourself expires no later than the token that creates it"`
}

// AttemptSpec asks for an attempt's token.
type AttemptSpec struct {
	Attempt string       // "att_01J…"
	Name    string       // for people: "job delay, attempt 2"
	Project project.Name // the only one it works in
	Behalf  string       // account that submitted its job; empty where Falaj did
	Bound   bool         // it works only where the attempt's sandbox reaches Falaj
	// Scopes is all it may do; see identity.Principal.Admits for their grammar.
	Scopes []string
	TTL    time.Duration // 0 is Config.AttemptTTL; it ends earlier with the attempt
}

// Filter selects tokens.
type Filter struct {
	Project   project.Name // bound to it; empty: of every project, which needs the role in the installation
	Own       bool         // the caller's own; Project is then ignored
	Account   string       // only this account's, named as for Resolve
	Ended     bool         // also those that were revoked or have expired
	PageSize  int          // 0 is 100, at most 1000
	PageToken string       // from the page before
}
