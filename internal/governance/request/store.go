package request

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps requests. Every method works in the caller's transaction. What is not there
// is fault.NotFound.
type Store interface {
	Put(ctx context.Context, tx *store.Tx, r Request) error
	One(ctx context.Context, tx *store.Tx, id string) (Request, error)
	// List gives the newest first: of the project, or of the whole installation; an empty
	// state means all.
	List(ctx context.Context, tx *store.Tx, project string, all bool, state State, before string, limit int) ([]Request, error)
	// Overdue gives those that wait and that expired by the time.
	Overdue(ctx context.Context, tx *store.Tx, at time.Time, limit int) ([]Request, error)
}

// Grants is what it needs to know of roles; projectsql has it.
type Grants interface {
	Members(ctx context.Context, tx *store.Tx, in project.Name, after string, limit int) ([]project.Grant, error)
	GrantsOf(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error)
	// Former lists those of a project, or of the installation, that ended since.
	Former(ctx context.Context, tx *store.Tx, in project.Name, since time.Time) ([]project.Grant, error)
}

// Accounts is what it needs to know of accounts; identitysql has it.
type Accounts interface {
	Account(ctx context.Context, tx *store.Tx, id string) (account.Account, error)
	Token(ctx context.Context, tx *store.Tx, id string) (account.Token, error)
	// FirstAccount is when the installation's first account was made.
	FirstAccount(ctx context.Context, tx *store.Tx) (time.Time, error)
}
