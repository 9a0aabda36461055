package serving

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Deployments are applied, read and deleted here.
type Deployments struct{ *core }

// Apply deploys a model version under a name, or changes what the name answers
// with. The bool says whether anything changed. Another stable version ends a
// rollout that runs. Errors: fault.Invalid, fault.NotFound (no such model or
// feature service), fault.Conflict (the files do not match the signature),
// fault.PermissionDenied (also by residency).
func (s *Deployments) Apply(ctx context.Context, project, name string, spec Spec, dryRun bool) (Deployment, bool, error) {
	if err := s.cfg.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return Deployment{}, false, err
	}
	if err := errors.Join(validName(name), spec.Validate()); err != nil {
		return Deployment{}, false, err
	}
	set, err := s.describe(ctx, project, spec)
	if err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	version := spec.Version
	if version == "" {
		version = "champion"
	}
	if err := s.featuresCross(ctx, project, spec, actionApply, set); err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	t, err := s.open(ctx, Deployment{Project: project, Name: name, Spec: spec}, version, &health{})
	later := errors.Is(err, ErrNotYet) && !spec.Chained() // what is not read cannot be pinned
	if later {
		t, err = s.absent(ctx, project, spec, version)
	}
	if err != nil {
		return Deployment{}, false, fault.Wrap(err, "deploy %s", name)
	}
	var d, old Deployment
	changed := true
	record := func(ctx context.Context, tx *store.Tx) error {
		var err error
		d = Deployment{
			Project: project, Name: name, Spec: spec, Model: t.model.Name, Version: t.model.Version, Digest: t.model.Digest,
			Residency: t.model.Residency, Classification: t.model.Classification, FeatureSet: set, Steps: t.steps,
		}
		old, err = s.deploymentStore.One(ctx, tx, project, name)
		now := time.Now().UTC()
		switch {
		case fault.Is(err, fault.NotFound):
			d.ID, d.CreatedAt, d.Owner = ID(id.New("dep")), now, identity.From(ctx).ID
		case err != nil:
			return err
		default:
			d.ID, d.CreatedAt, d.Owner, d.Trials, d.Before = old.ID, old.CreatedAt, old.Owner, old.Trials, old.Before
		}
		d.UpdatedAt, d.Revision = now, old.Revision+1
		// With other steps what is tried has another label, too: it is not tried any more.
		another := old.Model != d.Model || old.Version != d.Version || old.Digest != d.Digest || !sameSteps(old.Steps, d.Steps)
		if changed = another || !old.Spec.same(spec) || !old.FeatureSet.same(set); !changed {
			return nil
		}
		if err := s.cfg.Models.RequireVersion(ctx, tx, project, d.Model, d.Version); err != nil {
			return err
		}
		if old.Model != d.Model || old.Version != d.Version {
			if err := s.cfg.Models.Cleared(ctx, tx, project, d.Model, d.Version, ""); err != nil {
				return err
			}
		}
		for _, step := range d.Steps {
			if err := s.cfg.Models.RequireVersion(ctx, tx, project, step.Model, step.Version); err != nil {
				return fault.Wrap(err, "spec.%s", step.Step)
			}
			if slices.ContainsFunc(old.Steps, func(o StepModel) bool { return o.Model == step.Model && o.Version == step.Version }) {
				continue
			}
			if err := s.cfg.Models.Cleared(ctx, tx, project, step.Model, step.Version, ""); err != nil {
				return fault.Wrap(err, "spec.%s", step.Step)
			}
		}
		if dryRun {
			return nil
		}
		if another && old.ID != "" {
			if err := s.succeed(ctx, tx, old, &d); err != nil {
				return err
			}
		}
		if err := s.deploymentStore.Put(ctx, tx, d); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{
			Project: project, Action: "deployment.apply", Object: "deployment " + name,
			Detail: t.where(t.with(map[string]any{"model": d.Model, "version": d.Version, "digest": d.Digest})),
		}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, project, EventDeployed, Changed{Deployment: d.ID, Name: name, Model: d.Model, Version: d.Version})
	}
	if dryRun {
		err = s.cfg.DB.View(ctx, record)
	} else {
		err = s.cfg.DB.Update(ctx, project, record)
	}
	if err == nil && !changed && !dryRun && !later && s.failing(key{project, name}, old.wants()[0]) {
		s.settleNow(ctx, key{project, name}, t) // it answers again
		return s.withState(old), false, nil
	}
	if err != nil || dryRun || !changed {
		t.leave()
		if err == nil && !changed {
			d = s.withState(old)
		}
		return d, changed, fault.Wrap(err, "deploy %s", name)
	}
	if later {
		s.settleNow(ctx, key{project, name})
	} else {
		s.settleNow(ctx, key{project, name}, t)
	}
	if len(d.Trials) > 0 || later { // they are loaded as the manifest says now; what fails is in the state
		u := routine
		if later {
			u = demanded // also of one that is loaded when it is asked for: it is tried when its environment is there
		}
		_ = s.bring(context.WithoutCancel(ctx), key{project, name}, d, u)
	}
	return s.withState(d), true, nil
}

