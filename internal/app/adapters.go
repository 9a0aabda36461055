package app

import (
	"context"
	"path"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/onnxfile"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// featureData answers feature's questions about data from datasets.
type featureData struct{ datasets *dataset.Service }

func factsOf(v dataset.Version) feature.DatasetVersion {
	return feature.DatasetVersion{
		Ref: v.Ref().String(), Digest: v.ContentDigest, Residency: v.Residency, Classification: v.Classification,
		Schema: v.Schema.Arrow(), Rows: v.Rows,
	}
}

func (f featureData) Resolve(ctx context.Context, p project.Name, ref string) (feature.DatasetVersion, error) {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	v, err := f.datasets.Version(ctx, p, r)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	if err := v.Usable(); err != nil {
		return feature.DatasetVersion{}, err
	}
	return factsOf(v), nil
}

func (f featureData) Standing(ctx context.Context, p project.Name, ref string) (string, error) {
	r, err := dataset.ParseRef(ref)
	if err == nil {
		r, err = f.datasets.Standing(ctx, p, r)
	}
	return r.String(), err
}

func (f featureData) Open(ctx context.Context, p project.Name, ref string, columns []string) (array.RecordReader, error) {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return nil, err
	}
	return f.datasets.Open(ctx, dataset.OpenRequest{Project: p, Ref: r, Columns: columns, Purpose: "features"})
}

func (f featureData) Reauthorize(ctx context.Context, p project.Name, ref string) error {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return err
	}
	return f.datasets.Reauthorize(ctx, dataset.OpenRequest{Project: p, Ref: r})
}

func (f featureData) Query(ctx context.Context, p project.Name, sql string, inputs map[string]string, local feature.Local) (feature.Rows, error) {
	q := dataset.QueryRequest{Project: p, SQL: sql, Purpose: "features", TimeZone: local.TimeZone, Early: local.Early}
	if inputs != nil {
		q.Inputs = make(map[string]dataset.Ref, len(inputs))
		for table, ref := range inputs {
			r, err := dataset.ParseRef(ref)
			if err != nil {
				return feature.Rows{}, err
			}
			q.Inputs[table] = r
		}
	}
	result, err := f.datasets.Query(ctx, q)
	if err != nil {
		return feature.Rows{}, err
	}
	rows := feature.Rows{RecordReader: result, Local: result.Local()}
	if columns := result.Columns(); columns != nil {
		rows.Origins = feature.Origins{}
		for column, from := range columns {
			for _, s := range from {
				rows.Origins[column] = append(rows.Origins[column], feature.Origin{Dataset: s.Ref, Column: s.Column, How: s.How})
			}
		}
	}
	for _, v := range result.Inputs() {
		rows.Inputs = append(rows.Inputs, feature.Input{Table: tableOf(v, q.Inputs), DatasetVersion: factsOf(v)})
	}
	return rows, nil
}

// tableOf is the name that the SQL has for a version.
func tableOf(v dataset.Version, inputs map[string]dataset.Ref) string {
	for table, ref := range inputs {
		if ref.Name == v.Dataset && (ref.Number == 0 || ref.Number == v.Number) {
			return table
		}
	}
	return v.Dataset
}

func (f featureData) Create(ctx context.Context, d feature.Derived) (feature.DatasetVersion, error) {
	r := dataset.CreateRequest{
		Project: d.Project, Name: d.Name, Description: d.Description, Rows: d.Rows,
		Producer: dataset.Producer{Kind: d.Kind, Digest: d.Digest, Text: d.Text},
	}
	if d.Origins != nil {
		r.Columns = func() dataset.Columns {
			var out dataset.Columns
			for column, from := range d.Origins() {
				if out == nil {
					out = dataset.Columns{}
				}
				out[column] = make([]dataset.ColumnSource, len(from))
				for i, o := range from {
					out[column][i] = dataset.ColumnSource{Ref: o.Dataset, Column: o.Column, How: o.How}
				}
			}
			return out
		}
	}
	for _, parent := range d.Parents {
		ref, err := dataset.ParseRef(parent)
		if err != nil {
			return feature.DatasetVersion{}, err
		}
		r.Parents = append(r.Parents, ref)
	}
	v, err := f.datasets.Create(ctx, r)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	return factsOf(v), nil
}

func (f featureData) Columns(ctx context.Context, p project.Name, name string) (*arrow.Schema, error) {
	d, err := f.datasets.One(ctx, p, name)
	if err != nil {
		return nil, err
	}
	if len(d.Spec.Columns) == 0 {
		return nil, fault.New(fault.Invalid, "dataset %s declares no columns", name).
			WithHint("Declare in the Dataset's spec.columns which columns events have, and their types.")
	}
	schema := make(dataset.Schema, len(d.Spec.Columns))
	for i, c := range d.Spec.Columns {
		schema[i] = dataset.Field{Name: c.Name, Type: c.Type}
	}
	return schema.Arrow(), nil
}

