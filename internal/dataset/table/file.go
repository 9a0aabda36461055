package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/falaj-ml/falaj/internal/fault"
)

// RowGroup is the most rows that a row group of a data file has.
const RowGroup = 128 << 10

// groupBytes is about the most bytes of a row group, unless one row has more: a writer has
// the row group that it writes in memory, and who reads some rows decodes those before them
// in their group (BenchmarkBlocks).
const groupBytes = 16 << 20

// A reader gives at most so many rows at once, and about so many bytes.
const (
	readBatch = 32 << 10
	readBytes = 8 << 20
)

// Seal encrypts a data file: the key (32 bytes) and the name that the file's
// parts are bound to, so that no file passes for another. Both are needed to
// read it; neither is in the file. The zero Seal leaves files plain.
type Seal struct {
	Key  []byte
	Name string
}

func (s Seal) plain() bool { return len(s.Key) == 0 }

// FileWriter writes one data file. Not safe for concurrent use.
type FileWriter struct {
	out    *counter
	pq     *pqarrow.FileWriter
	schema *arrow.Schema
	rows   int64
	group  int64 // bytes of the row group so far, about
}

// NewFileWriter begins a data file. The caller owns w.
func NewFileWriter(w io.Writer, s Schema, seal Seal) (*FileWriter, error) {
	opts := []parquet.WriterProperty{
		parquet.WithCompression(compress.Codecs.Snappy),
		parquet.WithMaxRowGroupLength(RowGroup),
		parquet.WithCreatedBy("falaj"),
		parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithStats(seal.plain()), // no column bounds beside sealed data, even encrypted
	}
	if !seal.plain() {
		opts = append(opts, parquet.WithEncryptionProperties(parquet.NewFileEncryptionProperties(string(seal.Key),
			parquet.WithAlg(parquet.AesGcm), parquet.WithAadPrefix(seal.Name), parquet.DisableAadPrefixStorage())))
	}
	out := &counter{w: w}
	schema := s.Arrow()
	pq, err := pqarrow.NewFileWriter(schema, out, parquet.NewWriterProperties(opts...), pqarrow.NewArrowWriterProperties())
	if err != nil {
		return nil, fmt.Errorf("creating a data file: %w", err)
	}
	return &FileWriter{out: out, pq: pq, schema: schema}, nil
}

// Write adds a batch whose columns are of the schema's types.
func (w *FileWriter) Write(rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		return nil
	}
	size := sizeOf(rec)
	if size > groupBytes && rec.NumRows() > 1 {
		for _, half := range [][2]int64{{0, rec.NumRows() / 2}, {rec.NumRows() / 2, rec.NumRows()}} {
			part := rec.NewSlice(half[0], half[1])
			err := w.Write(part)
			part.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	if w.group > 0 && w.group+size > groupBytes {
		if err := w.pq.NewBufferedRowGroupChecked(); err != nil {
			return err
		}
		w.group = 0
	}
	own := array.NewRecordBatch(w.schema, rec.Columns(), rec.NumRows())
	defer own.Release()
	w.rows += rec.NumRows()
	w.group += size
	return w.pq.WriteBuffered(own)
}

// sizeOf is about how many bytes the values of a batch take.
func sizeOf(rec arrow.RecordBatch) (size int64) {
	for _, c := range rec.Columns() {
		size += sizeOfColumn(c)
	}
	return size
}

func sizeOfColumn(c arrow.Array) int64 {
	if c.Len() == 0 {
		return 0
	}
	size := 8 * int64(c.Len())
	switch c := c.(type) {
	case *array.List:
		from, _ := c.ValueOffsets(0)
		_, to := c.ValueOffsets(c.Len() - 1)
		values := array.NewSlice(c.ListValues(), from, to)
		defer values.Release()
		size += sizeOfColumn(values)
	case *array.String:
		size += int64(len(c.ValueBytes()))
	}
	return size
}

// Rows is the count of rows written.
func (w *FileWriter) Rows() int64 { return w.rows }

// Bytes is how much of the file has been written out.
func (w *FileWriter) Bytes() int64 { return w.out.n }

// Close writes the footer. The file is whole when it returns nil.
func (w *FileWriter) Close() error { return w.pq.Close() }

// Groups are the rows of each row group, after Close.
func (w *FileWriter) Groups() ([]int64, error) {
	meta, err := w.pq.FileMetadata()
	if err != nil {
		return nil, err
	}
	groups := make([]int64, len(meta.RowGroups))
	for i, g := range meta.RowGroups {
		groups[i] = g.NumRows
	}
	return groups, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// OpenFile reads columns of a data file (all of s for none), in the order asked.
// s is the schema that the file was written with. The reader gives batches of
// the types of tables; Release it before closing r. Error: fault.Internal when the
// file is not what was written.
func OpenFile(ctx context.Context, r io.ReaderAt, size int64, s Schema, columns []string, seal Seal) (array.RecordReader, error) {
	return OpenRows(ctx, r, size, s, columns, seal, 0, math.MaxInt64)
}

// OpenRows is OpenFile for the rows of the file from one to before another. Row
// groups without any of them are neither read nor decrypted.
func OpenRows(ctx context.Context, r io.ReaderAt, size int64, s Schema, columns []string, seal Seal, from, to int64) (array.RecordReader, error) {
	part, err := s.Select(columns)
	if err != nil {
		return nil, err
	}
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	if !seal.plain() {
		props.FileDecryptProps = parquet.NewFileDecryptionProperties(
			parquet.WithFooterKey(string(seal.Key)), parquet.WithDecryptAadPrefix(seal.Name))
	}
	pf, err := openParquet(r, size, props)
	if err != nil {
		return nil, err
	}
	pq, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: batchOf(pf)}, memory.DefaultAllocator)
	if err != nil {
		return nil, broken(err)
	}
	have, err := pq.Schema()
	if err != nil {
		return nil, broken(err)
	}
	if have.NumFields() != len(s) {
		return nil, broken(fmt.Errorf("%d columns instead of %d", have.NumFields(), len(s)))
	}
	// Parquet gives columns in file order whatever is asked, so order holds the
	// place of each wanted column in what comes.
	want := make(map[string]bool, len(part))
	for _, f := range part {
		want[f.Name] = true
	}
	var indices []int
	place := make(map[string]int, len(part))
	for i, f := range s {
		if have.Field(i).Name != f.Name || !arrow.TypeEqual(have.Field(i).Type, f.Type.Arrow()) {
			return nil, broken(fmt.Errorf("column %d is %q of %s instead of %q of %s", i+1, have.Field(i).Name, have.Field(i).Type, f.Name, f.Type.Arrow()))
		}
		if want[f.Name] {
			place[f.Name] = len(indices)
			indices = append(indices, i)
		}
	}
	order := make([]int, len(part))
	for i, f := range part {
		order[i] = place[f.Name]
	}
	groups, skip := groupsOf(pf, from, to)
	if len(groups) == 0 {
		rr, err := array.NewRecordReader(part.Arrow(), nil)
		return rr, err
	}
	rows, err := pq.GetRecordReader(ctx, indices, groups)
	if err != nil {
		return nil, broken(err)
	}
	return &fileReader{RecordReader: rows, schema: part.Arrow(), order: order, skip: skip, left: to - from}, nil
}

