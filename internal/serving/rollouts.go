package serving

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/store"
)

// Rollouts starts and ends rollouts, and shadows.
type Rollouts struct{ *core }

// RolloutRequest is a candidate to be tried on a share of a deployment's requests.
type RolloutRequest struct {
	Version string // number or alias of the candidate
	Weight  int    // percent, 1 to 99; 0 is the manifest's
	Cause   string // why, in words or an event's position
}

// clip keeps at most n bytes, in whole characters: databases take no others.
func clip(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}

// small refuses evidence that is not JSON or too much of it.
func small(evidence json.RawMessage) error {
	switch {
	case len(evidence) > maxEvidence:
		return fault.New(fault.TooLarge, "the evidence has %d bytes; the limit is %d", len(evidence), maxEvidence)
	case len(evidence) > 0 && !json.Valid(evidence):
		return fault.New(fault.Invalid, "the evidence is not JSON")
	}
	return nil
}

// running is the rollout that runs, the zero Rollout when none does.
func (s *core) running(ctx context.Context, tx *store.Tx, project, name string) (Rollout, error) {
	runs, err := s.rolloutStore.Rollouts(ctx, tx, project, name, 1)
	if err != nil || len(runs) == 0 || runs[0].State != Running {
		return Rollout{}, err
	}
	return runs[0], nil
}

// changed writes a deployment that a rollout or a shadow has changed.
func (s *Rollouts) changed(ctx context.Context, tx *store.Tx, d *Deployment) error {
	d.UpdatedAt = time.Now().UTC()
	d.Revision++
	return s.deploymentStore.Put(ctx, tx, *d)
}

func (s *core) audited(ctx context.Context, tx *store.Tx, project, name, reason string, detail map[string]any) error {
	return audit.Append(ctx, tx, audit.Entry{
		Project: project, Action: string(actionRollout), Object: "deployment " + name, Reason: clip(reason, maxReason), Detail: detail,
	})
}

// end closes a rollout in the caller's transaction.
func (s *core) end(ctx context.Context, tx *store.Tx, r Rollout, state RolloutState, e RolloutEnd) error {
	if r.State == Promoted { // and undone now
		r.PromotedAt, r.Promotion = r.Ended, r.Reason
	}
	r.State, r.Reason, r.Evidence, r.Ended = state, clip(e.Reason, maxReason), e.Evidence, time.Now().UTC()
	if err := s.rolloutStore.PutRollout(ctx, tx, r); err != nil {
		return err
	}
	if err := s.audited(ctx, tx, r.Project, r.Deployment, r.Reason, map[string]any{
		"act": string(state), "rollout": r.ID, "stable": r.Stable, "candidate": r.Candidate, "evidence": r.Evidence,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, r.Project, EventRolloutEnded, r)
}

// Start tries a version of the deployment's model on a share of its
// requests. The version is verified and loaded before anything changes. Errors:
// fault.Conflict when a rollout runs already, the version is stable already, or
// its files do not match the signature; fault.NotFound; fault.Invalid.
func (s *Rollouts) Start(ctx context.Context, project, name string, try RolloutRequest) (Rollout, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return Rollout{}, err
	}
	if try.Weight < 0 || try.Weight > rollout.MaxWeight {
		return Rollout{}, fault.New(fault.Invalid, "the weight of %d percent is outside the range 1 to %d", try.Weight, rollout.MaxWeight)
	}
	if try.Version == "" {
		return Rollout{}, fault.New(fault.Invalid, "version: name the canary")
	}
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return Rollout{}, err
	}
	stable := s.enterStable(ctx, d)
	if stable != nil {
		defer stable.leave()
	}
	t, err := s.open(ctx, d, try.Version, &health{})
	if err != nil {
		return Rollout{}, fault.Wrap(err, "start the rollout of version %.80s of %s", try.Version, d.Model)
	}
	if err := standsIn(stable, t); err != nil {
		t.leave()
		return Rollout{}, fault.Wrap(err, "start the rollout of version %.80s of %s", try.Version, d.Model)
	}
	var r Rollout
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		now, err := s.still(ctx, tx, d)
		if err != nil {
			return err
		}
		run, err := s.running(ctx, tx, project, name)
		if err != nil {
			return err
		}
		shadow, _ := now.trialOf(Shadow)
		switch version := t.model.Version; {
		case now.Version != d.Version: // it was compared with another one
			return fault.New(fault.Conflict, "deployment %s was changed concurrently", d.Name).WithHint("Try again.")
		case run.ID != "":
			return fault.New(fault.Conflict, "a rollout of version %d of %s is already running (%s)", run.Candidate, run.Model, run.ID).
				WithHint("Promote it or roll it back first.")
		case version == now.Version:
			return fault.New(fault.Conflict, "version %d is already stable", version)
		case version == shadow.Version:
			now.Trials = now.without(Shadow) // it shows itself now
		}
		if err := s.cfg.Models.RequireVersion(ctx, tx, project, now.Model, t.model.Version); err != nil {
			return err
		}
		if err := s.cfg.Models.Cleared(ctx, tx, project, now.Model, t.model.Version, ""); err != nil {
			return err
		}
		spec := now.Spec.Rollout.WithDefaults()
		if try.Weight != 0 {
			spec.Weight = try.Weight
		}
		if err := spec.Validate(); err != nil {
			return err
		}
		r = Rollout{
			ID: RolloutID(id.New("rol")), Project: project, Deployment: name, Model: now.Model, Stable: now.Version, Candidate: t.model.Version,
			Weight: spec.Weight, Spec: spec, State: Running, Cause: clip(try.Cause, maxCause), Started: time.Now().UTC(),
		}
		now.Trials = now.with(Trial{
			Role: Canary, Version: t.model.Version, Digest: t.model.Digest, Residency: t.model.Residency, Classification: t.model.Classification, Weight: r.Weight,
		})
		if err := s.changed(ctx, tx, &now); err != nil {
			return err
		}
		return s.begin(ctx, tx, r)
	})
	if err != nil {
		t.leave()
		return Rollout{}, fault.Wrap(err, "start the rollout of version %.80s of %s", try.Version, d.Model)
	}
	s.settleNow(ctx, key{project, name}, t)
	return r, nil
}

