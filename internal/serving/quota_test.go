package serving

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

func tokenOf(t *testing.T, token string) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Principal{ID: "usr_1", Name: "alice", Token: token})
}

func TestQuota(t *testing.T) {
	var l limits
	now := time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC)
	d := &Deployment{ID: "dep_1", Project: "nyc", Name: "delay", Spec: Spec{Limits: &LimitsSpec{Quota: QuotaSpec{Requests: 3, Rows: 10, Every: "day"}}}}
	step := func(token string, rows int, after time.Duration, kind fault.Kind, retry time.Duration, says string) {
		t.Helper()
		now = now.Add(after)
		err := l.take(tokenOf(t, token), d, rows, now)
		if kind == fault.Internal && err == nil {
			return
		}
		if err == nil || !fault.Is(err, kind) || fault.RetryOf(err) != retry || !strings.Contains(err.Error(), says) {
			t.Errorf("%d rows of %s: %v, again in %s; want %s, %s", rows, token, err, fault.RetryOf(err), kind, retry)
		}
	}
	fine := fault.Internal
	step("a", 8, 0, fine, 0, "")
	step("a", 3, 0, fault.Exhausted, time.Hour, "this token has used its quota of 10 rows per day")
	step("a", 11, 0, fault.TooLarge, 0, "the quota of this token is 10 per day")
	step("a", 2, 0, fine, 0, "")
	step("b", 1, 0, fine, 0, "") // another token
	step("a", 0, 30*time.Minute, fine, 0, "")
	step("a", 0, 0, fault.Exhausted, 30*time.Minute, "used its quota of 3 requests")
	d.Spec.Limits = &LimitsSpec{Quota: QuotaSpec{Requests: 4, Every: "day"}} // another amount goes on
	step("a", 100, 0, fine, 0, "")
	step("a", 1, 0, fault.Exhausted, 30*time.Minute, "used its quota of 4 requests")
	step("a", 1, 30*time.Minute, fine, 0, "") // the next day
	step("a", 1, -time.Minute, fine, 0, "")   // of which a clock that goes back stays
	step("a", 1, time.Minute, fine, 0, "")
	step("a", 1, 0, fine, 0, "")
	step("a", 1, 0, fault.Exhausted, 24*time.Hour, "")
	d.Spec.Limits = &LimitsSpec{Per: "user", Quota: QuotaSpec{Requests: 2, Every: "month"}}
	step("a", 1, 0, fine, 0, "")
	step("b", 1, 0, fine, 0, "")
	step("c", 1, 24*time.Hour, fault.Exhausted, 30*24*time.Hour, "this user has used its quota of 2 requests per month")
	d = &Deployment{ID: "dep_2", Project: "nyc", Name: "delay", Spec: d.Spec} // made again
	step("c", 1, 0, fine, 0, "")
	d.Spec.Limits = &LimitsSpec{Per: "deployment", Requests: 1, Quota: QuotaSpec{Rows: 2, Every: "month"}}
	step("c", 2, 0, fine, 0, "")
	step("c", 1, 0, fault.Exhausted, time.Second+time.Microsecond, "1 requests per second") // the rate is looked at first
	step("d", 1, 2*time.Second, fault.Exhausted, 30*24*time.Hour-2*time.Second, "this deployment has used its quota of 2 rows")
}

// Many ask at a time, and not one more is let through than there is.
func TestQuotaHolds(t *testing.T) {
	var l limits
	d := &Deployment{ID: "dep_1", Spec: Spec{Limits: &LimitsSpec{Quota: QuotaSpec{Requests: 1000, Rows: 2500, Every: "day"}}}}
	now := time.Unix(1e9, 0)
	var requests, rows atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range 100 {
				if l.take(tokenOf(t, "a"), d, i%4, now) == nil {
					requests.Add(1)
					rows.Add(int64(i % 4))
				}
			}
		})
	}
	all.Wait()
	if requests.Load() > 1000 || rows.Load() > 2500 {
		t.Errorf("%d requests of %d rows were let through", requests.Load(), rows.Load())
	}
	if requests.Load() < 990 {
		t.Errorf("only %d requests were let through", requests.Load())
	}
}

