package serving_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// waits reports whether one of the reasons for waiting says all of it.
func waits(st serving.Status, says ...string) bool {
	return slices.ContainsFunc(st.Waiting, func(why string) bool {
		return !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(why, s) })
	})
}

// TestUnloadedRolloutEnds: a rollout whose version does not load any more waits for an
// hour, says so, and is rolled back, also where automation is off. Its requests carry no
// rollout meanwhile, so that nothing else would ever end it.
func TestUnloadedRolloutEnds(t *testing.T) {
	for name, automation := range map[string]bool{"on": true, "off": false} {
		t.Run("automation "+name, func(t *testing.T) {
			p := newPond(t)
			ctx := t.Context()
			p.apply(t, serving.Spec{Model: "m", Automation: &automation})
			run := p.start(t, "2", 50)
			if st := p.status(t); len(st.Waiting) != 0 {
				t.Errorf("it waits for %q", st.Waiting)
			}
			p.world.models["m/2"] = serving.Model{Name: "m", Version: 2, Digest: "sha256:2", File: []byte("damaged")}
			p.reopen()
			_ = p.RunOnce(ctx) // it says what does not load
			st := p.status(t)
			if !waits(st, "version 2 is unavailable", "not a model", "is retried at", "rolled back when it has not loaded by") {
				t.Errorf("it waits for %q", st.Waiting)
			}
			p.Age(59 * time.Minute)
			_ = p.RunOnce(ctx)
			if st := p.status(t); st.Rollout == nil || st.Rollout.ID != run.ID {
				t.Fatalf("it ended before its time: %+v", st.History)
			}
			p.Age(time.Minute)
			for range 2 { // the second has nothing to do
				_ = p.RunOnce(ctx)
			}
			st = p.status(t)
			if st.Rollout != nil || len(st.History) != 1 || st.History[0].State != serving.RolledBack ||
				!strings.Contains(st.History[0].Reason, "version 2 could not be loaded for 1h0m0s") || !strings.Contains(st.History[0].Reason, "not a model") {
				t.Errorf("%+v", st.History)
			}
			if len(st.Waiting) != 0 || len(st.Acts) != 1 || st.Acts[0].Kind != serving.AutoRollback {
				t.Errorf("acts %+v, waiting %q", st.Acts, st.Waiting)
			}
			if m := p.mix(t); m[1] != 500 {
				t.Errorf("%v", m)
			}
		})
	}
}

// TestLoadsAgainInTime: a version that loads within the hour is tried on.
func TestLoadsAgainInTime(t *testing.T) {
	p := newPond(t)
	p.apply(t, serving.Spec{Model: "m"})
	run := p.start(t, "2", 50)
	whole := p.world.models["m/2"]
	p.world.models["m/2"] = serving.Model{Name: "m", Version: 2, Digest: "sha256:2", File: []byte("damaged")}
	p.reopen()
	_ = p.RunOnce(t.Context())
	p.Age(2 * time.Hour) // nobody has looked since
	p.world.models["m/2"] = whole
	p.Hasten()
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := p.status(t); st.Rollout == nil || st.Rollout.ID != run.ID || len(st.Waiting) != 0 {
		t.Fatalf("%+v %q", st.History, st.Waiting)
	}
	if m := p.mix(t); m[2] == 0 {
		t.Errorf("%v", m)
	}
}

// failing is a runtime that fails for a while.
type failing struct {
	*numbered

	err error
}

func (f *failing) Load(ctx context.Context, model []byte, o runtime.Options) (runtime.Session, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.numbered.Load(ctx, model, o)
}

