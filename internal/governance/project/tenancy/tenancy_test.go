package tenancy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

func TestApply(t *testing.T) {
	w := policytest.Open(t)
	admin := w.AsAdmin(t.Context())
	spec := project.Spec{DisplayName: "Flights of 2013", Residency: residency.Of("home")}
	request := tenancy.Request{Name: "flights", Spec: spec}

	dry := request
	dry.DryRun = true
	if _, change, err := w.Tenancy.Apply(admin, dry); err != nil || change != project.Created {
		t.Fatal(change, err)
	}
	if _, err := w.Tenancy.One(admin, "flights"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a dry run makes a project: %v", err)
	}
	p, change, err := w.Tenancy.Apply(admin, request)
	if err != nil || change != project.Created || p.Revision != 1 || p.CreatedBy != w.Admin.ID || p.Classification != project.Internal {
		t.Fatalf("%+v, %v, %v", p, change, err)
	}
	if one, err := w.Tenancy.One(admin, "flights"); err != nil || one.CreatedAt != p.CreatedAt || one.Spec().DisplayName != spec.DisplayName {
		t.Errorf("%+v, %v, want %+v", one, err, p)
	}
	if _, change, err := w.Tenancy.Apply(admin, request); err != nil || change != project.Unchanged {
		t.Error(change, err)
	}
	request.Spec.Classification = project.Confidential
	request.IfRevision = 7
	if _, _, err := w.Tenancy.Apply(admin, request); !fault.Is(err, fault.Conflict) {
		t.Errorf("another revision: %v", err)
	}
	request.IfRevision = 1
	if p, change, err := w.Tenancy.Apply(admin, request); err != nil || change != project.Updated || p.Revision != 2 {
		t.Error(p, change, err)
	}
	for name, r := range map[string]tenancy.Request{
		"name":         {Name: "../etc"},
		"empty":        {},
		"unknown zone": {Name: "x", Spec: project.Spec{Residency: residency.Of("MARS")}},
		"class":        {Name: "x", Spec: project.Spec{Classification: "cosmic"}},
	} {
		if _, _, err := w.Tenancy.Apply(admin, r); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := w.Tenancy.Apply(admin, tenancy.Request{Name: "y", IfRevision: 3}); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// TestExistenceIsHidden: who has no role hears the same of projects that exist
// and of those that do not.
func TestExistenceIsHidden(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	ctx := identity.With(t.Context(), w.User(t, "mallory", ""))
	acts := map[string]func(name project.Name) error{
		"one":     func(n project.Name) error { _, err := w.Tenancy.One(ctx, n); return err },
		"apply":   func(n project.Name) error { _, _, err := w.Tenancy.Apply(ctx, tenancy.Request{Name: n}); return err },
		"delete":  func(n project.Name) error { return w.Tenancy.Delete(ctx, n) },
		"members": func(n project.Name) error { _, _, err := w.Tenancy.Members(ctx, n, ""); return err },
		"grant": func(n project.Name) error {
			_, _, err := w.Tenancy.Grant(ctx, tenancy.GrantRequest{Project: n, Spec: project.GrantSpec{Principal: "user/mallory", Role: project.Admin}})
			return err
		},
		"revoke": func(n project.Name) error { return w.Tenancy.Revoke(ctx, n, "x") },
	}
	for name, act := range acts {
		there, absent := act("flights"), act("absent")
		if there == nil || fault.KindOf(there) != fault.KindOf(absent) || strings.ReplaceAll(there.Error(), "flights", "absent") != absent.Error() {
			t.Errorf("%s: %v and %v", name, there, absent)
		}
	}
	// A member of another project and an admin agree with the text.
	if _, err := w.Tenancy.One(w.AsAdmin(t.Context()), "absent"); err == nil || err.Error() != "project absent does not exist" {
		t.Error(err)
	}
}

// TestListedIsAllowed: whatever roles and tokens there are, List shows exactly
// the projects that policy lets the caller read.
func TestListedIsAllowed(t *testing.T) {
	w := policytest.Open(t)
	names := []project.Name{"a", "b", "c", "d"}
	for _, n := range names {
		w.Project(t, n)
	}
	users := 0
	rapid.Check(t, func(r *rapid.T) {
		users++
		u := fmt.Sprintf("usr_%d", users)
		var grants []project.Grant
		for i := range rapid.IntRange(0, 4).Draw(r, "grants") {
			g := project.Grant{
				Project: rapid.SampledFrom(append(slices.Clone(names), "")).Draw(r, "project"),
				Name:    fmt.Sprintf("%d-%d", users, i), Principal: u, Role: rapid.SampledFrom(project.Roles).Draw(r, "role"),
			}
			if g.Project == "" {
				g.Role = rapid.SampledFrom([]project.Role{project.Admin, project.Auditor}).Draw(r, "installation role")
			} else if rapid.Bool().Draw(r, "on one object") {
				g.Object = rapid.SampledFrom([]string{"dataset/weather", "project/a", "project/b"}).Draw(r, "object")
			}
			grants = append(grants, g)
		}
		// Straight into the database, in one commit: the test is about reading.
		err := w.DB.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			for _, g := range grants {
				if err := (projectsql.Store{}).Put(ctx, tx, g); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
		p := identity.Principal{
			Kind:    rapid.SampledFrom([]identity.Kind{identity.User, identity.Service, identity.Attempt, identity.System, ""}).Draw(r, "kind"),
			ID:      rapid.SampledFrom([]string{u, u, u, ""}).Draw(r, "id"),
			Project: rapid.SampledFrom([]project.Name{"", "", "a", "b", "absent"}).Draw(r, "bound"),
			Scopes: rapid.SliceOfN(rapid.SampledFrom([]string{
				"project.read", "project.read:a", "project.read:c", "project.read:absent", "dataset.read",
			}), 0, 2).Draw(r, "scopes"),
		}
		ctx := identity.With(t.Context(), p)
		var allowed []project.Name
		for _, n := range names {
			ok, err := w.Authority.Permits(ctx, "project.read", policy.Object{Project: string(n), Kind: "project", Name: string(n)})
			if err != nil {
				r.Fatal(err)
			}
			if ok {
				allowed = append(allowed, n)
			}
		}
		var listed []project.Name
		for page := ""; ; {
			projects, next, err := w.Tenancy.List(ctx, 2, page)
			if err != nil {
				r.Fatal(err)
			}
			for _, p := range projects {
				listed = append(listed, p.Name)
			}
			if page = next; next == "" {
				break
			}
		}
		if !slices.Equal(listed, allowed) {
			r.Fatalf("%+v is shown %v and allowed %v", p, listed, allowed)
		}
	})
}

func TestGrants(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Project(t, "other")
	admin := w.AsAdmin(t.Context())
	eve := w.User(t, "eve", "")
	if _, err := w.Accounts.CreateService(admin, "other", "ci"); err != nil {
		t.Fatal(err)
	}
	request := tenancy.GrantRequest{Project: "flights", Name: "eves", Spec: project.GrantSpec{Principal: "user/eve", Role: project.Engineer}}
	g, change, err := w.Tenancy.Grant(admin, request)
	if err != nil || change != project.Created || g.Principal != eve.ID || g.CreatedBy != w.Admin.ID {
		t.Fatalf("%+v, %v, %v", g, change, err)
	}
	if _, change, err := w.Tenancy.Grant(admin, request); err != nil || change != project.Unchanged {
		t.Error(change, err)
	}
	request.Spec.Role = project.Viewer
	request.DryRun = true
	if _, change, err := w.Tenancy.Grant(admin, request); err != nil || change != project.Updated {
		t.Error(change, err)
	}
	if roles := w.Roles(t, eve.ID, "flights"); !slices.Equal(roles, []project.Role{project.Engineer}) {
		t.Errorf("after a dry run: %v", roles)
	}
	request.DryRun = false
	if _, change, err := w.Tenancy.Grant(admin, request); err != nil || change != project.Updated {
		t.Error(change, err)
	}
	if roles := w.Roles(t, eve.ID, "flights"); !slices.Equal(roles, []project.Role{project.Viewer}) {
		t.Errorf("the change does not count at once: %v", roles)
	}
	for name, tt := range map[string]struct {
		r    tenancy.GrantRequest
		want fault.Kind
	}{
		"unknown account":   {tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: "user/nobody", Role: project.Viewer}}, fault.NotFound},
		"foreign service":   {tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: "service/ci", Role: project.Viewer}}, fault.NotFound},
		"unknown project":   {tenancy.GrantRequest{Project: "absent", Spec: project.GrantSpec{Principal: "user/eve", Role: project.Viewer}}, fault.NotFound},
		"unknown role":      {tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: "user/eve", Role: "root"}}, fault.Invalid},
		"installation role": {tenancy.GrantRequest{Spec: project.GrantSpec{Principal: "user/eve", Role: project.Viewer}}, fault.Invalid},
		"bad name":          {tenancy.GrantRequest{Project: "flights", Name: "A B", Spec: project.GrantSpec{Principal: "user/eve", Role: project.Viewer}}, fault.Invalid},
	} {
		if _, _, err := w.Tenancy.Grant(admin, tt.r); !fault.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	local := identity.With(t.Context(), w.User(t, "lara", "flights", project.Admin))
	if _, _, err := w.Tenancy.Grant(local, tenancy.GrantRequest{Spec: project.GrantSpec{Principal: "user/lara", Role: project.Admin}}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a project's admin takes the installation: %v", err)
	}
	if _, _, err := w.Tenancy.Grant(local, tenancy.GrantRequest{Project: "other", Spec: project.GrantSpec{Principal: "user/lara", Role: project.Admin}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a project's admin takes another one: %v", err)
	}
	if err := w.Tenancy.Revoke(local, "flights", "eves"); err != nil {
		t.Error(err)
	}
	if err := w.Tenancy.Revoke(local, "flights", "eves"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestGrantNamesFit: a grant made without a name gets one that names may be,
// whatever the object is called.
func TestGrantNamesFit(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.User(t, "eve", "")
	for _, object := range []string{"", "dataset/weather", "dataset/" + strings.Repeat("x", 63), "deployment/" + strings.Repeat("a-", 31) + "z"} {
		for _, role := range project.Roles {
			g, _, err := w.Tenancy.Grant(w.AsAdmin(t.Context()), tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: "user/eve", Role: role, Object: object}})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Tenancy.Revoke(w.AsAdmin(t.Context()), "flights", g.Name); err != nil {
				t.Errorf("%s: %v", g.Name, err)
			}
			if err := project.Name(g.Name).Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLastAdministratorStays, however it is tried.
func TestLastAdministratorStays(t *testing.T) {
	w := policytest.Open(t)
	admin := w.AsAdmin(t.Context())
	eve := w.User(t, "eve", "")
	takeOver := tenancy.GrantRequest{Name: "first-admin", Spec: project.GrantSpec{Principal: "user/eve", Role: project.Auditor}}
	if err := w.Tenancy.Revoke(admin, "", "first-admin"); !fault.Is(err, fault.Conflict) {
		t.Errorf("revoked: %v", err)
	}
	if _, _, err := w.Tenancy.Grant(admin, takeOver); !fault.Is(err, fault.Conflict) {
		t.Errorf("replaced: %v", err)
	}
	if err := w.Authority.Allow(admin, "system.configure", policy.Object{}); err != nil {
		t.Errorf("refused changes had an effect: %v", err)
	}
	if _, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Spec: project.GrantSpec{Principal: eve.ID, Role: project.Admin}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Tenancy.Revoke(admin, "", "first-admin"); err != nil {
		t.Errorf("with another administrator: %v", err)
	}
}

type contents func(ctx context.Context, tx *store.Tx, in project.Name) (string, error)

func (f contents) Contents(ctx context.Context, tx *store.Tx, in project.Name) (string, error) {
	return f(ctx, tx, in)
}

// records are contents that cannot be deleted.
type records struct{ contents }

func (records) Records() {}

// A project with records is not deleted, and the refusal does not ask to delete them.
func TestDeleteOfRecords(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	holds := func(what string) contents {
		return func(context.Context, *store.Tx, project.Name) (string, error) { return what, nil }
	}
	w.Tenancy.Register(holds("datasets"))
	w.Tenancy.Register(records{holds("jobs")})
	err := w.Tenancy.Delete(w.AsAdmin(t.Context()), "flights")
	if !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "it holds datasets, jobs, and jobs are records that cannot be deleted") ||
		strings.Contains(fault.HintOf(err), "these first") || !strings.Contains(fault.HintOf(err), "To close the project") {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestDelete(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	eve := w.User(t, "eve", "flights", project.Engineer)
	left, broken := "3 datasets", error(nil)
	w.Tenancy.Register(contents(func(_ context.Context, _ *store.Tx, in project.Name) (string, error) {
		if in != "flights" {
			t.Errorf("asked about %s", in)
		}
		return left, broken
	}))
	w.Tenancy.Register(contents(func(context.Context, *store.Tx, project.Name) (string, error) { return left, nil }))
	if err := w.Tenancy.Delete(admin, "flights"); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "3 datasets, 3 datasets") {
		t.Errorf("not empty: %v", err)
	}
	left, broken = "", errors.New("cannot say")
	if err := w.Tenancy.Delete(admin, "flights"); !errors.Is(err, broken) {
		t.Errorf("a domain that cannot say: %v", err)
	}
	if _, err := w.Tenancy.One(admin, "flights"); err != nil {
		t.Fatalf("a refused deletion deleted: %v", err)
	}
	broken = nil
	if err := w.Tenancy.Delete(identity.With(t.Context(), eve), "flights"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("an engineer deletes: %v", err)
	}
	if err := w.Tenancy.Delete(admin, "flights"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Tenancy.One(identity.With(t.Context(), eve), "flights"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a role outlives its project: %v", err)
	}
	for _, dry := range []bool{true, false} {
		if _, _, err := w.Tenancy.Apply(admin, tenancy.Request{Name: "flights", DryRun: dry}); !fault.Is(err, fault.Conflict) {
			t.Errorf("another project gets the name (dry run %t): %v", dry, err)
		}
	}
}

// TestRosterSeesOtherProcesses: a role taken away by another process stops
// counting within 5 seconds.
func TestRosterSeesOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		here, there := policytest.OpenOn(t, db), policytest.OpenOn(t, db)
		here.Project(t, "flights")
		eve := here.User(t, "eve", "flights", project.Viewer)
		roles := func() int {
			return len(there.Roles(t, eve.ID, "flights"))
		}
		if roles() != 1 {
			t.Fatal("the role is not there")
		}
		if err := here.Tenancy.Revoke(here.AsAdmin(t.Context()), "flights", "viewer-"+strings.ToLower(eve.ID)); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second)
		if roles() != 0 {
			t.Error("the role still counts")
		}
	})
}

// TestKnownProjects: the end of a project counts at once here and within 5 seconds in
// another process; a new one is there at once; one whose making was undone never was.
func TestKnownProjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		here, there := policytest.OpenOn(t, db), policytest.OpenOn(t, db)
		known := func(w *policytest.World, want bool) {
			t.Helper()
			if err := w.Roster.Known(t.Context(), "flights"); (err == nil) != want || err != nil && !fault.Is(err, fault.NotFound) {
				t.Errorf("known %v, want %t", err, want)
			}
		}
		known(here, false)
		undone := errors.New("undone")
		err = db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
			if err := (projectsql.Store{}).Insert(ctx, tx, project.Project{Name: "flights"}); err != nil {
				t.Fatal(err)
			}
			if err := here.Roster.Known(ctx, "flights"); err != nil {
				t.Error(err)
			}
			return undone
		})
		if !errors.Is(err, undone) {
			t.Fatal(err)
		}
		known(here, false)
		here.Project(t, "flights")
		known(here, true)
		known(there, true)
		if err := here.Tenancy.Delete(here.AsAdmin(t.Context()), "flights"); err != nil {
			t.Fatal(err)
		}
		known(here, false)
		<-time.After(5 * time.Second)
		known(there, false)
	})
}

