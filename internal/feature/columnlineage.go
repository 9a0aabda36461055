package feature

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

// tracer learns what a join is made of from the rows that are opened for it. It
// costs no reading of its own. Safe for concurrent use.
type tracer struct {
	mu   sync.Mutex
	seen map[int]Origins // by view; -1 is the spine; nil where it is not known
}

const spine = -1

// watch notes the origins of what open opens.
func (t *tracer) watch(at int, open offline.Open, inputs []InputRef) offline.Open {
	return func(ctx context.Context) (array.RecordReader, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		var o Origins
		if rows, is := r.(Rows); is {
			o = rows.Origins
		} else if len(inputs) == 1 {
			o = Origins{}
			for _, f := range r.Schema().Fields() {
				o[f.Name] = []Origin{{inputs[0].Dataset, f.Name, "identity"}}
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

// origins are those of the training set's columns; none where one part is not known.
// A feature is also made of what its row was found by, one that is computed of all
// that its expression names.
func (t *tracer) origins(timestamp string, pl *plan) Origins {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen[spine] == nil {
		return nil
	}
	out := maps.Clone(t.seen[spine])
	row := make([][]Origin, pl.read)
	for i, v := range pl.views {
		source := t.seen[i]
		if source == nil {
			return nil
		}
		var found []Origin
		for _, key := range v.view.Keys {
			found = append(append(found, as("join", source[key.Name])...), as("join", out[key.Name])...)
		}
		for _, at := range []string{v.view.Timestamp, v.view.CreatedTimestamp} {
			found = append(found, as("join", source[at])...)
		}
		found = append(append(found, as("join", out[timestamp])...), source[AllRows]...)
		for n, f := range v.features {
			var from []Origin
			switch {
			case len(v.view.Aggregations) > 0 && f < len(v.view.Aggregations):
				from = as("aggregation", source[v.view.Aggregations[f].Column])
			case f < len(v.view.Features):
				from = slices.Clone(source[v.view.Features[f].Name])
			}
			row[v.order[n]] = firsts(append(from, found...))
		}
	}
	for at := range pl.visible {
		out[pl.names[at]] = row[at]
	}
	if c := pl.computed; c != nil {
		for _, q := range c.request {
			row = append(row, out[q.name]) //nolint:makezero // the first are filled above
		}
		for i, f := range c.fields {
			var from []Origin
			for _, at := range f.program.Uses() {
				from = append(from, row[at]...)
			}
			row = append(row, firsts(computedOf(from))) //nolint:makezero // as above
			out[pl.names[pl.visible+i]] = row[len(row)-1]
		}
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
