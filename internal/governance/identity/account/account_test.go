package account_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/authorizer"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// wall is a clock that a test sets.
type wall struct {
	mu sync.Mutex
	at time.Time
}

func newWall() *wall { return &wall{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (w *wall) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

func (w *wall) Move(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = w.at.Add(d)
}

func TestBootstrapHappensOnce(t *testing.T) {
	w := policytest.Open(t)
	if !strings.HasPrefix(w.Secret, "flj_adm_") || w.Admin.Kind != identity.User || w.Admin.Name != "admin" {
		t.Errorf("the first administrator is %+v with a secret that begins %.8s", w.Admin, w.Secret)
	}
	if err := w.Authority.Allow(w.AsAdmin(t.Context()), "system.configure", policy.Object{}); err != nil {
		t.Error(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			secret, created, err := w.Accounts.Bootstrap(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if secret != "" || created || err != nil {
				t.Errorf("a second Bootstrap gives %q, %v, %v", secret, created, err)
			}
		})
	}
	wg.Wait()
}

func TestRecover(t *testing.T) {
	w := policytest.Open(t)
	secret, err := w.Accounts.Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := w.Accounts.Authenticate(t.Context(), secret); err != nil || p.ID != w.Admin.ID {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("the lost token still works: %v", err)
	}
}

// TestOneAnswer: a caller cannot tell why a token does not work.
func TestOneAnswer(t *testing.T) {
	clock := newWall()
	w := policytest.Open(t, func(c *account.Config) { c.Now = clock.Now })
	ctx := w.AsAdmin(t.Context())
	_, expired, err := w.Accounts.CreateToken(ctx, account.TokenSpec{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	revoked, secret, err := w.Accounts.CreateToken(ctx, account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.RevokeToken(ctx, revoked.ID); err != nil {
		t.Fatal(err)
	}
	other := policytest.Open(t)
	clock.Move(time.Minute)
	var texts []string
	for name, s := range map[string]string{
		"none": "", "malformed": "abc", "checksum": w.Secret[:len(w.Secret)-1] + "!", "dots": strings.Repeat(".", 1<<20),
		"unknown": other.Secret, "expired": expired, "revoked": secret, "spaces": w.Secret + "\n",
	} {
		for range 2 { // from the database, and from the cache
			p, err := w.Accounts.Authenticate(t.Context(), s)
			if !fault.Is(err, fault.Unauthenticated) || p.ID != "" || p.Kind != "" {
				t.Errorf("%s: %+v, %v", name, p, err)
				continue
			}
			texts = append(texts, err.Error()+fault.HintOf(err))
		}
	}
	if slices.Sort(texts); len(slices.Compact(texts)) != 1 {
		t.Errorf("reasons leak: %q", texts)
	}
}

// TestMalformedNeverReachesTheDatabase: with the database closed, a malformed
// secret is answered as always, and a well-formed one is our fault.
func TestMalformedNeverReachesTheDatabase(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	w := policytest.OpenOn(t, db)
	other := policytest.Open(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), other.Secret[:len(other.Secret)-1]); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("malformed: %v", err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), other.Secret); err == nil || fault.Is(err, fault.Unauthenticated) {
		t.Errorf("without a database: %v", err)
	}
}

// TestClockGoingBack: a token that has expired stays so, within a process and
// across a restart.
func TestClockGoingBack(t *testing.T) {
	clock := newWall()
	db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w := policytest.OpenOn(t, db, func(c *account.Config) { c.Now = clock.Now })
	_, secret, err := w.Accounts.CreateToken(w.AsAdmin(t.Context()), account.TokenSpec{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	works := func(w *policytest.World) bool {
		_, err := w.Accounts.Authenticate(t.Context(), secret)
		if err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Fatal(err)
		}
		return err == nil
	}
	if !works(w) {
		t.Fatal("a new token does not work")
	}
	clock.Move(time.Hour)
	if works(w) {
		t.Fatal("an expired token works")
	}
	// Another token's use is what the server notes down.
	if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Move(-2 * time.Hour)
	if works(w) {
		t.Error("a clock that goes back brings it to life")
	}
	if works(policytest.OpenOn(t, db, func(c *account.Config) { c.Now = clock.Now })) {
		t.Error("a restart with a clock that went back brings it to life")
	}
}

// TestRevocationReachesOtherProcesses: two services on one database are two
// processes; the second one sees the end of a token within 5 seconds.
func TestRevocationReachesOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		here, there := policytest.OpenOn(t, db), policytest.OpenOn(t, db)
		token, secret, err := here.Accounts.CreateToken(here.AsAdmin(t.Context()), account.TokenSpec{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []*policytest.World{here, there} {
			if _, err := w.Accounts.Authenticate(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
		if err := here.Accounts.RevokeToken(here.AsAdmin(t.Context()), token.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := here.Accounts.Authenticate(t.Context(), secret); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("at once, here: %v", err)
		}
		<-time.After(5 * time.Second)
		if _, err := there.Accounts.Authenticate(t.Context(), secret); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("after 5 s, there: %v", err)
		}
	})
}

// TestRevocationBeatsLookup: a lookup that read before a revocation does not put
// the token back into the cache after it.
func TestRevocationBeatsLookup(t *testing.T) {
	reads, proceed := make(chan struct{}), make(chan struct{})
	var slow *slowStore
	w := policytest.Open(t, func(c *account.Config) {
		slow = &slowStore{Store: c.Store}
		c.Store = slow
	})
	token, secret, err := w.Accounts.CreateToken(w.AsAdmin(t.Context()), account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	slow.after = func() {
		close(reads)
		<-proceed
	}
	done := make(chan error)
	go func() {
		_, err := w.Accounts.Authenticate(t.Context(), secret)
		done <- err
	}()
	<-reads
	slow.after = nil
	if err := w.Accounts.RevokeToken(w.AsAdmin(t.Context()), token.ID); err != nil {
		t.Fatal(err)
	}
	close(proceed)
	if err := <-done; err != nil {
		t.Errorf("the call that was before the revocation: %v", err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), secret); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("the call after it: %v", err)
	}
}

// slowStore pauses after a token was read.
type slowStore struct {
	account.Store

	after func()
}

func (s *slowStore) TokenByHash(ctx context.Context, tx *store.Tx, hash []byte) (account.Token, time.Time, error) {
	t, clock, err := s.Store.TokenByHash(ctx, tx, hash)
	if s.after != nil {
		s.after()
	}
	return t, clock, err
}

func TestSecretIsNotStored(t *testing.T) {
	w := policytest.Open(t)
	token, secret, err := w.Accounts.CreateToken(w.AsAdmin(t.Context()), account.TokenSpec{Label: "ci"})
	if err != nil {
		t.Fatal(err)
	}
	random := secret[len("flj_usr_"):]
	for _, stream := range []string{"audit", "event"} {
		records, _, err := w.DB.ReadStream(t.Context(), stream, store.Position{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, r := range records {
			if strings.Contains(string(r.Body), random) {
				t.Errorf("the secret is in the %s stream: %s", stream, r.Body)
			}
			found = found || strings.Contains(string(r.Body), token.ID)
		}
		if !found {
			t.Errorf("the token is not in the %s stream", stream)
		}
	}
	err = w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		var rows []map[string]any
		if err := tx.NewRaw("SELECT * FROM identity_token").Scan(ctx, &rows); err != nil {
			return err
		}
		for _, row := range rows {
			for column, v := range row {
				if b, ok := v.([]byte); ok {
					v = string(b)
				}
				if s, ok := v.(string); ok && strings.Contains(s, random) {
					t.Errorf("the secret is in column %s", column)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWhoMayMakeTokens(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	w.Project(t, "other")
	admin := w.AsAdmin(t.Context())
	ci, err := w.Accounts.CreateService(admin, "flights", "ci")
	if err != nil {
		t.Fatal(err)
	}
	bot, err := w.Accounts.CreateService(admin, "", "bot")
	if err != nil {
		t.Fatal(err)
	}
	viewer := w.User(t, "vera", "flights", project.Viewer)
	local := w.User(t, "lara", "flights", project.Admin)
	narrowed := func(p identity.Principal, in project.Name, scopes ...string) identity.Principal {
		p.Project, p.Scopes = in, scopes
		return p
	}
	attempt := identity.Principal{Kind: identity.Attempt, ID: "att_1", Project: "flights", Scopes: []string{"token.create"}}
	const ok = fault.Kind(255)
	for _, tt := range []struct {
		name string
		p    identity.Principal
		spec account.TokenSpec
		want fault.Kind
	}{
		{"own", viewer, account.TokenSpec{}, ok},
		{"own, by name", viewer, account.TokenSpec{For: "user/vera"}, ok},
		{"own, bound", viewer, account.TokenSpec{Project: "flights", Scopes: []string{"run.read"}}, ok},
		{"own, bound to a project unknown to her", viewer, account.TokenSpec{Project: "other"}, fault.NotFound},
		{"own, bound to no project", viewer, account.TokenSpec{Project: "absent"}, fault.NotFound},
		{"admin, bound to no project", w.Admin, account.TokenSpec{Project: "absent"}, fault.NotFound},
		{"another's", viewer, account.TokenSpec{For: "user/lara"}, fault.PermissionDenied},
		{"another's, with the project's say-so", local, account.TokenSpec{For: "user/vera", Project: "flights"}, fault.PermissionDenied},
		{"another's, by the installation's admin", w.Admin, account.TokenSpec{For: "user/vera"}, ok},
		{"nobody's, asked by a viewer", viewer, account.TokenSpec{For: "user/nobody"}, fault.PermissionDenied},
		{"nobody's", w.Admin, account.TokenSpec{For: "user/nobody"}, fault.NotFound},
		{"nonsense", w.Admin, account.TokenSpec{For: "robot/x"}, fault.Invalid},
		{"service", local, account.TokenSpec{For: ci.ID}, ok},
		{"service, by name", local, account.TokenSpec{For: "service/ci", Project: "flights"}, ok},
		{"service, elsewhere", local, account.TokenSpec{For: ci.ID, Project: "other"}, fault.Invalid},
		{"service, by a viewer", viewer, account.TokenSpec{For: ci.ID}, fault.PermissionDenied},
		{"installation's service, by a project's admin", local, account.TokenSpec{For: bot.ID, Project: "flights"}, fault.PermissionDenied},
		{"installation's service", w.Admin, account.TokenSpec{For: bot.ID, Project: "flights"}, ok},
		{"bad scope", viewer, account.TokenSpec{Scopes: []string{"run.raed"}}, fault.Invalid},
		{"too many scopes", viewer, account.TokenSpec{Scopes: slices.Repeat([]string{"run.read"}, 257)}, fault.Invalid},
		{"forever", viewer, account.TokenSpec{TTL: 367 * 24 * time.Hour}, fault.Invalid},
		{"in the past", viewer, account.TokenSpec{TTL: -time.Hour}, fault.Invalid},
		{"long label", viewer, account.TokenSpec{Label: strings.Repeat("x", 201)}, fault.Invalid},
		{"attempt", attempt, account.TokenSpec{}, fault.PermissionDenied},
		{"loop", identity.Loop("x"), account.TokenSpec{}, fault.PermissionDenied},
		{"no caller", identity.Principal{}, account.TokenSpec{}, fault.PermissionDenied},
		{"wider binding", narrowed(local, "flights"), account.TokenSpec{For: ci.ID, Project: "other"}, fault.Invalid},
		{"inherits the binding", narrowed(local, "flights"), account.TokenSpec{}, ok},
		{"escapes the binding", narrowed(w.Admin, "flights"), account.TokenSpec{Project: "other"}, fault.NotFound},
		{"escapes the scopes", narrowed(local, "", "token.create", "run.read"), account.TokenSpec{}, fault.PermissionDenied},
		{"widens the scopes", narrowed(local, "", "token.create", "run.read"), account.TokenSpec{Scopes: []string{"run.write"}}, fault.PermissionDenied},
		{"widens to all objects", narrowed(local, "", "token.create", "run.read:run_1"), account.TokenSpec{Scopes: []string{"run.read"}}, fault.PermissionDenied},
		{"keeps the scopes", narrowed(local, "", "token.create", "run.read"), account.TokenSpec{Scopes: []string{"run.read:run_1"}}, ok},
		{"scoped without token.create", narrowed(local, "", "run.read"), account.TokenSpec{Scopes: []string{"run.read"}}, fault.PermissionDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			token, secret, err := w.Accounts.CreateToken(identity.With(t.Context(), tt.p), tt.spec)
			if tt.want != ok {
				if !fault.Is(err, tt.want) || secret != "" || token.ID != "" {
					t.Errorf("got %v, %v, want %v", fault.KindOf(err), err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := w.Accounts.Authenticate(t.Context(), secret)
			if err != nil || p.Token != token.ID || p.ID != token.Principal || !slices.Equal(p.Scopes, tt.spec.Scopes) {
				t.Errorf("%+v, %v", p, err)
			}
			if tt.p.Project != "" && p.Project != tt.p.Project || tt.spec.Project != "" && p.Project != tt.spec.Project {
				t.Errorf("bound to %q", p.Project)
			}
			if !token.ExpiresAt.After(token.CreatedAt) {
				t.Error("the token never expires")
			}
		})
	}
}

func TestTokensAreListedAndEndedByWhoMay(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	vera := w.User(t, "vera", "flights", project.Viewer)
	otto := w.User(t, "otto", "flights", project.Auditor)
	asVera, asOtto := identity.With(t.Context(), vera), identity.With(t.Context(), otto)
	var ids []string
	for range 3 {
		token, _, err := w.Accounts.CreateToken(asVera, account.TokenSpec{Project: "flights"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
	own, next, err := w.Accounts.Tokens(asVera, account.Filter{Own: true, PageSize: 2})
	if err != nil || len(own) != 2 || next == "" {
		t.Fatal(own, next, err)
	}
	rest, next, err := w.Accounts.Tokens(asVera, account.Filter{Own: true, PageSize: 2, PageToken: next})
	if err != nil || len(rest) != 1 || next != "" || rest[0].ID != ids[2] {
		t.Fatal(rest, next, err)
	}
	if _, _, err := w.Accounts.Tokens(asVera, account.Filter{Project: "flights"}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a viewer sees others' tokens: %v", err)
	}
	if all, _, err := w.Accounts.Tokens(asOtto, account.Filter{Project: "flights"}); err != nil || len(all) != 3 {
		t.Errorf("an auditor sees %v, %v", all, err)
	}
	if _, _, err := w.Accounts.Tokens(asOtto, account.Filter{}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a project's auditor sees all tokens: %v", err)
	}

	// What one may not end and what is not there read the same.
	foreign := w.Accounts.RevokeToken(asOtto, ids[0])
	absent := w.Accounts.RevokeToken(asOtto, "tok_01J00000000000000000000000")
	if !fault.Is(foreign, fault.NotFound) || strings.ReplaceAll(foreign.Error(), ids[0], "") != strings.ReplaceAll(absent.Error(), "tok_01J00000000000000000000000", "") {
		t.Errorf("%v and %v", foreign, absent)
	}
	if err := w.Accounts.RevokeToken(asVera, "../../etc/passwd"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	for range 2 { // ending one twice is no error
		if err := w.Accounts.RevokeToken(asVera, ids[0]); err != nil {
			t.Error(err)
		}
	}
	if live, _, err := w.Accounts.Tokens(asVera, account.Filter{Own: true}); err != nil || len(live) != 2 || live[0].ID != ids[1] || live[0].State != account.StateLive {
		t.Errorf("what works: %+v, %v", live, err)
	}
	if hers, _, err := w.Accounts.Tokens(w.AsAdmin(t.Context()), account.Filter{Account: "user/vera", Ended: true}); err != nil || len(hers) != 3 || hers[0].State != account.StateRevoked {
		t.Errorf("an administrator sees of vera %+v, %v", hers, err)
	}
	if hers, _, err := w.Accounts.Tokens(asOtto, account.Filter{Project: "flights", Account: "user/vera"}); err != nil || len(hers) != 2 {
		t.Errorf("the project's auditor sees of vera %+v, %v", hers, err)
	}
	if none, _, err := w.Accounts.Tokens(asOtto, account.Filter{Project: "flights", Account: "user/otto"}); err != nil || len(none) != 0 {
		t.Errorf("otto has none, %+v, %v", none, err)
	}
	if _, _, err := w.Accounts.Tokens(asOtto, account.Filter{Account: "user/vera"}); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("a project's auditor sees all tokens of vera: %v", err)
	}
	if _, _, err := w.Accounts.Tokens(w.AsAdmin(t.Context()), account.Filter{Account: "user/nobody"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("tokens of nobody: %v", err)
	}
	own, _, err = w.Accounts.Tokens(asVera, account.Filter{Own: true, Ended: true})
	if err != nil || own[0].RevokedAt.IsZero() || own[0].RevokedBy != vera.ID || !own[1].RevokedAt.IsZero() {
		t.Errorf("%+v, %v", own, err)
	}
}

func TestTokensPerAccountAreBounded(t *testing.T) {
	w := policytest.Open(t, func(c *account.Config) { c.MaxTokens = 3 })
	ctx := identity.With(t.Context(), w.User(t, "vera", ""))
	var last account.Token
	for range 3 {
		var err error
		if last, _, err = w.Accounts.CreateToken(ctx, account.TokenSpec{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := w.Accounts.CreateToken(ctx, account.TokenSpec{}); !fault.Is(err, fault.Exhausted) {
		t.Errorf("the fourth: %v", err)
	}
	if err := w.Accounts.RevokeToken(ctx, last.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Accounts.CreateToken(ctx, account.TokenSpec{}); err != nil {
		t.Errorf("after one ended: %v", err)
	}
}

func TestAttemptTokens(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	loop := identity.With(t.Context(), identity.Loop("training"))
	spec := account.AttemptSpec{Attempt: "att_1", Name: "job delay, attempt 1", Project: "flights", Scopes: []string{"run.write:run_1"}}
	token, secret, err := w.IssueAttempt(loop, spec)
	if err != nil {
		t.Fatal(err)
	}
	other := spec
	other.Attempt = "att_2"
	_, second, err := w.IssueAttempt(loop, other)
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.Accounts.Authenticate(t.Context(), secret)
	want := identity.Principal{Kind: identity.Attempt, ID: "att_1", Name: spec.Name, Project: "flights", Token: token.ID, Scopes: spec.Scopes}
	if err != nil || p.String() != want.String() || p.Project != want.Project || !slices.Equal(p.Scopes, want.Scopes) || !strings.HasPrefix(secret, "flj_att_") {
		t.Errorf("%+v, %v", p, err)
	}
	for name, change := range map[string]func(*account.AttemptSpec){
		"no attempt":    func(s *account.AttemptSpec) { s.Attempt = "" },
		"no project":    func(s *account.AttemptSpec) { s.Project = "" },
		"no scopes":     func(s *account.AttemptSpec) { s.Scopes = nil },
		"foreign scope": func(s *account.AttemptSpec) { s.Scopes = []string{"member.grant"} },
		"too long":      func(s *account.AttemptSpec) { s.TTL = 91 * 24 * time.Hour },
	} {
		bad := spec
		change(&bad)
		if _, _, err := w.IssueAttempt(loop, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, ctx := range map[string]context.Context{"admin": w.AsAdmin(t.Context()), "attempt": identity.With(t.Context(), p), "nobody": t.Context()} {
		if _, _, err := w.IssueAttempt(ctx, spec); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s makes attempt tokens: %v", name, err)
		}
		if err := w.RevokeAttempt(ctx, "att_1"); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s ends attempt tokens: %v", name, err)
		}
	}
	if err := w.RevokeAttempt(loop, ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("ending no attempt: %v", err)
	}

	// The end of an attempt that does not commit ends no token.
	boom := errors.New("boom")
	err = w.DB.Update(loop, "flights", func(ctx context.Context, tx *store.Tx) error {
		if err := w.Accounts.RevokeAttemptIn(ctx, tx, "att_1"); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("after a rollback: %v", err)
	}
	if err := w.RevokeAttempt(loop, "att_1"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), secret); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("after its end: %v", err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), second); err != nil {
		t.Errorf("another attempt's token ended, too: %v", err)
	}
}

func TestAccounts(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	vera := w.User(t, "vera", "flights", project.Viewer)
	asVera := identity.With(t.Context(), vera)
	_, secret, err := w.Accounts.CreateToken(asVera, account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"twice":  second(w.Accounts.CreateUser(admin, "vera")),
		"absent": second(w.Accounts.CreateService(admin, "absent", "ci")),
		"viewer": second(w.Accounts.CreateUser(asVera, "eve")),
		"admin":  second(w.Accounts.CreateUser(admin, "admin")),
		"name":   second(w.Accounts.CreateUser(admin, "../etc")),
	} {
		want := map[string]fault.Kind{"twice": fault.Conflict, "absent": fault.NotFound, "viewer": fault.PermissionDenied, "admin": fault.Invalid, "name": fault.Invalid}[name]
		if !fault.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.Accounts.DeleteAccount(asVera, "", "user/admin"); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	if err := w.Accounts.DeleteAccount(admin, "", "user/admin"); !fault.Is(err, fault.Conflict) {
		t.Errorf("the last administrator goes: %v", err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil {
		t.Errorf("a refused deletion ended tokens: %v", err)
	}
	if err := w.Accounts.DeleteAccount(admin, "", "user/nobody"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if err := w.Accounts.DeleteAccount(admin, "", "user/vera"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), secret); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a deleted account's token works: %v", err)
	}
	if roles := w.Roles(t, vera.ID, "flights"); len(roles) != 0 {
		t.Errorf("a deleted account has the roles %v", roles)
	}
	list, next, err := w.Accounts.Accounts(admin, "", 0, "")
	if err != nil || next != "" || len(list) != 1 || list[0].Name != "admin" {
		t.Errorf("%v, %q, %v", list, next, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestLastUseIsCoarseAndWrittenLater(t *testing.T) {
	clock := newWall()
	w := policytest.Open(t, func(c *account.Config) { c.Now = clock.Now })
	lastUse := func() time.Time {
		t.Helper()
		own, _, err := w.Accounts.Tokens(w.AsAdmin(t.Context()), account.Filter{Own: true})
		if err != nil || len(own) != 1 {
			t.Fatal(own, err)
		}
		return own[0].LastUsedAt
	}
	use := func() {
		t.Helper()
		if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil {
			t.Fatal(err)
		}
		if err := w.Accounts.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	use()
	first := lastUse()
	if !first.Equal(clock.Now()) {
		t.Errorf("last used at %v", first)
	}
	clock.Move(30 * time.Second)
	if use(); !lastUse().Equal(first) {
		t.Error("every use is written")
	}
	clock.Move(30 * time.Second)
	if use(); !lastUse().Equal(clock.Now()) {
		t.Error("a use a minute later is not written")
	}
}

func TestUpkeepPrunesOldAttemptTokens(t *testing.T) {
	clock := newWall()
	w := policytest.Open(t, func(c *account.Config) { c.Now = clock.Now })
	w.Project(t, "flights")
	loop := identity.With(t.Context(), identity.Loop("training"))
	for _, a := range []string{"att_1", "att_2", "att_3"} {
		if _, _, err := w.IssueAttempt(loop, account.AttemptSpec{Attempt: a, Project: "flights", Scopes: []string{"run.write"}, TTL: 30 * 24 * time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.RevokeAttempt(loop, "att_1"); err != nil {
		t.Fatal(err)
	}
	clock.Move(8 * 24 * time.Hour)
	if err := w.RevokeAttempt(loop, "att_2"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, _, err := w.Accounts.Tokens(w.AsAdmin(t.Context()), account.Filter{Project: "flights", Ended: true})
	if err != nil || len(left) != 2 || left[0].Principal != "att_2" || left[1].Principal != "att_3" {
		t.Errorf("%+v, %v", left, err)
	}
}

// TestUpkeepPrunesEndedTokens: revoked and expired tokens go after their retention, live
// ones never; more than a batch of them at once.
func TestUpkeepPrunesEndedTokens(t *testing.T) {
	clock := newWall()
	w := policytest.Open(t, func(c *account.Config) { c.Now, c.KeepEnded, c.MaxTokens = clock.Now, 10*24*time.Hour, 10 })
	admin := w.AsAdmin(t.Context())
	w.Project(t, "flights")
	ci, err := w.Accounts.CreateService(admin, "flights", "ci")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(label string, ttl time.Duration) account.Token {
		t.Helper()
		tok, _, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: ci.ID, Label: label, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	revoked, _, _ := issue("revoked", 80*24*time.Hour), issue("expires", 24*time.Hour), issue("live", 80*24*time.Hour)
	if err := w.Accounts.RevokeToken(admin, revoked.ID); err != nil {
		t.Fatal(err)
	}
	labels := func() (all []string) {
		t.Helper()
		if _, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil {
			t.Fatal(err)
		}
		if err := w.Accounts.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, _, err := w.Accounts.Tokens(admin, account.Filter{Project: "flights", Ended: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, tok := range left {
			all = append(all, tok.Label)
		}
		slices.Sort(all)
		return all
	}
	for _, c := range []struct {
		after time.Duration
		want  []string
	}{{9 * 24 * time.Hour, []string{"expires", "live", "revoked"}}, {36 * time.Hour, []string{"expires", "live"}}, {24 * time.Hour, []string{"live"}}} {
		clock.Move(c.after)
		if got := labels(); !slices.Equal(got, c.want) {
			t.Errorf("after %s more: %v, want %v", c.after, got, c.want)
		}
	}
}

// TestProjectsEndTakesTokensWithIt: tokens and service accounts of a deleted
// project work no longer.
func TestProjectsEndTakesTokensWithIt(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	ci, err := w.Accounts.CreateService(admin, "flights", "ci")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: "service/ci", Role: project.Engineer}}); err != nil {
		t.Fatal(err)
	}
	_, bound, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: ci.ID})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Tenancy.Delete(admin, "flights"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), bound); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("the token of a deleted project works: %v", err)
	}
	if list, _, err := w.Accounts.Accounts(admin, "", 0, ""); err != nil || len(list) != 1 || list[0].ID != w.Admin.ID {
		t.Errorf("%v, %v", list, err)
	}
	if grants, err := w.Roster.GrantsOf(t.Context(), ci.ID); err != nil || len(grants) != 0 {
		t.Errorf("%v, %v", grants, err)
	}
}

func TestChangesAreAudited(t *testing.T) {
	w := policytest.Open(t)
	admin := w.AsAdmin(t.Context())
	start := auditLength(t, w)
	token, _, err := w.Accounts.CreateToken(admin, account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.RevokeToken(admin, token.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.CreateUser(admin, "vera"); err != nil {
		t.Fatal(err)
	}
	records, _, err := w.DB.ReadStream(t.Context(), "audit", start, 100)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, r := range records {
		kinds = append(kinds, r.Kind)
		if !strings.Contains(string(r.Body), w.Admin.ID) {
			t.Errorf("%s does not say who: %s", r.Kind, r.Body)
		}
	}
	if want := []string{"token.create", "token.revoke", "account.create"}; !slices.Equal(kinds, want) {
		t.Errorf("audited %v, want %v", kinds, want)
	}
	// Asking what one may not is on record, too.
	w.Journal.Take()
	if _, err := w.Accounts.CreateUser(identity.With(t.Context(), w.User(t, "eve", "")), "mallory"); !fault.Is(err, fault.PermissionDenied) {
		t.Fatal(err)
	}
	if e := w.Journal.Take(); len(e) != 1 || e[0].Outcome != audit.Refused || e[0].Object != "user mallory" {
		t.Errorf("%+v", e)
	}
}

func auditLength(t *testing.T, w *policytest.World) store.Position {
	t.Helper()
	_, end, err := w.DB.ReadStream(t.Context(), "audit", store.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

func TestSettingsAreBounded(t *testing.T) {
	for name, cfg := range map[string]account.Config{
		"slow revocation": {CacheTTL: 6 * time.Second},
		"eternal tokens":  {TTL: 400 * 24 * time.Hour},
		"negative":        {AttemptTTL: -time.Second},
	} {
		cfg.Store, cfg.Grants = identitysql.Store{}, projectsql.Store{}
		if _, err := account.New(cfg); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	w := policytest.Open(b)
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.Accounts.Authenticate(b.Context(), w.Secret); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("malformed", func(b *testing.B) {
		b.ReportAllocs()
		bad := w.Secret[:len(w.Secret)-1] + "x"
		for b.Loop() {
			if _, err := w.Accounts.Authenticate(b.Context(), bad); err == nil {
				b.Fatal("a malformed secret works")
			}
		}
	})
}

// TestOwnTokensEndWithTheirMaker: no token gives its holder more time than it
// has itself, and what it made for its own account is revoked with it.
func TestOwnTokensEndWithTheirMaker(t *testing.T) {
	clock := newWall()
	w := policytest.Open(t, func(c *account.Config) { c.Now = clock.Now })
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	vera := w.User(t, "vera", "flights", project.Viewer)
	as := func(secret string) context.Context {
		t.Helper()
		p, err := w.Accounts.Authenticate(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		return identity.With(t.Context(), p)
	}
	short, secret, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: vera.ID, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	clock.Move(time.Minute)
	secrets := []string{secret}
	for range 2 { // a child, and the child's child
		child, next, err := w.Accounts.CreateToken(as(secrets[len(secrets)-1]), account.TokenSpec{TTL: 300 * 24 * time.Hour})
		if err != nil || !child.ExpiresAt.Equal(short.ExpiresAt) || child.Parent == "" {
			t.Fatalf("%+v, %v: it ends after %v", child, err, short.ExpiresAt)
		}
		secrets = append(secrets, next)
	}
	if child, _, err := w.Accounts.CreateToken(as(secret), account.TokenSpec{TTL: time.Minute}); err != nil || !child.ExpiresAt.Equal(clock.Now().Add(time.Minute)) {
		t.Errorf("a shorter one: %+v, %v", child, err)
	}
	// For somebody else it takes token.create, and is theirs.
	other, others, err := w.Accounts.CreateToken(as(w.Secret), account.TokenSpec{For: vera.ID, TTL: 300 * 24 * time.Hour})
	if err != nil || !other.ExpiresAt.Equal(clock.Now().Add(300*24*time.Hour)) {
		t.Fatalf("%+v, %v", other, err)
	}
	if err := w.Accounts.RevokeToken(admin, short.ID); err != nil {
		t.Fatal(err)
	}
	for i, s := range secrets {
		if _, err := w.Accounts.Authenticate(t.Context(), s); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("descendant %d of a revoked token works: %v", i, err)
		}
	}
	if _, err := w.Accounts.Authenticate(t.Context(), others); err != nil {
		t.Errorf("a token that another one made: %v", err)
	}
	own, _, err := w.Accounts.Tokens(admin, account.Filter{Own: true})
	if err != nil || len(own) != 1 {
		t.Fatal(own, err)
	}
	if err := w.Accounts.RevokeToken(admin, own[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Accounts.Authenticate(t.Context(), others); err != nil {
		t.Errorf("another account's token ended with that of who made it: %v", err)
	}
}

// TestRevokedTokenMakesNone: a process whose cache lags makes no child of a
// token that was revoked elsewhere.
func TestRevokedTokenMakesNone(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{URL: storetest.SQLiteURL(t, t.TempDir(), policytest.Migrations()...), Migrations: policytest.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	here, there := policytest.OpenOn(t, db), policytest.OpenOn(t, db)
	token, secret, err := here.Accounts.CreateToken(here.AsAdmin(t.Context()), account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := there.Accounts.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := here.Accounts.RevokeToken(here.AsAdmin(t.Context()), token.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := there.Accounts.CreateToken(identity.With(t.Context(), p), account.TokenSpec{}); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("a revoked token made one: %v", err)
	}
}

// TestEndsAreOnRecord: each account, grant, policy and token that goes with
// something else has a row of its own.
func TestEndsAreOnRecord(t *testing.T) {
	w := policytest.Open(t)
	w.Project(t, "flights")
	admin := w.AsAdmin(t.Context())
	w.User(t, "vera", "flights", project.Viewer)
	eve := w.User(t, "eve", "flights", project.Engineer)
	ci, err := w.Accounts.CreateService(admin, "flights", "ci")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Tenancy.Grant(admin, tenancy.GrantRequest{Project: "flights", Spec: project.GrantSpec{Principal: ci.ID, Role: project.Viewer}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Accounts.CreateToken(admin, account.TokenSpec{For: ci.ID}); err != nil {
		t.Fatal(err)
	}
	text := `forbid (principal, action == Action::"job.submit", resource);`
	if _, _, err := w.Authority.ApplyPolicy(admin, authorizer.PolicyRequest{Project: "flights", Name: "gate", Spec: authorizer.Spec{Cedar: text}}); err != nil {
		t.Fatal(err)
	}
	done := func() map[string]int {
		t.Helper()
		records, _, err := w.DB.ReadStream(t.Context(), "audit", store.Position{}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		acts := map[string]int{}
		for _, r := range records {
			acts[r.Kind]++
		}
		return acts
	}
	before := done()
	if err := w.Accounts.DeleteAccount(admin, "", eve.ID); err != nil {
		t.Fatal(err)
	}
	after := done()
	if after["member.revoke"]-before["member.revoke"] != 1 || after["account.delete"] != 1 {
		t.Errorf("an account's end: %v", after)
	}
	if err := w.Tenancy.Delete(admin, "flights"); err != nil {
		t.Fatal(err)
	}
	before, after = after, done()
	for act, want := range map[string]int{"member.revoke": 2, "account.delete": 1, "policy.delete": 1, "token.revoke": 1, "project.delete": 1} {
		if got := after[act] - before[act]; got != want {
			t.Errorf("a project's end has %d × %s on record, want %d", got, act, want)
		}
	}
}
