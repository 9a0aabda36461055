package parser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// parseParquet reads a Parquet file. Its footer is at the end, so the file is
// held in memory.
func parseParquet(in io.Reader, req Request, sink Sink) (int64, error) {
	limit := req.Limits.Parquet
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return 0, err
	}
	if int64(len(data)) > limit {
		return 0, fault.New(fault.TooLarge, "the Parquet file is over the limit of %d bytes", limit).WithHint("Split it, or import it as gzipped CSV.")
	}
	rows, err := readParquet(data, req, sink)
	var f *fault.Error
	if err != nil && !errors.As(err, &f) {
		return 0, fault.New(fault.Invalid, "the Parquet file cannot be read: %v", err)
	}
	return rows, err
}

func readParquet(data []byte, req Request, sink Sink) (int64, error) {
	pf, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	defer func() { _ = pf.Close() }()
	pf, old, err := int96AsBytes(pf, data)
	if err != nil {
		return 0, err
	}
	if n := pf.MetaData().Schema.NumColumns(); n > table.MaxColumns {
		return 0, fault.New(fault.Invalid, "%d columns are over the limit of %d", n, table.MaxColumns)
	}
	if pf.NumRows() > req.Limits.Rows {
		return 0, fault.New(fault.TooLarge, "the file has %d rows, over the limit of %d", pf.NumRows(), req.Limits.Rows)
	}
	pq, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: 16 << 10}, memory.DefaultAllocator)
	if err != nil {
		return 0, err
	}
	raw, err := pq.Schema()
	if err != nil {
		return 0, err
	}
	read := columnsRead(old.schema(raw), req.LeaveOut)
	raw = read.schema(old.schema(raw))
	asText := textColumnsOf(raw)
	raw = asText.schema(raw)
	schema, err := table.NormalSchema(raw)
	if err != nil {
		return 0, err
	}
	absent, err := declaredMatch(schema, textual(raw), req)
	if err != nil {
		return 0, err
	}
	own := len(schema)
	schema = append(schema, absent...)
	if err := sink.Begin(schema.Arrow()); err != nil {
		return 0, err
	}
	if pf.NumRows() == 0 {
		return 0, nil
	}
	rr, err := pq.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return 0, err
	}
	defer rr.Release()
	rows := int64(0)
	for rr.Next() {
		rec := rr.RecordBatch()
		n := rec.NumRows()
		rec, err := old.instants(rec, rows+1)
		if err != nil {
			return 0, err
		}
		some := read.batch(rec)
		rec.Release()
		kept, err := asText.texts(some, rows+1, req.Limits)
		if err == nil {
			full := withAbsent(kept, schema[own:])
			kept.Release()
			err = pass(full, schema, rows, sink)
			full.Release()
		}
		some.Release()
		if err != nil {
			return 0, err
		}
		rows += n
	}
	if err := rr.Err(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if rows != pf.NumRows() {
		return 0, fmt.Errorf("%d rows instead of the %d that the footer says", rows, pf.NumRows())
	}
	return rows, nil
}

func pass(rec arrow.RecordBatch, schema table.Schema, before int64, sink Sink) error {
	norm, err := table.Normalize(rec, schema, before+1)
	if err != nil {
		return err
	}
	defer norm.Release()
	return sink.Write(norm)
}

// textual are the columns that may be declared as string.
func textual(schema *arrow.Schema) []bool {
	out := make([]bool, schema.NumFields())
	for i, f := range schema.Fields() {
		out[i] = table.Digits(f.Type)
	}
	return out
}

// declaredMatch compares the file's own types with the declared ones, which may be
// wider, or string for what table.Digits permits: that is how such a column is kept. absent are
// the optional columns that the file lacks.
func declaredMatch(schema table.Schema, textual []bool, req Request) (absent []table.Field, err error) {
	for _, c := range req.Columns {
		at := slices.IndexFunc(schema, func(f table.Field) bool { return f.Name == c.Name })
		if at < 0 && slices.Contains(req.Optional, c.Name) {
			absent = append(absent, table.Field{Name: c.Name, Type: c.Type})
			continue
		}
		if at < 0 && slices.Contains(req.Inferred, c.Name) {
			return nil, noSuch(c.Name)
		}
		if at < 0 {
			return nil, fault.New(fault.Invalid, "the file has no column %q, which the dataset declares", c.Name).
				WithHint("The file's columns are %q.", schema.Names())
		}
		wide, ok := table.Wider(schema[at].Type, c.Type)
		if asText := textual[at] && c.Type == table.String; !asText && (!ok || wide != c.Type) {
			return nil, fault.New(fault.Invalid, "column %q is %s in the file, and the dataset declares %s", c.Name, schema[at].Type, c.Type).
				WithHint("Cast the column in the file, or change the declared type.")
		}
		schema[at].Type = c.Type
	}
	return absent, nil
}

// reading is which columns of a file are read, by number; nil for all.
type reading []int

func columnsRead(s *arrow.Schema, leaveOut []string) reading {
	if len(leaveOut) == 0 {
		return nil
	}
	r := reading{}
	for i, f := range s.Fields() {
		if !slices.Contains(leaveOut, f.Name) {
			r = append(r, i)
		}
	}
	return r
}

// schema is the file's without the columns that are left out.
func (r reading) schema(s *arrow.Schema) *arrow.Schema {
	if r == nil {
		return s
	}
	fields := make([]arrow.Field, len(r))
	for to, i := range r {
		fields[to] = s.Field(i)
	}
	meta := s.Metadata()
	return arrow.NewSchema(fields, &meta)
}

// batch is a batch without them. Release it.
func (r reading) batch(rec arrow.RecordBatch) arrow.RecordBatch {
	if r == nil {
		rec.Retain()
		return rec
	}
	columns := make([]arrow.Array, len(r))
	for to, i := range r {
		columns[to] = rec.Column(i)
	}
	return array.NewRecordBatch(r.schema(rec.Schema()), columns, rec.NumRows())
}

// withAbsent is a batch with columns of nulls behind its own. Release it.
func withAbsent(rec arrow.RecordBatch, absent []table.Field) arrow.RecordBatch {
	if len(absent) == 0 {
		rec.Retain()
		return rec
	}
	fields, columns := slices.Clone(rec.Schema().Fields()), slices.Clone(rec.Columns())
	for _, f := range absent {
		nulls := array.MakeArrayOfNull(memory.DefaultAllocator, f.Type.Arrow(), int(rec.NumRows()))
		defer nulls.Release()
		fields, columns = append(fields, arrow.Field{Name: f.Name, Type: f.Type.Arrow(), Nullable: true}), append(columns, nulls)
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, rec.NumRows())
}
