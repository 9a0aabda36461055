package policytest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestBothDatabases walks through every statement of the four *sql packages on
// SQLite and on PostgreSQL.
func TestBothDatabases(t *testing.T) {
	for name, open := range map[string]storetest.Open{"sqlite": storetest.SQLite, "postgres": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			w := policytest.OpenOn(t, open(t, policytest.Migrations()...), func(c *account.Config) { c.Now = func() time.Time { return now } })
			admin := w.AsAdmin(t.Context())
			check := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}

			// Zones and projects.
			for _, jurisdiction := range []string{"", "DE"} { // inserted, then updated
				_, _, err := w.Border.Apply(admin, border.ZoneRequest{Zone: "DE", Spec: residency.ZoneSpec{Jurisdiction: jurisdiction}})
				check(err)
			}
			if places, err := w.Border.Zones(admin); err != nil || len(places) != 2 {
				t.Errorf("%+v, %v", places, err)
			}
			if got, err := w.Border.ChangeLaw(admin, border.LawChange{Zone: "DE", Law: residency.Law{Jurisdiction: "US"}, Reason: "the machines move to Ohio"}); err != nil || got.State != border.Requested {
				t.Errorf("%+v, %v", got, err)
			}
			if list, _, err := w.Border.Widenings(admin, "", border.Requested, ""); err != nil || len(list) != 1 || list[0].FromLaw.Jurisdiction != "DE" || list[0].ToLaw.Jurisdiction != "US" {
				t.Errorf("%+v, %v", list, err)
			}
			for _, text := range []string{"", "of 2013"} {
				_, _, err := w.Tenancy.Apply(admin, tenancy.Request{Name: "flights", Spec: project.Spec{Description: text}})
				check(err)
			}
			w.Project(t, "other")
			if p, err := w.Tenancy.One(admin, "flights"); err != nil || p.Description != "of 2013" || p.Revision != 2 {
				t.Errorf("%+v, %v", p, err)
			}

			// Accounts, grants and what they let see.
			ann := w.User(t, "ann", "flights", project.Viewer, project.Admin)
			for _, role := range []project.Role{project.Viewer, project.Engineer} {
				_, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: "flights", Name: "changing", Spec: project.GrantSpec{Principal: "user/ann", Role: role}})
				check(err)
			}
			if grants, _, err := w.Tenancy.Members(admin, "flights", ""); err != nil || len(grants) != 3 || grants[1].Name != "changing" {
				t.Errorf("%+v, %v", grants, err)
			}
			for p, want := range map[*identity.Principal]string{
				&w.Admin: "flights other", &ann: "flights",
				{Kind: identity.User, ID: w.Admin.ID, Scopes: []string{"project.read:other", "project.read:absent"}}: "other",
				{Kind: identity.Attempt, ID: "att_1", Project: "flights", Scopes: []string{"project.read"}}:          "flights",
			} {
				var names []string
				list, _, err := w.Tenancy.List(identity.With(t.Context(), *p), 10, "")
				check(err)
				for _, p := range list {
					names = append(names, string(p.Name))
				}
				if got := strings.Join(names, " "); got != want {
					t.Errorf("%s sees %q, not %q", p, got, want)
				}
			}
			if _, err := w.Accounts.CreateUser(admin, "ann"); !fault.Is(err, fault.Conflict) {
				t.Error(err)
			}
			ci, err := w.Accounts.CreateService(admin, "flights", "ci")
			check(err)
			if list, _, err := w.Accounts.Accounts(admin, "flights", 0, ""); err != nil || len(list) != 1 || list[0].ID != ci.ID {
				t.Errorf("%v, %v", list, err)
			}

			// Tokens: made, used, found, ended, pruned.
			token, secret, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: ci.ID, Scopes: []string{"run.read"}})
			check(err)
			p, err := w.Accounts.Authenticate(t.Context(), secret)
			if err != nil || p.ID != ci.ID || p.Project != "flights" || !slices.Equal(p.Scopes, token.Scopes) {
				t.Errorf("%+v, %v", p, err)
			}
			loop := identity.With(t.Context(), identity.Loop("training"))
			_, attempt, err := w.IssueAttempt(loop, account.AttemptSpec{Attempt: "att_1", Project: "flights", Scopes: []string{"run.write"}})
			check(err)
			check(w.RevokeAttempt(loop, "att_1"))
			if _, err := w.Accounts.Authenticate(t.Context(), attempt); !fault.Is(err, fault.Unauthenticated) {
				t.Error(err)
			}
			now = now.Add(8 * 24 * time.Hour)
			_, err = w.Accounts.Authenticate(t.Context(), secret)
			check(err)
			check(w.Accounts.Flush(t.Context()))
			left, _, err := w.Accounts.Tokens(admin, account.Filter{Project: "flights"})
			if err != nil || len(left) != 1 || left[0].ID != token.ID || !left[0].LastUsedAt.Equal(now) {
				t.Errorf("%+v, %v", left, err)
			}
			if _, created, err := w.Accounts.Bootstrap(t.Context()); created || err != nil {
				t.Error(created, err)
			}

			// Policies.
			for _, who := range []string{"nobody", "ann"} {
				text := `forbid (principal, action == Action::"job.submit", resource) unless { principal.name == "` + who + `" };`
				_, _, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "gate", Spec: authorizer.Spec{Cedar: text}})
				check(err)
			}
			if list, err := w.Authority.Policies(admin, "flights"); err != nil || len(list) != 1 || list[0].Revision != 2 {
				t.Errorf("%+v, %v", list, err)
			}
			if ok, err := w.Authority.Permits(admin, "job.submit", policy.Object{Project: "flights", Kind: "job", Name: "x"}); ok || err != nil {
				t.Error(ok, err)
			}
			check(w.Authority.DeletePolicy(admin, "flights", "gate"))

			// Widenings.
			w.Border.Register("dataset", anywhere{})
			wish, err := w.Border.Relabel(admin, border.Relabelling{Project: "flights", Kind: "dataset", Name: "x@1", Label: residency.Of("home", "DE"), Reason: "they need it there"})
			check(err)
			if list, _, err := w.Border.Widenings(admin, "flights", border.Requested, ""); err != nil || len(list) != 1 || list[0].ID != wish.ID {
				t.Errorf("%+v, %v", list, err)
			}
			_, err = w.Border.Approve(identity.With(t.Context(), ann), wish.ID)
			check(err)
			if list, _, err := w.Border.Widenings(admin, "flights", "", ""); err != nil || list[0].State != border.Approved || list[0].DecidedBy != ann.ID {
				t.Errorf("%+v, %v", list, err)
			}

			// The ends.
			check(w.Accounts.RevokeToken(admin, token.ID))
			check(w.Tenancy.Revoke(admin, "flights", "changing"))
			check(w.Accounts.DeleteAccount(admin, "", "user/ann"))
			if err := w.Accounts.DeleteAccount(admin, "", "user/admin"); !fault.Is(err, fault.Conflict) {
				t.Error(err)
			}
			check(w.Tenancy.Delete(admin, "flights"))
			if _, err := w.Tenancy.One(admin, "flights"); !fault.Is(err, fault.NotFound) {
				t.Error(err)
			}
		})
	}
}

// anywhere is a domain whose objects are all at home.
type anywhere struct{}

func (anywhere) Label(context.Context, *store.Tx, project.Name, string) (residency.Label, error) {
	return residency.Of("home"), nil
}

func (anywhere) Relabel(context.Context, *store.Tx, project.Name, string, residency.Label) error {
	return nil
}
