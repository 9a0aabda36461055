package serving

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/store"
)

var actKinds = []ActKind{ActRetrain, ActCanary, ActPromote, ActRollback}

// Patience bounds how long an automatic act is tried again for reasons that may pass.
const Patience = 15 * time.Minute

// Cooldowns say how far an act is kept from others of the deployment, by their
// kinds.
type Cooldowns map[ActKind]time.Duration

// Claim decides, in one transaction, whether an automatic act may be done now,
// and records that it is being done: whoever gets true does it and then calls
// Conclude. false when the act was claimed for the same cause before (the answer
// is that act, which ends as skipped when it was not concluded and automation is
// off by now), when automation is off, or when an act is within its cool-down on
// the clock of records; the latter two are recorded as skipped, with the reason.
// Errors: fault.NotFound for the deployment, fault.Invalid.
func (s *Service) Claim(ctx context.Context, a Act, cool Cooldowns) (Act, bool, error) {
	if err := s.Authz.Allow(ctx, actionRollout, object(a.Project, a.Deployment)); err != nil {
		return Act{}, false, err
	}
	switch {
	case !slices.Contains(actKinds, a.Kind):
		return Act{}, false, fault.New(fault.Invalid, "an act is no %q", a.Kind)
	case a.Cause == "" || len(a.Cause) > maxCause:
		return Act{}, false, fault.New(fault.Invalid, "the cause of an act has %d bytes; it has 1 to %d", len(a.Cause), maxCause)
	}
	if err := small(a.Evidence); err != nil {
		return Act{}, false, err
	}
	claimed, asked := false, a
	err := s.DB.Update(ctx, a.Project, func(ctx context.Context, tx *store.Tx) error {
		claimed, a = false, asked // it may be tried again
		d, err := s.Store.One(ctx, tx, a.Project, a.Deployment)
		if err != nil {
			return err
		}
		before, err := s.Store.ActFor(ctx, tx, a.Project, a.Deployment, a.Kind, a.Cause)
		if err == nil {
			a = before
			return s.stopped(ctx, tx, d, &a)
		}
		if !fault.Is(err, fault.NotFound) {
			return err
		}
		a.ID, a.Made, a.Outcome, a.Reason = ActID(id.New("act")), time.Now().UTC(), ActClaimed, clip(a.Reason, maxReason)
		if a.At = a.At.UTC(); a.At.IsZero() {
			a.At = a.Made
		}
		why, err := s.hindered(ctx, tx, d, a, cool)
		if err != nil {
			return err
		}
		if why != "" {
			// The thing that led to it, such as a job, is named: who waits for its act
			// finds the one that was not to be done.
			a.Outcome, a.Reason = ActSkipped, clip(why+"; it was asked for because: "+a.Reason, maxReason)
		}
		claimed = why == ""
		if err := s.Store.InsertAct(ctx, tx, a); err != nil {
			return err
		}
		return s.acted(ctx, tx, a)
	})
	if fault.Is(err, fault.Conflict) { // another process was faster
		claimed = false
		err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			a, err = s.Store.ActFor(ctx, tx, a.Project, a.Deployment, a.Kind, a.Cause)
			return err
		})
	}
	if err != nil {
		return Act{}, false, fault.Wrap(err, "claim an act of %s", a.Deployment)
	}
	return a, claimed, nil
}

// stopped ends an act that was claimed and not concluded, and would be done now,
// when automation was turned off since.
func (s *Service) stopped(ctx context.Context, tx *store.Tx, d Deployment, a *Act) error {
	if a.Outcome != ActClaimed {
		return nil
	}
	auto, err := s.automation(ctx, tx, d)
	if err != nil || auto.On {
		return err
	}
	a.Outcome, a.Reason = ActSkipped, clip(auto.Reason+"; it had begun before: "+a.Why(), maxReason)
	if err := s.Store.UpdateAct(ctx, tx, *a); err != nil {
		return err
	}
	return s.acted(ctx, tx, *a)
}

