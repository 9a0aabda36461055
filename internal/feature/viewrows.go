package feature

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/offline"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// InputRef is an exact dataset version in upstream lineage.
type InputRef struct {
	Table   string `json:"table"`   // its name in the SQL
	Dataset string `json:"dataset"` // "weather@3"
	Digest  string `json:"digest"`  // of its content
}

// pin resolves the datasets of a source to versions as of now. Needs permission
// to see them.
func (s *Streams) pin(ctx context.Context, p project.Name, src Source) ([]Input, error) {
	if src.Stream != nil { // what was acknowledged until now is in the dataset
		if _, err := s.newest(ctx, p, src.Dataset); err != nil {
			return nil, err
		}
		if err := s.snapshotStream(ctx, p, src.Dataset); err != nil {
			return nil, err
		}
	}
	sources := src.sources()
	inputs := make([]Input, 0, len(sources))
	for _, table := range slices.Sorted(maps.Keys(sources)) {
		v, err := s.cfg.Data.Resolve(ctx, p, sources[table])
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, Input{Table: table, DatasetVersion: v})
	}
	return inputs, nil
}

func refsOf(inputs []Input) []InputRef {
	refs := make([]InputRef, len(inputs))
	for i, in := range inputs {
		refs[i] = InputRef{Table: in.Table, Dataset: in.Ref, Digest: in.Digest}
	}
	return refs
}

// evaluate reads columns of a source over exact versions; all columns when there
// are none.
func (s *core) evaluate(p project.Name, src Source, inputs []InputRef, columns []string) offline.Open {
	return s.rows(p, src, inputs, columns, Local{TimeZone: src.TimeZone})
}

// spine reads a spine. What clocks show twice is early in it, and late in a view:
// neither knows what was not known.
func (s *core) spine(p project.Name, src Source, inputs []InputRef) offline.Open {
	return s.rows(p, src, inputs, nil, Local{TimeZone: src.TimeZone, Early: true})
}

func (s *core) rows(p project.Name, src Source, inputs []InputRef, columns []string, local Local) offline.Open {
	return func(ctx context.Context) (array.RecordReader, error) {
		if src.Dataset != "" {
			if len(inputs) != 1 {
				return nil, fault.New(fault.Internal, "a dataset source has %d inputs", len(inputs))
			}
			return s.cfg.Data.Open(ctx, p, inputs[0].Dataset, columns)
		}
		tables := make(map[string]string, len(inputs))
		for _, in := range inputs {
			tables[in.Table] = in.Dataset
		}
		sql := trimSQL(src.SQL)
		if len(columns) > 0 {
			quoted := make([]string, len(columns))
			for i, c := range columns {
				quoted[i] = quote(c)
			}
			sql = "SELECT " + strings.Join(quoted, ", ") + " FROM (" + sql + "\n) AS source"
		}
		rows, err := s.cfg.Data.Query(ctx, p, sql, tables, local)
		if err != nil {
			return nil, err
		}
		return rows, nil
	}
}

// offline is the view as the join takes it, over exact versions of its source.
// All its features are read, because they decide ties, or all that its windows are
// made of; only those with a name in selected come out.
func (s *core) offline(v View, inputs []InputRef, selected map[int]string) offline.View {
	o := offline.View{
		Name: v.Ref(), Open: s.evaluate(v.Project, v.Source, inputs, v.columns()),
		Event: v.Timestamp, Created: v.CreatedTimestamp, TTL: v.ttl(),
	}
	for _, k := range v.Keys {
		o.Keys = append(o.Keys, offline.Column{Name: k.Name, Type: k.Type})
		o.SpineKeys = append(o.SpineKeys, k.Name)
	}
	for i, in := range v.inputs() {
		f := offline.Feature{Column: offline.Column{Name: in.Column, Type: in.Type}}
		if len(v.Aggregations) == 0 {
			f.Select = selected[i]
		}
		o.Features = append(o.Features, f)
	}
	if plan := v.windows(); plan != nil {
		o.Windows = &offline.Windows{Plan: plan, Select: make([]string, len(v.Features))}
		for i := range v.Features {
			o.Windows.Select[i] = selected[i]
		}
	}
	return o
}
