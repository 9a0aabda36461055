package serving

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// StepModel is a model that is a step of a deployment, as it was when the manifest
// was applied.
type StepModel struct {
	Step           string          `json:"step"` // "before[0]"
	Model          string          `json:"model"`
	Version        int64           `json:"version"`
	Digest         string          `json:"digest"`
	Residency      residency.Label `json:"residency"`
	Classification string          `json:"classification"`
}

// Asks reports whether the deployment needs a version of a model: its own, or that of
// a step. 0 is any.
func (d Deployment) Asks(model string, version int64) bool {
	if d.Model == model && (version == 0 || d.Uses(version)) {
		return true
	}
	return slices.ContainsFunc(d.Steps, func(m StepModel) bool { return m.Model == model && (version == 0 || m.Version == version) })
}

// chain is the steps of a spec. A tensor that features fill is there like those that
// requests bring.
func (s Spec) chain() chain.Spec {
	return chain.Spec{Inputs: s.Inputs, Before: s.Before, After: s.After, Outputs: s.Outputs}
}

// Chained reports whether there are steps before or after the model.
func (s Spec) Chained() bool { return !s.chain().None() }

// how a version of the deployment is loaded.
func (d Deployment) how() how {
	h := d.Spec.how()
	if !d.Spec.Chained() {
		return h
	}
	said := struct {
		Steps   chain.Spec `json:"steps"`
		Models  []string   `json:"models"`
		Input   string     `json:"input"`
		Columns []string   `json:"columns"`
	}{Steps: d.Spec.chain()}
	for _, m := range d.Steps { // not its label, which may be another when it is loaded again
		said.Models = append(said.Models, m.Step, m.Model, versionText(m.Version), m.Digest)
	}
	if f := d.Spec.Features; f != nil {
		said.Input, said.Columns = f.Input, f.Columns
	}
	text, _ := json.Marshal(said) // texts and numbers
	h.steps = string(text)
	return h
}

// stepsOf is the deployment's chain for a model: with the tensor that features fill,
// whose columns are called as they are.
func (d Deployment) stepsOf(model models.Metadata) chain.Spec {
	c, f := d.Spec.chain(), d.Spec.Features
	if f == nil || slices.ContainsFunc(c.Inputs, func(in chain.InputSpec) bool { return in.Name == f.Input }) {
		return c
	}
	in := chain.InputSpec{Name: f.Input, Datatype: models.FP64, Shape: []int64{-1, int64(len(f.Columns))}}
	for _, own := range model.Inputs {
		if own.Name == f.Input {
			in.Datatype = own.Datatype
		}
	}
	for _, name := range f.Columns {
		if taken := strings.ReplaceAll(name, ":", "__"); slices.ContainsFunc(c.Inputs, func(in chain.InputSpec) bool { return in.Name == name || in.Name == taken }) {
			name = f.Input + "." + name // a request brings another of that name
		}
		in.Columns = append(in.Columns, name)
	}
	c.Inputs = append(slices.Clip(c.Inputs), in)
	return c
}

// chained puts the deployment's steps around a model that was loaded. It takes its
// session over. The models of steps are those that were pinned or, when none are, those
// that the manifest means now. The answer's model is as classified, and may be where,
// as all of them together.
func (s *core) chained(ctx context.Context, d Deployment, m Model, session models.Session, h *health) (_ *chain.Session, _ Model, pinned []StepModel, err error) {
	held := []models.Session{session}
	defer func() {
		if err != nil {
			for _, h := range held {
				_ = h.Close()
			}
		}
	}()
	spec := d.Spec
	spec.Scale = nil                 // it is of the deployment's own model
	if r := spec.Runtime; r != nil { // a remote has the deployment's own model
		here := *r
		here.Remote, here.Python = RemoteSpec{}, PythonSpec{}
		spec.Runtime = &here
	}
	parents, classes := []residency.Parent{{Name: "model " + m.Name, Label: m.Residency}}, []string{m.Classification}
	steps, names := d.Spec.chain().Steps()
	for i, step := range steps {
		if step.Model == "" {
			continue
		}
		version, digest := cmp.Or(step.Version, "champion"), ""
		if n := len(pinned); len(d.Steps) > n {
			version, digest = versionText(d.Steps[n].Version), d.Steps[n].Digest
		}
		one, part, err := s.member(ctx, d, spec, step.Model, version, digest, s.supervise(h, names[i]))
		if err != nil {
			return nil, m, nil, fault.Wrap(err, "spec.%s", names[i])
		}
		held = append(held, one)
		pinned = append(pinned, StepModel{
			Step: names[i], Model: part.Name, Version: part.Version, Digest: part.Digest, Residency: part.Residency, Classification: part.Classification,
		})
		parents, classes = append(parents, residency.Parent{Name: "model " + part.Name, Label: part.Residency}), append(classes, part.Classification)
	}
	if len(pinned) > 0 {
		if m.Residency, err = residency.Derive(parents...); err != nil {
			return nil, m, nil, err
		}
		m.Classification = strictest(classes)
	}
	c, err := chain.New(d.stepsOf(session.Metadata()), session, held[1:])
	if err != nil {
		return nil, m, nil, err
	}
	return c, m, pinned, nil
}

