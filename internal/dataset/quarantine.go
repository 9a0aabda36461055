package dataset

import (
	"context"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// The quarantine of a version is the rows that were read and are not in it, because
// they break an expectation that says otherwise: quarantine. They are kept beside
// the version's own, under the same sealing, with where they were read and the
// reasons, and go with it: deleted, expired, and without an erased person's.

// Columns that rows in quarantine have behind their own. Reasons are a line each.
const (
	rowColumn     = "quarantine_row"
	reasonsColumn = "quarantine_reasons"

	maxReasonText = 8 << 20 // bytes of reasons that are held until they are written
)

// aside is the rows in the version's quarantine.
func (v Version) aside() rowset {
	s := slices.Clone(v.Schema)
	last := 0
	for _, f := range s {
		last = max(last, f.ID)
	}
	for _, f := range []Field{{Name: rowColumn, Type: table.Int64}, {Name: reasonsColumn, Type: table.String}} {
		for f.ID = last + 1; ; f.Name += "_" { // until no column of the version is called so
			if _, taken := s.Column(f.Name); !taken {
				break
			}
		}
		last++
		s = append(s, f)
	}
	return rowset{"quarantine", s, v.Quarantine, v.Quarantined}
}

// quarantine writes the rows that are set aside.
type quarantine struct {
	dataWriter
	digest *cell.Digest // nil while there are none
	rows   int64
}

// take keeps the rows of a batch that go, and gives the places of those that stay.
// row is where each was read, and why says the reasons.
func (q *quarantine) take(rec arrow.RecordBatch, goes map[int]expectation.Broken, row func(i int) int64, why func(b expectation.Broken) string) (stays []int, err error) {
	var gone []int
	held := 0
	rows := array.NewInt64Builder(memory.DefaultAllocator)
	defer rows.Release()
	reasons := array.NewStringBuilder(memory.DefaultAllocator)
	defer reasons.Release()
	flush := func() error {
		own := pick(rec, gone)
		defer own.Release()
		at, texts := rows.NewArray(), reasons.NewArray()
		defer at.Release()
		defer texts.Release()
		all := array.NewRecordBatch(q.set.schema.Arrow(), append(slices.Clone(own.Columns()), at, texts), own.NumRows())
		defer all.Release()
		gone, held = gone[:0], 0
		return q.write(all)
	}
	for i := range int(rec.NumRows()) {
		b, goesAway := goes[i]
		if !goesAway {
			stays = append(stays, i)
			continue
		}
		text := why(b)
		gone = append(gone, i)
		rows.Append(row(i))
		reasons.Append(text)
		if held += len(text); held >= maxReasonText {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return stays, flush()
}

func (q *quarantine) write(rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		return nil
	}
	if q.digest == nil {
		q.digest = cell.NewDigest(q.set.schema)
	}
	q.digest.Add(rec)
	q.rows += rec.NumRows()
	return q.dataWriter.write(rec)
}

// finish takes over the rows that were in quarantine before, and says in the version
// what there is.
func (q *quarantine) finish(v *Version, before array.RecordReader) error {
	if before != nil {
		for before.Next() {
			if err := q.write(before.RecordBatch()); err != nil {
				return err
			}
		}
		if err := before.Err(); err != nil {
			return err
		}
	}
	if q.rows == 0 {
		return nil
	}
	v.Quarantined, v.QuarantineDigest = q.rows, q.digest.Sum()
	return q.close()
}

// pick copies rows of a batch of the types of tables. Release the result.
func pick(rec arrow.RecordBatch, rows []int) arrow.RecordBatch {
	cols := make([]arrow.Array, rec.NumCols())
	for c := range cols {
		cols[c] = pickCells(rec.Column(c), rows)
		defer cols[c].Release()
	}
	return array.NewRecordBatch(rec.Schema(), cols, int64(len(rows)))
}

func pickCells(a arrow.Array, rows []int) arrow.Array {
	b := array.NewBuilder(memory.DefaultAllocator, a.DataType())
	defer b.Release()
	b.Reserve(len(rows))
	for _, i := range rows {
		cell.Copy(b, a, i)
	}
	return b.NewArray()
}

// Aside is a row in quarantine.
type Aside struct {
	Row     int64    `json:"row"`     // of what was read, from 1
	Reasons []string `json:"reasons"` // the expectations that it breaks
	Values  []any    `json:"values"`  // of the columns in order; as in Table
}

// AsideTable is some rows in quarantine.
type AsideTable struct {
	Version string   `json:"version"` // "orders@3"
	Columns []string `json:"columns"`
	Rows    []Aside  `json:"rows"`
	Total   int64    `json:"total"` // in the version's quarantine
}

// Quarantined gives n rows (20 for 0, at most 1,000) of a version's quarantine
// from one on, also of a rejected one. Needs dataset.query; otherwise as Open.
func (s *Reads) Quarantined(ctx context.Context, r OpenRequest, from int64, n int) (AsideTable, error) {
	if n <= 0 {
		n = 20
	}
	r.aside, r.Shard, r.Columns = true, Shard{}, nil
	v, err := s.admit(ctx, r, true)
	if err != nil {
		return AsideTable{}, err
	}
	out := AsideTable{Version: v.Ref().String(), Columns: v.Schema.Names(), Rows: []Aside{}, Total: v.Quarantined}
	to := min(from+int64(min(n, maxPreview)), v.Quarantined)
	if from < 0 || from >= to {
		return out, nil
	}
	rows, err := s.readSet(ctx, v, v.aside(), nil, from, to)
	if err != nil {
		return AsideTable{}, err
	}
	defer rows.Release()
	t, err := Collect(ctx, rows, int(to-from), s.limits.Answer)
	for _, cells := range t.Rows {
		own := len(cells) - 2
		row, _ := cells[own].(int64)
		why, _ := cells[own+1].(string)
		out.Rows = append(out.Rows, Aside{Row: row, Reasons: strings.Split(why, expectation.ReasonSeparator), Values: cells[:own]})
	}
	return out, err
}