// standsIn refuses a candidate that would not take each request that the stable
// version takes: whoever met it would hear that their request is wrong.
func standsIn(stable, candidate *target) error {
	if stable == nil {
		return nil // it does not answer now, either
	}
	if err := candidate.meta.StandsIn(stable.meta); err != nil {
		return fault.New(fault.Conflict, "its inputs and outputs are incompatible with version %d: %w", stable.model.Version, err).
			WithHint("Deploy it under another name, or apply it in this deployment's manifest once its clients are ready.")
	}
	return nil
}

// still is the deployment as it is now, which must serve the model that was
// looked at before.
func (s *Rollouts) still(ctx context.Context, tx *store.Tx, d Deployment) (Deployment, error) {
	now, err := s.deploymentStore.One(ctx, tx, d.Project, d.Name)
	if err != nil {
		return now, err
	}
	if now.ID != d.ID || !now.Spec.same(d.Spec) {
		return now, fault.New(fault.Conflict, "deployment %s was changed concurrently", d.Name).WithHint("Try again.")
	}
	return now, nil
}

func (s *Rollouts) begin(ctx context.Context, tx *store.Tx, r Rollout) error {
	if err := s.rolloutStore.PutRollout(ctx, tx, r); err != nil {
		return err
	}
	if err := s.audited(ctx, tx, r.Project, r.Deployment, r.Cause, map[string]any{
		"act": "canary", "rollout": r.ID, "stable": r.Stable, "candidate": r.Candidate, "weight": r.Weight,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, r.Project, EventRolloutStarted, r)
}

// SetWeight moves the share of the version that is being tried. What was observed
// under the old share is not evidence under the new one: the rollout ends as
// cancelled, and another one begins with the same versions.
func (s *Rollouts) SetWeight(ctx context.Context, project, name string, weight int) (Rollout, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return Rollout{}, err
	}
	if weight < 1 || weight > rollout.MaxWeight {
		return Rollout{}, fault.New(fault.Invalid, "the weight of %d percent is outside the range 1 to %d", weight, rollout.MaxWeight)
	}
	var r Rollout
	err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.deploymentStore.One(ctx, tx, project, name)
		if err != nil {
			return err
		}
		run, err := s.running(ctx, tx, project, name)
		if err != nil {
			return err
		}
		canary, ok := d.trialOf(Canary)
		switch {
		case run.ID == "" || !ok:
			return fault.New(fault.Conflict, "%s has no running rollout", name)
		case run.Weight == weight:
			r = run
			return nil
		}
		if weight > run.Weight { // somebody may have rejected it since
			if err := s.cfg.Models.Cleared(ctx, tx, project, d.Model, canary.Version, ""); err != nil {
				return err
			}
		}
		if err := s.end(ctx, tx, run, Cancelled, RolloutEnd{Reason: "its weight was changed to " + strconv.Itoa(weight) + " %"}); err != nil {
			return err
		}
		r = run
		r.ID, r.Weight, r.Started, r.StartedAt = RolloutID(id.New("rol")), weight, time.Now().UTC(), time.Time{}
		r.Spec.Weight = weight
		canary.Weight = weight
		d.Trials = d.with(canary)
		if err := s.changed(ctx, tx, &d); err != nil {
			return err
		}
		return s.begin(ctx, tx, r)
	})
	if err != nil {
		return Rollout{}, fault.Wrap(err, "change the weight")
	}
	s.settleNow(ctx, key{project, name})
	return r, nil
}

