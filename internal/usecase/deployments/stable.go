package deployments

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/training/score"
	"github.com/falaj-ml/falaj/internal/usecase/featuredata"
)

// StableVersions tells jobs which version a deployment answers with.
type StableVersions struct {
	Deployments *serving.Deployments
	Datasets    dataset.Services
	Features    *feature.OfflineReads
}

var _ score.Deployments = StableVersions{}

// Stable implements score.Deployments.
func (s StableVersions) Stable(ctx context.Context, p project.Name, name, ref string) (score.Target, error) {
	d, err := s.Deployments.One(ctx, string(p), name)
	if err != nil {
		return score.Target{}, err
	}
	if d.Spec.Features == nil {
		return stableOf(d, nil)
	}
	v, err := featuredata.Data{Datasets: s.Datasets}.Resolve(ctx, p, ref)
	if err != nil {
		return score.Target{}, err
	}
	set, err := TrainingSet(ctx, s.Features, s.Datasets.Lineage, p, v.Ref)
	if err != nil {
		return score.Target{}, err
	}
	return stableOf(d, set.ColumnsOf(ColumnNames(v.Schema)))
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

// TrainingSet says how a dataset version was joined from features; that of a version from
// which a person was erased is that of the one that it stands for. The zero TrainingSet is
// none.
func TrainingSet(ctx context.Context, f *feature.OfflineReads, d *dataset.LineageReads, p project.Name, ref string) (feature.TrainingSet, error) {
	set, err := f.TrainingSet(ctx, p, ref)
	if !fault.Is(err, fault.NotFound) {
		return set, err
	}
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return feature.TrainingSet{}, err
	}
	was, err := d.StoodFor(ctx, p, r)
	if err != nil {
		return feature.TrainingSet{}, err
	}
	for _, r := range was {
		if set, err = f.TrainingSet(ctx, p, r.String()); !fault.Is(err, fault.NotFound) {
			return set, err
		}
	}
	return feature.TrainingSet{}, nil
}

// ColumnNames are the names of a schema's fields, in order.
func ColumnNames(schema *arrow.Schema) []string {
	names := make([]string, schema.NumFields())
	for i, f := range schema.Fields() {
		names[i] = f.Name
	}
	return names
}
