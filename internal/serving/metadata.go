package serving

import (
	"context"
	"errors"
	"slices"

	"github.com/falaj-ml/falaj/internal/serving/batching"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Description is what a deployment's model says about itself.
type Description struct {
	models.Metadata
	Name     string
	Versions []int64 // those that answer
	Batched  bool    // requests share runs
	Queue    batching.Options
	Away     error // why it does not at the moment; nil when it does
}

// Metadata describes the model behind a deployment's name, and which versions
// answer.
func (s *Inference) Metadata(ctx context.Context, project, name, version string) (Description, error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return Description{}, err
	}
	r := &Request{Project: project, Name: name, Version: version}
	t, x, _, err := s.pick(r)
	if errors.Is(err, errScaledToZero) {
		if d, ok := s.describeUnloaded(r); ok {
			return d, nil
		}
		t, x, _, err = s.pickLoaded(ctx, r, 1, 0)
	}
	if err != nil {
		return Description{}, err
	}
	defer x.leave()
	d := Description{Metadata: x.meta, Name: name, Away: x.unavailable(), Queue: x.queue.Options()}
	d.Batched, _ = x.batches()
	if version != "" {
		d.Versions = []int64{x.model.Version}
		return d, nil
	}
	for _, x := range t.targets() {
		if x != t.shadow {
			d.Versions = append(d.Versions, x.model.Version)
		}
	}
	return d, nil
}

// Takes is what requests of a deployment may bring.
type Takes struct {
	Platform string
	Inputs   []models.Spec // of the model
	Optional []models.Spec // those that have a default in the model
	// Columns may come in place of the model's input that features fill: their keys, and the
	// values of the request. nil of a deployment without features.
	Columns []string
}

// takes is what requests of a version may bring.
func (t *table) takes(x *target) Takes {
	out := Takes{Platform: x.meta.Platform, Inputs: x.meta.Inputs, Optional: x.meta.Optional}
	if f := t.features; f != nil {
		out.Columns = slices.Concat(f.keys, f.values)
		for _, name := range f.requests {
			if !slices.Contains(out.Columns, name) {
				out.Columns = append(out.Columns, name)
			}
		}
	}
	return out
}

// Takes is what requests of a deployment may bring, for who may ask it.
func (s *Inference) Takes(ctx context.Context, project, name, version string) (Takes, error) {
	r := &Request{Project: project, Name: name, Version: version}
	t, x, _, err := s.pick(r)
	if errors.Is(err, errScaledToZero) {
		return s.takesOfUnloaded(ctx, r)
	}
	asked := object(project, name)
	if x != nil {
		defer x.leave()
		asked.Classification, asked.Residency = x.model.Classification, x.model.Residency
	}
	if err := s.cfg.Authz.Allow(ctx, actionInfer, asked); err != nil {
		return Takes{}, err
	}
	if err != nil {
		return Takes{}, err
	}
	return t.takes(x), nil
}

// Answers says why a version would not answer at the moment, without loading it; nil
// of one that would, and of one that is scaled to zero. Errors:
// fault.NotFound, fault.Unavailable (not loaded), fault.PermissionDenied.
func (s *Inference) Answers(ctx context.Context, project, name, version string) (away, err error) {
	if err := s.cfg.Authz.Allow(ctx, actionRead, object(project, name)); err != nil {
		return nil, err
	}
	_, x, _, err := s.pick(&Request{Project: project, Name: name, Version: version})
	if errors.Is(err, errScaledToZero) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer x.leave()
	return x.unavailable(), nil
}

// describeUnloaded describes a version that is scaled to zero, by what it said when it was loaded;
// false when nothing is known.
func (s *Inference) describeUnloaded(r *Request) (Description, bool) {
	t := s.table(key{r.Project, r.Name})
	x := t.scaledToZeroTarget(r.Version)
	if x == nil {
		return Description{}, false
	}
	d := Description{Metadata: x.meta, Name: r.Name, Queue: x.queue.Options()}
	d.Batched, _ = x.batches()
	if r.Version != "" {
		d.Versions = []int64{x.model.Version}
		return d, true
	}
	for _, w := range t.wanted {
		if w.role != Shadow {
			d.Versions = append(d.Versions, w.version)
		}
	}
	return d, true
}

// takesOfUnloaded is Takes of a version that is scaled to zero. What
// nothing is known of is loaded.
func (s *Inference) takesOfUnloaded(ctx context.Context, r *Request) (Takes, error) {
	t := s.table(key{r.Project, r.Name})
	if t == nil {
		return Takes{}, unknown(r.Name, r.Version)
	}
	if err := s.cfg.Authz.Allow(ctx, actionInfer, t.object(t.wantedVersion(r.Version))); err != nil {
		return Takes{}, err
	}
	if x := t.scaledToZeroTarget(r.Version); x != nil {
		return t.takes(x), nil
	}
	t, x, _, err := s.pickLoaded(ctx, r, 1, 0)
	if err != nil {
		return Takes{}, err
	}
	defer x.leave()
	return t.takes(x), nil
}

// Ready reports whether every model that a project wants answers. Of no project,
// "", it reports whether the server is there for all: it has looked at every
// deployment once, whether or not its model could be loaded.
func (s *Inference) Ready(project string) bool {
	if project == "" {
		return s.looked.Load()
	}
	for k, t := range *s.tables.Load() {
		if k.project == project && !s.answers(k, t) {
			return false
		}
	}
	return s.read.Load()
}

// answers reports whether a deployment's stable version answers, or is loaded when it
// is asked for.
func (s *Inference) answers(k key, t *table) bool {
	if t.stable == nil {
		return errors.Is(s.notReady(k, t, ""), errScaledToZero)
	}
	return t.stable.unavailable() == nil
}