// member loads the model of a step. What it says of a row goes where the deployment's
// model runs.
func (s *core) member(ctx context.Context, d Deployment, spec Spec, model, version, digest string, died func(models.Death) bool) (models.Session, Model, error) {
	m, err := s.verified(ctx, d.Project, model, version)
	if err != nil {
		return nil, m, err
	}
	if digest != "" && m.Digest != digest {
		return nil, m, fault.New(fault.Conflict, "version %d of %s differs from the deployed one by its digest", m.Version, model)
	}
	if d.Spec.remote().Name != "" {
		if err := s.crossed(ctx, d.Project, d.Spec, actionApply, "model "+model, m.Residency); err != nil {
			return nil, m, err
		}
	}
	session, _, err := s.session(ctx, d.Project, d.Name, spec, &m, died)
	return session, m, err
}

// strictest is the class of what several models made; those of no class say nothing.
func strictest(classes []string) string {
	var all []project.Classification
	for _, c := range classes {
		if c != "" {
			all = append(all, project.Classification(c))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return string(project.Strictest(all...))
}

// sameSteps reports whether the same versions are the steps.
func sameSteps(a, b []StepModel) bool {
	return slices.EqualFunc(a, b, func(a, b StepModel) bool {
		return a.Step == b.Step && a.Model == b.Model && a.Version == b.Version && a.Digest == b.Digest
	})
}

// dress makes of a target with steps what clients see of it, and finds its score: of the
// model's own outputs, unless the manifest names another.
func (t *target) dress(c *chain.Session, p *PredictionSpec) error {
	t.meta, t.names, t.chain = c.Visible(), inputNames(c.Model()), c
	t.outputs = namesOf(t.meta.Outputs)
	maps.Copy(t.names, c.Columns())
	scored := c.Model()
	if p != nil && p.Output != "" {
		scored = c.Metadata()
	}
	var err error
	t.score, err = scoreOf(p, scored)
	return err
}

// with adds to a record which models are steps.
func (t *target) with(detail map[string]any) map[string]any {
	if len(t.steps) > 0 {
		detail["steps"] = t.steps
	}
	return detail
}

// also is what is asked of a model beside what is wanted: the score, and what steps made
// for the model, which is remembered.
func (c *call) also(x *target, wanted []string) []string {
	asked := wanted
	add := func(name string) {
		if name != "" && !slices.Contains(asked, name) {
			asked = append(slices.Clip(asked), name)
		}
	}
	add(x.score.output)
	if x.score.ofClasses() && c.s.cfg.Predictions != nil && c.table.deployment.Spec.remembered() {
		add(x.score.label)
	}
	if x.chain != nil && c.filled.columns == nil && c.s.cfg.Predictions != nil && c.table.deployment.Spec.remembered() {
		for _, name := range x.chain.Seen() {
			add(name)
		}
	}
	return asked
}

// saw are the inputs that the model saw, out of what was sent and what steps made of it;
// nil when that is not known, because a step failed.
func (c *call) saw(x *target, outputs []models.Tensor) []models.Tensor {
	if x.chain == nil {
		return ofRows(x.meta, c.filled.inputs, c.filled.rows)
	}
	own := x.chain.Model().Inputs
	out := make([]models.Tensor, 0, len(own))
	for _, in := range own {
		for _, from := range [][]models.Tensor{c.filled.inputs, outputs} {
			if i := slices.IndexFunc(from, func(t models.Tensor) bool { return t.Name == in.Name }); i >= 0 {
				out = append(out, from[i])
				break
			}
		}
	}
	if len(out) < len(own) {
		return nil
	}
	return out
}

// ofRows are the inputs of a model without those of the optional ones that have no row for
// each of the request's: they are of no column.
func ofRows(m models.Metadata, inputs []models.Tensor, rows int) []models.Tensor {
	if len(inputs) <= len(m.Inputs) {
		return inputs
	}
	return slices.DeleteFunc(slices.Clone(inputs), func(t models.Tensor) bool {
		optional := slices.ContainsFunc(m.Optional, func(s models.Spec) bool { return s.Name == t.Name })
		return optional && (len(t.Shape) == 0 || t.Shape[0] != int64(rows))
	})
}
