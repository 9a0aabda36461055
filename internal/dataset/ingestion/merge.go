package ingestion

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

func digestOf(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

// merge is the rows of the version: those of the version before that the new ones
// do not replace, and of the new ones the last of each key.
func (s *Service) merge(ctx context.Context, r Run, src Source) (*merged, error) {
	m := &merged{s: s, ctx: ctx, run: r, left: r.Progress.Chunks}
	op := src.Spec.Op
	for i, f := range r.Progress.Schema {
		if op == "" || f.Name != op {
			m.schema = append(m.schema, f)
			m.columns = append(m.columns, i)
		}
	}
	if len(src.Spec.Key) > 0 && (src.Spec.Mode != source.Full || !src.Spec.From.Keyed()) {
		if err := m.index(src.Spec.Key, op); err != nil {
			return nil, err
		}
	}
	if r.Progress.Base > 0 {
		base, err := s.cfg.Datasets.Reads.Open(ctx, dataset.OpenRequest{
			Project: r.Project, Ref: dataset.Ref{Name: r.Dataset, Number: r.Progress.Base}, Purpose: "ingestion " + string(r.ID),
		})
		if err != nil {
			return nil, err
		}
		m.base = base
		for i, f := range m.schema {
			if was, ok := base.Version().Schema.Column(f.Name); ok {
				m.schema[i].Type = wider(f.Type, was.Type)
			}
		}
	}
	m.refs = 1
	return m, nil
}

// digest of a key.
type digest [16]byte

// merged is an array.RecordReader over the previous version and the chunks.
type merged struct {
	s       *Service
	ctx     context.Context //nolint:containedctx // of one version
	run     Run
	schema  table.Schema
	columns []int // of the chunks, that the version has
	key     []string
	// last is where the last row of each new key is, counted over all chunks;
	// -1 when that says that the row was deleted. nil: every row counts.
	last map[digest]int64

	base *dataset.Reader
	left []Chunk
	file *chunkReader
	row  int64 // of the chunks, that the next batch begins with

	cur  arrow.RecordBatch
	err  error
	refs int
}

var _ array.RecordReader = (*merged)(nil)

// index finds the last row of each key.
func (m *merged) index(key []string, op string) error {
	m.key, m.last = key, map[digest]int64{}
	where := columnsOf(m.run.Progress.Schema, key)
	acts := columnsOf(m.run.Progress.Schema, []string{op})[0]
	row := int64(0)
	for _, c := range m.run.Progress.Chunks {
		err := m.s.eachBatch(m.ctx, m.run, c, func(rec arrow.RecordBatch) error {
			for i := range int(rec.NumRows()) {
				d, err := keyOf(rec, where, key, i)
				if err != nil {
					return err
				}
				m.last[d] = row
				if acts >= 0 {
					gone, err := deleted(rec.Column(acts), i, row+1)
					if err != nil {
						return err
					}
					if gone {
						m.last[d] = -1
					}
				}
				row++
			}
			if len(m.last) > m.s.cfg.Keys {
				return fault.New(fault.TooLarge, "more than %d rows are new or changed", m.s.cfg.Keys).
					WithHint("Ingest more often, or use mode: full, which keeps no keys in memory for tables, nor for files and pages without a key.")
			}
			return m.ctx.Err()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// columnsOf is where names are in a schema; -1 for one that is not there.
func columnsOf(s table.Schema, names []string) []int {
	at := make([]int, len(names))
	for i, name := range names {
		at[i] = -1
		for j, f := range s {
			if f.Name == name {
				at[i] = j
			}
		}
	}
	return at
}

// keyOf is a digest of a row's key. Equal keys have equal digests, others not.
func keyOf(rec arrow.RecordBatch, columns []int, names []string, i int) (digest, error) {
	h := sha256.New()
	var b [9]byte
	for n, c := range columns {
		a := rec.Column(c)
		if a.IsNull(i) {
			return digest{}, fault.New(fault.Invalid, "a row has no %s, a column of spec.key", names[n])
		}
		bits := uint64(0)
		switch v := a.(type) {
		case *array.String:
			text := v.Value(i)
			binary.LittleEndian.PutUint64(b[1:], uint64(len(text)))
			h.Write(b[:])
			h.Write([]byte(text))
			continue
		case *array.Int32:
			bits = uint64(int64(v.Value(i))) //nolint:gosec // as the same number in an int64
		case *array.Float32:
			bits = math.Float64bits(float64(v.Value(i)))
		case *array.Int64:
			bits = uint64(v.Value(i)) //nolint:gosec // the same bits
		case *array.Float64:
			bits = math.Float64bits(v.Value(i))
		case *array.Boolean:
			if v.Value(i) {
				bits = 1
			}
		case *array.Timestamp:
			bits = uint64(v.Value(i)) //nolint:gosec // the same bits
		case *array.Date32:
			bits = uint64(v.Value(i)) //nolint:gosec // the same bits
		default:
			return digest{}, fault.New(fault.Invalid, "%s, a column of spec.key, is %s, which cannot identify a row", names[n], a.DataType())
		}
		binary.LittleEndian.PutUint64(b[1:], bits)
		h.Write(b[:])
	}
	var d digest
	copy(d[:], h.Sum(nil))
	return d, nil
}

// deleted reads what a row of changes says.
func deleted(a arrow.Array, i int, row int64) (bool, error) {
	text := ""
	if v, ok := a.(*array.String); ok && !a.IsNull(i) {
		text = v.Value(i)
	}
	switch strings.ToLower(text) {
	case "i", "insert", "u", "update", "c", "create", "r", "read":
		return false, nil
	case "d", "delete":
		return true, nil
	}
	return false, fault.New(fault.Invalid, "row %d: the change is not I, U or D", row).WithData("%.40q", text).
		WithHint("Set the column named by spec.op to I or insert, U or update, D or delete.")
}

// Schema implements array.RecordReader.
func (m *merged) Schema() *arrow.Schema { return m.schema.Arrow() }

// Next implements array.RecordReader.
func (m *merged) Next() bool {
	m.drop()
	for m.err == nil {
		rec, fresh, ok := m.next()
		if !ok {
			return false
		}
		if m.cur, m.err = m.keep(rec, fresh); m.err == nil && m.cur != nil {
			return true
		}
	}
	return false
}

// next is the next batch as it is stored, and whether it is of the new rows.
func (m *merged) next() (rec arrow.RecordBatch, fresh, ok bool) {
	if m.base != nil {
		if m.base.Next() {
			return m.base.RecordBatch(), false, true
		}
		m.err = m.base.Err()
		m.base.Release()
		m.base = nil
		if m.err != nil {
			return nil, false, false
		}
	}
	for {
		if m.file == nil {
			if len(m.left) == 0 {
				return nil, false, false
			}
			if m.file, m.err = m.s.openChunk(m.ctx, m.run, m.left[0]); m.err != nil {
				return nil, false, false
			}
			m.left = m.left[1:]
		}
		if m.file.Next() {
			return m.file.RecordBatch(), true, true
		}
		m.err = m.file.Err()
		m.file.close()
		m.file = nil
		if m.err != nil {
			return nil, false, false
		}
	}
}

// keep is the rows of a batch that the version has, in its columns; nil for none.
func (m *merged) keep(rec arrow.RecordBatch, fresh bool) (arrow.RecordBatch, error) {
	n := int(rec.NumRows())
	first := m.row
	if fresh {
		m.row += int64(n)
	}
	var spans [][2]int64 // of rows that stay
	if m.last == nil {
		spans = [][2]int64{{0, int64(n)}}
	} else {
		where := columnsOf(m.run.Progress.Schema, m.key)
		if !fresh {
			where = columnsOf(m.base.Version().Schema, m.key)
		}
		for i := range n {
			d, err := keyOf(rec, where, m.key, i)
			if err != nil {
				return nil, err
			}
			at, known := m.last[d]
			if fresh && at != first+int64(i) || !fresh && known {
				continue
			}
			if l := len(spans); l > 0 && spans[l-1][1] == int64(i) {
				spans[l-1][1]++
			} else {
				spans = append(spans, [2]int64{int64(i), int64(i) + 1})
			}
		}
	}
	if len(spans) == 0 {
		return nil, nil //nolint:nilnil // no row stays
	}
	rows := int64(0)
	for _, s := range spans {
		rows += s[1] - s[0]
	}
	cols := make([]arrow.Array, len(m.schema))
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	from := m.columns
	if !fresh {
		from = columnsOf(m.base.Version().Schema, m.schema.Names())
	}
	for i, f := range m.schema {
		if from[i] < 0 { // a column that the source has had since
			cols[i] = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type.Arrow(), int(rows))
			continue
		}
		var err error
		if cols[i], err = cut(rec.Column(from[i]), spans); err != nil {
			return nil, err
		}
		narrow := cols[i]
		cols[i], err = table.Widen(narrow, f.Type)
		narrow.Release()
		if err != nil {
			return nil, err
		}
	}
	return array.NewRecordBatch(m.schema.Arrow(), cols, rows), nil
}

// cut is the spans of an array.
func cut(a arrow.Array, spans [][2]int64) (arrow.Array, error) {
	if len(spans) == 1 {
		return array.NewSlice(a, spans[0][0], spans[0][1]), nil
	}
	parts := make([]arrow.Array, len(spans))
	for i, s := range spans {
		parts[i] = array.NewSlice(a, s[0], s[1])
		defer parts[i].Release()
	}
	return array.Concatenate(parts, memory.DefaultAllocator)
}

func (m *merged) drop() {
	if m.cur != nil {
		m.cur.Release()
		m.cur = nil
	}
}

// RecordBatch implements array.RecordReader.
func (m *merged) RecordBatch() arrow.RecordBatch { return m.cur }

// Record is RecordBatch.
//
// Deprecated: Use RecordBatch.
func (m *merged) Record() arrow.RecordBatch { return m.cur }

// Err implements array.RecordReader.
func (m *merged) Err() error { return m.err }

// Retain implements array.RecordReader.
func (m *merged) Retain() { m.refs++ }

// Release implements array.RecordReader.
func (m *merged) Release() {
	if m.refs--; m.refs > 0 {
		return
	}
	m.drop()
	if m.base != nil {
		m.base.Release()
		m.base = nil
	}
	if m.file != nil {
		m.file.close()
		m.file = nil
	}
}

// chunkReader reads a chunk.
type chunkReader struct {
	array.RecordReader
	file datafile.Reader
}

func (c *chunkReader) close() {
	c.Release()
	_ = c.file.Close()
}

func (s *Service) openChunk(ctx context.Context, r Run, c Chunk) (*chunkReader, error) {
	f, err := s.cfg.Files.Open(ctx, r.chunk(c.Number))
	if err != nil {
		return nil, fault.Wrap(err, "chunk %d of run %s", c.Number, r.ID)
	}
	rows, err := table.OpenFile(ctx, f, f.Size(), r.Progress.Schema, nil, table.Seal{})
	if err != nil {
		_ = f.Close()
		return nil, fault.Wrap(err, "chunk %d of run %s", c.Number, r.ID)
	}
	return &chunkReader{rows, f}, nil
}

func (s *Service) eachBatch(ctx context.Context, r Run, c Chunk, visit func(arrow.RecordBatch) error) error {
	f, err := s.openChunk(ctx, r, c)
	if err != nil {
		return err
	}
	defer f.close()
	for f.Next() {
		if err := visit(f.RecordBatch()); err != nil {
			return err
		}
	}
	return f.Err()
}
