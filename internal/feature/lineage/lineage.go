// Package lineage follows the columns of a training set to the columns of datasets that they are
// made of. A Trace learns that from the rows that are opened for the join: it costs no reading of
// its own.
package lineage

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/feature/offline"
)

// Origin is a source column in column lineage.
type Origin struct {
	Dataset string // "weather@3"
	Column  string
	// How is identity, transformation or aggregation where its values go into the
	// column; conditional, join, filter, group_by, sort or window where they decide.
	How string
}

// Origins is the column lineage, by column. AllRows are the columns that influence all rows.
type Origins map[string][]Origin

// AllRows is the key of what decides which rows there are. It names no column.
const AllRows = "*"

// Spine is the place of the spine beside those of the views, which are numbered from 0.
const Spine = -1

// Traced are rows that know where their columns come from; nil is not known.
type Traced interface{ ColumnOrigins() Origins }

// Trace learns what a join is made of. The zero value is ready. Safe for concurrent use.
type Trace struct {
	mu   sync.Mutex
	seen map[int]Origins // by view; nil where it is not known
}

// Watch notes the origins of what open opens. Rows that are not Traced are those of the datasets
// themselves, of which there is one or nothing is known.
func (t *Trace) Watch(at int, open offline.Open, datasets ...string) offline.Open {
	return func(ctx context.Context) (array.RecordReader, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		var o Origins
		if rows, is := r.(Traced); is {
			o = rows.ColumnOrigins()
		} else if len(datasets) == 1 {
			o = Origins{}
			for _, f := range r.Schema().Fields() {
				o[f.Name] = []Origin{{datasets[0], f.Name, "identity"}}
			}
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.seen == nil {
			t.seen = map[int]Origins{}
		}
		t.seen[at] = o
		return r, nil
	}
}

// Join is how a training set is made of the spine and the views.
type Join struct {
	Timestamp string // column of the spine
	Views     []View
	Names     []string // of the columns: those of the views, then the computed ones
	Read      int      // values that the views give to a row
	Visible   int      // of these, the columns
	Requests  []string // columns of the spine that are inputs of computed ones, behind the values of the views
	Computed  []Computed
}

// View is what a join takes from a view.
type View struct {
	Keys     []string
	Times    []string // columns with the event and the created time
	Features []Feature
}

// Feature is a column of a view, and its place among the values of a row.
type Feature struct {
	Column     string
	Aggregated bool // its values are aggregations of the column
	At         int
}

// Computed is a column that is computed of values of the row, by their places.
type Computed struct{ Uses []int }

// Origins are those of the training set's columns; none where one part is not known.
// A feature is also made of what its row was found by, one that is computed of all
// that its expression names.
func (t *Trace) Origins(j Join) Origins {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen[Spine] == nil {
		return nil
	}
	out := maps.Clone(t.seen[Spine])
	row := make([][]Origin, j.Read)
	for i, v := range j.Views {
		source := t.seen[i]
		if source == nil {
			return nil
		}
		var found []Origin
		for _, key := range v.Keys {
			found = append(append(found, as("join", source[key])...), as("join", out[key])...)
		}
		for _, at := range v.Times {
			found = append(found, as("join", source[at])...)
		}
		found = append(append(found, as("join", out[j.Timestamp])...), source[AllRows]...)
		for _, f := range v.Features {
			from := slices.Clone(source[f.Column])
			if f.Aggregated {
				from = as("aggregation", from)
			}
			row[f.At] = firsts(append(from, found...))
		}
	}
	for at := range j.Visible {
		out[j.Names[at]] = row[at]
	}
	for _, name := range j.Requests {
		row = append(row, out[name]) //nolint:makezero // the first are filled above
	}
	for i, c := range j.Computed {
		var from []Origin
		for _, at := range c.Uses {
			from = append(from, row[at]...)
		}
		row = append(row, firsts(computedOf(from))) //nolint:makezero // as above
		out[j.Names[j.Visible+i]] = row[len(row)-1]
	}
	return out
}

// computedOf are origins of what is computed from columns.
func computedOf(from []Origin) []Origin {
	for i := range from { // a copy
		if from[i].How == "identity" {
			from[i].How = "transformation"
		}
	}
	return from
}

// as are origins by another step; what only decides stays so.
func as(how string, from []Origin) []Origin {
	out := slices.Clone(from)
	for i, o := range out {
		switch o.How {
		case "identity", "transformation", "aggregation":
			out[i].How = how
		}
	}
	return out
}

// firsts keeps the first way from each column.
func firsts(from []Origin) []Origin {
	out := from[:0]
	for _, o := range from {
		if !slices.ContainsFunc(out, func(k Origin) bool { return k.Dataset == o.Dataset && k.Column == o.Column }) {
			out = append(out, o)
		}
	}
	return out
}
