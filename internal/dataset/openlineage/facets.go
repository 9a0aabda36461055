package openlineage

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
)

// The facets that are understood.
const (
	schemaFacet   = "schema"
	columnFacet   = "columnLineage"
	symlinksFacet = "symlinks"
	versionFacet  = "version"
)

// made is what every facet of Falaj's has.
func made(name, version, def string) map[string]any {
	return map[string]any{"_producer": Producer, "_schemaURL": "https://openlineage.io/spec/facets/" + version + "/" + name + ".json#/$defs/" + def}
}

func facet(name, version string, fields map[string]any) json.RawMessage {
	f := made(name, version, name)
	maps.Copy(f, fields)
	b, err := json.Marshal(f)
	if err != nil {
		panic("openlineage: a facet does not marshal: " + err.Error())
	}
	return b
}

// Field is a column in a schema.
type Field struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
}

// WithSchema tells the columns of a dataset.
func (f Facets) WithSchema(fields []Field) Facets {
	return f.with(schemaFacet, facet("SchemaDatasetFacet", "1-1-1", map[string]any{"fields": fields}))
}

// WithVersion tells the version of a dataset.
func (f Facets) WithVersion(version string) Facets {
	return f.with(versionFacet, facet("DatasetVersionDatasetFacet", "1-0-1", map[string]any{"datasetVersion": version}))
}

// WithSymlinks tells under which other names a dataset is known.
func (f Facets) WithSymlinks(kind string, others ...Name) Facets {
	list := make([]map[string]any, len(others))
	for i, n := range others {
		list[i] = map[string]any{"namespace": n.Namespace, "name": n.Name, "type": kind}
	}
	return f.with(symlinksFacet, facet("SymlinksDatasetFacet", "1-0-1", map[string]any{"identifiers": list}))
}

// WithRows is the facet of outputs with the number of rows written.
func (f Facets) WithRows(rows, bytes int64) Facets {
	return f.with("outputStatistics", facet("OutputStatisticsOutputDatasetFacet", "1-0-2", map[string]any{"rowCount": rows, "size": bytes}))
}

// WithJobType is the facet of jobs with the kind of the job.
func (f Facets) WithJobType(kind string) Facets {
	return f.with("jobType", facet("JobTypeJobFacet", "2-0-3", map[string]any{"processingType": "BATCH", "integration": "FALAJ", "jobType": kind}))
}

// WithSQL tells the query of a job; a facet of jobs.
func (f Facets) WithSQL(query string) Facets {
	return f.with("sql", facet("SQLJobFacet", "1-0-1", map[string]any{"query": query}))
}

// WithError is the facet of runs with the reason of a failure.
func (f Facets) WithError(message string) Facets {
	return f.with("errorMessage", facet("ErrorMessageRunFacet", "1-0-1", map[string]any{"message": message, "programmingLanguage": "none"}))
}

// MadeOf are the columns of one of Falaj's versions in OpenLineage's words. What
// decides about all rows counts for each column.
func MadeOf(p project.Name, c dataset.Columns) Columns {
	if len(c) == 0 {
		return nil
	}
	source := func(from []dataset.ColumnSource) []Source {
		out := make([]Source, len(from))
		for i, s := range from {
			name, _, _ := strings.Cut(s.Ref, "@")
			out[i] = Source{Name: Name{Namespace(p), name}, Field: s.Column, Kind: "INDIRECT", Subtype: strings.ToUpper(s.How)}
			switch s.How {
			case "identity", "transformation", "aggregation":
				out[i].Kind = "DIRECT"
			}
		}
		return out
	}
	out := Columns{}
	for column, from := range c {
		if column != dataset.AllRows {
			out[column] = append(source(from), source(c[dataset.AllRows])...)
		}
	}
	return out
}

// WithColumns is the facet with the column lineage.
func (f Facets) WithColumns(c Columns) Facets {
	fields := map[string]any{}
	for out, sources := range c {
		in := make([]map[string]any, len(sources))
		for i, s := range sources {
			in[i] = map[string]any{"namespace": s.Namespace, "name": s.Name.Name, "field": s.Field, "transformations": []map[string]any{{"type": s.Kind, "subtype": s.Subtype}}}
		}
		fields[out] = map[string]any{"inputFields": in}
	}
	return f.with(columnFacet, facet("ColumnLineageDatasetFacet", "1-1-0", map[string]any{"fields": fields}))
}