// TestRosterUnderChange: after a revocation returns, no concurrent reader can
// have left the old roles in the cache.
func TestRosterUnderChange(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	eve := w.User(t, "eve", "")
	admin := w.AsAdmin(t.Context())
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := w.Roster.GrantsOf(t.Context(), eve.ID); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 20 {
		g, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: eve.ID, Role: project.Viewer}})
		if err != nil {
			t.Fatal(err)
		}
		if grants, _ := w.Roster.GrantsOf(t.Context(), eve.ID); len(grants) != 1 {
			t.Fatal("a granted role does not count")
		}
		if err := w.Tenancy.Revoke(admin, "flights", g.Name); err != nil {
			t.Fatal(err)
		}
		if grants, _ := w.Roster.GrantsOf(t.Context(), eve.ID); len(grants) != 0 {
			t.Fatal("a revoked role counts")
		}
	}
	close(stop)
	readers.Wait()
}

func TestMembersPage(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.User(t, "eve", "")
	for i := range 205 {
		r := tenancy.GrantRequest{Project: "flights", Name: fmt.Sprintf("g%03d", i), Spec: project.GrantSpec{Principal: "user/eve", Role: project.Viewer}}
		if _, _, err := w.Tenancy.Grant(w.AsAdmin(t.Context()), r); err != nil {
			t.Fatal(err)
		}
	}
	first, next, err := w.Tenancy.Members(w.AsAdmin(t.Context()), "flights", "")
	if err != nil || len(first) != 200 || next != "g199" {
		t.Fatal(len(first), next, err)
	}
	rest, next, err := w.Tenancy.Members(w.AsAdmin(t.Context()), "flights", next)
	if err != nil || len(rest) != 5 || next != "" || rest[0].Name != "g200" {
		t.Fatal(rest, next, err)
	}
}

