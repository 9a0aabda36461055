package account_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy/policytest"
)

// recorded is a journal in memory.
type recorded struct {
	mu      sync.Mutex
	entries []audit.Entry
	fail    error
}

func (r *recorded) Record(ctx context.Context, e audit.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Address == "" {
		e.Address = identity.CallOf(ctx).Address
	}
	if r.fail == nil {
		r.entries = append(r.entries, e)
	}
	return r.fail
}

func (r *recorded) lines() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		lines = append(lines, fmt.Sprintf("%s: %s from %s, of %v", e.Outcome, e.Reason, e.Address, e.Detail["name"]))
	}
	slices.Sort(lines)
	return lines
}

func TestRejections(t *testing.T) {
	clock, journal := newWall(), &recorded{}
	w := policytest.Open(t, func(c *account.Config) { c.Now, c.Journal = clock.Now, journal })
	ctx := w.AsAdmin(t.Context())
	_, expired, err := w.Accounts.CreateToken(ctx, account.TokenSpec{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	token, revoked, err := w.Accounts.CreateToken(ctx, account.TokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Accounts.RevokeToken(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	unknown := policytest.Open(t).Secret
	clock.Move(time.Minute)
	from := identity.WithCall(t.Context(), identity.Call{Address: "192.0.2.7"})
	for _, secret := range []string{expired, revoked, unknown, "abc", ""} {
		if _, err := w.Accounts.Authenticate(from, secret); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("%v", err)
		}
	}
	want := []string{
		"refused: the token is expired from 192.0.2.7, of admin", "refused: the token is malformed from 192.0.2.7, of <nil>",
		"refused: the token is revoked from 192.0.2.7, of admin", "refused: the token is unknown from 192.0.2.7, of <nil>",
	}
	if got := journal.lines(); !slices.Equal(got, want) {
		t.Errorf("recorded %q", got)
	}
	for _, e := range journal.entries {
		text := fmt.Sprint(e)
		if strings.Contains(text, expired) || strings.Contains(text, revoked) || strings.Contains(text, unknown) {
			t.Errorf("a secret is on record: %s", text)
		}
	}
	journal.fail = fault.New(fault.Unavailable, "the disk is full")
	if _, err := w.Accounts.Authenticate(identity.WithCall(t.Context(), identity.Call{Address: "192.0.2.8"}), "abc"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("not on record, and answered: %v", err)
	}
}

// TestRejectionsAddUp: many addresses fail at once; the counts add up, entries are few,
// and one address alone is slowed down.
func TestRejectionsAddUp(t *testing.T) {
	journal := &recorded{}
	summary := audit.NewSummary(journal, time.Now)
	w := policytest.Open(t, func(c *account.Config) { c.Journal = summary })
	const addresses, each = 3, 5_500
	var wg sync.WaitGroup
	var slowed sync.Map
	for i := range addresses {
		wg.Go(func() {
			from := identity.WithCall(t.Context(), identity.Call{Address: fmt.Sprintf("192.0.2.%d", i)})
			for range each {
				_, err := w.Accounts.Authenticate(from, "abc")
				if fault.Is(err, fault.Exhausted) {
					slowed.Store(i, true)
				}
			}
			if _, err := w.Accounts.Authenticate(from, w.Secret); err != nil {
				t.Errorf("a working token of a slowed address: %v", err)
			}
		})
	}
	wg.Wait()
	if err := summary.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, e := range journal.entries {
		if n, ok := e.Detail["count"].(int); ok {
			sum += n
		} else {
			sum++
		}
	}
	if sum != addresses*each || len(journal.entries) > 10*addresses {
		t.Errorf("%d failures in %d entries", sum, len(journal.entries))
	}
	for i := range addresses {
		if _, ok := slowed.Load(i); !ok {
			t.Errorf("address %d is not slowed down", i)
		}
	}
}