// Promote makes the version that is being tried the stable one, and moves the
// registry's alias that the manifest follows, in one transaction. Errors:
// fault.Conflict when no rollout, or another one, runs, or its version does not
// load: what answers goes on answering; fault.PermissionDenied,
// also without model.promote when an alias moves.
func (s *Rollouts) Promote(ctx context.Context, project, name string, e RolloutEnd) (Rollout, error) {
	if err := s.mayEnd(ctx, project, name, e); err != nil {
		return Rollout{}, err
	}
	fresh, err := s.candidate(ctx, project, name)
	if err != nil {
		return Rollout{}, fault.Wrap(err, "promote")
	}
	var r Rollout
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.deploymentStore.One(ctx, tx, project, name)
		if err != nil {
			return err
		}
		if r, err = s.asked(ctx, tx, d, e); err != nil || r.State == Promoted {
			return err
		}
		canary, ok := d.trialOf(Canary)
		if r.State != Running || !ok {
			return fault.New(fault.Conflict, "rollout %s has already ended: it is %s", r.ID, r.State)
		}
		if err := s.cfg.Models.RequireVersion(ctx, tx, project, d.Model, canary.Version); err != nil {
			return err
		}
		if err := s.cfg.Models.Cleared(ctx, tx, project, d.Model, canary.Version, d.Spec.alias()); err != nil {
			return err
		}
		if err := s.end(ctx, tx, r, Promoted, e); err != nil {
			return err
		}
		if r, err = s.rolloutStore.Rollout(ctx, tx, r.ID); err != nil {
			return err
		}
		return s.stabilise(ctx, tx, d, canary, pushed(d.Before, d.Version, canary.Version))
	})
	if err != nil {
		leave(fresh)
		return Rollout{}, fault.Wrap(err, "promote")
	}
	s.settleNow(ctx, key{project, name}, fresh...)
	return r, nil
}

// candidate loads the version that is tried when it is not in memory: what does
// not load is not promoted. The caller has its use.
func (s *Rollouts) candidate(ctx context.Context, project, name string) ([]*target, error) {
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(d.wants(), func(w wanting) bool { return w.role == Canary })
	if i < 0 || s.table(key{project, name}).holding(d.wants()[i]) != nil {
		return nil, nil
	}
	version := d.wants()[i].version
	t, err := s.open(ctx, d, versionText(version), &health{})
	if err == nil && t.model.Digest != d.wants()[i].digest {
		t.leave()
		err = fault.New(fault.Conflict, "its digest differs from that of the canary")
	}
	if err != nil {
		return nil, notLoaded(err, "Roll it back, and register the model again.",
			"version %d cannot be loaded, and version %d keeps serving", version, d.Version)
	}
	return []*target{t}, nil
}