// succeed makes d the deployment after old, with another stable version: what
// was tried beside the old one ends.
func (s *Deployments) succeed(ctx context.Context, tx *store.Tx, old Deployment, d *Deployment) error {
	run, err := s.running(ctx, tx, d.Project, d.Name)
	if err != nil {
		return err
	}
	if run.ID != "" {
		reason := "version " + versionText(d.Version) + " of " + d.Model + " was deployed"
		if err := s.end(ctx, tx, run, Cancelled, RolloutEnd{Reason: reason}); err != nil {
			return err
		}
	}
	d.Trials = nil
	if shadow, ok := old.trialOf(Shadow); ok && old.Model == d.Model && shadow.Version != d.Version && sameSteps(old.Steps, d.Steps) {
		d.Trials = []Trial{shadow}
	}
	d.Before = nil
	if old.Model == d.Model {
		d.Before = pushed(old.Before, old.Version, d.Version)
	}
	return nil
}

// pushed remembers a version that was stable, but for the one that is now.
func pushed(before []int64, was, now int64) []int64 {
	out := make([]int64, 0, len(before)+1)
	for _, v := range append(slices.Clip(before), was) {
		if v != now && (len(out) == 0 || out[len(out)-1] != v) {
			out = append(out, v)
		}
	}
	if len(out) > maxBefore {
		out = out[len(out)-maxBefore:]
	}
	return out
}

// One is a deployment with its state in this process.
func (s *Deployments) One(ctx context.Context, project, name string) (d Deployment, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return d, err
	}
	if d, err = s.stored(ctx, project, name); err != nil {
		return d, err
	}
	return s.withState(d), nil
}

// UserOf names the deployment that runs a version of a model, tries it, would roll back to it
// or has it as a step, as "deployment NAME"; empty: none. Version 0 is any. It asks no
// permission.
func (s *Deployments) UserOf(ctx context.Context, tx *store.Tx, project, model string, version int64) (string, error) {
	all, err := s.deploymentStore.Of(ctx, tx, project, model)
	for _, d := range all {
		if d.Asks(model, version) {
			return "deployment " + d.Name, nil
		}
	}
	return "", err
}

// RecordIn is Record, in a transaction.
func (s *Deployments) RecordIn(ctx context.Context, tx *store.Tx, project, name string) (Deployment, error) {
	return s.deploymentStore.One(ctx, tx, project, name)
}

// Record is a deployment as it is stored, without its state in this process. It asks no
// permission.
func (s *Deployments) Record(ctx context.Context, project, name string) (Deployment, error) {
	return s.stored(ctx, project, name)
}

// List is a page of the deployments that the caller may read, by name, after a name.
func (s *Deployments) List(ctx context.Context, project, after string, limit int) (ds []Deployment, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, "")); err != nil {
		return nil, err
	}
	for len(ds) < limit {
		var next []Deployment
		if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			next, err = s.deploymentStore.List(ctx, tx, project, after, limit)
			return err
		}); err != nil {
			return nil, err
		}
		for _, d := range next {
			after = d.Name
			// Listed is what One would show.
			err := s.cfg.Authz.Allow(ctx, actionRead, object(project, d.Name))
			if err == nil && len(ds) < limit {
				ds = append(ds, s.withState(d))
			}
			if err != nil && !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
		}
		if len(next) < limit {
			break
		}
	}
	return ds, nil
}

// SearchFields are what a search finds a deployment by, besides its name.
func (d Deployment) SearchFields() []store.Field {
	out := store.FieldsOf("from", d.Model)
	if d.FeatureSet != nil {
		out = append(out, store.FieldsOf("from", d.Spec.Features.Service)...)
	}
	return out
}

// Find reads those deployments that the caller may read, by name after a name, of which may says
// that they may be what is looked for: limit of them at most.
func (s *Deployments) Find(ctx context.Context, project, after string, limit int, may func(store.Line) (bool, error)) (found store.Found[Deployment], err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, "")); err != nil {
		return found, err
	}
	found, err = store.Find(ctx, s.cfg.DB, store.Lookup[Deployment]{
		Lines: func(ctx context.Context, tx *store.Tx, after string, limit int) ([]store.Line, error) {
			return s.deploymentStore.Lines(ctx, tx, project, after, limit)
		},
		Read: func(ctx context.Context, tx *store.Tx, names []string) ([]Deployment, error) {
			return store.Each(names, func(name string) (Deployment, error) { return s.deploymentStore.One(ctx, tx, project, name) })
		},
		Key: func(d Deployment) string { return d.Name },
	}, after, limit, may)
	if err != nil {
		return found, err
	}
	kept := found.Objects[:0]
	for _, d := range found.Objects {
		err := s.cfg.Authz.Allow(ctx, actionRead, object(project, d.Name))
		switch {
		case err == nil:
			kept = append(kept, s.withState(d))
		case !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.NotFound):
			return found, err
		}
	}
	found.Objects = kept
	return found, nil
}

// Delete ends a deployment, with what is known of its rollouts and acts; running
// requests finish.
func (s *Deployments) Delete(ctx context.Context, project, name string) error {
	if err := s.cfg.Authz.Allow(ctx, actionApply, object(project, name)); err != nil {
		return err
	}
	err := s.cfg.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
		d, err := s.deploymentStore.One(ctx, tx, project, name)
		if err != nil {
			return err
		}
		if err := s.deploymentStore.Delete(ctx, tx, project, name); err != nil {
			return err
		}
		if err := audit.Append(ctx, tx, audit.Entry{Project: project, Action: "deployment.apply", Object: "deployment " + name, Detail: map[string]any{"deleted": true}}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, project, EventDeleted, Changed{Deployment: d.ID, Name: name, Model: d.Model, Version: d.Version})
	})
	if err != nil {
		return err
	}
	s.settleNow(ctx, key{project, name})
	return nil
}
