package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving"
)

// servingFeatures looks features up for serving.
type servingFeatures struct{ features *feature.Service }

var _ serving.Features = servingFeatures{}

func (f servingFeatures) Describe(ctx context.Context, p, service string) (serving.FeatureSet, error) {
	shape, err := f.features.Shape(ctx, project.Name(p), service)
	if err != nil {
		return serving.FeatureSet{}, err
	}
	for i, t := range shape.Types {
		switch t {
		case value.Float64, value.Int64, value.Bool:
		default:
			return serving.FeatureSet{}, fault.New(fault.Invalid, "feature %s is a %s; a model's columns are numbers", shape.Features[i], t).
				WithHint("Make a feature service of numbers for the model.")
		}
	}
	return serving.FeatureSet{Ref: shape.Service, JoinKeys: shape.JoinKeys, Features: shape.Features}, nil
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