// notLoaded is the error of a version that an act needs and that does not load, with the
// hint of a cause that lasts. It is a conflict, unless the cause may be gone at the next
// try: then automatic acts are tried again.
func notLoaded(err error, hint, format string, args ...any) error {
	kind := fault.Conflict
	if _, dead := errors.AsType[models.DeathError](err); !dead && passing(err) {
		kind, hint = fault.KindOf(err), "Try again in a moment; the server's log has details."
	}
	return fault.New(kind, format+": %w", append(args, err)...).WithHint("%s", hint)
}

// mayEnd asks for the permission to end a rollout, and checks the ending.
func (s *Rollouts) mayEnd(ctx context.Context, project, name string, e RolloutEnd) error {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return err
	}
	if err := small(e.Evidence); err != nil {
		return err
	}
	d, err := s.stored(ctx, project, name)
	if err != nil || d.Spec.alias() == "" {
		return err
	}
	return s.cfg.Authz.Allow(ctx, actionPromote, policy.Object{Project: project, Kind: "model", Name: d.Model})
}

// asked is the rollout that an ending is about: the one named, or the one that
// runs.
func (s *Rollouts) asked(ctx context.Context, tx *store.Tx, d Deployment, e RolloutEnd) (Rollout, error) {
	if e.Rollout == "" {
		r, err := s.running(ctx, tx, d.Project, d.Name)
		if err == nil && r.ID == "" {
			err = fault.New(fault.Conflict, "%s has no running rollout", d.Name)
		}
		return r, err
	}
	r, err := s.rolloutStore.Rollout(ctx, tx, e.Rollout)
	if err == nil && (r.Project != d.Project || r.Deployment != d.Name) {
		err = fault.New(fault.NotFound, "rollout %q not found", e.Rollout)
	}
	return r, err
}

// stabilise makes a version the stable one: the alias that the manifest follows
// goes with it, and a number in the manifest's place is the new one.
func (s *Rollouts) stabilise(ctx context.Context, tx *store.Tx, d Deployment, t Trial, before []int64) error {
	d.Trials = d.without(Canary)
	if shadow, ok := d.trialOf(Shadow); ok && shadow.Version == t.Version {
		d.Trials = d.without(Shadow)
	}
	d.Version, d.Digest, d.Residency, d.Classification, d.Before = t.Version, t.Digest, t.Residency, t.Classification, before
	switch alias := d.Spec.alias(); alias {
	case "":
		d.Spec.Version = versionText(t.Version)
	case "latest": // the registry's own word for the newest
	default:
		if err := s.cfg.Models.Point(ctx, tx, d.Project, d.Model, alias, t.Version); err != nil {
			return err
		}
	}
	if err := s.changed(ctx, tx, &d); err != nil {
		return err
	}
	return event.Publish(ctx, tx, d.Project, EventDeployed, Changed{Deployment: d.ID, Name: d.Name, Model: d.Model, Version: d.Version})
}

// Rollback goes back: it ends the rollout that runs, or, when none does or
// e.To is another version, makes an earlier version the stable one, which is
// verified and loaded before anything changes. Errors: fault.Conflict when there
// is nothing to go back to, or the version no longer loads: what answers goes on
// answering.
func (s *Rollouts) Rollback(ctx context.Context, project, name string, e RolloutEnd) (Deployment, error) {
	if err := s.mayEnd(ctx, project, name, e); err != nil {
		return Deployment{}, err
	}
	switch e.State {
	case "":
		e.State = RolledBack
	case RolledBack, Inconclusive, Cancelled:
	case Running, Promoted:
		return Deployment{}, fault.New(fault.Invalid, "a rollback cannot end as %s", e.State)
	}
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return Deployment{}, err
	}
	back, err := s.goal(ctx, d, e)
	if err != nil {
		return Deployment{}, fault.Wrap(err, "roll back %s", name)
	}
	var t *target
	if back.to != d.Version {
		if t, err = s.open(ctx, d, versionText(back.to), &health{}); err != nil {
			return Deployment{}, notLoaded(err, "Name another version to roll back to.",
				"version %d cannot be loaded any more, and version %d keeps serving", back.to, d.Version)
		}
	}
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error { return s.goBack(ctx, tx, d, back, t, e) })
	if err != nil {
		t.leave()
		return Deployment{}, fault.Wrap(err, "roll back %s", name)
	}
	if t == nil {
		s.settleNow(ctx, key{project, name})
	} else {
		s.settleNow(ctx, key{project, name}, t)
	}
	if d, err = s.stored(ctx, project, name); err != nil {
		return d, err
	}
	return s.withState(d), nil
}