// hindered says why an act is not to be done; empty when it is.
func (s *Service) hindered(ctx context.Context, tx *store.Tx, d Deployment, a Act, cool Cooldowns) (string, error) {
	auto, err := s.automation(ctx, tx, d)
	if err != nil || !auto.On {
		return auto.Reason, err
	}
	for _, kind := range actKinds {
		c := cool[kind]
		if c <= 0 {
			continue
		}
		last, err := s.Store.ActWithin(ctx, tx, a.Project, a.Deployment, kind, a.At.Add(-c), a.At.Add(c))
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

// acted audits and tells what became of an act.
func (s *Service) acted(ctx context.Context, tx *store.Tx, a Act) error {
	if err := s.audited(ctx, tx, a.Project, a.Deployment, a.Reason, map[string]any{
		"act": "automatic " + string(a.Kind), "id": a.ID, "outcome": a.Outcome, "cause": a.Cause, "at": a.At, "evidence": a.Evidence, "result": a.Result,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, a.Project, EventActed, a)
}

// Conclude records what became of a claimed act. Concluding it again in the same
// way changes nothing. Errors: fault.NotFound; fault.Conflict when it was
// concluded otherwise.
func (s *Service) Conclude(ctx context.Context, act ActID, outcome ActOutcome, reason, result string) error {
	switch outcome {
	case ActDone, ActFailed, ActSkipped:
	default:
		return fault.New(fault.Invalid, "an act does not end as %q", outcome)
	}
	var a Act
	if err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		a, err = s.Store.Act(ctx, tx, act)
		return err
	}); err != nil {
		return err
	}
	if err := s.Authz.Allow(ctx, actionRollout, object(a.Project, a.Deployment)); err != nil {
		return err
	}
	return s.DB.Update(ctx, a.Project, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.Store.Act(ctx, tx, act)
		switch {
		case err != nil:
			return err
		case a.Outcome == outcome:
			return nil
		case a.Outcome != ActClaimed:
			return fault.New(fault.Conflict, "act %s is %s already", act, a.Outcome)
		}
		a.Outcome, a.Result, a.Reason = outcome, clip(result, maxReason), a.Why()
		if reason != "" {
			a.Reason = clip(reason, maxReason)
		}
		if err := s.Store.UpdateAct(ctx, tx, a); err != nil {
			return err
		}
		return s.acted(ctx, tx, a)
	})
}

// notYet is between why an act was begun and why it is not done yet.
const notYet = "; it is tried again, because: "

// Why is the reason of an act, without what hindered it so far.
func (a Act) Why() string {
	why, _, _ := strings.Cut(a.Reason, notYet)
	return why
}

// Hindered notes with a claimed act why it is not done yet, so that the status says it
// while it is tried again. That it could not be noted is logged, no more: the act is
// tried again all the same.
func (s *Service) Hindered(ctx context.Context, act Act, cause error) {
	err := s.DB.Update(ctx, act.Project, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.Store.Act(ctx, tx, act.ID)
		if err != nil || a.Outcome != ActClaimed {
			return err
		}
		reason := clip(a.Why()+notYet+cause.Error(), maxReason)
		if reason == a.Reason {
			return nil
		}
		a.Reason = reason
		return s.Store.UpdateAct(ctx, tx, a)
	})
	if err != nil {
		s.Log.ErrorContext(ctx, "why an act is not done yet was not noted", slog.String("act", string(act.ID)), slog.String("error", err.Error()))
	}
}

// Claimed lists the acts of all projects that were claimed and not concluded,
// oldest first: what a crash interrupted.
func (s *Service) Claimed(ctx context.Context) (all []Act, err error) {
	if err := s.Authz.Allow(ctx, actionRead, object("", "")); err != nil {
		return nil, err
	}
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.Store.Claimed(ctx, tx)
		return err
	})
	return all, err
}

