package serving

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

var autoActionKinds = []AutoActionKind{AutoRetrain, AutoCanary, AutoPromote, AutoRollback}

// Patience bounds how long an automatic act is tried again for reasons that may pass.
const Patience = 15 * time.Minute

// Cooldowns say how far an act is kept from others of the deployment, by their
// kinds.
type Cooldowns map[AutoActionKind]time.Duration

// AutoActions decides which automatic acts may be done, and records what became of them.
type AutoActions struct{ *core }

// Claim decides, in one transaction, whether an automatic act may be done now,
// and records that it is being done: whoever gets true does it and then calls
// Conclude. false when the act was claimed for the same cause before (the answer
// is that act, which ends as skipped when it was not concluded and automation is
// off by now), when automation is off, or when an act is within its cool-down on
// the clock of records; the latter two are recorded as skipped, with the reason.
// Errors: fault.NotFound for the deployment, fault.Invalid.
func (s *AutoActions) Claim(ctx context.Context, a AutoAction, cool Cooldowns) (AutoAction, bool, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(a.Project, a.Deployment)); err != nil {
		return AutoAction{}, false, err
	}
	switch {
	case !slices.Contains(autoActionKinds, a.Kind):
		return AutoAction{}, false, fault.New(fault.Invalid, "unknown kind of automatic action %q", a.Kind)
	case a.Cause == "" || len(a.Cause) > maxCause:
		return AutoAction{}, false, fault.New(fault.Invalid, "the cause of an action has %d bytes; the limits are 1 to %d", len(a.Cause), maxCause)
	}
	if err := small(a.Evidence); err != nil {
		return AutoAction{}, false, err
	}
	claimed, asked := false, a
	err := s.cfg.DB.Update(ctx, a.Project, func(ctx context.Context, tx *store.Tx) error {
		claimed, a = false, asked // it may be tried again
		d, err := s.deploymentStore.One(ctx, tx, a.Project, a.Deployment)
		if err != nil {
			return err
		}
		before, err := s.actionStore.ActionFor(ctx, tx, a.Project, a.Deployment, a.Kind, a.Cause)
		if err == nil {
			a = before
			return s.skipIfSwitchedOff(ctx, tx, d, &a)
		}
		if !fault.Is(err, fault.NotFound) {
			return err
		}
		a.ID, a.Made, a.Outcome, a.Reason = AutoActionID(id.New("act")), time.Now().UTC(), AutoActionClaimed, clip(a.Reason, maxReason)
		if a.At = a.At.UTC(); a.At.IsZero() {
			a.At = a.Made
		}
		why, err := s.whyNotNow(ctx, tx, d, a, cool)
		if err != nil {
			return err
		}
		if why != "" {
			// The thing that led to it, such as a job, is named: who waits for its act
			// finds the one that was not to be done.
			a.Outcome, a.Reason = AutoActionSkipped, clip(why+"; requested because: "+a.Reason, maxReason)
		}
		claimed = why == ""
		if err := s.actionStore.InsertAction(ctx, tx, a); err != nil {
			return err
		}
		return s.recordAction(ctx, tx, a)
	})
	if fault.Is(err, fault.Conflict) { // another process was faster
		claimed = false
		err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			a, err = s.actionStore.ActionFor(ctx, tx, a.Project, a.Deployment, a.Kind, a.Cause)
			return err
		})
	}
	if err != nil {
		return AutoAction{}, false, fault.Wrap(err, "claim an act of %s", a.Deployment)
	}
	return a, claimed, nil
}

// skipIfSwitchedOff ends an act that was claimed and not concluded, and would be done now,
// when automation was turned off since.
func (s *AutoActions) skipIfSwitchedOff(ctx context.Context, tx *store.Tx, d Deployment, a *AutoAction) error {
	if a.Outcome != AutoActionClaimed {
		return nil
	}
	auto, err := s.automation(ctx, tx, d)
	if err != nil || auto.On {
		return err
	}
	a.Outcome, a.Reason = AutoActionSkipped, clip(auto.Reason+"; started before: "+a.Why(), maxReason)
	if err := s.actionStore.UpdateAction(ctx, tx, *a); err != nil {
		return err
	}
	return s.recordAction(ctx, tx, *a)
}

// whyNotNow says why an act is not to be done; empty when it is.
func (s *AutoActions) whyNotNow(ctx context.Context, tx *store.Tx, d Deployment, a AutoAction, cool Cooldowns) (string, error) {
	auto, err := s.automation(ctx, tx, d)
	if err != nil || !auto.On {
		return auto.Reason, err
	}
	for _, kind := range autoActionKinds {
		c := cool[kind]
		if c <= 0 {
			continue
		}
		last, err := s.actionStore.ActionWithin(ctx, tx, a.Project, a.Deployment, kind, a.At.Add(-c), a.At.Add(c))
		if fault.Is(err, fault.NotFound) {
			continue
		}
		return "the last " + string(kind) + " was at " + last.At.Format(time.RFC3339) + ", and the next " + string(a.Kind) + " may be " + days(c) + " later", err
	}
	return "", nil
}

// days is a duration as manifests write it.
func days(d time.Duration) string {
	if d%(24*time.Hour) == 0 {
		return strconv.Itoa(int(d/(24*time.Hour))) + "d"
	}
	return d.String()
}

