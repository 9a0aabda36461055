package request_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/request"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

var databases = map[string]func(testing.TB, ...store.Migrations) *store.DB{"sqlite": storetest.SQLite, "postgresql": storetest.PostgreSQL}

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// people is a fake of accounts and grants.
type people struct {
	grants  []project.Grant
	account account.Account
	token   account.Token
	others  map[string]account.Token // by id; the rest are token
}

func (p people) GrantsOf(context.Context, *store.Tx, string) ([]project.Grant, error) {
	return p.grants, nil
}

func (people) Former(context.Context, *store.Tx, project.Name, time.Time) ([]project.Grant, error) {
	return nil, nil
}

func (people) Members(context.Context, *store.Tx, project.Name, string, int) ([]project.Grant, error) {
	return nil, nil
}

func (p people) Account(context.Context, *store.Tx, string) (account.Account, error) {
	return p.account, nil
}

func (p people) Token(_ context.Context, _ *store.Tx, id string) (account.Token, error) {
	if t, ok := p.others[id]; ok {
		return t, nil
	}
	return p.token, nil
}

func (people) FirstAccount(context.Context, *store.Tx) (time.Time, error) { return began, nil }

func TestSecond(t *testing.T) {
	const asker, other, root = "usr_asker", "usr_other", "usr_root"
	day := 24 * time.Hour
	late := began.Add(30 * day)
	grant := func(role project.Role, by string, at time.Time) project.Grant {
		return project.Grant{Project: "north", Role: role, CreatedBy: by, CreatedAt: at}
	}
	fine := people{grants: []project.Grant{grant(project.Admin, root, late.Add(-2*day))}, account: account.Account{CreatedBy: root}, token: account.Token{CreatedBy: other}}
	for _, c := range []struct {
		name   string
		change func(p *people, who *identity.Principal, r *policy.Requested)
		want   string // "" is allowed
	}{
		{"another person with the role for two days", nil, ""},
		{"the same person", func(_ *people, who *identity.Principal, _ *policy.Requested) { who.ID = asker }, "you are one of the requesters"},
		{"one of several authors", func(_ *people, _ *identity.Principal, r *policy.Requested) { r.By = append(r.By, other) }, "you are one of the requesters"},
		{"a service", func(_ *people, who *identity.Principal, _ *policy.Requested) { who.Kind = identity.Service }, "is not a user"},
		{"an account of the asker's", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.account.CreatedBy = asker }, "your account was created by"},
		{"a token of the asker's", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.token.CreatedBy = asker }, "your token was created by"},
		{"a role of the asker's", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.grants[0].CreatedBy = asker }, "your role was granted by"},
		{"a role of the asker's beside another", func(p *people, _ *identity.Principal, _ *policy.Requested) {
			p.grants = append(p.grants, grant(project.Admin, asker, late.Add(-2*day)))
		}, ""},
		{"a role after the request", func(p *people, _ *identity.Principal, _ *policy.Requested) {
			p.grants[0].CreatedAt = late.Add(time.Second)
		}, "24h0m0s before the request"},
		{"a role for an hour", func(p *people, _ *identity.Principal, _ *policy.Requested) {
			p.grants[0].CreatedAt = late.Add(-time.Hour)
		}, "24h0m0s before the request"},
		{"a role for a day", func(p *people, _ *identity.Principal, _ *policy.Requested) {
			p.grants[0].CreatedAt = late.Add(-day)
		}, ""},
		{"a role of the first day", func(p *people, _ *identity.Principal, r *policy.Requested) {
			p.grants[0].CreatedAt, r.At = began.Add(time.Minute), began.Add(2*time.Minute)
		}, ""},
		{"a role of the first day, after the request", func(p *people, _ *identity.Principal, r *policy.Requested) {
			p.grants[0].CreatedAt, r.At = began.Add(2*time.Minute), began.Add(time.Minute)
		}, "before the request"},
		{"a token that a token of the requester's made", func(p *people, _ *identity.Principal, _ *policy.Requested) {
			p.token.Parent, p.others = "tok_0", map[string]account.Token{"tok_0": {CreatedBy: asker}}
		}, "your token was created by the requester"},
		{"a role without the right", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.grants[0].Role = project.Viewer }, "none of your roles"},
		{"a role elsewhere", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.grants[0].Project = "south" }, "none of your roles"},
		{"a role in the installation", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.grants[0].Project = "" }, ""},
		{"a role on another object", func(p *people, _ *identity.Principal, _ *policy.Requested) { p.grants[0].Object = "dataset/x" }, "none of your roles"},
		{"a right of the installation by a role of a project", func(_ *people, _ *identity.Principal, r *policy.Requested) {
			r.Actions = []policy.Action{"audit.erase"}
		}, "none of your roles"},
		{"one of two rights", func(p *people, _ *identity.Principal, r *policy.Requested) {
			p.grants[0].Role, r.Actions = project.Deployer, []policy.Action{"model.govern", "model.approve"}
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, who := fine, identity.Principal{Kind: identity.User, ID: other, Token: "tok_1"}
			p.grants = slices.Clone(fine.grants)
			asked := policy.Requested{By: []string{asker}, At: late, Actions: []policy.Action{"member.grant"}, Object: policy.Object{Project: "north", Kind: "grant", Name: "g"}}
			if c.change != nil {
				c.change(&p, &who, &asked)
			}
			s := request.New(request.Config{Grants: p, Accounts: p})
			err := s.Second(identity.With(t.Context(), who), nil, asked)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (!fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// world is requests over real accounts, roles and policies.
type world struct {
	*policytest.World
	requests *request.Service
	now      time.Time
	did      []string // payloads and by whom
	fail     error
}

func open(t *testing.T, db *store.DB) *world {
	t.Helper()
	w := &world{World: policytest.OpenOn(t, db), now: time.Now()}
	w.requests = request.New(request.Config{
		DB: db, Store: requestsql.Store{}, Grants: projectsql.Store{}, Accounts: identitysql.Store{}, Authorizer: w.Authority, Now: func() time.Time { return w.now },
	})
	w.requests.Register("thing", func(ctx context.Context, payload []byte) error {
		if err := w.ask(ctx, json.RawMessage(payload)); err != nil {
			return err
		}
		w.did = append(w.did, string(payload)+" by "+identity.From(ctx).Name)
		return w.fail
	})
	w.Project(t, "north")
	return w
}

func (w *world) ask(ctx context.Context, payload any) error {
	return w.requests.Ask(ctx, policy.Act{
		Kind: "thing", Action: "member.grant", Object: policy.Object{Project: "north", Kind: "thing", Name: "x"}, Summary: "change thing x", Payload: payload,
	})
}

func (w *world) only(t *testing.T, state request.State) request.Request {
	t.Helper()
	list, _, err := w.requests.List(w.AsAdmin(t.Context()), "north", state, "")
	if err != nil || len(list) != 1 {
		t.Fatalf("%d requests are %s, %v", len(list), state, err)
	}
	return list[0]
}

func TestRequests(t *testing.T) {
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			w := open(t, database(t, append(policytest.Migrations(), requestsql.Migrations)...))
			admin := w.AsAdmin(t.Context())
			if err := w.ask(admin, 1); err != nil {
				t.Errorf("the only person with the right: %v", err)
			}
			if err := w.ask(identity.With(t.Context(), identity.Loop("x")), 1); err != nil {
				t.Errorf("Falaj itself: %v", err)
			}
			ann, bob := identity.With(t.Context(), w.User(t, "ann", "north", project.Admin)), identity.With(t.Context(), w.User(t, "bob", "north", project.Admin))
			eve := identity.With(t.Context(), w.User(t, "eve", "north", project.Engineer))
			stranger := identity.With(t.Context(), w.User(t, "mallory", ""))
			w.now = time.Now()

			err := w.ask(ann, 2)
			if !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "two people") {
				t.Fatalf("one of several asks: %v", err)
			}
			r := w.only(t, request.Requested)
			if !strings.Contains(err.Error(), r.ID) || !strings.Contains(fault.HintOf(err), "falaj request approve "+r.ID) || r.RequestedByName != "ann" || r.Summary != "change thing x" {
				t.Errorf("%v, %+v", err, r)
			}
			if err := w.ask(ann, 2); !strings.Contains(err.Error(), r.ID) {
				t.Errorf("asked again: %v", err)
			}
			for name, ctx := range map[string]context.Context{"ann": ann, "eve": eve} {
				if _, err := w.requests.Approve(ctx, r.ID); !fault.Is(err, fault.PermissionDenied) {
					t.Errorf("%s approves: %v", name, err)
				}
			}
			if _, err := w.requests.Approve(stranger, r.ID); !fault.Is(err, fault.NotFound) {
				t.Errorf("a stranger approves: %v", err)
			}
			if len(w.did) != 0 {
				t.Fatalf("done without approval: %q", w.did)
			}
			got, err := w.requests.Approve(bob, r.ID)
			if err != nil || got.State != request.Done || got.DecidedByName != "bob" || !slices.Equal(w.did, []string{"2 by ann"}) {
				t.Errorf("%+v, %v, did %q", got, err, w.did)
			}
			if _, err := w.requests.Approve(bob, r.ID); !fault.Is(err, fault.Conflict) {
				t.Errorf("approved twice: %v", err)
			}
			if err := w.ask(ann, 2); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("an old approval counts again: %v", err)
			}
			again := w.only(t, request.Requested)
			if got, err := w.requests.Reject(bob, again.ID); err != nil || got.State != request.Rejected {
				t.Errorf("%+v, %v", got, err)
			}
			_ = w.ask(ann, 3)
			if got, err := w.requests.Reject(ann, w.only(t, request.Requested).ID); err != nil || got.State != request.Withdrawn {
				t.Errorf("%+v, %v", got, err)
			}
			_ = w.ask(ann, 4)
			w.fail = fault.New(fault.Conflict, "it is gone")
			if got, err := w.requests.Approve(bob, w.only(t, request.Requested).ID); err != nil || got.State != request.Failed || got.Message != "it is gone" {
				t.Errorf("%+v, %v", got, err)
			}
			_ = w.ask(ann, 5)
			w.now = w.now.Add(8 * 24 * time.Hour)
			if _, err := w.requests.Approve(bob, w.only(t, request.Requested).ID); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "expired") {
				t.Errorf("a late approval: %v", err)
			}
			w.only(t, request.Expired)
			_ = w.ask(ann, 6)
			w.did, w.fail = nil, fault.New(fault.Unavailable, "the disk is full")
			if _, err := w.requests.Approve(bob, w.only(t, request.Requested).ID); !fault.Is(err, fault.Unavailable) {
				t.Errorf("%v", err)
			}
			w.fail = nil
			if err := w.requests.Recover(t.Context()); err != nil || len(w.did) != 1 {
				t.Errorf("recovered too early: %v, %q", err, w.did)
			}
			w.now = w.now.Add(time.Hour)
			if err := w.requests.Recover(t.Context()); err != nil || !slices.Equal(w.did, []string{"6 by ann", "6 by ann"}) {
				t.Errorf("%v, did %q", err, w.did)
			}
			for _, state := range []request.State{request.Done, request.Failed, request.Rejected, request.Withdrawn, request.Expired} {
				list, _, err := w.requests.List(w.AsAdmin(t.Context()), "north", state, "")
				if err != nil || len(list) == 0 || len(list[0].Act.Payload) > 0 {
					t.Errorf("%s: %+v, %v", state, list, err)
				}
			}
			records, _, err := w.DB.ReadStream(t.Context(), "audit", store.Position{}, 1000)
			if err != nil {
				t.Fatal(err)
			}
			var states []string
			for _, rec := range records {
				var e audit.Entry
				if err := json.Unmarshal(rec.Body, &e); err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(e.Action, "request.") {
					states = append(states, e.Detail["state"].(string))
				}
			}
			want := []string{"requested", "approved", "done", "requested", "rejected", "requested", "withdrawn", "requested", "approved", "failed", "requested", "expired", "requested", "approved", "done"}
			if !slices.Equal(states, want) {
				t.Errorf("the audit log has %q", states)
			}
		})
	}
}

