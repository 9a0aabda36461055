package account_test

import (
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestTokensAndRolesOutlastAnOutage: while the database is away, a token that worked
// before works on, with the roles of before, and no other does.
func TestTokensAndRolesOutlastAnOutage(t *testing.T) {
	server := storetest.OwnPostgres(t)
	db, err := store.Open(t.Context(), store.Config{URL: server.URL, Migrations: policytest.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w := policytest.OpenOn(t, db, func(c *account.Config) { c.CacheTTL = time.Nanosecond }) // nothing is fresh
	w.Project(t, "flights")
	vera := identity.With(t.Context(), w.User(t, "vera", "flights", project.Viewer))
	_, unused, err := w.Accounts.CreateToken(w.AsAdmin(t.Context()), account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	works := func(when string) {
		t.Helper()
		if p, err := w.Accounts.Authenticate(t.Context(), w.Secret); err != nil || p.ID != w.Admin.ID {
			t.Errorf("%s: %v, %v", when, p, err)
		}
		flights := policy.Object{Project: "flights", Kind: "dataset", Name: "d"}
		if err := w.Authority.Allow(vera, "dataset.read", flights); err != nil {
			t.Errorf("%s: what vera may: %v", when, err)
		}
		if err := w.Authority.Allow(vera, "dataset.import", flights); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: what vera may not: %v", when, err)
		}
	}
	works("before")
	resume := server.Pause()
	until(t, func() bool { return db.Outage() != nil })
	works("in the outage")
	if _, err := w.Accounts.Authenticate(t.Context(), unused); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a token that nobody used: %v", err)
	}
	resume()
	until(t, func() bool { return db.Outage() == nil })
	works("afterwards")
	if _, err := w.Accounts.Authenticate(t.Context(), unused); err != nil {
		t.Errorf("a token that nobody used, afterwards: %v", err)
	}
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("it does not come")
		}
	}
}
