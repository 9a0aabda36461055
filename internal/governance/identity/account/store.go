package account

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps accounts, tokens and the two facts below. Every method works in
// the caller's transaction. What is not there is fault.NotFound.
type Store interface {
	InsertAccount(ctx context.Context, tx *store.Tx, a Account) error
	Account(ctx context.Context, tx *store.Tx, id string) (Account, error)
	AccountByName(ctx context.Context, tx *store.Tx, kind identity.Kind, in project.Name, name string) (Account, error)
	AccountBySubject(ctx context.Context, tx *store.Tx, issuer, subject string) (Account, error)
	SetExternal(ctx context.Context, tx *store.Tx, id string, e External) error
	SetDisabled(ctx context.Context, tx *store.Tx, id string, at time.Time, reason string) error
	// Accounts lists by id, after a given id: all of the installation for the
	// empty project, else the project's service accounts.
	Accounts(ctx context.Context, tx *store.Tx, in project.Name, after string, limit int) ([]Account, error)
	// Names are the names of those of the accounts that exist, by id.
	Names(ctx context.Context, tx *store.Tx, ids []string) (map[string]string, error)
	// CountAccounts counts those of a kind in a project, or of the installation.
	CountAccounts(ctx context.Context, tx *store.Tx, kind identity.Kind, in project.Name) (int, error)
	// DeleteAccount also removes its sessions and logins under way.
	DeleteAccount(ctx context.Context, tx *store.Tx, id string) error

	InsertToken(ctx context.Context, tx *store.Tx, t Token, hash []byte) error
	Token(ctx context.Context, tx *store.Tx, id string) (Token, error)
	// TokenByHash also gives the highest time that RaiseClock was told, and what the token's
	// account allows it.
	TokenByHash(ctx context.Context, tx *store.Tx, hash []byte) (t Token, clock time.Time, err error)
	Tokens(ctx context.Context, tx *store.Tx, sel Selection) ([]Token, error)
	// CountLive counts the live tokens of a principal without its sessions.
	CountLive(ctx context.Context, tx *store.Tx, principal string, at time.Time) (int, error)
	// NextExpiry is when the next live token of a kind expires; zero where there is none.
	NextExpiry(ctx context.Context, tx *store.Tx, kind Kind, now time.Time) (time.Time, error)
	// Revoke ends the live tokens of the selection and gives them back.
	Revoke(ctx context.Context, tx *store.Tx, sel Selection, by string, at time.Time) ([]Token, error)
	// Used raises the last use of a token.
	Used(ctx context.Context, tx *store.Tx, id string, at time.Time) error
	// Prune removes tokens of a kind that ended before the instant, up to limit.
	Prune(ctx context.Context, tx *store.Tx, kind Kind, before time.Time, limit int) (int, error)

	// RaiseClock keeps the highest time seen; it never goes back.
	RaiseClock(ctx context.Context, tx *store.Tx, at time.Time) error
	// Claim takes a name once: true for the first caller in the installation's life.
	Claim(ctx context.Context, tx *store.Tx, name string, at time.Time) (bool, error)
}

// Selection picks tokens; set fields must all match. The zero Selection is all.
type Selection struct {
	ID        string
	Principal string
	Project   project.Name
	Kind      Kind
	Children  []string  // made by one of these tokens, for the same principal
	Live      time.Time // only those that work then; zero is all
	After     string    // only ids above it, in order
	Limit     int       // 0 is no limit
}

// Grants is what accounts need of projects; projectsql.Store has it.
type Grants interface {
	// Put makes or replaces a grant, by project and name.
	Put(ctx context.Context, tx *store.Tx, g project.Grant) error
	// Drop removes all grants of a principal, and its groups, and gives the grants back.
	Drop(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error)
	// Admins lists who administers the installation, without groups.
	Admins(ctx context.Context, tx *store.Tx) ([]string, error)
	// SetGroups makes these the groups of a principal, at a provider, and gives back those that
	// it joined and those that it left, as grants name them.
	SetGroups(ctx context.Context, tx *store.Tx, principal, provider string, names []string, at time.Time) (joined, left []string, err error)
	GroupsOf(ctx context.Context, tx *store.Tx, principal string) ([]string, error)
	// One is the project, or fault.NotFound.
	One(ctx context.Context, tx *store.Tx, name project.Name) (project.Project, error)
}
