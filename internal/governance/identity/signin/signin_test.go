package signin_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitytest"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// sealer seals with one key.
type sealer struct{ key tink.AEAD }

func (s sealer) AEAD(context.Context, string, string) (tink.AEAD, error) { return s.key, nil }

// world is a server with a provider.
type world struct {
	*policytest.World
	*signin.Service

	op    *identitytest.Provider
	clock *identitytest.Clock
	cfg   signin.Config
}

var alice = identitytest.Person{Subject: "s-1", Username: "Alice.Smith@bank.example", Name: "Alice Smith", Mail: "alice@bank.example", Groups: []string{"/ml/engineers"}}

var client = signin.Client{Address: "192.0.2.7", Agent: "Firefox"}

func onBoth(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...store.Migrations) *store.DB{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t, open(t, policytest.Migrations()...))) })
	}
}

func newWorld(tb testing.TB, db *store.DB) *world {
	tb.Helper()
	c := new(identitytest.Clock)
	w := &world{clock: c, World: policytest.OpenOn(tb, db, func(cfg *account.Config) { cfg.Now = c.Now; cfg.CacheTTL = time.Nanosecond })}
	w.op = identitytest.NewProvider(tb, c.Now)
	w.op.Be(alice)
	a, err := subtle.NewAESGCM([]byte(strings.Repeat("k", 32)))
	if err != nil {
		tb.Fatal(err)
	}
	provider := oidc.New(oidc.Config{
		Name: policytest.Provider, Issuer: w.op.URL, ClientID: w.op.ClientID, Secret: func() string { return w.op.Secret },
		GroupsClaim: "groups", UsernameClaim: "preferred_username", Client: oidc.NewClient(nil, nil), Now: c.Now,
	})
	w.cfg = signin.Config{
		DB: db, Store: identitysql.Sessions{}, Accounts: w.Accounts, Authorizer: w.Authority, Sealer: sealer{a}, Journal: w.Journal, URL: "http://127.0.0.1:1", Now: c.Now,
		Providers: []signin.Provider{{Provider: provider, Title: "Bank", Session: 12 * time.Hour, Recheck: 5 * time.Minute, Unproved: 24 * time.Hour}},
	}
	w.restart(tb)
	return w
}