func TestProjectLabelNamesKnownZones(t *testing.T) {
	w := policytest.Open(t)
	if _, _, err := w.Border.Apply(w.AsAdmin(t.Context()), border.ZoneRequest{Zone: "AE"}); err != nil {
		t.Fatal(err)
	}
	p, _, err := w.Tenancy.Apply(w.AsAdmin(t.Context()), tenancy.Request{Name: "flights", Spec: project.Spec{Residency: residency.Label{"home", "AE", "home"}}})
	if err != nil || !slices.Equal(p.Residency, residency.Of("AE", "home")) {
		t.Errorf("%v, %v", p.Residency, err)
	}
}

// TestEnrolIsAllOrNothing: a refused request leaves no account, role or token
// behind, and a good one all three.
func TestEnrolIsAllOrNothing(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	local := identity.With(t.Context(), w.User(t, "lara", "flights", project.Admin))
	count := func() (n int) {
		t.Helper()
		accounts, _, err := w.Accounts.Accounts(admin, "", 0, "")
		if err != nil {
			t.Fatal(err)
		}
		members, _, err := w.Tenancy.Members(admin, "flights", "")
		if err != nil {
			t.Fatal(err)
		}
		return len(accounts) + len(members)
	}
	before := count()
	mallory := account.TokenSpec{For: "user/mallory", Create: true}
	scoped, long := mallory, mallory
	scoped.Scopes = []string{"bogus.scope"}
	long.TTL = 1000 * 24 * time.Hour
	ci := account.TokenSpec{For: "service/ci", Project: "flights", Create: true}
	for name, tt := range map[string]struct {
		ctx  context.Context
		e    tenancy.Enrolment
		want fault.Kind
	}{
		"scope":          {admin, tenancy.Enrolment{Token: scoped, In: "flights", Role: project.Admin}, fault.Invalid},
		"lifetime":       {admin, tenancy.Enrolment{Token: long, In: "flights", Role: project.Admin}, fault.Invalid},
		"role":           {admin, tenancy.Enrolment{Token: mallory, In: "flights", Role: "emperor"}, fault.Invalid},
		"project":        {admin, tenancy.Enrolment{Token: mallory, In: "absent", Role: project.Admin}, fault.NotFound},
		"first admin":    {admin, tenancy.Enrolment{Token: account.TokenSpec{For: "user/../x", Create: true}, In: "flights", Role: project.Viewer}, fault.Invalid},
		"not permitted":  {local, tenancy.Enrolment{Token: mallory, In: "flights", Role: project.Admin}, fault.PermissionDenied},
		"not to be made": {admin, tenancy.Enrolment{Token: account.TokenSpec{For: "user/mallory"}, In: "flights", Role: project.Viewer}, fault.NotFound},
		"service's role": {local, tenancy.Enrolment{Token: ci, In: "flights", Role: "emperor"}, fault.Invalid},
	} {
		if _, _, err := w.Tenancy.Enrol(tt.ctx, tt.e); !fault.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if n := count(); n != before {
			t.Fatalf("%s: something stayed behind (%d accounts and grants, %d before)", name, n, before)
		}
	}
	for name, e := range map[string]struct {
		ctx context.Context
		e   tenancy.Enrolment
	}{
		"person":  {admin, tenancy.Enrolment{Token: mallory, In: "flights", Role: project.Viewer}},
		"program": {local, tenancy.Enrolment{Token: ci, In: "flights", Role: project.Viewer}},
	} {
		for range 2 { // the second time for the account that there is
			_, secret, err := w.Tenancy.Enrol(e.ctx, e.e)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p, err := w.Accounts.Authenticate(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
			if roles := w.Roles(t, p.ID, "flights"); !slices.Equal(roles, []project.Role{project.Viewer}) {
				t.Errorf("%s has the roles %v", name, roles)
			}
		}
	}
	if n := count(); n != before+4 {
		t.Errorf("%d accounts and grants, want %d", n, before+4)
	}
}

// TestQuota: the installation's administrators change how much a project may store, its own
// do not, and a manifest that leaves the quota as it is takes no more than before.
func TestQuota(t *testing.T) {
	w := policytest.Open(t)
	admin := w.AsAdmin(t.Context())
	quota := project.Quota{Bytes: 1 << 30, Objects: 1000, Kinds: project.KindQuotas{Models: project.Amount{Bytes: 1 << 20}, Sources: project.Amount{Objects: 7}}}
	r := tenancy.Request{Name: "flights", Spec: project.Spec{DisplayName: "a", Quota: quota}}
	if p, _, err := w.Tenancy.Apply(admin, r); err != nil || p.Quota != quota {
		t.Fatalf("%+v, %v", p.Quota, err)
	}
	if p, err := w.Tenancy.One(admin, "flights"); err != nil || p.Spec().Quota != quota {
		t.Errorf("%+v, %v", p, err)
	}
	own := identity.With(t.Context(), w.User(t, "own", "flights", project.Admin))
	for _, c := range []struct {
		name string
		as   context.Context
		spec project.Spec
		kind fault.Kind
		want project.Quota
	}{
		{"its admin changes another field", own, project.Spec{DisplayName: "b", Quota: quota}, 0, quota},
		{"its admin raises it", own, project.Spec{DisplayName: "b", Quota: project.Quota{Bytes: 1 << 40, Objects: 1000}}, fault.PermissionDenied, quota},
		{"its admin raises that of a kind", own, project.Spec{DisplayName: "b", Quota: project.Quota{Bytes: 1 << 30, Objects: 1000, Kinds: project.KindQuotas{Models: project.Amount{Bytes: 1 << 21}}}}, fault.PermissionDenied, quota},
		{"less than nothing of a kind", admin, project.Spec{Quota: project.Quota{Kinds: project.KindQuotas{Sources: project.Amount{Bytes: -1}}}}, fault.Invalid, quota},
		{"its admin leaves it out", own, project.Spec{DisplayName: "b"}, fault.PermissionDenied, quota},
		{"less than nothing", admin, project.Spec{Quota: project.Quota{Objects: -1}}, fault.Invalid, quota},
		{"the installation's admin takes it away", admin, project.Spec{DisplayName: "b"}, 0, project.Quota{}},
		{"its admin sets one", own, project.Spec{DisplayName: "b", Quota: quota}, fault.PermissionDenied, project.Quota{}},
	} {
		_, _, err := w.Tenancy.Apply(c.as, tenancy.Request{Name: "flights", Spec: c.spec})
		if c.kind == 0 && err != nil || c.kind != 0 && !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", c.name, err)
		}
		if got, err := w.Tenancy.Quota(t.Context(), "flights"); err != nil || got != c.want {
			t.Errorf("after %s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	if got, err := w.Tenancy.Quota(t.Context(), "none"); err != nil || got != (project.Quota{}) {
		t.Errorf("of a project that does not exist: %+v, %v", got, err)
	}
}

// TestQuotaReached: it is an event and an audit entry of the project, and nothing of a project that is no more.
func TestQuotaReached(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	now, err := event.Now(t.Context(), w.DB)
	if err != nil {
		t.Fatal(err)
	}
	want := tenancy.ReachedQuota{Project: "flights", Kind: "models", Quota: project.Amount{Bytes: 1 << 20}, StoredBytes: 1 << 19, StoredObjects: 3}
	for _, r := range []tenancy.ReachedQuota{{Project: "gone"}, want} {
		if err := w.Tenancy.ReachQuota(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	all := event.Watch(w.DB, "", now)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := all.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got tenancy.ReachedQuota
	if err := e.Decode(&got); err != nil || e.Name != tenancy.QuotaReached || e.Project != "flights" || got != want {
		t.Errorf("%+v: %+v, %v", e, got, err)
	}
}