// TestServiceAsks: a service may request; who made it is no second person.
func TestServiceAsks(t *testing.T) {
	w := open(t, storetest.SQLite(t, append(policytest.Migrations(), requestsql.Migrations)...))
	ann := w.User(t, "ann", "north", project.Admin)
	bob := w.User(t, "bob", "north", project.Admin)
	_, secret, err := w.Accounts.CreateToken(identity.With(t.Context(), ann), account.TokenSpec{For: "service/ci", Create: true, Project: "north"})
	if err != nil {
		t.Fatal(err)
	}
	ci, err := w.Accounts.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	w.now = time.Now()
	if err := w.ask(identity.With(t.Context(), ci), 1); !fault.Is(err, fault.PermissionDenied) {
		t.Fatal(err)
	}
	r := w.only(t, request.Requested)
	if _, err := w.requests.Approve(identity.With(t.Context(), ann), r.ID); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "you created the account") {
		t.Errorf("its maker approves: %v", err)
	}
	if _, err := w.requests.Approve(identity.With(t.Context(), bob), r.ID); err != nil {
		t.Error(err)
	}
	if len(w.did) != 1 {
		t.Errorf("did %q", w.did)
	}
}

// TestNotAloneAtOnce: who takes the right from the other person is not alone before a day.
func TestNotAloneAtOnce(t *testing.T) {
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			w := open(t, database(t, append(policytest.Migrations(), requestsql.Migrations)...))
			admin := w.AsAdmin(t.Context())
			w.User(t, "ann", "north", project.Admin)
			members, _, err := w.Tenancy.Members(admin, "north", "")
			if err != nil || len(members) != 1 {
				t.Fatal(members, err)
			}
			if err := w.Tenancy.Revoke(admin, "north", members[0].Name); err != nil {
				t.Fatal(err)
			}
			w.now = time.Now()
			if err := w.ask(admin, 1); !fault.Is(err, fault.PermissionDenied) {
				t.Errorf("a moment later: %v", err)
			}
			w.now = w.now.Add(25 * time.Hour)
			if err := w.ask(admin, 1); err != nil {
				t.Errorf("a day later: %v", err)
			}
		})
	}
}

