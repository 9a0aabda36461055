package parser

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// candidates are the inferred types in the order of preference. A column gets
// the first that every cell of the sample which is not null can be read as,
// and string if there is none, or no such cell.
var candidates = []table.Type{table.Bool, table.Int64, table.Float64, table.Date, table.Timestamp}

// plan makes the columns: types declared, or inferred from the sample.
func plan(names []string, req Request, sample []sampled) ([]*column, table.Schema, error) {
	declared := make(map[string]table.Type, len(req.Columns))
	for _, c := range req.Columns {
		declared[c.Name] = c.Type
	}
	nulls := newNullSet(req.Nulls)
	columns := make([]*column, len(names))
	schema := make(table.Schema, len(names))
	for i, name := range names {
		t, ok := declared[name]
		delete(declared, name)
		if !ok {
			t = infer(sample, i, nulls, req.CSV)
		}
		columns[i] = newColumn(t, !ok || slices.Contains(req.Inferred, name), nulls)
		if t.Numeric() {
			columns[i].layout = req.CSV
		}
		schema[i] = table.Field{Name: name, Type: t}
	}
	for _, c := range req.Columns {
		switch _, missing := declared[c.Name]; {
		case missing && slices.Contains(req.Optional, c.Name):
			columns = slices.Concat(columns, []*column{newColumn(c.Type, false, nulls)})
			schema = slices.Concat(schema, table.Schema{{Name: c.Name, Type: c.Type}})
		case missing && slices.Contains(req.Inferred, c.Name):
			return nil, nil, noSuch(c.Name)
		case missing:
			return nil, nil, fault.New(fault.Invalid, "the file has no column %q, which the dataset declares", c.Name).
				WithHint("The file's columns are %q.", names[:min(len(names), 40)])
		}
	}
	return columns, schema, nil
}

func infer(sample []sampled, col int, nulls *nullSet, layout *Layout) table.Type {
	seen := false
	at := 0
	for _, rec := range sample {
		cell := rec.cells[col]
		if nulls.has(cell) {
			continue
		}
		seen = true
		for !reads(candidates[at], cell, layout) {
			at++
			if at == len(candidates) {
				return table.String
			}
			// Cells before this one were read as an earlier type only.
			return inferFrom(sample, col, nulls, layout, at)
		}
	}
	if !seen {
		return table.String
	}
	return candidates[at]
}

// noSuch refuses a file that lacks a column of the files before it.
func noSuch(column string) error {
	return fault.New(fault.Invalid, "the file has no column %q, which the previous files have", column).
		WithHint("Declare the column in the Dataset's spec.columns with optional: true; its values are then null.")
}

// hasNumber reports whether a column of the sample has a number, beside NaN and infinities.
func hasNumber(sample []sampled, col int, nulls *nullSet) bool {
	return slices.ContainsFunc(sample, func(rec sampled) bool {
		return !nulls.has(rec.cells[col]) && !notFinite(rec.cells[col])
	})
}

// inferFrom tries the candidates from at on, each over the whole sample.
func inferFrom(sample []sampled, col int, nulls *nullSet, layout *Layout, at int) table.Type {
next:
	for _, t := range candidates[at:] {
		for _, rec := range sample {
			if cell := rec.cells[col]; !nulls.has(cell) && !reads(t, cell, layout) {
				continue next
			}
		}
		if t == table.Float64 && !hasNumber(sample, col, nulls) {
			return table.String // "NaN" alone is a word
		}
		return t
	}
	return table.String
}

// reads reports whether a cell is of a type by the strict rules of inference.
func reads(t table.Type, cell string, layout *Layout) bool {
	switch t {
	case table.Bool:
		_, ok := parseBool(cell, true)
		return ok
	case table.Int64:
		_, ok := parseInt(layout.plain(cell), true)
		return ok
	case table.Float64:
		_, ok := parseFloat(layout.plain(cell), true, 64)
		return ok
	case table.Date:
		_, ok := parseDate(cell)
		return ok
	case table.Timestamp:
		_, ok := parseTimestamp(cell)
		return ok
	default:
		return true
	}
}

// nullSet finds cells that mean null; most cells differ already in length.
type nullSet struct {
	lengths [16]bool
	values  map[string]bool
}

func newNullSet(values []string) *nullSet {
	s := &nullSet{values: make(map[string]bool, len(values))}
	for _, v := range values {
		s.values[v] = true
		s.lengths[min(len(v), len(s.lengths)-1)] = true
	}
	return s
}

func (s *nullSet) has(cell string) bool {
	return s.lengths[min(len(cell), len(s.lengths)-1)] && s.values[cell]
}
