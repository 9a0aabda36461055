package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Limits of a batch on the pipe. The writer splits larger batches, down to one row.
const (
	maxRows  = 1 << 20
	maxText  = 256 << 20 // bytes of one column of strings
	maxList  = 64 << 20  // elements of one column of lists
	maxBatch = 320 << 20 // bytes of all columns
	split    = 16 << 20  // bytes of a batch of several rows, about
)

// wireSchema heads a stream of batches.
type wireSchema struct {
	Columns []wireColumn `json:"columns"`
}

type wireColumn struct {
	Name string     `json:"name"`
	Type table.Type `json:"type"`
}

// RecordWriter writes record batches of one schema; Close ends the stream.
//
// A batch is the number of its rows (4 bytes, little-endian as all that follows)
// and its columns. A column is a byte that says whether it has nulls, the
// validity bitmap if so, and the values: 8 or 4 bytes each, a bitmap of bools,
// for strings the total length, the lengths and the bytes, or for lists the number
// of all elements, the lengths and the elements as a column.
type RecordWriter struct {
	w      *Writer
	out    io.WriteCloser
	schema table.Schema
	err    error
	buf    []byte
}

// Records opens a stream of batches of the types of tables. Another type is
// an error of the first Write.
func (w *Writer) Records(schema *arrow.Schema) *RecordWriter {
	r := &RecordWriter{w: w}
	if r.schema, r.err = table.FromArrow(schema); r.err != nil {
		return r
	}
	head := wireSchema{}
	for _, f := range r.schema {
		head.Columns = append(head.Columns, wireColumn{f.Name, f.Type})
	}
	r.err = w.Header(head)
	r.out = w.Stream()
	return r
}

// Write sends a batch.
func (w *RecordWriter) Write(rec arrow.RecordBatch) error {
	if w.err != nil {
		return w.err
	}
	rows := rec.NumRows()
	size := sizeOf(rec)
	if rows > maxRows || rows > 1 && size > split {
		for _, part := range []arrow.RecordBatch{rec.NewSlice(0, rows/2), rec.NewSlice(rows/2, rows)} {
			err := w.Write(part)
			part.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	if size > maxBatch {
		return fault.New(fault.TooLarge, "a row has %d bytes, over the limit of %s", size, resource.Bytes(maxBatch))
	}
	w.err = w.batch(rec)
	return w.err
}

// sizeOf is about the size of a batch in bytes.
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
		values := elementsOf(c)
		defer values.Release()
		size += sizeOfColumn(values)
	case *array.String:
		size += int64(len(c.ValueBytes()))
	}
	return size
}

// elementsOf are the elements of all lists, which are next to each other. Release them.
func elementsOf(l *array.List) arrow.Array {
	from, _ := l.ValueOffsets(0)
	_, to := l.ValueOffsets(l.Len() - 1)
	return array.NewSlice(l.ListValues(), from, to)
}

func (w *RecordWriter) batch(rec arrow.RecordBatch) error {
	if err := w.number(int(rec.NumRows())); err != nil {
		return err
	}
	for _, c := range rec.Columns() {
		if err := w.column(c); err != nil {
			return err
		}
	}
	return nil
}

func (w *RecordWriter) number(n int) error {
	return w.send(binary.LittleEndian.AppendUint32(w.buf[:0], uint32(n))) //nolint:gosec // below 2^31
}

func (w *RecordWriter) send(b []byte) error {
	_, err := w.out.Write(b)
	return err
}

// bitmap sends n bits from an offset on.
func (w *RecordWriter) bitmap(bits []byte, offset, n int) error {
	size := int(bitutil.BytesForBits(int64(n)))
	if cap(w.buf) < size {
		w.buf = make([]byte, size)
	}
	b := w.buf[:size]
	clear(b)
	bitutil.CopyBitmap(bits, offset, n, b, 0)
	return w.send(b)
}

func (w *RecordWriter) column(c arrow.Array) error {
	n := c.Len()
	nulls := []byte{0}
	if c.NullN() > 0 {
		nulls[0] = 1
	}
	if err := w.send(nulls); err != nil {
		return err
	}
	if nulls[0] == 1 {
		if err := w.bitmap(c.NullBitmapBytes(), c.Data().Offset(), n); err != nil {
			return err
		}
	}
	if n == 0 {
		return nil
	}
	switch v := c.(type) {
	case *array.Int32:
		return w.send(arrow.Int32Traits.CastToBytes(v.Int32Values()))
	case *array.Float32:
		return w.send(arrow.Float32Traits.CastToBytes(v.Float32Values()))
	case *array.Int64:
		return w.send(arrow.Int64Traits.CastToBytes(v.Int64Values()))
	case *array.Float64:
		return w.send(arrow.Float64Traits.CastToBytes(v.Float64Values()))
	case *array.Timestamp:
		return w.send(arrow.TimestampTraits.CastToBytes(v.TimestampValues()))
	case *array.Date32:
		return w.send(arrow.Date32Traits.CastToBytes(v.Date32Values()))
	case *array.Boolean:
		return w.bitmap(v.Data().Buffers()[1].Bytes(), v.Data().Offset(), n)
	case *array.String:
		text := v.ValueBytes()
		if len(text) > maxText {
			return fault.New(fault.TooLarge, "a cell of %d bytes is over the limit of %s", len(text), resource.Bytes(maxText))
		}
		if err := w.number(len(text)); err != nil {
			return err
		}
		w.buf = w.buf[:0]
		for i := range n {
			w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(v.ValueLen(i))) //nolint:gosec // below maxText
		}
		return errors.Join(w.send(w.buf), w.send(text))
	}
	if l, ok := c.(*array.List); ok {
		return w.list(l)
	}
	return fmt.Errorf("a column of %s", c.DataType())
}