func (w *world) restart(tb testing.TB) {
	tb.Helper()
	s, err := signin.New(w.cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w.Service = s
}

// login logs in as the provider's person.
func (w *world) login(tb testing.TB) (signin.Login, error) {
	tb.Helper()
	to, cookie, err := w.Begin(tb.Context(), policytest.Provider, "/console/p/jobs?x=1", false)
	if err != nil {
		return signin.Login{}, err
	}
	return w.Finish(tb.Context(), policytest.Provider, w.op.Browse(tb, to), cookies(cookie), client)
}

func cookies(all ...signin.Cookie) func(string) string {
	return func(name string) string {
		for _, c := range all {
			if c.Name == name {
				return c.Value
			}
		}
		return ""
	}
}

func (w *world) mustLogin(tb testing.TB) signin.Login {
	tb.Helper()
	login, err := w.login(tb)
	if err != nil {
		tb.Fatal(err)
	}
	return login
}

// works reports whether a secret is taken.
func (w *world) works(tb testing.TB, secret string) bool {
	tb.Helper()
	_, err := w.Accounts.Authenticate(tb.Context(), secret)
	if err != nil && !fault.Is(err, fault.Unauthenticated) {
		tb.Fatal(err)
	}
	return err == nil
}

// grant gives a role in the project p.
func (w *world) grant(tb testing.TB, principal string, role project.Role) error {
	tb.Helper()
	_, _, err := w.Tenancy.Grant(w.AsAdmin(tb.Context()), tenancy.GrantRequest{Project: "p", Spec: project.GrantSpec{Principal: principal, Role: role}})
	return err
}

func TestRolesFollowGroups(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		w.Project(t, "p")
		if err := w.grant(t, "group/op//ml/engineers", project.Engineer); err != nil {
			t.Fatal(err)
		}
		if err := w.grant(t, "group/op//ml/leads", project.Deployer); err != nil {
			t.Fatal(err)
		}
		if err := w.grant(t, "group/other/x", project.Viewer); !fault.Is(err, fault.NotFound) {
			t.Errorf("a group of a provider that is not there: %v", err)
		}
		login := w.mustLogin(t)
		if login.Account.Name != "alice-smith" || login.Next != "/console/p/jobs?x=1" || login.Account.DisplayName != "Alice Smith" {
			t.Errorf("login %+v", login)
		}
		who, err := w.Accounts.Authenticate(t.Context(), login.Secret)
		if err != nil || who.Kind != identity.User || who.ID != login.Account.ID {
			t.Fatalf("%+v, %v", who, err)
		}
		roles := func() []project.Role { return w.Roles(t, who.ID, "p") }
		if got := roles(); !slices.Equal(got, []project.Role{project.Engineer}) {
			t.Errorf("roles %q", got)
		}
		if list, _, err := w.Tenancy.List(identity.With(t.Context(), who), 10, ""); err != nil || len(list) != 1 {
			t.Errorf("the person sees %d projects, %v", len(list), err)
		}
		// An administrator's own grant stays; the provider's go with the groups.
		if err := w.grant(t, "user/alice-smith", project.Viewer); err != nil {
			t.Fatal(err)
		}
		moved := alice
		moved.Groups = []string{"/ml/leads", "/ML/engineers"}
		w.op.Be(moved)
		w.clock.Move(5*time.Minute + time.Second)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := roles()
		slices.Sort(got)
		if !slices.Equal(got, []project.Role{project.Deployer, project.Viewer}) {
			t.Errorf("after the groups changed, roles %q", got)
		}
		moved.Groups = nil // absent
		w.op.Be(moved)
		again := w.mustLogin(t)
		if again.Account.ID != who.ID {
			t.Errorf("the same person has another account")
		}
		if got := roles(); !slices.Equal(got, []project.Role{project.Viewer}) {
			t.Errorf("without a claim of groups, roles %q", got)
		}
	})
}

// TestNoAccountIsTakenOver meets people with names and addresses of others.
func TestNoAccountIsTakenOver(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		local, err := w.Accounts.CreateUser(w.AsAdmin(t.Context()), "alice-smith")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{local.ID: "the local account"}
		for _, person := range []identitytest.Person{
			alice,
			{Subject: "s-2", Username: "alice.smith", Mail: alice.Mail},
			{Subject: "s-3", Username: "admin"},
			{Subject: "S-1", Username: "alice.smith"},
			{Subject: "s-4", Username: "علي"},
			{Subject: "s-5", Username: strings.Repeat("x", 300) + "@bank.example", Name: strings.Repeat("n", 5000) + "\n\x00"},
		} {
			w.op.Be(person)
			login := w.mustLogin(t)
			if other := seen[login.Account.ID]; other != "" {
				t.Errorf("%s logs in to the account of %s", person.Subject, other)
			}
			if login.Account.Name == "admin" {
				t.Error("a person gets the name of the first administrator")
			}
			seen[login.Account.ID] = person.Subject
		}
		renamed := alice
		renamed.Username, renamed.Name = "alice.brown", "Alice Brown"
		w.op.Be(renamed)
		if login := w.mustLogin(t); seen[login.Account.ID] != "s-1" || login.Account.DisplayName != "Alice Brown" {
			t.Errorf("a renamed person has account %+v", login.Account)
		}
	})
}

