package serving

import (
	"context"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

func TestLimits(t *testing.T) {
	var l limits
	as := func(token string) context.Context {
		return identity.With(t.Context(), identity.Principal{ID: "usr_1", Token: token})
	}
	now := time.Unix(1000, 0)
	d := &Deployment{Project: "nyc", Name: "delay", Spec: Spec{Limits: &LimitsSpec{Requests: 2, Rows: 10}}}
	step := func(token string, rows int, after time.Duration, kind fault.Kind, retry time.Duration) {
		t.Helper()
		now = now.Add(after)
		err := l.take(as(token), d, rows, now)
		if kind == fault.Internal && err == nil {
			return
		}
		if !fault.Is(err, kind) || fault.RetryOf(err).Round(time.Millisecond) != retry {
			t.Errorf("%d rows of %s: %v, again in %s; want %s, %s", rows, token, err, fault.RetryOf(err), kind, retry)
		}
	}
	fine := fault.Internal
	step("a", 1, 0, fine, 0)
	step("a", 9, 0, fine, 0)
	step("a", 1, 0, fault.Exhausted, 500*time.Millisecond)
	step("a", 1, 100*time.Millisecond, fault.Exhausted, 400*time.Millisecond)
	step("b", 10, 0, fine, 0) // another token
	step("a", 1, 400*time.Millisecond, fine, 0)
	step("a", 11, time.Hour, fault.TooLarge, 0)
	step("a", 10, 0, fine, 0) // what was refused cost nothing
	step("a", 3, 0, fault.Exhausted, 300*time.Millisecond)

	d.Spec.Limits = &LimitsSpec{Requests: 0.5, Per: "deployment", Burst: "4s"} // changed: all begin anew
	step("a", 1000, 0, fine, 0)
	step("b", 1000, 0, fine, 0)
	step("c", 1000, 0, fault.Exhausted, 2*time.Second)
	d.Spec.Limits = nil
	step("c", 1000, 0, fine, 0)
}

// TestLimitsHold: over any time, no more passes than the rate and one burst, also when
// requests overtake each other between the clock and the limit.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := LimitsSpec{Requests: float64(rapid.IntRange(0, 20).Draw(t, "requests")), Rows: float64(rapid.IntRange(1, 50).Draw(t, "rows"))}
		m := limiterOf(spec)
		start := time.Unix(1000, 0)
		now, requests, rows := start, 0, 0
		for range rapid.IntRange(1, 100).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * time.Millisecond)
			n := rapid.IntRange(0, 20).Draw(t, "rows")
			late := time.Duration(rapid.IntRange(0, 200).Draw(t, "late")) * time.Millisecond
			if err := m.take("x", n, now.Add(-late)); err == nil {
				requests++
				rows += n
			} else if wait := fault.RetryOf(err); wait > 0 {
				if err := m.take("x", n, now.Add(wait)); err != nil {
					t.Fatalf("again after %s: %v", wait, err)
				}
				now = now.Add(wait)
				requests++
				rows += n
			}
		}
		seconds := now.Sub(start).Seconds() + 1 + 0.2 // the first may be late, too
		if float64(rows) > spec.Rows*seconds+1 || spec.Requests > 0 && float64(requests) > spec.Requests*seconds+1 {
			t.Fatalf("%d requests and %d rows passed in %.3f s, of %+v", requests, rows, seconds-1.2, spec)
		}
	})
}

// TestCallersAreBounded: many tokens do not fill the memory, and who has used much
// is kept as long as others need not be.
func TestCallersAreBounded(t *testing.T) {
	m := limiterOf(LimitsSpec{Requests: 1, Per: "token"})
	now := time.Unix(1000, 0)
	for i := range 2*maxCallers + 1 {
		now = now.Add(time.Millisecond)
		if err := m.take(strconv.Itoa(i), 1, now); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.callers) > maxCallers {
		t.Errorf("%d callers are remembered", len(m.callers))
	}
	if err := m.take(strconv.Itoa(2*maxCallers), 1, now); !fault.Is(err, fault.Exhausted) {
		t.Errorf("who asked just now was forgotten: %v", err)
	}
}

func TestValidateBatchingAndLimits(t *testing.T) {
	for name, s := range map[string]Spec{
		"rows":       {Batching: &BatchingSpec{MaxRows: 5000}},
		"negative":   {Batching: &BatchingSpec{MaxRows: -1}},
		"delay":      {Batching: &BatchingSpec{MaxDelay: "2s"}},
		"no delay":   {Batching: &BatchingSpec{MaxDelay: "soon"}},
		"queue":      {Batching: &BatchingSpec{Queue: 1 << 21}},
		"priorities": {Batching: &BatchingSpec{Priorities: 17}},
		"timeout":    {Batching: &BatchingSpec{Timeout: "2h"}},
		"too soon":   {Batching: &BatchingSpec{Timeout: "2ms", MaxDelay: "2ms"}},
		"tolerance":  {Batching: &BatchingSpec{Tolerance: 1}},
		"per":        {Limits: &LimitsSpec{Per: "group"}},
		"requests":   {Limits: &LimitsSpec{Requests: -1}},
		"a rate":     {Limits: &LimitsSpec{Rows: 2e9}},
		"burst":      {Limits: &LimitsSpec{Burst: "1ms"}},
	} {
		s.Model = "m"
		if err := s.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := Spec{Model: "m", Batching: &BatchingSpec{MaxRows: 8, MaxDelay: "2ms", Queue: 10, Priorities: 3, Timeout: "1s", Tolerance: 0.01}, Limits: &LimitsSpec{Per: "deployment", Requests: 0.1, Rows: 1e6, Burst: "1m"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if o := good.Batching.options(2); o.MaxRows != 8 || o.MaxDelay != 2*time.Millisecond || o.MaxWaiting != 10 || o.Priorities != 3 || o.Timeout != time.Second || o.Threads != 2 || o.Tolerance != 0.01 {
		t.Errorf("%+v", o)
	}
}
