// Package featuredata gives package feature its data: versions of datasets, and messages of
// sources.
package featuredata

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/lineage"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Data answers feature's questions about data from datasets.
type Data struct{ Datasets dataset.Services }

var _ feature.Data = Data{}

func factsOf(v dataset.Version) feature.DatasetVersion {
	return feature.DatasetVersion{
		Ref: v.Ref().String(), Digest: v.ContentDigest, Residency: v.Residency, Classification: v.Classification,
		Schema: v.Schema.Arrow(), Rows: v.Rows,
	}
}

// Resolve implements feature.Data.
func (f Data) Resolve(ctx context.Context, p project.Name, ref string) (feature.DatasetVersion, error) {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	v, err := f.Datasets.Definitions.Version(ctx, p, r)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	if err := v.Usable(); err != nil {
		return feature.DatasetVersion{}, err
	}
	return factsOf(v), nil
}

// Standing implements feature.Data.
func (f Data) Standing(ctx context.Context, p project.Name, ref string) (string, error) {
	r, err := dataset.ParseRef(ref)
	if err == nil {
		r, err = f.Datasets.Lineage.Standing(ctx, p, r)
	}
	return r.String(), err
}

// Open implements feature.Data.
func (f Data) Open(ctx context.Context, p project.Name, ref string, columns []string) (array.RecordReader, error) {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return nil, err
	}
	return f.Datasets.Reads.Open(ctx, dataset.OpenRequest{Project: p, Ref: r, Columns: columns, Purpose: "features"})
}

// Reauthorize implements feature.Data.
func (f Data) Reauthorize(ctx context.Context, p project.Name, ref string) error {
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return err
	}
	return f.Datasets.Reads.Reauthorize(ctx, dataset.OpenRequest{Project: p, Ref: r})
}

// Query implements feature.Data.
func (f Data) Query(ctx context.Context, p project.Name, sql string, inputs map[string]string, local feature.Local) (feature.Rows, error) {
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
	result, err := f.Datasets.Reads.Query(ctx, q)
	if err != nil {
		return feature.Rows{}, err
	}
	rows := feature.Rows{RecordReader: result, Local: result.Local()}
	if columns := result.Columns(); columns != nil {
		rows.Origins = lineage.Origins{}
		for column, from := range columns {
			for _, s := range from {
				rows.Origins[column] = append(rows.Origins[column], lineage.Origin{Dataset: s.Ref, Column: s.Column, How: s.How})
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

// Create implements feature.Data.
func (f Data) Create(ctx context.Context, d feature.Derived) (feature.DatasetVersion, error) {
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
	v, err := f.Datasets.Writes.Create(ctx, r)
	if err != nil {
		return feature.DatasetVersion{}, err
	}
	return factsOf(v), nil
}

// Columns implements feature.Data.
func (f Data) Columns(ctx context.Context, p project.Name, name string) (*arrow.Schema, error) {
	d, err := f.Datasets.Definitions.One(ctx, p, name)
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

// Append implements feature.Data.
func (f Data) Append(ctx context.Context, r feature.Appended) (feature.DatasetVersion, error) {
	var base dataset.Ref
	if r.Base != "" {
		var err error
		if base, err = dataset.ParseRef(r.Base); err != nil {
			return feature.DatasetVersion{}, err
		}
	}
	v, err := f.Datasets.Writes.Ingest(ctx, dataset.IngestRequest{
		Project: r.Project, Name: r.Dataset, Rows: r.Rows, Base: base.Number, Next: true,
		Producer: dataset.Producer{Kind: "stream", Text: r.Text},
		Then: func(ctx context.Context, tx *store.Tx, v dataset.Version) error {
			if v.State == dataset.Rejected {
				return fault.New(fault.Invalid, "dataset %s would be rejected with the new events: %s", v.Dataset, v.Reason).
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