// recordAction audits and tells what became of an act.
func (s *AutoActions) recordAction(ctx context.Context, tx *store.Tx, a AutoAction) error {
	if err := s.audited(ctx, tx, a.Project, a.Deployment, a.Reason, map[string]any{
		"act": "automatic " + string(a.Kind), "id": a.ID, "outcome": a.Outcome, "cause": a.Cause, "at": a.At, "evidence": a.Evidence, "result": a.Result,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, a.Project, EventAutoAction, a)
}

// Conclude records what became of a claimed act. Concluding it again in the same
// way changes nothing. Errors: fault.NotFound; fault.Conflict when it was
// concluded otherwise.
func (s *AutoActions) Conclude(ctx context.Context, act AutoActionID, outcome AutoActionOutcome, reason, result string) error {
	switch outcome {
	case AutoActionDone, AutoActionFailed, AutoActionSkipped:
	default:
		return fault.New(fault.Invalid, "an action cannot end as %q", outcome)
	}
	var a AutoAction
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.actionStore.Action(ctx, tx, act)
		return err
	}); err != nil {
		return err
	}
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(a.Project, a.Deployment)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, a.Project, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.actionStore.Action(ctx, tx, act)
		switch {
		case err != nil:
			return err
		case a.Outcome == outcome:
			return nil
		case a.Outcome != AutoActionClaimed:
			return fault.New(fault.Conflict, "action %s is already %s", act, a.Outcome)
		}
		a.Outcome, a.Result, a.Reason = outcome, clip(result, maxReason), a.Why()
		if reason != "" {
			a.Reason = clip(reason, maxReason)
		}
		if err := s.actionStore.UpdateAction(ctx, tx, a); err != nil {
			return err
		}
		return s.recordAction(ctx, tx, a)
	})
}

// notYet is between why an act was begun and why it is not done yet.
const notYet = "; retried, because: "

// Why is the reason of an act, without what hindered it so far.
func (a AutoAction) Why() string {
	why, _, _ := strings.Cut(a.Reason, notYet)
	return why
}

// NoteHindrance notes with a claimed act why it is not done yet, so that the status says it
// while it is tried again. That it could not be noted is logged, no more: the act is
// tried again all the same.
func (s *AutoActions) NoteHindrance(ctx context.Context, act AutoAction, cause error) {
	err := s.cfg.DB.Update(ctx, act.Project, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.actionStore.Action(ctx, tx, act.ID)
		if err != nil || a.Outcome != AutoActionClaimed {
			return err
		}
		reason := clip(a.Why()+notYet+cause.Error(), maxReason)
		if reason == a.Reason {
			return nil
		}
		a.Reason = reason
		return s.actionStore.UpdateAction(ctx, tx, a)
	})
	if err != nil {
		s.log.ErrorContext(ctx, "recording why an action is pending failed", slog.String("act", string(act.ID)), slog.String("error", err.Error()))
	}
}

// Claimed lists the acts of all projects that were claimed and not concluded,
// oldest first: what a crash interrupted.
func (s *AutoActions) Claimed(ctx context.Context) (all []AutoAction, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object("", "")); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.actionStore.ClaimedActions(ctx, tx)
		return err
	})
	return all, err
}

// WithResult is the act of a kind whose result is a thing, such as the job that a
// retraining began. Error: fault.NotFound.
func (s *AutoActions) WithResult(ctx context.Context, project string, kind AutoActionKind, result string) (a AutoAction, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		a, err = s.actionStore.ActionWithResult(ctx, tx, project, kind, result)
		return err
	})
	if err != nil {
		return AutoAction{}, err
	}
	return a, s.cfg.Authz.Allow(ctx, actionRead, object(project, a.Deployment))
}

// SetAutomation turns automatic acts of a deployment on or off, or with an empty
// name those of the whole project. Error: fault.Conflict for turning on what the
// manifest turns off.
func (s *AutoActions) SetAutomation(ctx context.Context, project, name string, on bool, reason string) (Switch, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return Switch{}, err
	}
	sw := Switch{Project: project, Deployment: name, On: on, Reason: clip(reason, maxReason), By: identity.From(ctx).String(), At: time.Now().UTC()}
	err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		if name != "" {
			d, err := s.deploymentStore.One(ctx, tx, project, name)
			if err != nil {
				return err
			}
			if on && !d.Spec.automatic() {
				return fault.New(fault.Conflict, "the manifest of %s sets automation: false", name).WithHint("Change the manifest.")
			}
		}
		if err := s.actionStore.PutSwitch(ctx, tx, sw); err != nil {
			return err
		}
		object := name
		if object == "" {
			object = "*"
		}
		if err := s.audited(ctx, tx, project, object, sw.Reason, map[string]any{"act": "automation", "on": on}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, project, EventAutomationChanged, sw)
	})
	return sw, err
}

// automation is whether automatic acts happen to a deployment, and why not.
func (s *core) automation(ctx context.Context, tx *store.Tx, d Deployment) (Automation, error) {
	if !d.Spec.automatic() {
		return Automation{Reason: "the manifest sets automation: false"}, nil
	}
	for _, name := range []string{"", d.Name} {
		sw, err := s.actionStore.Switch(ctx, tx, d.Project, name)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return Automation{}, err
		}
		if !sw.On {
			what := "automation was turned off"
			if name == "" {
				what += " in the whole project"
			}
			what += " by " + sw.By
			if sw.Reason != "" {
				what += ": " + sw.Reason
			}
			return Automation{Reason: what}, nil
		}
	}
	return Automation{On: true}, nil
}