func TestAttemptsBelongToABrowser(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	to, cookie, err := w.Begin(t.Context(), policytest.Provider, "", false)
	if err != nil {
		t.Fatal(err)
	}
	q := w.op.Browse(t, to)
	_, other, err := w.Begin(t.Context(), policytest.Provider, "", false)
	if err != nil {
		t.Fatal(err)
	}
	renamed := other
	renamed.Name = cookie.Name
	for name, c := range map[string]func(string) string{"no cookie": cookies(), "another attempt's": cookies(other), "renamed": cookies(renamed), "rubbish": cookies(signin.Cookie{Name: cookie.Name, Value: "eA"})} {
		if _, err := w.Finish(t.Context(), policytest.Provider, q, c, client); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries := w.Journal.Take(); len(entries) != 4 || entries[0].Action != signin.ActionLogin {
		t.Errorf("refusals on record: %+v", entries)
	}
	if _, err := w.Finish(t.Context(), "another", q, cookies(cookie), client); !fault.Is(err, fault.NotFound) {
		t.Errorf("another provider: %v", err)
	}
	w.clock.Move(11 * time.Minute)
	if _, err := w.Finish(t.Context(), policytest.Provider, q, cookies(cookie), client); !fault.Is(err, fault.Invalid) {
		t.Errorf("eleven minutes later: %v", err)
	}
	w.clock.Move(-11 * time.Minute)
	w.restart(t) // another server finishes it
	if _, err := w.Finish(t.Context(), policytest.Provider, q, cookies(cookie), client); err != nil {
		t.Error(err)
	}
	if _, err := w.Finish(t.Context(), policytest.Provider, q, cookies(cookie), client); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a second time: %v", err)
	}
}

func TestNextIsOurs(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	for _, next := range []string{"https://evil.example/", "//evil.example/console/", "/\\evil.example", "/console//evil.example", "javascript:alert(1)", "/console/\r\nSet-Cookie: x=1", "/api/v1/whoami", "", strings.Repeat("/console/", 500), "/console/%5cevil"} {
		to, cookie, err := w.Begin(t.Context(), policytest.Provider, next, false)
		if err != nil {
			t.Fatal(err)
		}
		login, err := w.Finish(t.Context(), policytest.Provider, w.op.Browse(t, to), cookies(cookie), client)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(login.Next); err != nil || u.Host != "" || u.Scheme != "" || !strings.HasPrefix(login.Next, "/console/") {
			t.Errorf("%.60q leads to %.60q", next, login.Next)
		}
	}
}

func TestRequiredGroups(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	w.cfg.Providers[0].Require = []string{"/falaj", "/ml"}
	w.restart(t)
	if _, err := w.login(t); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a prefix of a required group is enough: %v", err)
	}
	member := alice
	member.Groups = []string{"/falaj"}
	w.op.Be(member)
	login := w.mustLogin(t)
	w.op.Be(alice)
	w.clock.Move(6 * time.Minute)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.works(t, login.Secret) {
		t.Error("a session goes on though the person left the required group")
	}
}

// TestLeavingTheRequiredGroup takes roles and tokens, too.
func TestLeavingTheRequiredGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		w.cfg.Providers[0].Require = []string{"/falaj"}
		w.restart(t)
		w.Project(t, "p")
		if err := w.grant(t, "group/op//falaj", project.Engineer); err != nil {
			t.Fatal(err)
		}
		member := alice
		member.Groups = []string{"/falaj"}
		w.op.Be(member)
		login := w.mustLogin(t)
		who, err := w.Accounts.Authenticate(t.Context(), login.Secret)
		if err != nil {
			t.Fatal(err)
		}
		_, own, err := w.Accounts.CreateToken(identity.With(t.Context(), who), account.TokenSpec{})
		if err != nil {
			t.Fatal(err)
		}
		w.op.Be(alice)
		w.clock.Move(6 * time.Minute)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w.works(t, own) || len(w.Roles(t, who.ID, "p")) != 0 {
			t.Errorf("the person keeps a token (%v) or roles %q", w.works(t, own), w.Roles(t, who.ID, "p"))
		}
		w.op.Be(member)
		w.mustLogin(t)
		if !w.works(t, own) {
			t.Error("the token does not work after the person is back")
		}
		w.op.Be(alice)
		if _, err := w.login(t); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("a login without the group: %v", err)
		}
		if w.works(t, own) || len(w.Roles(t, who.ID, "p")) != 0 {
			t.Error("a refused login leaves tokens or roles")
		}
	})
}

