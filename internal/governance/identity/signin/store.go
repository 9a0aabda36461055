package signin

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
)

// Session is a login at a provider.
type Session struct {
	Token    string    `json:"id"`      // of the token that the browser has: "tok_01J…"
	Account  string    `json:"account"` // "usr_01J…"
	Provider string    `json:"provider"`
	Address  string    `json:"address,omitempty"` // where it came from
	Client   string    `json:"client,omitempty"`  // what it came from, as the browser says
	AuthTime time.Time `json:"auth_time,omitzero"`
	ACR      string    `json:"acr,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`

	Subject     string    `json:"-"`
	ProviderSID string    `json:"-"` // the provider's id of its session; may be empty
	Refresh     []byte    `json:"-"` // sealed; empty for none
	DueAt       time.Time `json:"-"` // when the provider is asked again; zero is never
	Claimed     time.Time `json:"-"` // a server asks until then
}

// Code is a command's login that a person has allowed.
type Code struct {
	Hash      []byte
	Account   string
	Token     string // that the person allowed it with
	Challenge string
	Label     string
	ExpiresAt time.Time
}

// Store keeps sessions and codes. Every method works in the caller's transaction. What is
// not there is fault.NotFound.
type Store interface {
	InsertSession(ctx context.Context, tx *store.Tx, s Session) error
	// Sessions lists the sessions whose tokens work, newest first; the empty account is all.
	Sessions(ctx context.Context, tx *store.Tx, account string, now time.Time, after string, limit int) ([]Session, error)
	// SessionsOf lists the sessions of a provider: those with its id, or those of a person.
	SessionsOf(ctx context.Context, tx *store.Tx, provider, sid, subject string) ([]Session, error)
	// Due lists the sessions whose provider is to be asked.
	Due(ctx context.Context, tx *store.Tx, now time.Time, limit int) ([]Session, error)
	// ClaimSession takes a due session for this server; false where another has taken it.
	ClaimSession(ctx context.Context, tx *store.Tx, s Session, until time.Time) (bool, error)
	// RefreshedSession keeps the next refresh token, and frees the session, unless another
	// server has claimed it since.
	RefreshedSession(ctx context.Context, tx *store.Tx, s Session, refresh []byte, due time.Time) error
	DeleteSession(ctx context.Context, tx *store.Tx, token string) error
	// PruneSessions removes sessions that ended, but for the newest with a refresh token of an
	// account that has tokens, and codes that expired.
	PruneSessions(ctx context.Context, tx *store.Tx, now time.Time) error

	InsertCode(ctx context.Context, tx *store.Tx, c Code) error
	// TakeCode gives a code that has not expired, once.
	TakeCode(ctx context.Context, tx *store.Tx, hash []byte, now time.Time) (Code, error)
}