// TestWhatPassesIsNoConflict: an act that needs a version which does not load fails for
// good only where the cause lasts; under load, that it took too long is none.
func TestWhatPassesIsNoConflict(t *testing.T) {
	dead := fault.New(fault.Unavailable, "loading the model ended its process")
	dead.Err = runtime.DeathError{Death: death()}
	for _, test := range []struct {
		name string
		err  error
		kind fault.Kind
	}{
		{"too slow", fault.New(fault.Timeout, "not loaded in a minute"), fault.Timeout},
		{"away", fault.New(fault.Unavailable, "the store is away"), fault.Unavailable},
		{"no memory", fault.New(fault.Exhausted, "no memory"), fault.Exhausted},
		{"damaged", fault.New(fault.Invalid, "not a model"), fault.Conflict},
		{"changed", fault.New(fault.Conflict, "another digest"), fault.Conflict},
		{"dies", dead, fault.Conflict},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPond(t)
			ctx := t.Context()
			f := &failing{numbered: p.rt}
			c := p.config()
			c.Runtime = f
			p.services = newServices(c)
			p.apply(t, serving.Spec{Model: "m", Version: "1"})
			p.start(t, "2", 50)
			p.services = newServices(c) // nothing is in memory
			f.err = test.err
			if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, test.kind) || !strings.Contains(err.Error(), "version 1 keeps serving") {
				t.Errorf("promote: %v, want %s", err, test.kind)
			}
			f.err = nil
			if _, err := p.Promote(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
				t.Fatal(err)
			}
			f.err = test.err
			if _, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); !fault.Is(err, test.kind) || !strings.Contains(err.Error(), "version 2 keeps serving") {
				t.Errorf("roll back: %v, want %s", err, test.kind)
			}
		})
	}
}

// TestWaitingForActs: the status says why an act that was claimed is not done yet, and
// that a rollout waits for a person when its act failed or was not to be done.
func TestWaitingForActs(t *testing.T) {
	p := newPond(t)
	ctx := t.Context()
	p.apply(t, serving.Spec{Model: "m"})
	p.start(t, "2", 50)
	claim := func(kind serving.AutoActionKind, cause string, cool serving.Cooldowns) serving.AutoAction {
		t.Helper()
		a, _, err := p.Claim(ctx, serving.AutoAction{Project: "nyc", Deployment: "d", Kind: kind, Cause: cause, Reason: "brier is better"}, cool)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	act := claim(serving.AutoPromote, "1-1", nil)
	for _, cause := range []string{"the disk is slow", "the store is away", "the store is away"} {
		p.NoteHindrance(ctx, act, fault.New(fault.Unavailable, "%s", cause))
		st := p.status(t)
		if !waits(st, "automatic promote of d is in progress", "15m0s", "brier is better", "retried, because: "+cause) || len(st.Waiting) != 1 {
			t.Errorf("%q", st.Waiting)
		}
	}
	if _, _, err := p.Apply(ctx, "nyc", "other", serving.Spec{Model: "m"}, false); err != nil {
		t.Fatal(err)
	}
	other, err := p.Status(ctx, "nyc", "other")
	if err != nil || len(other.Waiting) != 1 || !waits(other, "an automatic promote would wait for that of another deployment", act.Made.Add(15*time.Minute).UTC().Format(time.RFC3339)) ||
		waits(other, "brier") {
		t.Errorf("%q, %v", other.Waiting, err)
	}
	if again := claim(serving.AutoPromote, "1-1", nil); again.Why() != "brier is better" || again.ID != act.ID {
		t.Errorf("%+v", again)
	}
	if err := p.Conclude(ctx, act.ID, serving.AutoActionFailed, "", ""); err != nil {
		t.Fatal(err)
	}
	st := p.status(t)
	if st.Acts[0].Reason != "brier is better" {
		t.Errorf("%+v", st.Acts[0])
	}
	if !waits(st, "automatic promote was failed, and is not retried", "falaj deploy promote d", "brier is better") {
		t.Errorf("%q", st.Waiting)
	}
	p.NoteHindrance(ctx, act, fault.New(fault.Unavailable, "too late")) // it has ended
	if st := p.status(t); st.Acts[0].Reason != "brier is better" {
		t.Errorf("%+v", st.Acts[0])
	}
	if _, err := p.Rollback(ctx, "nyc", "d", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	if st := p.status(t); len(st.Waiting) != 0 {
		t.Errorf("it waits for %q after its end", st.Waiting)
	}

	// An act that is not to be done says what asked for it.
	claim(serving.AutoCanary, "2-1", nil)
	skipped := claim(serving.AutoCanary, "2-2", serving.Cooldowns{serving.AutoCanary: time.Hour})
	if skipped.Outcome != serving.AutoActionSkipped || !strings.Contains(skipped.Reason, "the last canary was at") || !strings.HasSuffix(skipped.Reason, "requested because: brier is better") {
		t.Errorf("%+v", skipped)
	}
}
