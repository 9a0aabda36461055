package table_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// BenchmarkBlocks reads wide rows in blocks of 1,000 in another order, as a loader that
// mixes rows does.
func BenchmarkBlocks(b *testing.B) {
	const rows, width, block = 16_000, 12 << 10, 1_000
	schema := table.Schema{{Name: "image", Type: table.String}}
	var out bytes.Buffer
	seal := table.Seal{Key: bytes.Repeat([]byte{1}, 32), Name: "blocks"}
	w, err := table.NewFileWriter(&out, schema, seal)
	if err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for from := 0; from < rows; from += block {
		build := array.NewRecordBuilder(memory.DefaultAllocator, schema.Arrow())
		for range block {
			var text strings.Builder
			for text.Len() < width {
				text.WriteByte(byte('a' + random.IntN(26)))
			}
			build.Field(0).(*array.StringBuilder).Append(text.String())
		}
		if err := w.Write(build.NewRecordBatch()); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	read := 0
	for b.Loop() {
		for _, i := range random.Perm(rows / block) {
			r, err := table.OpenRows(b.Context(), bytes.NewReader(out.Bytes()), int64(out.Len()), schema, nil, seal, int64(i*block), int64((i+1)*block))
			if err != nil {
				b.Fatal(err)
			}
			for r.Next() {
				read += int(r.RecordBatch().NumRows())
			}
			if err := r.Err(); err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
	}
	b.ReportMetric(float64(read)/b.Elapsed().Seconds(), "rows/s")
}

// counted counts the bytes that are read.
type counted struct {
	*bytes.Reader
	n int64
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.Reader.ReadAt(p, at)
	c.n += int64(n)
	return n, err
}

// TestParts reads wide rows in equal parts, as the workers of a loader do: together they
// read the file once, but for the row group at each boundary and the footer.
func TestParts(t *testing.T) {
	const rows, width, at, parts = 8_000, 12 << 10, 500, 4
	schema := table.Schema{{Name: "image", Type: table.String}}
	random := rand.New(rand.NewPCG(1, 1))
	var out bytes.Buffer
	w, err := table.NewFileWriter(&out, schema, table.Seal{})
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, width)
	for range rows / at {
		build := array.NewRecordBuilder(memory.DefaultAllocator, schema.Arrow())
		for range at {
			for i := range text {
				text[i] = byte('a' + random.IntN(26))
			}
			build.Field(0).(*array.StringBuilder).Append(string(text))
		}
		if err := w.Write(build.NewRecordBatch()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	in, given := &counted{Reader: bytes.NewReader(out.Bytes())}, int64(0)
	for i := range int64(parts) {
		r, err := table.OpenRows(t.Context(), in, int64(out.Len()), schema, nil, table.Seal{}, rows/parts*i, rows/parts*(i+1))
		if err != nil {
			t.Fatal(err)
		}
		for r.Next() {
			given += r.RecordBatch().NumRows()
		}
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		r.Release()
	}
	if most := int64(out.Len()) + parts*(17<<20); given != rows || in.n > most {
		t.Errorf("%d rows of %d; %d bytes were read of a file of %d, at most %d", given, rows, in.n, out.Len(), most)
	}
}
