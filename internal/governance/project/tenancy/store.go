package tenancy

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps projects and grants. Every method works in the caller's
// transaction. What is not there is fault.NotFound.
type Store interface {
	Insert(ctx context.Context, tx *store.Tx, p project.Project) error
	Update(ctx context.Context, tx *store.Tx, p project.Project) error
	// Delete removes the project with its grants, and keeps the name as buried.
	Delete(ctx context.Context, tx *store.Tx, name project.Name, at time.Time, by string) error
	// Buried is when a project of the name was deleted; zero for never.
	Buried(ctx context.Context, tx *store.Tx, name project.Name) (time.Time, error)
	One(ctx context.Context, tx *store.Tx, name project.Name) (project.Project, error)
	List(ctx context.Context, tx *store.Tx, v Visible, after project.Name, limit int) ([]project.Project, error)

	Put(ctx context.Context, tx *store.Tx, g project.Grant) error
	Grant(ctx context.Context, tx *store.Tx, in project.Name, name string) (project.Grant, error)
	Remove(ctx context.Context, tx *store.Tx, in project.Name, name string) error
	Members(ctx context.Context, tx *store.Tx, in project.Name, after string, limit int) ([]project.Grant, error)
	CountMembers(ctx context.Context, tx *store.Tx, in project.Name) (int, error)
	// GrantsOf lists the grants of the principal and of its groups.
	GrantsOf(ctx context.Context, tx *store.Tx, principal string) ([]project.Grant, error)
	// GroupsOf lists the groups of the principal, as grants name them.
	GroupsOf(ctx context.Context, tx *store.Tx, principal string) ([]string, error)
}

// Visible says which projects a caller may read, in words that SQL understands.
// A project is listed when it meets every set field.
type Visible struct {
	Member string       // has a role in the project or in the installation
	Only   project.Name // the token's project
	Names  []string     // the projects that the token's scopes name; nil is no limit
}

// Accounts is what tenancy needs of accounts; account.Service has it.
type Accounts interface {
	Resolve(ctx context.Context, tx *store.Tx, in project.Name, ref string) (account.Account, error)
	Account(ctx context.Context, in project.Name, ref string) (account.Account, error)
	KeepAdmin(ctx context.Context, tx *store.Tx) error
	Maker(ctx context.Context, tx *store.Tx, principal string) (string, error)
	RevokeBoundIn(ctx context.Context, tx *store.Tx, in project.Name) error
	Draft(ctx context.Context, spec account.TokenSpec) (account.Draft, error)
	IssueIn(ctx context.Context, tx *store.Tx, d account.Draft) (account.Token, string, error)
}

// Zones is what tenancy needs of residency; border.Service has it.
type Zones interface {
	// Known refuses a label with a zone that the installation does not know.
	Known(ctx context.Context, tx *store.Tx, l residency.Label) error
}

// Contents is how a domain says that a project still holds something.
type Contents interface {
	// Contents names what is left, such as "3 datasets"; empty when nothing is.
	// It works in the transaction that deletes the project, and may remove what
	// goes with it.
	Contents(ctx context.Context, tx *store.Tx, in project.Name) (string, error)
}
