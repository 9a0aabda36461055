package parser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// parseParquet reads a Parquet file. Its footer is at the end, so the file is
// held in memory.
func parseParquet(in io.Reader, req Request, sink Sink) (int64, error) {
	limit := req.Limits.Parquet
	data, whole, err := hold(in, limit)
	if err != nil {
		return 0, err
	}
	if !whole {
		return 0, fault.New(fault.TooLarge, "the Parquet file is over the limit of %d bytes", limit).WithHint("Split it, or import it as gzipped CSV.")
	}
	rows, err := readParquet(data, req, sink)
	var f *fault.Error
	if err != nil && !errors.As(err, &f) {
		return 0, fault.New(fault.Invalid, "the Parquet file cannot be read: %v", err)
	}
	return rows, err
}

func readParquet(data *held, req Request, sink Sink) (int64, error) {
	pf, err := openParquet(data)
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
	raw, err := arrowSchema(pf)
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
	return eachBatch(pf, func(rec arrow.RecordBatch, before int64) error {
		rec, err := old.instants(rec, before+1)
		if err != nil {
			return err
		}
		defer rec.Release()
		some := read.batch(rec)
		defer some.Release()
		kept, err := asText.texts(some, before+1, req.Limits)
		if err != nil {
			return err
		}
		defer kept.Release()
		full := withAbsent(kept, schema[own:])
		defer full.Release()
		return pass(full, schema, before, sink)
	})
}

// openParquet opens a Parquet file whose pages are read one by one.
func openParquet(data *held) (*file.Reader, error) {
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true                          // not a copy of all pages of a column in a row group
	props.MaxCompressedPageSize = props.MaxUncompressedPageSize // of numbers that do not compress
	return file.NewParquetReader(data.file(), file.WithReadProps(props))
}

// arrowSchema is the schema of a Parquet file's rows.
func arrowSchema(pf *file.Reader) (*arrow.Schema, error) {
	pq, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	return pq.Schema()
}

// Bounds on a batch of a Parquet file.
const (
	parquetRows   = 16 << 10
	parquetMemory = 64 << 20 // of a batch of several rows, with all that it is made of
	rowMemory     = 1 << 30  // of one row
)

// eachBatch reads the rows of a Parquet file in batches, which are valid during the call;
// before is how many rows were before them. How many rows are read at once follows the
// sizes in the footer. They do not say how large values are that repeat, which are
// stored once: a batch that needs too much memory is read again as smaller ones.
func eachBatch(pf *file.Reader, add func(rec arrow.RecordBatch, before int64) error) (int64, error) {
	rows, most := int64(0), rowsAtOnce(pf)
	for rows < pf.NumRows() {
		mem := newBudget(parquetMemory)
		if most == 1 {
			mem = newBudget(rowMemory)
		}
		from := rows
		err := batchesFrom(pf, from, most, mem, func(rec arrow.RecordBatch) error {
			err := add(rec, rows)
			rows += rec.NumRows()
			return err
		})
		switch {
		case mem.over && most > 1:
			most = max(1, most/8)
		case mem.over:
			return 0, fault.New(fault.TooLarge, "row %d needs more than %s of memory", rows+1, resource.Bytes(mem.most)).WithHint("Omit its large values, or store them as files.")
		case err != nil:
			return 0, err
		case rows == from:
			return 0, tooFew(rows, pf)
		}
	}
	if rows != pf.NumRows() {
		return 0, tooFew(rows, pf)
	}
	return rows, nil
}

func tooFew(rows int64, pf *file.Reader) error {
	return fmt.Errorf("%d rows instead of the %d that the footer says", rows, pf.NumRows())
}

// rowsAtOnce is how many rows of a file make a batch by the sizes of its row groups.
func rowsAtOnce(pf *file.Reader) int64 {
	widest := int64(1)
	for i := range pf.NumRowGroups() {
		group := pf.MetaData().RowGroup(i)
		widest = max(widest, group.TotalByteSize()/max(group.NumRows(), 1))
	}
	return max(1, min(parquetRows, batchBytes/widest))
}

// batchesFrom reads the rows of a file from one on, at most so many in a batch. If mem is over,
// what came before was given.
func batchesFrom(pf *file.Reader, from, most int64, mem *budget, add func(arrow.RecordBatch) error) (err error) {
	defer func() {
		if p := recover(); p != nil && !mem.over {
			panic(p)
		}
	}()
	pq, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: most}, mem)
	if err != nil {
		return err
	}
	var groups []int
	skip := from // rows of the first group that were given
	for i := range pf.NumRowGroups() {
		if n := pf.MetaData().RowGroup(i).NumRows(); groups == nil && skip >= n {
			skip -= n
			continue
		}
		groups = append(groups, i)
	}
	rr, err := pq.GetRecordReader(context.Background(), nil, groups)
	if err != nil {
		return err
	}
	defer rr.Release()
	for mem.renew(); rr.Next(); mem.renew() {
		rec := rr.RecordBatch()
		n := rec.NumRows()
		if skip >= n {
			skip -= n
			continue
		}
		rest := rec.NewSlice(skip, n)
		skip = 0
		err := add(rest)
		rest.Release()
		if err != nil {
			return err
		}
	}
	if err := rr.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
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