func (w *RecordWriter) list(l *array.List) error {
	values := elementsOf(l)
	defer values.Release()
	if values.Len() > maxList {
		return fault.New(fault.TooLarge, "a list of %d elements is over the limit of %d", values.Len(), maxList)
	}
	if err := w.number(values.Len()); err != nil {
		return err
	}
	w.buf = w.buf[:0]
	for i := range l.Len() {
		from, to := l.ValueOffsets(i)
		w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(to-from)) //nolint:gosec // below maxList
	}
	if err := w.send(w.buf); err != nil {
		return err
	}
	return w.column(values)
}

// Close ends the stream. A stream without batches still carries its schema.
func (w *RecordWriter) Close() error {
	if w.err != nil {
		return w.err
	}
	return w.out.Close()
}

// Records reads the next stream of batches. Release the reader; read it to the
// end before anything else. Its columns are of those types, and reading any
// cell of a batch that it gives is safe, whoever wrote it.
func (r *Reader) Records() (array.RecordReader, error) {
	var head wireSchema
	if err := r.Header(&head); err != nil {
		return nil, err
	}
	s := make(table.Schema, len(head.Columns))
	for i, c := range head.Columns {
		if !c.Type.Valid() {
			return nil, fmt.Errorf("a column of type %q", c.Type)
		}
		s[i] = table.Field{Name: c.Name, Type: c.Type}
	}
	if err := table.CheckNames(s.Names()); err != nil {
		return nil, err
	}
	return &records{in: r.stream(), types: s, schema: s.Arrow()}, nil
}

// records is an array.RecordReader of a stream.
type records struct {
	in     streamReader
	types  table.Schema
	schema *arrow.Schema
	cur    arrow.RecordBatch
	ended  bool
	err    error
	size   int64 // of the current batch
	held   int64 // of that, what is held of the reader's share
}

func (r *records) Schema() *arrow.Schema          { return r.schema }
func (r *records) RecordBatch() arrow.RecordBatch { return r.cur }
func (r *records) Record() arrow.RecordBatch      { return r.cur }
func (r *records) Err() error                     { return r.err }
func (r *records) Retain()                        {}

func (r *records) Release() {
	if r.cur != nil {
		r.cur.Release()
		r.cur = nil
	}
	r.in.r.share.Give(r.held)
	r.size, r.held = 0, 0
}

func (r *records) Next() bool {
	r.Release()
	if r.ended || r.err != nil {
		return false
	}
	var head [4]byte
	if _, err := io.ReadFull(r.in, head[:]); errors.Is(err, io.EOF) {
		r.ended = true
		return false
	} else if err != nil {
		r.err = err
		return false
	}
	r.cur, r.err = r.batch(binary.LittleEndian.Uint32(head[:]))
	if r.err != nil && r.in.r.done { // the end mark in the middle of a batch
		r.err = errors.New("a truncated batch")
	}
	return r.err == nil
}

func (r *records) batch(rows uint32) (arrow.RecordBatch, error) {
	if rows > maxRows {
		return nil, fmt.Errorf("a batch of %d rows is over the limit of %d", rows, maxRows)
	}
	cols := make([]arrow.Array, 0, len(r.types))
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for _, f := range r.types {
		c, err := r.column(f.Type, int(rows))
		if err != nil {
			return nil, err
		}
		cols = append(cols, c)
	}
	return array.NewRecordBatch(r.schema, cols, int64(rows)), nil
}

// worth is the least number of bytes that are held of a share: fewer are not counted.
const worth = 64 << 10