// TestDeletedAccountsStayDeleted, though the provider still confirms the person.
func TestDeletedAccountsStayDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		login := w.mustLogin(t)
		if err := w.Accounts.DeleteAccount(w.AsAdmin(t.Context()), "", "user/alice-smith"); err != nil {
			t.Fatal(err)
		}
		before := w.op.Asked("/token")
		for range 3 {
			w.clock.Move(6 * time.Minute)
			if err := errors.Join(w.Refresh(t.Context()), w.Tidy(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		if w.op.Asked("/token") != before {
			t.Error("the provider is asked about a deleted account")
		}
		if _, err := w.Accounts.Account(w.AsAdmin(t.Context()), "", "user/alice-smith"); !fault.Is(err, fault.NotFound) {
			t.Errorf("the account is back: %v", err)
		}
		if w.works(t, login.Secret) {
			t.Error("a session of a deleted account works")
		}
	})
}

// TestRotatedTokensAreKept where the provider fails after it has rotated them.
func TestRotatedTokensAreKept(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	login := w.mustLogin(t)
	w.op.Turn(identitytest.Knobs{NoIDRefresh: true, UserInfoDown: true})
	w.clock.Move(6 * time.Minute)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.op.Turn(identitytest.Knobs{})
	w.clock.Move(time.Minute)
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !w.works(t, login.Secret) {
		t.Error("a hiccup of the provider ended the session")
	}
}