// batchOf is how many rows of a file are read at once: of large rows few. How large they are
// is known by the sizes of the row groups, and where values repeat, which are written once,
// by the writer having ended a row group early.
func batchOf(pf *file.Reader) int64 {
	widest := int64(1)
	for i := range pf.NumRowGroups() {
		group := pf.MetaData().RowGroup(i)
		rows := max(group.NumRows(), 1)
		widest = max(widest, group.TotalByteSize()/rows)
		if i+1 < pf.NumRowGroups() && rows < RowGroup {
			widest = max(widest, groupBytes/rows)
		}
	}
	return max(1, min(readBatch, readBytes/widest))
}

// groupsOf are the row groups that hold rows from one to before another, and how
// many rows are before the first of them.
func groupsOf(pf *file.Reader, from, to int64) (groups []int, skip int64) {
	first := int64(0)
	for i := range pf.NumRowGroups() {
		next := first + pf.MetaData().RowGroup(i).NumRows()
		if max(from, first) < min(to, next) {
			if groups == nil {
				skip = max(from-first, 0)
			}
			groups = append(groups, i)
		}
		first = next
	}
	return groups, skip
}

func broken(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.New(fault.Internal, "verifying the data file: %w", err)
}

// openParquet turns the library's panics on foreign bytes into errors.
func openParquet(r io.ReaderAt, size int64, props *parquet.ReaderProperties) (pf *file.Reader, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = broken(fmt.Errorf("%v", p))
		}
	}()
	pf, err = file.NewParquetReader(io.NewSectionReader(r, 0, size), file.WithReadProps(props))
	if err != nil {
		return nil, broken(err)
	}
	return pf, nil
}

// fileReader gives the batches of a file under the table's schema.
type fileReader struct {
	array.RecordReader
	schema *arrow.Schema
	order  []int
	skip   int64 // rows still to leave out
	left   int64 // rows still to give
	cur    arrow.RecordBatch
	err    error
}

func (r *fileReader) Schema() *arrow.Schema { return r.schema }

func (r *fileReader) Next() (more bool) {
	defer func() {
		if p := recover(); p != nil {
			r.err, more = broken(fmt.Errorf("%v", p)), false
		}
	}()
	if r.cur != nil {
		r.cur.Release()
		r.cur = nil
	}
	if r.err != nil || r.left <= 0 {
		return false
	}
	for {
		if !r.RecordReader.Next() {
			return false
		}
		n := r.RecordReader.RecordBatch().NumRows()
		if r.skip < n {
			break
		}
		r.skip -= n
	}
	rec := r.RecordReader.RecordBatch()
	from, to := r.skip, min(rec.NumRows(), r.skip+r.left)
	r.skip, r.left = 0, r.left-(to-from)
	cols := make([]arrow.Array, len(r.order))
	for i, j := range r.order {
		cols[i] = rec.Column(j)
	}
	whole := array.NewRecordBatch(r.schema, cols, rec.NumRows())
	if r.cur = whole; to-from < rec.NumRows() {
		r.cur = whole.NewSlice(from, to)
		whole.Release()
	}
	return true
}

func (r *fileReader) RecordBatch() arrow.RecordBatch { return r.cur }
func (r *fileReader) Record() arrow.RecordBatch      { return r.cur }

func (r *fileReader) Err() error {
	if r.err != nil {
		return r.err
	}
	if err := r.RecordReader.Err(); err != nil && !errors.Is(err, io.EOF) {
		return broken(err)
	}
	return nil
}

func (r *fileReader) Release() {
	if r.cur != nil {
		r.cur.Release()
		r.cur = nil
	}
	r.RecordReader.Release()
}