// bytes reads n bytes, allocating no more than a little ahead of what comes.
func (r *records) bytes(n int) (*memory.Buffer, error) {
	const step = 1 << 20
	if r.size += int64(n); r.size > maxBatch+maxBatch/8 {
		return nil, fmt.Errorf("a batch of more than %d bytes", maxBatch)
	}
	if n >= worth && r.in.r.share != nil {
		if err := r.in.r.share.Take(r.in.r.ctx, int64(n)); err != nil {
			return nil, err
		}
		r.held += int64(n)
	}
	b := make([]byte, min(n, step))
	for read := 0; ; {
		if _, err := io.ReadFull(r.in, b[read:]); err != nil {
			return memory.NewBufferBytes(b), err
		}
		if read = len(b); read == n {
			return memory.NewBufferBytes(b), nil
		}
		room := n // a quarter of it has come: the rest is believed
		if read < n/4 {
			room = 4 * read
		}
		b = append(make([]byte, 0, room), b...)[:room]
	}
}

func (r *records) column(t table.Type, rows int) (arrow.Array, error) {
	var hasNulls [1]byte
	if _, err := io.ReadFull(r.in, hasNulls[:]); err != nil {
		return nil, err
	}
	bitmap := int(bitutil.BytesForBits(int64(rows)))
	buffers := []*memory.Buffer{nil, nil}
	nulls := 0
	var err error
	switch hasNulls[0] {
	case 0:
	case 1:
		if buffers[0], err = r.bytes(bitmap); err != nil {
			return nil, err
		}
		nulls = rows - bitutil.CountSetBits(buffers[0].Bytes(), 0, rows)
	default:
		return nil, fmt.Errorf("a column with the unknown kind %d", hasNulls[0])
	}
	if elem, list := t.Elem(); list {
		return r.list(t, elem, rows, buffers, nulls)
	}
	switch t {
	case table.String:
		buffers = append(buffers, nil)
		buffers[1], buffers[2], err = r.text(rows)
	case table.Bool:
		buffers[1], err = r.bytes(bitmap)
	case table.Date, table.Int32, table.Float32:
		buffers[1], err = r.bytes(4 * rows)
	default:
		buffers[1], err = r.bytes(8 * rows)
	}
	if err != nil {
		return nil, err
	}
	data := array.NewData(t.Arrow(), rows, buffers, nil, nulls, 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

// list reads a column of lists whose validity is in buffers.
func (r *records) list(t, elem table.Type, rows int, buffers []*memory.Buffer, nulls int) (arrow.Array, error) {
	ends, at := make([]int32, rows+1), uint32(0)
	if rows > 0 {
		var total [4]byte
		if _, err := io.ReadFull(r.in, total[:]); err != nil {
			return nil, err
		}
		want := binary.LittleEndian.Uint32(total[:])
		if want > maxList {
			return nil, fmt.Errorf("a column of %d elements of lists is over the limit of %d", want, maxList)
		}
		lengths, err := r.bytes(4 * rows)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			n := binary.LittleEndian.Uint32(lengths.Bytes()[4*i:])
			if n > want-at {
				return nil, errors.New("lists that are longer than their column")
			}
			at += n
			ends[i+1] = int32(at) //nolint:gosec // below maxList
		}
		if at != want {
			return nil, errors.New("lists that are shorter than their column")
		}
	}
	elements, err := r.elements(elem, rows, int(at))
	if err != nil {
		return nil, err
	}
	defer elements.Release()
	if elements.NullN() > 0 {
		return nil, errors.New("a list with a null in it")
	}
	buffers[1] = memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(ends))
	data := array.NewData(t.Arrow(), rows, buffers, []arrow.ArrayData{elements.Data()}, nulls, 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

func (r *records) elements(t table.Type, rows, n int) (arrow.Array, error) {
	if rows == 0 { // nothing is sent of none
		return array.MakeArrayOfNull(memory.DefaultAllocator, t.Arrow(), 0), nil
	}
	return r.column(t, n)
}

// text reads the offsets and bytes of a column of strings.
func (r *records) text(rows int) (offsets, text *memory.Buffer, err error) {
	if rows == 0 {
		return memory.NewBufferBytes(make([]byte, 4)), memory.NewBufferBytes(nil), nil
	}
	var total [4]byte
	if _, err := io.ReadFull(r.in, total[:]); err != nil {
		return nil, nil, err
	}
	want := binary.LittleEndian.Uint32(total[:])
	if want > maxText {
		return nil, nil, fmt.Errorf("a column of %d bytes of text is over the limit of %d", want, maxText)
	}
	lengths, err := r.bytes(4 * rows)
	if err != nil {
		return nil, nil, err
	}
	ends, at := make([]int32, rows+1), uint32(0)
	for i := range rows {
		n := binary.LittleEndian.Uint32(lengths.Bytes()[4*i:])
		if n > want-at {
			return nil, nil, errors.New("strings that are longer than their column")
		}
		at += n
		ends[i+1] = int32(at) //nolint:gosec // below maxText
	}
	if at != want {
		return nil, nil, errors.New("strings that are shorter than their column")
	}
	text, err = r.bytes(int(want))
	return memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(ends)), text, err
}