// TestRequestsEnd: what nobody answers expires, and what is of a project ends with it.
func TestRequestsEnd(t *testing.T) {
	w := open(t, storetest.SQLite(t, append(policytest.Migrations(), requestsql.Migrations)...))
	ann := identity.With(t.Context(), w.User(t, "ann", "north", project.Admin))
	w.now = time.Now()
	_ = w.ask(ann, 1)
	w.now = w.now.Add(8 * 24 * time.Hour)
	if err := w.requests.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.only(t, request.Expired)
	_ = w.ask(ann, 2)
	if err := w.DB.Update(t.Context(), "north", func(ctx context.Context, tx *store.Tx) error {
		_, err := w.requests.Contents(ctx, tx, "north")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if r := w.only(t, request.Withdrawn); r.Message != "the project was deleted" {
		t.Errorf("%+v", r)
	}
}

// TestMadeByTheirService: an account that the requester's service made is the requester's.
func TestMadeByTheirService(t *testing.T) {
	w := open(t, storetest.SQLite(t, append(policytest.Migrations(), requestsql.Migrations)...))
	admin := w.AsAdmin(t.Context())
	_, secret, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: "service/ci", Create: true})
	if err != nil {
		t.Fatal(err)
	}
	robot, err := w.Accounts.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Spec: project.GrantSpec{Principal: robot.ID, Role: project.Admin, Installation: true}}); err != nil {
		t.Fatal(err)
	}
	puppet, err := w.Accounts.CreateUser(identity.With(t.Context(), robot), "puppet")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Tenancy.Grant(identity.With(t.Context(), robot), tenancy.GrantRequest{Project: "north", Spec: project.GrantSpec{Principal: puppet.ID, Role: project.Admin}}); err != nil {
		t.Fatal(err)
	}
	w.now = time.Now()
	_ = w.ask(admin, 1)
	r := w.only(t, request.Requested)
	as := identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: puppet.ID})
	if _, err := w.requests.Approve(as, r.ID); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "your account was created by the requester") {
		t.Errorf("%v", err)
	}
}

// TestOwnShare: one requester leaves requests of a project to others.
func TestOwnShare(t *testing.T) {
	w := open(t, storetest.SQLite(t, append(policytest.Migrations(), requestsql.Migrations)...))
	ann, bob := identity.With(t.Context(), w.User(t, "ann", "north", project.Admin)), identity.With(t.Context(), w.User(t, "bob", "north", project.Admin))
	w.now = time.Now()
	for i := range 25 {
		if err := w.ask(ann, i); !fault.Is(err, fault.PermissionDenied) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if err := w.ask(ann, 25); !fault.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "25 of them yours") {
		t.Errorf("one more: %v", err)
	}
	if err := w.ask(ann, 24); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("one that waits already: %v", err)
	}
	if err := w.ask(bob, 1); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("another person: %v", err)
	}
}