// goal is what a rollback is to do: the version that is stable afterwards, and
// the rollouts that end by it.
type goal struct {
	to     int64
	ends   RolloutID // runs
	undoes RolloutID // was promoted
	done   bool      // it has happened
}

func (s *Rollouts) goal(ctx context.Context, d Deployment, e RolloutEnd) (g goal, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		g = goal{to: e.To}
		runs, err := s.rolloutStore.Rollouts(ctx, tx, d.Project, d.Name, maxHistory)
		if err != nil {
			return err
		}
		named := e.Rollout == ""
		for _, r := range runs {
			if e.Rollout != "" && r.ID == e.Rollout {
				named = true
				switch {
				case r.State == e.Unless:
					return fault.New(fault.Conflict, "rollout %s is already %s", r.ID, r.State)
				case r.State == Promoted && r.Candidate == d.Version:
					g.undoes = r.ID
					if g.to == 0 {
						g.to = r.Stable
					}
				case r.State != Running:
					g.done = true
				}
			}
			if e.Rollout == "" && g.undoes == "" && r.State == Promoted && r.Candidate == d.Version {
				g.undoes = r.ID
			}
		}
		if len(runs) > 0 && runs[0].State == Running && (e.Rollout == "" || runs[0].ID == e.Rollout || g.undoes != "") {
			g.ends = runs[0].ID
		}
		switch {
		case !named:
			return fault.New(fault.NotFound, "rollout %q not found", e.Rollout)
		case g.done:
			g.to, g.ends, g.undoes = d.Version, "", ""
			return nil
		case g.to == 0 && g.ends != "":
			g.to = d.Version
		case g.to == 0 && len(d.Before) > 0:
			g.to = d.Before[len(d.Before)-1]
		case g.to == 0:
			return fault.New(fault.Conflict, "no rollout is running, and version %d has no previous stable version", d.Version).
				WithHint("Name the version to roll back to.")
		}
		if g.to == d.Version {
			g.undoes = ""
			if g.ends == "" {
				return fault.New(fault.Conflict, "version %d is already stable", d.Version)
			}
		}
		return nil
	})
	return g, err
}

// goBack writes a rollback down. t is nil when the stable version stays.
func (s *Rollouts) goBack(ctx context.Context, tx *store.Tx, looked Deployment, g goal, t *target, e RolloutEnd) error {
	if g.done {
		return nil
	}
	d, err := s.still(ctx, tx, looked)
	if err != nil {
		return err
	}
	if d.Version != looked.Version {
		return fault.New(fault.Conflict, "deployment %s was changed concurrently", d.Name).WithHint("Try again.")
	}
	if g.ends != "" {
		run, err := s.running(ctx, tx, d.Project, d.Name)
		if err != nil {
			return err
		}
		if run.ID != g.ends {
			return fault.New(fault.Conflict, "rollout %s has ended", g.ends)
		}
		if err := s.end(ctx, tx, run, e.State, e); err != nil {
			return err
		}
		d.Trials = d.without(Canary)
	}
	if t == nil {
		return s.changed(ctx, tx, &d)
	}
	stood := slices.Contains(d.Before, t.model.Version) // as a version of this model
	if g.undoes != "" {
		r, err := s.rolloutStore.Rollout(ctx, tx, g.undoes)
		if err != nil {
			return err
		}
		stood = stood || r.Model == d.Model && r.Stable == t.model.Version
		if err := s.end(ctx, tx, r, RolledBack, e); err != nil {
			return err
		}
	} else if err := s.audited(ctx, tx, d.Project, d.Name, e.Reason, map[string]any{
		"act": "rolled_back", "from": d.Version, "to": t.model.Version, "evidence": e.Evidence,
	}); err != nil {
		return err
	}
	if err := s.cfg.Models.RequireVersion(ctx, tx, d.Project, d.Model, t.model.Version); err != nil {
		return err
	}
	if !stood { // it is no way back: the version was never let through here
		if err := s.cfg.Models.Cleared(ctx, tx, d.Project, d.Model, t.model.Version, d.Spec.alias()); err != nil {
			return err
		}
	}
	before := d.Before
	for i, v := range before {
		if v == t.model.Version {
			before = before[:i:i] // what came after it is not what was before it
			break
		}
	}
	return s.stabilise(ctx, tx, d, Trial{
		Version: t.model.Version, Digest: t.model.Digest, Residency: t.model.Residency, Classification: t.model.Classification,
	}, before)
}