// ActWith is the act of a kind whose result is a thing, such as the job that a
// retraining began. Error: fault.NotFound.
func (s *Service) ActWith(ctx context.Context, project string, kind ActKind, result string) (a Act, err error) {
	err = s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		a, err = s.Store.ActWith(ctx, tx, project, kind, result)
		return err
	})
	if err != nil {
		return Act{}, err
	}
	return a, s.Authz.Allow(ctx, actionRead, object(project, a.Deployment))
}

// SetAutomation turns automatic acts of a deployment on or off, or with an empty
// name those of the whole project. Error: fault.Conflict for turning on what the
// manifest turns off.
func (s *Service) SetAutomation(ctx context.Context, project, name string, on bool, reason string) (Switch, error) {
	if err := s.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return Switch{}, err
	}
	sw := Switch{Project: project, Deployment: name, On: on, Reason: clip(reason, maxReason), By: identity.From(ctx).String(), At: time.Now().UTC()}
	err := s.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		if name != "" {
			d, err := s.Store.One(ctx, tx, project, name)
			if err != nil {
				return err
			}
			if on && !d.Spec.automatic() {
				return fault.New(fault.Conflict, "the manifest of %s says automation: false", name).WithHint("Change it there.")
			}
		}
		if err := s.Store.PutSwitch(ctx, tx, sw); err != nil {
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
func (s *Service) automation(ctx context.Context, tx *store.Tx, d Deployment) (Automation, error) {
	if !d.Spec.automatic() {
		return Automation{Reason: "the manifest says automation: false"}, nil
	}
	for _, name := range []string{"", d.Name} {
		sw, err := s.Store.Switch(ctx, tx, d.Project, name)
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

// Status is what a deployment does, and what was done to it.
type Status struct {
	Deployment Deployment `json:"deployment"`
	Versions   []Counted  `json:"versions"` // those in use, and those that answered since the server started
	Since      time.Time  `json:"since"`    // from when on requests are counted
	Rollout    *Rollout   `json:"rollout,omitempty"`
	History    []Rollout  `json:"history"` // newest first, the one that runs among them
	Acts       []Act      `json:"acts"`    // newest first
	Automation Automation `json:"automation"`
	// Waiting says what is waited for before the rollout that runs, or an automatic act,
	// can end, each with what ends the wait; empty when nothing but requests and labels.
	Waiting []string `json:"waiting"`
	// Lost answers were given and could not be remembered; Unshadowed requests
	// found the shadow busy.
	Lost       int64 `json:"lost"`
	Unshadowed int64 `json:"unshadowed"`
}

// Counted is what a version answered since the server started. The latencies are
// at most an eighth too high.
type Counted struct {
	Target
	Requests int64         `json:"requests"`
	Failures int64         `json:"failures"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`

	Steps []chain.Count `json:"steps,omitempty"` // since they were loaded, the model itself among them
}

// Status tells how a deployment is.
func (s *Service) Status(ctx context.Context, project, name string) (Status, error) {
	if err := s.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return Status{}, err
	}
	out := Status{Since: s.since}
	var claimed []Act
	err := s.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if out.Deployment, err = s.Store.One(ctx, tx, project, name); err != nil {
			return err
		}
		if out.History, err = s.Store.Rollouts(ctx, tx, project, name, maxShown); err != nil {
			return err
		}
		if out.Acts, err = s.Store.Acts(ctx, tx, project, name, maxShown); err != nil {
			return err
		}
		if out.Automation, err = s.automation(ctx, tx, out.Deployment); err != nil {
			return err
		}
		claimed, err = s.Store.Claimed(ctx, tx)
		return err
	})
	if err != nil {
		return Status{}, err
	}
	out.Deployment = s.withState(out.Deployment)
	if len(out.History) > 0 && out.History[0].State == Running {
		out.Rollout = &out.History[0]
	}
	k := key{project, name}
	out.Waiting = append(s.waiting(k, out), behind(k, claimed)...)
	out.Lost, out.Unshadowed = s.lost.count(k), s.shadows.count(k)
	out.Versions = s.counted(k, out.Deployment.Targets)
	return out, nil
}

