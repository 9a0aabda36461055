// Package deployments gives deployments their verified models, environments and features, and
// tells the other domains what a deployment is: its label, its stable version, how its inputs
// are named in a dataset.
//
// # Map
//
//   - models.go, python.go: the files of a version, and what they run in.
//   - features.go: features that a deployment looks up.
//   - label.go: residency and classification of what a deployment sees and answers.
//   - stable.go: the version that jobs run over a dataset.
package deployments

import (
	"context"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Features looks features up for serving.
type Features struct{ Features *feature.OnlineReads }

var _ serving.Features = Features{}

// Describe implements serving.Features.
func (f Features) Describe(ctx context.Context, p, service string) (serving.FeatureSet, error) {
	shape, err := f.Features.Shape(ctx, project.Name(p), service)
	if err != nil {
		return serving.FeatureSet{}, err
	}
	if len(shape.Purposes) > 0 {
		return serving.FeatureSet{}, fault.New(fault.Invalid, "feature service %s names no purpose, and its views are read for %s only", shape.Service, strings.Join(shape.Purposes, ", ")).
			WithHint("Set `purpose: %s` in the service.", shape.Purposes[0])
	}
	if err := f.Features.AllowClear(ctx, project.Name(p), shape.Service); err != nil {
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

// Label implements serving.Features.
func (f Features) Label(ctx context.Context, p, service string) (residency.Label, error) {
	shape, err := f.Features.Shape(identity.With(ctx, identity.Loop("label of a deployment")), project.Name(p), service)
	if err != nil {
		return nil, err
	}
	return residency.Derive(shape.Views...)
}

func (f Features) Read(ctx context.Context, r serving.FeatureRead) (serving.FeatureRows, error) {
	ask := feature.LookupRequest{Project: project.Name(r.Project), Service: r.Service, Rows: r.Rows, AsOf: r.AsOf, Keys: make([]feature.KeyColumn, len(r.Keys))}
	for i, k := range r.Keys {
		ask.Keys[i] = feature.KeyColumn(k)
	}
	found, err := f.Features.Lookup(ctx, ask)
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