// TestEnds has everything that ends a session or the tokens of a person.
func TestEnds(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		token := func(login signin.Login) string {
			t.Helper()
			who, err := w.Accounts.Authenticate(t.Context(), login.Secret)
			if err != nil {
				t.Fatal(err)
			}
			made, secret, err := w.Accounts.CreateToken(identity.With(t.Context(), who), account.TokenSpec{TTL: 90 * 24 * time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if made.ExpiresAt.Before(w.clock.Now().Add(80 * 24 * time.Hour)) {
				t.Errorf("the token of a session ends with it: %s", made.ExpiresAt)
			}
			return secret
		}
		check := func(what string, secret string, want bool) {
			t.Helper()
			if got := w.works(t, secret); got != want {
				t.Errorf("%s: the token works %v, want %v", what, got, want)
			}
		}

		// The provider refuses: the session ends, tokens when the proof does.
		login := w.mustLogin(t)
		own := token(login)
		gone := alice
		gone.Disabled = true
		w.op.Be(gone)
		w.clock.Move(6 * time.Minute)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("session of a disabled person", login.Secret, false)
		check("token, at first", own, true)
		w.clock.Move(24 * time.Hour)
		check("token, a day later", own, false)

		// Back, the token works again.
		w.op.Be(alice)
		login = w.mustLogin(t)
		check("token, after the next login", own, true)

		// A provider that is down ends nothing for a day.
		w.op.Turn(identitytest.Knobs{Down: true})
		for range 3 {
			w.clock.Move(6 * time.Minute)
			if err := w.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		check("session while the provider is down", login.Secret, true)
		w.op.Turn(identitytest.Knobs{})
		w.clock.Move(time.Minute)
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.Move(11 * time.Hour)
		check("session within its time", login.Secret, true)
		w.clock.Move(time.Hour)
		check("session beyond its time", login.Secret, false)

		// Its refresh token goes on to prove the person for tokens.
		for range 60 {
			w.clock.Move(time.Hour)
			if err := w.Tidy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		check("token, while the provider confirms the person", own, true)

		// Logout by the person, and by the provider.
		login = w.mustLogin(t)
		who, err := w.Accounts.Authenticate(t.Context(), login.Secret)
		if err != nil {
			t.Fatal(err)
		}
		to, err := w.Logout(identity.With(t.Context(), who))
		if err != nil || to != w.op.URL+"/logout" {
			t.Errorf("logout leads to %q, %v", to, err)
		}
		check("session after the logout", login.Secret, false)
		check("token after the logout", own, true)
		one, two := w.mustLogin(t), w.mustLogin(t)
		message := w.op.LogoutToken(map[string]any{"sub": alice.Subject, "sid": "one of them"})
		for range 2 {
			if err := w.BackChannel(t.Context(), policytest.Provider, message); err != nil {
				t.Fatal(err)
			}
		}
		check("first session", one.Secret, false)
		check("second session", two.Secret, false)
		three := w.mustLogin(t)
		if err := w.BackChannel(t.Context(), policytest.Provider, message); err != nil {
			t.Fatal(err)
		}
		check("a message that is replayed", three.Secret, true)
		if err := w.BackChannel(t.Context(), policytest.Provider, w.op.LogoutToken(map[string]any{"sid": "unknown"})); err != nil {
			t.Fatal(err)
		}
		check("another session's logout", three.Secret, true)

		// An administrator disables the account.
		if _, err := w.Accounts.Disable(w.AsAdmin(t.Context()), "", "user/alice-smith", "left the bank"); err != nil {
			t.Fatal(err)
		}
		check("session of a disabled account", three.Secret, false)
		check("token of a disabled account", own, false)
		if _, err := w.login(t); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("a disabled account is logged in to: %v", err)
		}
		if _, err := w.Accounts.Enable(w.AsAdmin(t.Context()), "", "user/alice-smith"); err != nil {
			t.Fatal(err)
		}
		check("token of an enabled account", own, true)
	})
}

// TestOneServerRefreshes lets two servers refresh at once: a rotated refresh token that is
// used twice looks like theft to a provider.
func TestOneServerRefreshes(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		var logins []signin.Login
		for i := range 8 {
			person := alice
			person.Subject = "s-" + string(rune('a'+i))
			w.op.Be(person)
			logins = append(logins, w.mustLogin(t))
		}
		before := w.op.Asked("/token")
		w.clock.Move(6 * time.Minute)
		other, err := signin.New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, s := range []*signin.Service{w.Service, other, w.Service, other} {
			wg.Go(func() {
				if err := s.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if asked := w.op.Asked("/token") - before; asked != len(logins) {
			t.Errorf("%d sessions were refreshed %d times", len(logins), asked)
		}
		for _, login := range logins {
			if !w.works(t, login.Secret) {
				t.Errorf("session of %s ended", login.Account.Subject)
			}
		}
	})
}

func TestManySessions(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	first := w.mustLogin(t)
	for range 20 {
		w.clock.Move(time.Second)
		w.mustLogin(t)
	}
	if w.works(t, first.Secret) {
		t.Error("the oldest of 21 sessions works")
	}
	who, err := w.Accounts.Authenticate(t.Context(), w.mustLogin(t).Secret)
	if err != nil {
		t.Fatal(err)
	}
	list, next, err := w.Sessions(identity.With(t.Context(), who), true, "", "")
	if err != nil || len(list) != 20 || next != "" {
		t.Fatalf("%d sessions, %q, %v", len(list), next, err)
	}
	if s := list[0]; s.Address != client.Address || s.Client != client.Agent || s.Provider != policytest.Provider || s.AuthTime.IsZero() || s.ExpiresAt.IsZero() {
		t.Errorf("session %+v", s)
	}
	if _, _, err := w.Sessions(identity.With(t.Context(), who), false, "", ""); err == nil {
		t.Error("a person sees the sessions of others")
	}
	if list, _, err := w.Sessions(w.AsAdmin(t.Context()), false, "user/alice-smith", ""); err != nil || len(list) != 20 {
		t.Errorf("an administrator sees %d sessions, %v", len(list), err)
	}
}

func TestCommands(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		t.Helper()
		who, err := w.Accounts.Authenticate(t.Context(), w.mustLogin(t).Secret)
		if err != nil {
			t.Fatal(err)
		}
		ctx := identity.With(t.Context(), who)
		verifier := identitytest.Verifier()
		sum := sha256.Sum256([]byte(verifier))
		challenge := base64.RawURLEncoding.EncodeToString(sum[:])
		allow := func() string {
			t.Helper()
			code, err := w.Allow(ctx, challenge, "alice's laptop")
			if err != nil {
				t.Fatal(err)
			}
			return code
		}
		code := allow()
		made, secret, err := w.Redeem(t.Context(), code, verifier)
		if err != nil || made.Label != "falaj login on alice's laptop" || !w.works(t, secret) {
			t.Errorf("%+v, %v", made, err)
		}
		if _, _, err := w.Redeem(t.Context(), code, verifier); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("a code works twice: %v", err)
		}
		code = allow()
		if _, _, err := w.Redeem(t.Context(), code, identitytest.Verifier()); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("another verifier: %v", err)
		}
		if _, _, err := w.Redeem(t.Context(), code, verifier); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("after a wrong verifier: %v", err)
		}
		code = allow()
		w.clock.Move(time.Minute)
		if _, _, err := w.Redeem(t.Context(), code, verifier); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("a minute later: %v", err)
		}
		for _, bad := range []string{"", "short", strings.Repeat("!", 43)} {
			if _, err := w.Allow(ctx, bad, ""); !fault.Is(err, fault.Invalid) {
				t.Errorf("challenge %q: %v", bad, err)
			}
		}
		// A token that allows a command lends it no more than it has itself.
		bound, secretOf, err := w.Accounts.CreateToken(w.AsAdmin(t.Context()), account.TokenSpec{For: "user/alice-smith", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		lender, err := w.Accounts.Authenticate(t.Context(), secretOf)
		if err != nil {
			t.Fatal(err)
		}
		if code, err = w.Allow(identity.With(t.Context(), lender), challenge, "lent"); err != nil {
			t.Fatal(err)
		}
		lent, secret, err := w.Redeem(t.Context(), code, verifier)
		if err != nil || lent.Parent != bound.ID || lent.ExpiresAt.After(bound.ExpiresAt) {
			t.Errorf("the command's token %+v of %+v, %v", lent, bound, err)
		}
		if err := w.Accounts.RevokeToken(w.AsAdmin(t.Context()), bound.ID); err != nil {
			t.Fatal(err)
		}
		if w.works(t, secret) {
			t.Error("a command's token outlives the token that allowed it")
		}
		_, narrow, err := w.Accounts.CreateToken(ctx, account.TokenSpec{Scopes: []string{"token.create"}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := w.Accounts.Authenticate(t.Context(), narrow)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Allow(identity.With(t.Context(), p), challenge, ""); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("a token with scopes makes one without: %v", err)
		}
	})
}