func (f Facets) with(name string, text json.RawMessage) Facets {
	if f == nil {
		f = Facets{}
	}
	f[name] = text
	return f
}

// Name is how a dataset or job is called in OpenLineage.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Source is a source column in column lineage.
type Source struct {
	Name
	Field   string `json:"field"`
	Kind    string `json:"type,omitempty"`    // DIRECT: its values are in it; INDIRECT: they decide about it
	Subtype string `json:"subtype,omitempty"` // IDENTITY, TRANSFORMATION, AGGREGATION, JOIN, FILTER …
}

// Columns are the sources of a dataset's columns, by column.
type Columns map[string][]Source

// columns reads the columnLineage facet. What is not as it should be is passed
// over: it is one fact of many.
func (d *Dataset) columns() Columns {
	text := d.facet(columnFacet)
	if text == nil {
		return nil
	}
	var in struct {
		Fields map[string]struct {
			Input []struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
				Field     string `json:"field"`
				How       []struct {
					Type    string `json:"type"`
					Subtype string `json:"subtype"`
				} `json:"transformations"`
			} `json:"inputFields"`
		} `json:"fields"`
	}
	if json.Unmarshal(text, &in) != nil || len(in.Fields) > maxFields {
		return nil
	}
	out := Columns{}
	for column, f := range in.Fields {
		for _, i := range f.Input {
			if named("", i.Namespace, i.Name) != nil || len(i.Field) > maxName || len(out[column]) == maxSources {
				continue
			}
			s := Source{Name: Name{i.Namespace, i.Name}, Field: i.Field}
			if len(i.How) > 0 {
				s.Kind, s.Subtype = clip(i.How[0].Type), clip(i.How[0].Subtype)
			}
			out[column] = append(out[column], s)
		}
	}
	return out
}

// fields reads the schema facet.
func (d *Dataset) fields() []Field {
	var in struct {
		Fields []Field `json:"fields"`
	}
	if text := d.facet(schemaFacet); text == nil || json.Unmarshal(text, &in) != nil || len(in.Fields) > maxFields {
		return nil
	}
	return slices.DeleteFunc(in.Fields, func(f Field) bool { return f.Name == "" || len(f.Name) > maxName || len(f.Type) > maxName })
}

// facet finds a facet among those of the dataset, the input and the output:
// clients differ in where they put it.
func (d *Dataset) facet(name string) json.RawMessage {
	for _, f := range []Facets{d.Facets, d.OutputFacets, d.InputFacets} {
		if text, ok := f[name]; ok {
			return text
		}
	}
	return nil
}

// own is the name of the project's dataset that is meant; empty for what is not
// Falaj's. A client that reads an open table by Falaj's Iceberg catalog calls it by
// the place of its files, and tells as a symbolic link what the catalog calls it.
func (d *Dataset) own(p project.Name) string {
	if d.Namespace == Namespace(p) {
		name, _, _ := strings.Cut(d.Name, "@")
		return ownName(name)
	}
	var links struct {
		Identifiers []Name `json:"identifiers"`
	}
	if text := d.facet(symlinksFacet); text == nil || json.Unmarshal(text, &links) != nil {
		return ""
	}
	for _, l := range links.Identifiers {
		if l.Namespace == Namespace(p) {
			return ownName(l.Name)
		}
		catalog := strings.TrimSuffix(strings.TrimSuffix(l.Namespace, "/"), "/v1")
		if name, ok := strings.CutPrefix(l.Name, string(p)+"."); ok && strings.HasSuffix(catalog, "/iceberg") {
			return ownName(name)
		}
	}
	return ""
}

// ownName is the name if a dataset of Falaj's could have it: views and models are in
// the same namespace, and others may say anything.
func ownName(name string) string {
	if id.CheckName("dataset name", name) != nil {
		return ""
	}
	return name
}

// merged adds newer facets to older ones, as far as there is room; one that says
// _deleted takes its older one away.
func merged(old, more Facets) Facets {
	out := maps.Clone(old)
	if out == nil {
		out = Facets{}
	}
	size := 0
	for _, text := range out {
		size += len(text)
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		var f struct {
			Deleted bool `json:"_deleted"`
		}
		_ = json.Unmarshal(more[name], &f) // what the facet says otherwise is its own
		before := len(out[name])
		switch {
		case f.Deleted:
			delete(out, name)
			size -= before
		case size-before+len(more[name]) <= maxKept && (len(out) < maxFacets || before > 0):
			out[name] = more[name]
			size += len(more[name]) - before
		}
	}
	return out
}