// A caller's first request at a process hears what the caller used before, once; when
// nobody can say, it is let through.
func TestQuotaIsRead(t *testing.T) {
	reads := 0
	l := limits{written: func(_ context.Context, of ID, starts, ends time.Time, caller string) (Usage, error) {
		if reads++; of != "dep_1" || ends.Sub(starts) != 24*time.Hour {
			t.Errorf("read %s from %s to %s", of, starts, ends)
		}
		if caller == "usr_1 b" {
			return Usage{Caller: caller, Requests: 3}, nil
		}
		if reads > 2 {
			return Usage{}, errors.New("no database")
		}
		return Usage{Caller: caller, Requests: 2}, nil
	}}
	now := time.Unix(1e9, 0)
	d := &Deployment{ID: "dep_1", Spec: Spec{Limits: &LimitsSpec{Quota: QuotaSpec{Requests: 3, Every: "day"}}}}
	for i, ok := range []bool{true, false} {
		if err := l.take(tokenOf(t, "a"), d, 1, now); (err == nil) != ok {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := l.take(tokenOf(t, "b"), d, 1, now); !fault.Is(err, fault.Exhausted) { // new here in a period that others began
		t.Errorf("who used it all at another server: %v", err)
	}
	if err := l.take(tokenOf(t, "a"), d, 1, now.Add(24*time.Hour)); err != nil || reads != 3 {
		t.Errorf("%v after %d reads", err, reads)
	}
}

// Who waits to hear what was used holds no other caller, and many requests of one read
// once and are let through as one would be.
func TestQuotaReadsHoldNobodyElse(t *testing.T) {
	var reads, through atomic.Int64
	began, slow := make(chan struct{}, 20), make(chan struct{})
	l := limits{written: func(_ context.Context, _ ID, _, _ time.Time, caller string) (Usage, error) {
		if caller != "usr_1 slow" {
			return Usage{}, nil
		}
		reads.Add(1)
		began <- struct{}{}
		<-slow
		return Usage{Caller: caller, Requests: 7}, nil
	}}
	d := &Deployment{ID: "dep_1", Spec: Spec{Limits: &LimitsSpec{Quota: QuotaSpec{Requests: 10, Every: "day"}}}}
	now := time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if l.take(tokenOf(t, "slow"), d, 1, now) == nil {
				through.Add(1)
			}
		})
	}
	<-began
	if err := l.take(tokenOf(t, "other"), d, 1, now); err != nil {
		t.Error(err)
	}
	close(slow)
	all.Wait()
	if through.Load() != 3 || reads.Load() != 1 {
		t.Errorf("%d requests were let through after 7 of 10, and %d reads", through.Load(), reads.Load())
	}
}

func TestQuotaPeriods(t *testing.T) {
	dubai := time.FixedZone("", 4*60*60)
	for _, c := range []struct {
		every      string
		at         time.Time
		starts, to string
	}{
		{"day", time.Date(2026, 3, 1, 2, 0, 0, 0, dubai), "2026-02-28", "2026-03-01"},
		{"month", time.Date(2026, 3, 1, 2, 0, 0, 0, dubai), "2026-02-01", "2026-03-01"},
		{"month", time.Date(2026, 12, 31, 23, 59, 59, 999, time.UTC), "2026-12-01", "2027-01-01"},
		{"day", time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC), "2028-02-29", "2028-03-01"},
	} {
		starts, ends := QuotaSpec{Every: c.every}.period(c.at)
		if starts.Format(time.DateOnly) != c.starts || ends.Format(time.DateOnly) != c.to {
			t.Errorf("%s of %s is %s to %s", c.every, c.at, starts, ends)
		}
	}
}

// BenchmarkQuota is what a quota costs a request.
func BenchmarkQuota(b *testing.B) {
	var l limits
	ctx := identity.With(b.Context(), identity.Principal{ID: "usr_1", Token: "tok_1"})
	now := time.Now()
	for name, spec := range map[string]*LimitsSpec{"none": {}, "quota": {Quota: QuotaSpec{Requests: 1 << 40, Rows: 1 << 40, Every: "day"}}, "rate": {Requests: 1e9}} {
		d := &Deployment{ID: "dep_1", Project: "nyc", Name: name, Spec: Spec{Limits: spec}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := l.take(ctx, d, 1, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestQuotaReadHeedsDeadlines: who has no time left does not wait until it is known what was
// used, and is not counted; others wait on.
func TestQuotaReadHeedsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits{written: func(ctx context.Context, _ ID, _, _ time.Time, caller string) (Usage, error) {
			select {
			case <-time.After(time.Second):
				return Usage{Caller: caller, Requests: 2}, nil
			case <-ctx.Done():
				return Usage{}, ctx.Err()
			}
		}}
		d := &Deployment{ID: "dep_1", Spec: Spec{Limits: &LimitsSpec{Quota: QuotaSpec{Requests: 3, Every: "day"}}}}
		began := time.Now()
		ctx, cancel := context.WithTimeout(tokenOf(t, "a"), 100*time.Millisecond)
		defer cancel()
		if err := l.take(ctx, d, 1, began); !fault.Is(err, fault.Timeout) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		for i, ok := range []bool{true, false} {
			if err := l.take(tokenOf(t, "a"), d, 1, began); (err == nil) != ok || time.Since(began) != time.Second {
				t.Errorf("request %d, after %s: %v", i, time.Since(began), err)
			}
		}
	})
}