func TestNobodyDisablesTheLastAdministrator(t *testing.T) {
	w := newWorld(t, storetest.SQLite(t, policytest.Migrations()...))
	root := w.User(t, "root", "", project.Admin)
	if _, err := w.Accounts.Disable(identity.With(t.Context(), root), "", "user/root", ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("one's own account: %v", err)
	}
	if _, err := w.Accounts.Disable(identity.With(t.Context(), root), "", "user/admin", ""); err != nil {
		t.Error(err)
	}
	other := w.User(t, "other", "")
	if _, err := w.Accounts.Disable(identity.With(t.Context(), other), "", "user/root", ""); err == nil {
		t.Error("somebody without a role disables an account")
	}
	// root is the only one left who can log in: admin is disabled, and the third is a service.
	if _, err := w.Accounts.CreateService(w.AsAdmin(t.Context()), "", "robot"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Tenancy.Grant(identity.With(t.Context(), root), tenancy.GrantRequest{Spec: project.GrantSpec{Principal: "service/robot", Role: project.Admin}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.DeleteAccount(identity.With(t.Context(), root), "", "user/root"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the last administrator is deleted: %v", err)
	}
	grants, _, err := w.Tenancy.Members(identity.With(t.Context(), root), "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range grants {
		if g.Principal != root.ID {
			continue
		}
		if err := w.Tenancy.Revoke(identity.With(t.Context(), root), "", g.Name); !fault.Is(err, fault.Conflict) {
			t.Errorf("the last administrator loses the role: %v", err)
		}
	}
	secret, err := w.Accounts.Recover(t.Context())
	if err != nil || !w.works(t, secret) {
		t.Errorf("the operator's token of a disabled administrator works %v, %v", w.works(t, secret), err)
	}
}
