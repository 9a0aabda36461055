package parser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
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
	raw = old.schema(raw)
	asText := textColumnsOf(raw)
	raw = asText.schema(raw)
	schema, err := table.NormalSchema(raw)
	if err != nil {
		return 0, err
	}
	if err := declaredMatch(schema, textual(raw), req.Columns); err != nil {
		return 0, err
	}
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
		rec, err := old.instants(rec, rows+1)
		if err != nil {
			return 0, err
		}
		kept, err := asText.texts(rec, rows+1, req.Limits)
		if err == nil {
			err = pass(kept, schema, rows, sink)
			kept.Release()
		}
		rec.Release()
		if err != nil {
			return 0, err
		}
		rows += rec.NumRows()
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
// wider, or string for what table.Digits permits: that is how such a column is kept.
func declaredMatch(schema table.Schema, textual []bool, declared []Column) error {
	for _, c := range declared {
		at := slices.IndexFunc(schema, func(f table.Field) bool { return f.Name == c.Name })
		if at < 0 {
			return fault.New(fault.Invalid, "the file has no column %q, which the dataset declares", c.Name).
				WithHint("The file's columns are %q.", schema.Names())
		}
		wide, ok := table.Wider(schema[at].Type, c.Type)
		if asText := textual[at] && c.Type == table.String; !asText && (!ok || wide != c.Type) {
			return fault.New(fault.Invalid, "column %q is %s in the file, and the dataset declares %s", c.Name, schema[at].Type, c.Type).
				WithHint("Cast the column in the file, or change the declared type.")
		}
		schema[at].Type = c.Type
	}
	return nil
}