func (f featureData) Append(ctx context.Context, r feature.Appended) (feature.DatasetVersion, error) {
	var base dataset.Ref
	if r.Base != "" {
		var err error
		if base, err = dataset.ParseRef(r.Base); err != nil {
			return feature.DatasetVersion{}, err
		}
	}
	v, err := f.datasets.Ingest(ctx, dataset.IngestRequest{
		Project: r.Project, Name: r.Dataset, Rows: r.Rows, Base: base.Number, Next: true,
		Producer: dataset.Producer{Kind: "stream", Text: r.Text},
		Then: func(ctx context.Context, tx *store.Tx, v dataset.Version) error {
			if v.State == dataset.Rejected {
				return fault.New(fault.Invalid, "with the events %s would be rejected: %s", v.Dataset, v.Reason).
					WithHint("Change the expectation of the dataset; the events are kept until then.")
			}
			if v.Unchanged && v.Number != base.Number {
				return fault.New(fault.Conflict, "%s got a newer version in the meantime", v.Dataset).WithHint("Try again.")
			}
			return r.Then(ctx, tx, factsOf(v))
		},
	})
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	return factsOf(v), nil
}

// modelFile is the file of a version that serving loads.
const modelFile = "model.onnx"

// maxModel bounds a model file that is held in memory, in bytes.
const maxModel = 4 << 30

// modelUsers names the deployment that runs a version of a model, tries it, would roll
// back to it or has it as a step; number 0 is any.
func modelUsers(ctx context.Context, tx *store.Tx, p project.Name, model string, number int) (string, error) {
	all, err := servingsql.Store{}.Of(ctx, tx, string(p), model)
	for _, d := range all {
		if d.Asks(model, int64(number)) {
			return "deployment " + d.Name, nil
		}
	}
	return "", err
}

// modelAuthors are who is behind a version beside its owner: who submitted the job that
// made it, whatever token the job had.
func modelAuthors(ctx context.Context, tx *store.Tx, v registry.Version) ([]string, error) {
	if v.Job == "" {
		return nil, nil
	}
	j, err := trainingsql.Store{}.Job(ctx, tx, training.JobID(v.Job))
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return []string{j.By.ID}, err
}

// servingModels hands verified model files to serving. Deployments are loaded
// by a loop of ours, too, which has no token.
type servingModels struct {
	registry *registry.Service
	training *training.Service
}

func (m servingModels) RequireVersion(ctx context.Context, tx *store.Tx, p, model string, version int64) error {
	return m.registry.RequireVersion(ctx, tx, project.Name(p), model, int(version))
}

func (m servingModels) Cleared(ctx context.Context, tx *store.Tx, p, model string, version int64, alias string) error {
	return m.registry.Cleared(ctx, tx, project.Name(p), model, int(version), alias, "", true)
}

func (m servingModels) Point(ctx context.Context, tx *store.Tx, p, model, alias string, version int64) error {
	return m.registry.Point(ctx, tx, project.Name(p), model, alias, int(version))
}

func (m servingModels) OpenVerified(ctx context.Context, p, model, version string) (serving.Model, error) {
	if identity.From(ctx).Kind == "" {
		ctx = identity.With(ctx, identity.Loop("model loader"))
	}
	v, err := m.registry.OpenVerified(ctx, project.Name(p), model, version)
	if err != nil {
		return serving.Model{}, err
	}
	out := serving.Model{
		Name: v.Version.Model, Version: int64(v.Version.Number), Digest: v.Version.Digest,
		Residency: v.Version.Residency, Classification: v.Version.Classification, Signer: v.Version.KeyID, Files: m.files(v),
	}
	if out.Files == nil || has(v, modelFile) {
		out.File, err = v.ReadFile(ctx, modelFile, maxModel)
		if err == nil {
			out.File, err = onnxfile.Embed(out.File, beside(ctx, v), maxModel)
		}
	}
	return out, err
}

// beside gives the files of a version that its model has data of tensors in: none but
// those that were signed with it.
func beside(ctx context.Context, v *registry.Verified) func(location string) ([]byte, error) {
	return func(location string) ([]byte, error) {
		if !filepath.IsLocal(location) || !has(v, path.Clean(location)) {
			return nil, fault.New(fault.Invalid, "%.100q is not among the files of the version", location).
				WithHint("Register it next to %s, or save the model as one file: onnx.save(onnx.load(PATH), \"model.onnx\"), and save_as_external_data=False of mlflow.onnx.log_model.", modelFile)
		}
		return v.ReadFile(ctx, path.Clean(location), maxModel)
	}
}

// jobModels are registered models to the jobs that run them.
type jobModels struct{ *registry.Service }

// Runnable implements onnxjob.Models by what the scan of the version's files found.
func (m jobModels) Runnable(ctx context.Context, p project.Name, model, version string) error {
	r, err := m.ContentOf(ctx, p, model, version)
	if err != nil {
		return err
	}
	for _, c := range r.Contents {
		if c.Path == modelFile && c.Format == "onnx" {
			return fault.New(fault.Invalid, "model %s, version %s, cannot be run: %s", model, version, strings.Join(c.Reasons, "; "))
		}
	}
	return nil
}
