package serving_test

import (
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
)

func TestActs(t *testing.T) { lifeOfActs(t, newPond(t)) }

func lifeOfActs(t *testing.T, p *pond) {
	t.Helper()
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m"})
	summer := time.Date(2013, 7, 1, 0, 0, 0, 0, time.UTC)
	claim := func(kind serving.AutoActionKind, cause string, at time.Time) (serving.AutoAction, bool) {
		t.Helper()
		a, ok, err := p.Claim(ctx, serving.AutoAction{
			Project: "nyc", Deployment: "d", Kind: kind, Cause: cause, At: at, Reason: "temp drifted", Evidence: json.RawMessage(`{"psi":0.4}`),
		}, serving.Cooldowns{kind: 24 * time.Hour, serving.AutoRollback: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return a, ok
	}
	first, ok := claim(serving.AutoRetrain, "1-7", summer)
	if !ok || first.Outcome != serving.AutoActionClaimed || first.ID == "" || string(first.Evidence) != `{"psi":0.4}` {
		t.Fatalf("%+v %v", first, ok)
	}
	p.reopen() // killed in the middle of the act
	open, err := p.Claimed(ctx)
	if err != nil || len(open) != 1 || open[0].ID != first.ID || open[0].Cause != "1-7" {
		t.Fatalf("%+v %v", open, err)
	}
	if again, ok := claim(serving.AutoRetrain, "1-7", summer); ok || again.ID != first.ID {
		t.Errorf("the same cause again: %+v %v", again, ok)
	}
	for range 2 { // the second changes nothing
		if err := p.Conclude(ctx, first.ID, serving.AutoActionDone, "", "job_1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Conclude(ctx, first.ID, serving.AutoActionFailed, "no", ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("concluded otherwise: %v", err)
	}
	if err := p.Conclude(ctx, "act_x", serving.AutoActionDone, "", ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if err := p.Conclude(ctx, first.ID, serving.AutoActionClaimed, "", ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}

	// The cool-down is on the clock of records, in both directions, and of one kind.
	for cause, at := range map[string]time.Time{"later": summer.Add(23 * time.Hour), "earlier": summer.Add(-23 * time.Hour)} {
		if a, ok := claim(serving.AutoRetrain, cause, at); ok || a.Outcome != serving.AutoActionSkipped || !strings.Contains(a.Reason, "2013-07-01") {
			t.Errorf("%s, in the cool-down: %+v %v", cause, a, ok)
		}
	}
	if a, ok := claim(serving.AutoCanary, "later", summer.Add(time.Hour)); !ok {
		t.Errorf("another kind: %+v", a)
	}
	if a, ok := claim(serving.AutoRetrain, "next day", summer.Add(25*time.Hour)); !ok { // what was skipped cools nothing down
		t.Errorf("after the cool-down: %+v", a)
	}
	if a, ok := claim(serving.AutoRetrain, "later", summer.AddDate(0, 1, 0)); ok || a.Outcome != serving.AutoActionSkipped {
		t.Errorf("what was skipped once is claimed for the same cause: %+v", a)
	}

	// The switches.
	if _, err := p.SetAutomation(ctx, "nyc", "d", false, "holiday"); err != nil {
		t.Fatal(err)
	}
	if a, ok := claim(serving.AutoPromote, "a", summer); ok || !strings.Contains(a.Reason, "holiday") {
		t.Errorf("switched off: %+v %v", a, ok)
	}
	if _, err := p.SetAutomation(ctx, "nyc", "d", true, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.SetAutomation(ctx, "nyc", "", false, "audit"); err != nil {
		t.Fatal(err)
	}
	if a, ok := claim(serving.AutoPromote, "b", summer); ok || !strings.Contains(a.Reason, "whole project") {
		t.Errorf("the project switched off: %+v %v", a, ok)
	}
	if st := p.status(t); st.Automation.On || !strings.Contains(st.Automation.Reason, "audit") || len(st.Acts) != 7 || st.Acts[0].Cause != "b" {
		t.Errorf("%+v, %d acts", st.Automation, len(st.Acts))
	}
	if _, err := p.SetAutomation(ctx, "nyc", "", true, ""); err != nil {
		t.Fatal(err)
	}
	if _, ok := claim(serving.AutoPromote, "c", summer); !ok {
		t.Error("switched on again, and nothing happens")
	}
	if a, ok := claim(serving.AutoPromote, "c", summer); ok || a.Outcome != serving.AutoActionClaimed {
		t.Errorf("it was claimed before: %+v %v", a, ok)
	}
	off := false
	p.apply(t, serving.Spec{Model: "m", Automation: &off})
	for range 2 { // what had begun is not gone on with
		if a, ok := claim(serving.AutoPromote, "c", summer); ok || a.Outcome != serving.AutoActionSkipped || !strings.Contains(a.Reason, "automation: false; started before") {
			t.Errorf("it was claimed, and automation is off since: %+v %v", a, ok)
		}
	}
	if a, ok := claim(serving.AutoRollback, "d", summer); ok || !strings.Contains(a.Reason, "manifest") {
		t.Errorf("the manifest says no: %+v %v", a, ok)
	}
	if _, err := p.SetAutomation(ctx, "nyc", "d", true, ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("%v", err)
	}
	for name, a := range map[string]serving.AutoAction{
		"kind": {Project: "nyc", Deployment: "d", Kind: "dance", Cause: "x"}, "cause": {Project: "nyc", Deployment: "d", Kind: serving.AutoCanary},
		"evidence": {Project: "nyc", Deployment: "d", Kind: serving.AutoCanary, Cause: "x", Evidence: json.RawMessage("{")},
	} {
		if _, _, err := p.Claim(ctx, a, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := p.Claim(ctx, serving.AutoAction{Project: "nyc", Deployment: "no", Kind: serving.AutoCanary, Cause: "x"}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	if err := p.Delete(ctx, "nyc", "d"); err != nil {
		t.Fatal(err)
	}
	if open, err := p.Claimed(ctx); err != nil || len(open) != 0 {
		t.Errorf("acts of a deployment that is gone: %+v %v", open, err)
	}
}

// TestClaimedOnce lets many claim an act for one cause: one of them may do it.
func TestClaimedOnce(t *testing.T) { claimedOnce(t, newPond(t)) }

func claimedOnce(t *testing.T, p *pond) {
	t.Helper()
	p.apply(t, serving.Spec{Model: "m"})
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, ok, err := p.Claim(t.Context(), serving.AutoAction{Project: "nyc", Deployment: "d", Kind: serving.AutoRetrain, Cause: "1-7", At: time.Now()}, serving.Cooldowns{serving.AutoRetrain: time.Hour})
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d claimed it", won.Load())
	}
}

// TestCooldownsOfOtherKinds: what was rolled back keeps the next trial away.
func TestCooldownsOfOtherKinds(t *testing.T) {
	p := newPond(t)
	p.apply(t, serving.Spec{Model: "m"})
	summer := time.Date(2013, 7, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		kind  serving.AutoActionKind
		cause string
		after time.Duration
		cool  serving.Cooldowns
		ok    bool
	}{
		{serving.AutoRollback, "1", 0, nil, true},
		{serving.AutoRollback, "2", time.Minute, nil, true},
		{serving.AutoCanary, "3", 59 * time.Minute, serving.Cooldowns{serving.AutoRollback: time.Hour}, false},
		{serving.AutoCanary, "4", 62 * time.Minute, serving.Cooldowns{serving.AutoRollback: time.Hour}, true},
	} {
		a, ok, err := p.Claim(t.Context(), serving.AutoAction{Project: "nyc", Deployment: "d", Kind: c.kind, Cause: c.cause, At: summer.Add(c.after)}, c.cool)
		if err != nil || ok != c.ok {
			t.Errorf("%s after %s: %v %+v %v", c.kind, c.after, ok, a, err)
		}
		if !ok && !strings.Contains(a.Reason, "the last rollback was at 2013-07-01T00:01:00Z, and the next canary may be 1h") {
			t.Errorf("the reason is %q", a.Reason)
		}
	}
}

// TestLongReason: of one that is too long whole characters are kept.
func TestLongReason(t *testing.T) {
	p, _, _ := fed(t)
	p.apply(t, spec(serving.FeaturesSpec{}))
	for _, before := range []string{"", "-"} {
		sw, err := p.SetAutomation(t.Context(), "nyc", "d", false, before+strings.Repeat("نخلة", 1000))
		if err != nil || len(sw.Reason) != 4096-len(before) || !utf8.ValidString(sw.Reason) {
			t.Errorf("%d bytes, valid: %t, %v", len(sw.Reason), utf8.ValidString(sw.Reason), err)
		}
	}
}