// waiting is what a deployment waits for, beside requests and labels, in words.
func (s *Service) waiting(k key, st Status) []string {
	out := []string{}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, a := range st.Acts {
		if a.Outcome == ActClaimed {
			say("the automatic %s of %s is under way since %s, and fails when it cannot be done for %s: %s",
				a.Kind, k.name, a.Made.UTC().Format(time.RFC3339), Patience, a.Reason)
		}
	}
	run := st.Rollout
	if run == nil {
		return out
	}
	for _, w := range st.Deployment.wants() {
		if w.role != Canary || (*s.tables.Load())[k].holding(w) != nil {
			continue
		}
		f, failed := s.failure(k, w)
		switch {
		case failed && f.waits:
			say("version %d answers no request: it waits for its environment: %s", w.version, f.reason)
		case failed:
			say("version %d answers no request, because it does not load: %s; it is loaded again at %s, and rolled back when it has not loaded by %s",
				w.version, f.reason, f.retry.UTC().Format(time.RFC3339), f.since.Add(trialTime).UTC().Format(time.RFC3339))
		case st.Deployment.Spec.sleeps():
			say("version %d is scaled to zero, and is loaded for the next request", w.version)
		default:
			say("version %d answers no request: it is being loaded", w.version)
		}
	}
	for _, a := range st.Acts { // newest first
		if a.Kind != ActPromote && a.Kind != ActRollback || a.Made.Before(run.Started) {
			continue
		}
		if a.Outcome == ActFailed || a.Outcome == ActSkipped {
			say("the automatic %s was %s, and is not tried again; end the rollout with `falaj deploy promote %s` or `falaj deploy rollback %s`: %s",
				a.Kind, a.Outcome, k.name, k.name, a.Reason)
		}
		break
	}
	return out
}

// behind says which automatic acts of a deployment would wait at the moment for that of
// another one: those of a kind are done one after the other. What the other is, and why
// it is not done, is for who may read it.
func behind(k key, claimed []Act) (out []string) {
	for _, kind := range actKinds {
		i := slices.IndexFunc(claimed, func(a Act) bool {
			return a.Kind == kind && (key{a.Project, a.Deployment}) != k && a.Reason != a.Why()
		})
		if i >= 0 {
			out = append(out, fmt.Sprintf("an automatic %s would wait for that of another deployment, which is tried again until %s at the latest",
				kind, claimed[i].Made.Add(Patience).UTC().Format(time.RFC3339)))
		}
	}
	return out
}

// counted adds the counters to the targets, and the versions that answer no more.
func (s *Service) counted(k key, targets []Target) []Counted {
	s.mu.Lock()
	tallies := map[int64]*tally{}
	for t, n := range s.tallies {
		if t.key == k && n.requests.Load() > 0 {
			tallies[t.version] = n
		}
	}
	s.mu.Unlock()
	steps := map[int64][]chain.Count{}
	for _, x := range (*s.tables.Load())[k].targets() {
		if x.chain != nil {
			steps[x.model.Version] = x.chain.Counts()
		}
	}
	out := make([]Counted, 0, len(targets))
	for _, t := range targets {
		c := Counted{Target: t}
		c.count(tallies[t.Version])
		c.Steps = steps[t.Version]
		delete(tallies, t.Version)
		out = append(out, c)
	}
	rest := make([]int64, 0, len(tallies))
	for v := range tallies {
		rest = append(rest, v)
	}
	slices.Sort(rest)
	for _, v := range rest {
		c := Counted{Target: Target{Version: v}}
		c.count(tallies[v])
		out = append(out, c)
	}
	return out
}

func (c *Counted) count(t *tally) {
	if t == nil {
		return
	}
	c.Requests, c.Failures, c.P50, c.P99 = t.requests.Load(), t.failures.Load(), t.quantile(0.5), t.quantile(0.99)
}
