// Package watch gives monitoring what it watches: deployments and their labels, the data that
// their models were trained on, rollouts to be judged, and jobs that train domain classifiers.
//
// # Map
//
//   - deployments.go: what a deployment is, for monitors, labels and verification.
//   - baseline.go: the dataset version that a model version was trained on, as a baseline.
//   - classifiers.go: windows as datasets, and jobs that tell them from the baseline.
//   - rollouts.go: rollouts, for their judge.
package watch

import (
	"context"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/verification"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
)

// Deployments answers questions about deployments of monitoring, of those who label
// predictions, and of verification. It asks no permission: who labels predictions need not be
// permitted to read the deployment.
type Deployments struct {
	Serving  *serving.Deployments
	Features *feature.OnlineReads
}

var (
	_ monitoring.Deployments   = Deployments{}
	_ label.Deployments        = Deployments{}
	_ verification.Deployments = Deployments{}
)

// Watched implements monitoring.Deployments.
func (d Deployments) Watched(ctx context.Context, p, name string) (monitoring.Watched, error) {
	one, err := d.Serving.Record(ctx, p, name)
	if err != nil {
		return monitoring.Watched{}, err
	}
	w := monitoring.Watched{ID: string(one.ID), Revision: one.Revision, Model: one.Model, Version: one.Version}
	if f := one.Spec.Features; f != nil && one.FeatureSet != nil {
		w.Columns = append(slices.Clone(one.FeatureSet.JoinKeys), f.Columns...)
	}
	if p := one.Spec.Prediction; p != nil && len(p.Classes) > 0 {
		w.Classes, w.Positive = p.Classes, len(p.Classes)-1
		if p.Index != nil {
			w.Positive = *p.Index
		}
	}
	w.Residency, w.Classification, err = deployments.Label(ctx, d.Features, one)
	return w, err
}

// Facts implements label.Deployments.
func (d Deployments) Facts(ctx context.Context, project, deployment string) (label.Facts, error) {
	one, err := d.Serving.Record(ctx, project, deployment)
	if err != nil {
		return label.Facts{}, err
	}
	f := label.Facts{Owner: prediction.OwnerOf(string(one.ID))}
	f.Residency, f.Classification, err = deployments.Label(ctx, d.Features, one)
	return f, err
}

// Served is what a deployment gives its models, as features that can be recomputed.
func (d Deployments) Served(ctx context.Context, project, deployment string) (verification.Served, error) {
	one, err := d.Serving.Record(ctx, project, deployment)
	if err != nil {
		return verification.Served{}, err
	}
	spec := one.Spec.Features
	if spec == nil || one.FeatureSet == nil {
		return verification.Served{}, fault.New(fault.Invalid, "deployment %q has no online features", deployment).
			WithHint("Set spec.features; request-time values cannot be recomputed.")
	}
	out := verification.Served{Service: one.FeatureSet.Ref, Owner: prediction.OwnerOf(string(one.ID))}
	for _, name := range spec.Columns {
		view, _, ok := strings.Cut(name, ":")
		if !ok {
			continue // the request brings it
		}
		column := feature.AnswerColumn{Feature: name}
		value, there := spec.Defaults[name]
		if !there {
			value, there = spec.Defaults[view+":*"]
		}
		if there {
			x := float64(value)
			column.Default = &x
		}
		if age := spec.MaxAge[view]; age != "" {
			if column.MaxAge, err = resource.ParseDuration(age); err != nil {
				return out, fault.Wrap(err, "max_age of %s", view)
			}
		}
		out.Columns = append(out.Columns, column)
	}
	return out, nil
}
