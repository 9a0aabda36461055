package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
	"github.com/falaj-ml/falaj/internal/usecase/featuredata"
)

// Baselines hands monitoring what model versions were trained on.
type Baselines struct {
	Deployments *serving.Deployments
	Inference   *serving.Inference
	Registry    *registry.Versions
	Datasets    dataset.Services
	Features    *feature.OfflineReads
}

var _ monitoring.Sources = Baselines{}

// Training finds the data that the version was trained on: what its job declared, or the
// only dataset that it read. Which one of several is not guessed.
func (b Baselines) Training(ctx context.Context, q monitoring.OriginQuery) (monitoring.Origin, error) {
	d, err := b.Deployments.Record(ctx, q.Project, q.Deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	v, err := b.Registry.Version(ctx, project.Name(q.Project), d.Model, strconv.FormatInt(q.Version, 10))
	if err != nil {
		return monitoring.Origin{}, err
	}
	ref, err := trainedOn(v)
	if err != nil {
		return monitoring.Origin{}, err
	}
	return b.origin(ctx, q, d, ref)
}

// trainedOn is the dataset version that a model version was trained on. Errors:
// fault.NotFound where none is known; fault.Conflict where it may be several.
func trainedOn(v registry.Version) (string, error) {
	switch {
	case v.TrainedOn != "":
		return v.TrainedOn, nil
	case len(v.Datasets) == 1:
		return v.Datasets[0], nil
	case len(v.Datasets) == 0:
		return "", fault.New(fault.NotFound, "the training set of %s is unknown", v).
			WithHint("Name the baseline in the Monitor's spec.baseline, as dataset:NAME@VERSION.")
	}
	return "", fault.New(fault.Conflict, "the training set of %s is ambiguous: %s", v, strings.Join(v.Datasets, ", ")).
		WithHint("Declare training_data in the job that trains it, or name the baseline in the Monitor's spec.baseline, as dataset:NAME@VERSION.")
}

// Dataset is the dataset that a manifest names.
func (b Baselines) Dataset(ctx context.Context, q monitoring.OriginQuery, ref string) (monitoring.Origin, error) {
	d, err := b.Deployments.Record(ctx, q.Project, q.Deployment)
	if err != nil {
		return monitoring.Origin{}, err
	}
	return b.origin(ctx, q, d, ref)
}

// origin says which columns of a dataset version are which of the model's inputs. Of a
// version from which a person was erased it is the one that stands for it now.
func (b Baselines) origin(ctx context.Context, q monitoring.OriginQuery, d serving.Deployment, ref string) (monitoring.Origin, error) {
	p, data := project.Name(q.Project), featuredata.Data{Datasets: b.Datasets}
	standing, err := data.Standing(ctx, p, ref)
	var v feature.DatasetVersion
	if err == nil {
		v, err = data.Resolve(ctx, p, standing)
	}
	if fault.Is(err, fault.NotFound) && identity.From(ctx).Kind == identity.System { // of somebody who applies a manifest, it is a name that is wrong
		err = fault.New(fault.Gone, "%s does not exist any more", ref)
	}
	if err != nil {
		return monitoring.Origin{}, err
	}
	set, err := deployments.TrainingSet(ctx, b.Features, b.Datasets.Lineage, p, v.Ref)
	if err != nil {
		return monitoring.Origin{}, err
	}
	o := monitoring.Origin{Ref: v.Ref, Digest: v.Digest, Residency: v.Residency, Classification: string(v.Classification)}
	names := deployments.ColumnNames(v.Schema)
	if o.Prediction, err = q.PredictionOf(names); err != nil {
		return monitoring.Origin{}, err
	}
	if d.Spec.Features != nil {
		o.Inputs, o.Unscored, o.Note = inputsOf(d.Spec.Features, set.ColumnsOf(names))
		o.Scored, o.Declared = o.Unscored == "", true
		if o.Scored && q.Prediction == "" {
			o.Prediction = "" // the model itself says it
		}
	} else {
		for _, name := range names {
			if name != set.Timestamp && name != o.Prediction && !slices.Contains(set.Labels, name) {
				o.Inputs = append(o.Inputs, monitoring.OriginInput{Name: name, Column: name})
			}
		}
		o.Unscored = "deployment " + d.Name + " has no spec.features, so that its model cannot be run over " + v.Ref +
			", which has no column prediction; name one in spec.prediction_column of the Monitor"
	}
	definition, err := json.Marshal([]any{2, o.Inputs, o.Prediction, d.Spec.Prediction, d.Model})
	if err != nil {
		return monitoring.Origin{}, err
	}
	sum := sha256.Sum256(definition)
	o.Definition = hex.EncodeToString(sum[:8])
	return o, nil
}

// inputsOf finds the column of each of the deployment's columns; unscored says which
// there is none of, note which may be several.
func inputsOf(spec *serving.FeaturesSpec, known []naming.Column) (inputs []monitoring.OriginInput, unscored, note string) {
	var without []string
	at, why := naming.Match(known, spec.Columns)
	for i, name := range spec.Columns {
		if at[i] < 0 {
			without = append(without, name)
			continue
		}
		inputs = append(inputs, monitoring.OriginInput{Name: name, Column: known[at[i]].Name, Otherwise: defaultOf(spec, name)})
	}
	if len(without) > 0 {
		unscored = "the dataset has no column of " + strings.Join(without, ", ")
	}
	return inputs, unscored, strings.Join(slices.Compact(slices.Sorted(maps.Values(why))), "; ")
}

// defaultOf is what the model sees of a feature that is missing; nil is NaN.
func defaultOf(spec *serving.FeaturesSpec, name string) *float64 {
	view, _, _ := strings.Cut(name, ":")
	for _, rule := range []string{name, view + ":*"} {
		if n, ok := spec.Defaults[rule]; ok {
			if v := float64(n); !math.IsNaN(v) {
				return &v
			}
			return nil
		}
	}
	return nil
}

// Open implements monitoring.Sources.
func (b Baselines) Open(ctx context.Context, p, ref string, columns []string) (array.RecordReader, error) {
	return featuredata.Data{Datasets: b.Datasets}.Open(ctx, project.Name(p), ref, columns)
}

// Scores runs the version in a session of its own: nothing is routed, counted or
// remembered.
func (b Baselines) Scores(ctx context.Context, p, deployment string, version int64, o monitoring.Origin, rows [][]float64) ([]float64, error) {
	return b.Inference.Score(ctx, p, deployment, version, serving.Rows{What: "dataset " + o.Ref, Label: o.Residency, Values: rows})
}
