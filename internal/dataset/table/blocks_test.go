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
