package serving_test

import (
	"context"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
)

// asks is how many of so many requests of a token are let through.
func asks(t *testing.T, s *services, token string, n int) (through int) {
	t.Helper()
	ctx := identity.With(t.Context(), identity.Principal{Kind: identity.User, ID: "usr_1", Name: "alice", Token: token})
	for range n {
		_, err := s.Infer(ctx, serving.Request{Project: "nyc", Name: "d", Inputs: ask})
		if err == nil {
			through++
		} else if !fault.Is(err, fault.Exhausted) || fault.RetryOf(err) <= 0 {
			t.Errorf("%v, again in %s", err, fault.RetryOf(err))
		}
	}
	return through
}

func TestUsage(t *testing.T) { testUsage(t, newPond(t)) }

func testUsage(t *testing.T, p *pond) {
	t.Helper()
	ctx := t.Context()
	quota := func(requests int64) serving.Spec {
		return serving.Spec{Model: "m", Limits: &serving.LimitsSpec{Quota: serving.QuotaSpec{Requests: requests, Every: "month"}}}
	}
	p.apply(t, quota(10))
	if got := asks(t, p.services, "tok_a", 4) + asks(t, p.services, "tok_b", 1); got != 5 {
		t.Fatalf("%d were let through", got)
	}
	used := func() map[string]int64 {
		t.Helper()
		u, err := p.Usage(ctx, "nyc", "d")
		if err != nil || u.Per != "token" || u.Quota.Requests == 0 || !u.Resets.After(u.Starts) {
			t.Fatalf("%+v %v", u, err)
		}
		out := map[string]int64{}
		for _, x := range u.Usage {
			if x.User != "usr_1" || x.Name != "alice" || x.Rows != x.Requests {
				t.Errorf("%+v", x)
			}
			out[x.Token] = x.Requests
		}
		return out
	}
	if u := used(); len(u) != 2 || u["tok_a"] != 4 || u["tok_b"] != 1 { // it is written when it is asked for
		t.Errorf("used %v", u)
	}

	// What was used in a period that has ended is forgotten.
	past := time.Now().UTC().Add(-time.Hour)
	d, err := p.One(ctx, "nyc", "d")
	if err != nil {
		t.Fatal(err)
	}
	id := d.ID
	kept := func(forget bool) (n int) {
		t.Helper()
		if err := p.db.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error {
			if !forget {
				_, err := servingsql.Store{}.AddUsage(ctx, tx, id, past.Add(-time.Hour), past, []serving.Usage{{Caller: "x", Requests: 1}})
				return err
			}
			all, err := servingsql.Store{}.Usage(ctx, tx, id, past.Add(-time.Hour), past, 10)
			n = len(all)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	kept(false)
	if err := p.Quotas.Record(ctx); err != nil || kept(true) != 0 {
		t.Errorf("%v, and what was used in the past is kept", err)
	}

	// What a killed server had not written is nobody's; what it had written is.
	if got := asks(t, p.services, "tok_a", 2); got != 2 {
		t.Errorf("%d were let through", got)
	}
	p.reopen()
	if err := p.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, p.services, "tok_a", 10); got != 6 {
		t.Errorf("%d of 10 were let through after 4", got)
	}

	// Two servers count together, as far as they have written.
	other := newServices(p.config())
	if err := other.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, other, "tok_b", 5); got != 5 {
		t.Errorf("%d were let through", got)
	}
	if got := asks(t, p.services, "tok_b", 1); got != 1 {
		t.Errorf("%d were let through", got)
	}
	for _, s := range []*services{other, p.services, other} { // twice, and nothing is counted twice
		if err := s.Quotas.Record(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if u := used(); u["tok_a"] != 10 || u["tok_b"] != 7 {
		t.Errorf("used %v", u)
	}
	if got := asks(t, p.services, "tok_b", 10); got != 3 {
		t.Errorf("%d of 10 were let through after 7 of two servers", got)
	}

	// Who is new at a server is not new to the quota.
	if got := asks(t, other, "tok_a", 1); got != 0 {
		t.Error("a request was let through of a token that used all at another server")
	}

	// Another amount goes on with what was used; an end of the server writes it down.
	p.apply(t, quota(12))
	if got := asks(t, p.services, "tok_a", 10); got != 2 {
		t.Errorf("%d of 10 were let through after 10 of 12", got)
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	p.reopen()
	if err := p.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, p.services, "tok_a", 1); got != 0 {
		t.Error("a request was let through after all of them, and a restart")
	}

	// What another server let through just before the end is written under no deployment.
	p.apply(t, quota(100))
	if err := other.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, other, "tok_c", 3); got != 3 {
		t.Errorf("%d were let through", got)
	}

	of, err := p.Usage(ctx, "nyc", "d")
	if err != nil {
		t.Fatal(err)
	}

	// One that is made again begins anew, and one without a quota has no usage.
	if err := p.Delete(ctx, "nyc", "d"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and that is forgotten
		if err := other.Quotas.Record(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := p.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		left, err := servingsql.Store{}.Usage(ctx, tx, id, of.Starts, of.Resets, 10)
		if len(left) != 0 {
			t.Errorf("of a deployment that was deleted %+v is left", left)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.apply(t, quota(2))
	if got := asks(t, p.services, "tok_a", 5); got != 2 {
		t.Errorf("%d of 5 were let through of a new deployment", got)
	}
	p.apply(t, serving.Spec{Model: "m"})
	if _, err := p.Usage(ctx, "nyc", "d"); !fault.Is(err, fault.NotFound) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	p.world.denied["deployment.read"] = true
	if _, err := p.Usage(context.WithoutCancel(ctx), "nyc", "d"); !fault.Is(err, fault.PermissionDenied) {
		t.Errorf("%v", err)
	}
}

func TestQuotasThatAreRefused(t *testing.T) {
	p := newPond(t)
	for _, q := range []serving.QuotaSpec{{Requests: 1}, {Every: "day"}, {Requests: 1, Every: "week"}, {Requests: -1, Every: "day"}, {Rows: 1 << 60, Every: "day"}} {
		_, _, err := p.Apply(t.Context(), "nyc", "d", serving.Spec{Model: "m", Limits: &serving.LimitsSpec{Quota: q}}, false)
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