// Shadow shows each request to another version of the model, too; an empty
// version ends that. Errors: as of Start.
func (s *Rollouts) Shadow(ctx context.Context, project, name, version string) (Deployment, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, name)); err != nil {
		return Deployment{}, err
	}
	d, err := s.stored(ctx, project, name)
	if err != nil {
		return Deployment{}, err
	}
	var t *target
	if version != "" {
		if t, err = s.open(ctx, d, version, &health{}); err != nil {
			return Deployment{}, fault.Wrap(err, "shadow %s with version %.80s", name, version)
		}
	}
	err = s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		now, err := s.still(ctx, tx, d)
		if err != nil {
			return err
		}
		shown := Changed{Deployment: now.ID, Name: name, Model: now.Model}
		now.Trials = now.without(Shadow)
		if t != nil {
			shown.Version = t.model.Version
			if now.Version == shown.Version || len(now.Trials) > 0 && now.Trials[0].Version == shown.Version {
				return fault.New(fault.Conflict, "version %d already serves requests", shown.Version)
			}
			if err := s.cfg.Models.RequireVersion(ctx, tx, project, now.Model, shown.Version); err != nil {
				return err
			}
			now.Trials = now.with(Trial{
				Role: Shadow, Version: t.model.Version, Digest: t.model.Digest, Residency: t.model.Residency, Classification: t.model.Classification,
			})
		}
		if err := s.changed(ctx, tx, &now); err != nil {
			return err
		}
		if err := s.audited(ctx, tx, project, name, "", map[string]any{"act": "shadow", "version": shown.Version}); err != nil {
			return err
		}
		d = now
		return event.Publish(ctx, tx, project, EventShadowed, shown)
	})
	if err != nil {
		t.leave()
		return Deployment{}, fault.Wrap(err, "shadow %s", name)
	}
	if t == nil {
		s.settleNow(ctx, key{project, name})
	} else {
		s.settleNow(ctx, key{project, name}, t)
	}
	return s.withState(d), nil
}

// List is a deployment's newest rollouts, newest first.
func (s *Rollouts) List(ctx context.Context, project, name string) (rs []Rollout, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		rs, err = s.rolloutStore.Rollouts(ctx, tx, project, name, maxHistory)
		return err
	})
	return rs, err
}

// Running lists the rollouts of all projects that run.
func (s *Rollouts) Running(ctx context.Context) (rs []Rollout, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object("", "")); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		rs, err = s.rolloutStore.Running(ctx, tx)
		return err
	})
	return rs, err
}

// Began keeps the time of a rollout's first judged record, on the clock of
// records. Only the first call for a rollout changes anything.
func (s *Rollouts) Began(ctx context.Context, project string, rollout RolloutID, at time.Time) error {
	if err := s.cfg.Authz.Allow(ctx, actionRollout, object(project, "")); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		r, err := s.rolloutStore.Rollout(ctx, tx, rollout)
		if err != nil || !r.StartedAt.IsZero() || r.Project != project {
			return err
		}
		r.StartedAt = at.UTC()
		if err := s.audited(ctx, tx, project, r.Deployment, "", map[string]any{"act": "began", "rollout": r.ID, "at": r.StartedAt}); err != nil {
			return err
		}
		return s.rolloutStore.PutRollout(ctx, tx, r)
	})
}
