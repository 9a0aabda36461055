// Package policytest has what tests of governance's callers need: a journal
// that remembers, an authorizer that says yes, and the whole of identity,
// projects, policy and residency on a real database.
package policytest

import (
	"context"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policysql"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/governance/residency/residencysql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// Everybody is an Authorizer that refuses nothing.
type Everybody struct{}

// Allow implements policy.Authorizer.
func (Everybody) Allow(context.Context, policy.Action, policy.Object) error { return nil }

// Journal is an audit.Journal in memory. The zero Journal is ready; safe for
// concurrent use.
type Journal struct {
	mu      sync.Mutex
	entries []audit.Entry
	err     error
}

var _ audit.Journal = (*Journal)(nil)

// Record implements audit.Journal.
func (j *Journal) Record(ctx context.Context, e audit.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.err
	}
	if e.Actor.Kind == "" {
		e.Actor = identity.From(ctx)
	}
	j.entries = append(j.entries, e)
	return nil
}

// Fail makes Record fail from now on; nil mends it.
func (j *Journal) Fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

// Take returns what was recorded since the last Take.
func (j *Journal) Take() []audit.Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	entries := j.entries
	j.entries = nil
	return entries
}

// World is governance's floor, put together as the server does it.
type World struct {
	DB        *store.DB
	Journal   *Journal
	Roster    *tenancy.Roster
	Authority *authorizer.Service
	Accounts  *account.Service
	Tenancy   *tenancy.Service
	Border    *border.Service
	Guard     *border.Guard
	Admin     identity.Principal // the first administrator
	Secret    string             // of its token
}

// Provider is the name of the identity provider that a World's grants to groups may name.
const Provider = "op"

// Migrations are those of the floor.
func Migrations() []store.Migrations {
	return []store.Migrations{identitysql.Migrations, projectsql.Migrations, policysql.Migrations, residencysql.Migrations}
}

// Open puts a world together in a temporary directory, with the first
// administrator made. change may adjust the configuration of accounts.
func Open(tb testing.TB, change ...func(*account.Config)) *World {
	tb.Helper()
	return OpenOn(tb, storetest.SQLite(tb, Migrations()...), change...)
}

// OpenOn puts a world together on an open database.
func OpenOn(tb testing.TB, db *store.DB, change ...func(*account.Config)) *World {
	tb.Helper()
	w := &World{DB: db, Journal: &Journal{}}
	w.Roster = tenancy.NewRoster(db, projectsql.Store{})
	var err error
	w.Authority, err = authorizer.New(authorizer.Config{DB: db, Store: policysql.Store{}, Roster: w.Roster, Journal: w.Journal})
	if err != nil {
		tb.Fatal(err)
	}
	cfg := account.Config{DB: db, Store: identitysql.Store{}, Grants: projectsql.Store{}, Authorizer: w.Authority, OnMembers: w.Roster.Forget}
	for _, f := range change {
		f(&cfg)
	}
	if w.Accounts, err = account.New(cfg); err != nil {
		tb.Fatal(err)
	}
	w.Border = border.New(border.Config{DB: db, Store: residencysql.Store{}, Authorizer: w.Authority})
	w.Guard = border.NewGuard(w.Journal)
	w.Tenancy = tenancy.New(tenancy.Config{
		DB: db, Store: projectsql.Store{}, Roster: w.Roster, Authorizer: w.Authority, Accounts: w.Accounts, Zones: w.Border,
		Contents: []tenancy.Contents{w.Authority}, Provider: func(name string) bool { return name == Provider },
	})
	secret, created, err := w.Accounts.Bootstrap(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	if created {
		w.Secret = secret
		if w.Admin, err = w.Accounts.Authenticate(tb.Context(), secret); err != nil {
			tb.Fatal(err)
		}
	}
	return w
}

// AsAdmin is a context of the first administrator.
func (w *World) AsAdmin(ctx context.Context) context.Context { return identity.With(ctx, w.Admin) }

// Project makes a project with the defaults.
func (w *World) Project(tb testing.TB, name project.Name) {
	tb.Helper()
	if _, _, err := w.Tenancy.Apply(w.AsAdmin(tb.Context()), tenancy.Request{Name: name}); err != nil {
		tb.Fatal(err)
	}
}

// User makes a person with roles in a project, and gives back who that is.
func (w *World) User(tb testing.TB, name string, in project.Name, roles ...project.Role) identity.Principal {
	tb.Helper()
	ctx := w.AsAdmin(tb.Context())
	a, err := w.Accounts.CreateUser(ctx, name)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range roles {
		if _, _, err := w.Tenancy.Grant(ctx, tenancy.GrantRequest{Project: in, Spec: project.GrantSpec{Principal: a.ID, Role: r}}); err != nil {
			tb.Fatal(err)
		}
	}
	return identity.Principal{Kind: identity.User, ID: a.ID, Name: a.Name}
}

// IssueAttempt makes the token of an attempt.
func (w *World) IssueAttempt(ctx context.Context, spec account.AttemptSpec) (t account.Token, secret string, err error) {
	err = w.DB.Update(ctx, string(spec.Project), func(ctx context.Context, tx *store.Tx) (err error) {
		t, secret, err = w.Accounts.IssueAttemptIn(ctx, tx, spec)
		return err
	})
	return t, secret, err
}

// RevokeAttempt ends the tokens of an attempt.
func (w *World) RevokeAttempt(ctx context.Context, attempt string) error {
	return w.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return w.Accounts.RevokeAttemptIn(ctx, tx, attempt)
	})
}

// Roles lists a principal's roles in a project and the installation, as the
// roster knows them, those limited to one object left out.
func (w *World) Roles(tb testing.TB, principal string, in project.Name) (roles []project.Role) {
	tb.Helper()
	grants, err := w.Roster.GrantsOf(tb.Context(), principal)
	if err != nil {
		tb.Fatal(err)
	}
	for _, g := range grants {
		if g.Object == "" && (g.Project == in || g.Project == "") {
			roles = append(roles, g.Role)
		}
	}
	return roles
}
