package request_test

import (
	"context"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestTwoPeople: each act that takes two people happens when the second has approved it, and
// not before.
func TestTwoPeople(t *testing.T) {
	db := storetest.SQLite(t, append(policytest.Migrations(), requestsql.Migrations, keyssql.Migrations)...)
	w := open(t, db)
	w.Authority.TakeTwoPeople(w.requests)
	tenants := tenancy.New(tenancy.Config{
		DB: db, Store: projectsql.Store{}, Roster: w.Roster, Authorizer: w.Authority, Accounts: w.Accounts, Zones: w.Border, TwoPeople: w.requests,
	})
	ring, err := keys.Open(t.Context(), keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: w.Authority, TwoPeople: w.requests, MasterFile: t.TempDir() + "/master.key"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ring.AEAD(t.Context(), "north", "dataset/cards"); err != nil {
		t.Fatal(err)
	}
	annIs := w.User(t, "ann", "north", project.Admin)
	ann, bob := identity.With(t.Context(), annIs), identity.With(t.Context(), w.User(t, "bob", "north", project.Admin))
	eve := w.User(t, "eve", "north", project.Engineer)
	w.now = time.Now() // after they have their roles
	rules := func(text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := w.Authority.ApplyPolicy(ctx, authorizer.PolicyRequest{Project: "north", Name: "mine", Spec: authorizer.Spec{Cedar: text}})
			return err
		}
	}
	grant := func(principal, object string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := tenants.Grant(ctx, tenancy.GrantRequest{Project: "north", Spec: project.GrantSpec{Principal: principal, Role: project.Engineer, Object: object}})
			return err
		}
	}
	_, secret, err := w.Accounts.CreateToken(ann, account.TokenSpec{For: "service/mine", Create: true, Project: "north"})
	if err != nil {
		t.Fatal(err)
	}
	robot, err := w.Accounts.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tenants.Grant(ann, tenancy.GrantRequest{Project: "north", Spec: project.GrantSpec{Principal: robot.ID, Role: project.Admin}}); err != nil {
		t.Fatal(err)
	}
	const forbid = "@because(\"no\")\nforbid (principal, action == Action::\"job.submit\", resource);"
	const permit = "permit (principal, action == Action::\"job.submit\", resource);"
	for _, c := range []struct {
		name string
		act  func(ctx context.Context) error
		two  bool
	}{
		{"a policy that only forbids", rules(forbid), false},
		{"the same again", rules(forbid), false},
		{"a policy that forbids no more", rules(permit), true},
		{"the end of a policy that permits", func(ctx context.Context) error { return w.Authority.DeletePolicy(ctx, "north", "mine") }, false},
		{"a policy that permits", rules(permit), true},
		{"to forbid again", rules(forbid), false},
		{"the end of a policy that forbids", func(ctx context.Context) error { return w.Authority.DeletePolicy(ctx, "north", "mine") }, true},
		{"an object for oneself", grant(annIs.ID, "dataset/cards"), true},
		{"an object for one's service", grant(robot.ID, "dataset/cards"), true},
		{"an object for oneself, by one's service", func(context.Context) error {
			return grant(annIs.ID, "dataset/other")(identity.With(t.Context(), robot))
		}, true},
		{"an object for somebody else", grant(eve.ID, "dataset/cards"), false},
		{"a role", grant(annIs.ID, ""), false},
		{"the end of a key", func(ctx context.Context) error { return ring.Destroy(ctx, "north", "dataset/cards") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.act(ann)
			if !c.two {
				if err != nil {
					t.Errorf("it takes one person: %v", err)
				}
				return
			}
			if !fault.Is(err, fault.PermissionDenied) {
				t.Fatalf("one person may: %v", err)
			}
			r := w.only(t, request.Requested)
			got, err := w.requests.Approve(bob, r.ID)
			if err != nil || got.State != request.Done {
				t.Fatalf("%+v, %v", got, err)
			}
		})
	}
	north := "north"
	list, _, err := ring.List(w.AsAdmin(t.Context()), keys.Filter{Project: &north}, 10, "")
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, k := range list {
		if k.Owner == "dataset/cards" && k.State != keys.Destroyed {
			t.Errorf("the key is %s", k.State)
		}
	}
	if got := w.Roles(t, eve.ID, "north"); len(got) != 1 {
		t.Errorf("eve has %v", got)
	}
}
