package deployments

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
)

// Label is where what a deployment sees and says may be, and how it is
// classified: its model's label, and that of the features that it looks up, as
// they are now. A feature service that is not there any more leaves nobody who
// could say, so what it gave is restricted.
func Label(ctx context.Context, features *feature.OnlineReads, d serving.Deployment) (residency.Label, string, error) {
	class := ClassOf(d.Classification)
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

// ClassOf reads the classification of a deployment or model: empty is internal.
func ClassOf(text string) project.Classification {
	if text == "" {
		return project.Internal
	}
	return project.Classification(text)
}
