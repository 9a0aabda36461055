package app

import (
	"context"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training/score"
)

// servingFeatures looks features up for serving.
type servingFeatures struct{ features *feature.Service }

var _ serving.Features = servingFeatures{}

func (f servingFeatures) Describe(ctx context.Context, p, service string) (serving.FeatureSet, error) {
	shape, err := f.features.Shape(ctx, project.Name(p), service)
	if err != nil {
		return serving.FeatureSet{}, err
	}
	if len(shape.Purposes) > 0 {
		return serving.FeatureSet{}, fault.New(fault.Invalid, "feature service %s names no purpose, and its views are read for %s only", shape.Service, strings.Join(shape.Purposes, ", ")).
			WithHint("Set `purpose: %s` in the service.", shape.Purposes[0])
	}
	if err := f.features.AllowClear(ctx, project.Name(p), shape.Service); err != nil {
		return serving.FeatureSet{}, err
	}
	for i, t := range shape.Types {
		if !t.Number() {
			return serving.FeatureSet{}, fault.New(fault.Invalid, "feature %s is a %s; a model's columns are numbers", shape.Features[i], t).
				WithHint("Use a feature service with numeric features for the model.")
		}
	}
	return serving.FeatureSet{Ref: shape.Service, JoinKeys: shape.JoinKeys, Request: shape.Request, Features: shape.Features}, nil
}

// stableVersions tells jobs which version a deployment answers with.
type stableVersions struct{ *App }

var _ score.Deployments = stableVersions{}

// Stable implements score.Deployments.
func (s stableVersions) Stable(ctx context.Context, p project.Name, name, ref string) (score.Target, error) {
	d, err := s.serving.One(ctx, string(p), name)
	if err != nil {
		return score.Target{}, err
	}
	if d.Spec.Features == nil {
		return stableOf(d, nil)
	}
	v, err := featureData{s.datasets}.Resolve(ctx, p, ref)
	if err != nil {
		return score.Target{}, err
	}
	set, err := s.trainingSet(ctx, p, v.Ref)
	if err != nil {
		return score.Target{}, err
	}
	return stableOf(d, set.ColumnsOf(namesOf(v.Schema)))
}

// stableOf is the version that is stable in a deployment. The columns are those of a
// dataset that the deployment itself makes an input of.
func stableOf(d serving.Deployment, known []naming.Column) (score.Target, error) {
	if r := d.Spec.Runtime; r != nil && r.Remote.Name != "" {
		return score.Target{}, fault.New(fault.Unsupported, "deployment %s uses the remote %s, whose model cannot run in a job", d.Name, r.Remote.Name).
			WithHint("Deploy the version here, without spec.runtime.remote, under another name, or send the rows as requests.")
	}
	if d.Spec.Chained() {
		return score.Target{}, fault.New(fault.Unsupported, "deployment %s has steps before or after its model, which batch prediction does not support", d.Name).
			WithHint("Send the rows as requests; or deploy the model without steps under another name, and prepare its columns in the dataset.")
	}
	said := d.Spec.Runtime != nil && d.Spec.Runtime.Python != (serving.PythonSpec{})
	for _, t := range d.Targets {
		if t.Role == serving.Stable && (t.Environment != "" || said) {
			return score.Target{}, fault.New(fault.Unsupported, "deployment %s has a Python model, but batch prediction supports ONNX only", d.Name).
				WithHint("Load the version in your own job (`data: {model: models:/%s/%d}`), or send the rows as requests.", d.Model, d.Version)
		}
	}
	t := score.Target{Model: d.Model, Version: d.Version, Threads: d.Spec.Threads}
	if f := d.Spec.Features; f != nil {
		columns := make([]string, len(f.Columns))
		at, _ := naming.Match(known, f.Columns)
		for i, c := range f.Columns {
			if columns[i] = naming.FullColumn(c); at[i] >= 0 { // else the job says what is missing
				columns[i] = known[at[i]].Name
			}
		}
		t.Columns = map[string][]string{f.Input: columns}
	}
	return t, nil
}

// labelOf is where what a deployment sees and says may be, and how it is
// classified: its model's label, and that of the features that it looks up, as
// they are now. A feature service that is not there any more leaves nobody who
// could say, so what it gave is restricted.
func labelOf(ctx context.Context, features *feature.Service, d serving.Deployment) (residency.Label, string, error) {
	class := classOf(d.Classification)
	if d.FeatureSet == nil {
		return d.Residency, string(class), nil
	}
	shape, err := features.Shape(identity.With(ctx, identity.Loop("label of a deployment")), project.Name(d.Project), d.FeatureSet.Ref)
	if fault.Is(err, fault.NotFound) {
		return d.Residency, string(project.Restricted), nil
	}
	if err != nil {
		return nil, "", fault.Wrap(err, "the label of deployment %s", d.Name)
	}
	label, err := residency.Derive(append(shape.Views, residency.Parent{Name: "model " + d.Model, Label: d.Residency})...)
	return label, string(project.Strictest(class, shape.Classification)), err
}

// Label implements serving.Features.
func (f servingFeatures) Label(ctx context.Context, p, service string) (residency.Label, error) {
	shape, err := f.features.Shape(identity.With(ctx, identity.Loop("label of a deployment")), project.Name(p), service)
	if err != nil {
		return nil, err
	}
	return residency.Derive(shape.Views...)
}

func (f servingFeatures) Read(ctx context.Context, r serving.FeatureRead) (serving.FeatureRows, error) {
	ask := feature.LookupRequest{Project: project.Name(r.Project), Service: r.Service, Rows: r.Rows, AsOf: r.AsOf, Keys: make([]feature.KeyColumn, len(r.Keys))}
	for i, k := range r.Keys {
		ask.Keys[i] = feature.KeyColumn(k)
	}
	found, err := f.features.Lookup(ctx, ask)
	if err != nil {
		return serving.FeatureRows{}, err
	}
	out := serving.FeatureRows{At: found.AsOf, Columns: make([]serving.FeatureColumn, len(found.Columns))}
	for i, c := range found.Columns {
		statuses := make([]serving.FeatureStatus, len(c.Statuses))
		for row, s := range c.Statuses {
			statuses[row] = serving.FeatureStatus(s)
		}
		out.Columns[i] = serving.FeatureColumn{Values: c.Values, Statuses: statuses, Events: c.Events}
	}
	return out, nil
}
