// Package wide imports rows that are wide in a process with little memory. The race detector takes
// more than that, so these tests are not beside the parser.
package wide

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/falaj-ml/falaj/internal/dataset/parser"
)

// smallMemory is the memory of the process that parses in TestWideRows. Besides the file, a
// few batches fit in it, as they do in the default of 2 GiB with a file of 1 GiB.
const smallMemory = 512 << 20

// TestMain lends the test binary to TestWideRows as a process with little memory.
func TestMain(m *testing.M) {
	if format, ok := os.LookupEnv("PARSE_WITH_LITTLE_MEMORY"); ok {
		os.Exit(parseWithLittleMemory(os.Stdout, parser.Format(format)))
	}
	os.Exit(m.Run())
}

// parseWithLittleMemory parses stdin and writes how many rows and bytes there were, or what was wrong.
func parseWithLittleMemory(out io.Writer, format parser.Format) int {
	limit := &syscall.Rlimit{Cur: smallMemory, Max: smallMemory}
	const data = 2 // RLIMIT_DATA, as the sandbox sets it
	if err := syscall.Setrlimit(data, limit); err != nil {
		_, _ = fmt.Fprintln(out, err)
		return 1
	}
	sink := &sizes{}
	sum, err := parser.Parse(os.Stdin, parser.Request{Format: format, Limits: parser.Limits{Parquet: smallMemory / 2}}, sink)
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
		return 1
	}
	_, _ = fmt.Fprintf(out, "%d rows, %d bytes", sum.Rows, sink.bytes)
	return 0
}

// sizes is a sink that counts the bytes of the cells.
type sizes struct{ bytes int64 }

func (s *sizes) Begin(*arrow.Schema) error { return nil }

func (s *sizes) Write(rec arrow.RecordBatch) error {
	for _, c := range rec.Columns() {
		for i := range c.Len() {
			switch c := c.(type) {
			case *array.String:
				s.bytes += int64(c.ValueLen(i))
			case *array.List:
				from, to := c.ValueOffsets(i)
				s.bytes += 4 * (to - from)
			}
		}
	}
	return nil
}

// wideRows is a batch of one column whose values have so many bytes. Of several kinds of
// values there are as many as kinds says; 0 is a value for each row.
func wideRows(t arrow.DataType, rows, width, kinds int) arrow.RecordBatch {
	schema := arrow.NewSchema([]arrow.Field{{Name: "wide", Type: t, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	random := rand.New(rand.NewPCG(1, 2))
	if kinds == 0 {
		kinds = rows
	}
	value := func(i int) []byte {
		v := bytes.Repeat([]byte{byte('a' + i%26)}, width)
		copy(v, fmt.Sprintf("%x", i%kinds))
		return v
	}
	for i := range rows {
		switch b := b.Field(0).(type) {
		case *array.StringBuilder:
			b.BinaryBuilder.Append(value(i % kinds))
		case *array.BinaryBuilder:
			b.Append(value(i % kinds))
		case *array.ListBuilder:
			b.Append(true)
			for range width / 4 {
				b.ValueBuilder().(*array.Float32Builder).Append(random.Float32())
			}
		}
	}
	return b.NewRecordBatch()
}

// oneGroup is a Parquet file with one row group of a batch, several times.
func oneGroup(tb testing.TB, rec arrow.RecordBatch, codec compress.Compression, times int) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := pqarrow.NewFileWriter(rec.Schema(), &b, parquet.NewWriterProperties(parquet.WithCompression(codec), parquet.WithBatchSize(64)), pqarrow.NewArrowWriterProperties())
	for range times {
		if err == nil {
			err = w.WriteBuffered(rec)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// oneBatch is an Arrow stream with one record batch.
func oneBatch(tb testing.TB, rec arrow.RecordBatch, options ...ipc.Option) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := ipc.NewWriter(&b, append(options, ipc.WithSchema(rec.Schema()))...)
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// TestWideRows: rows that are wide are read in a process with little memory, however many of
// them a row group or a record batch holds. What cannot be read is refused with the limit.
func TestWideRows(t *testing.T) {
	const rows, width = 10_000, 12 << 10
	all := fmt.Sprintf("%d rows, %d bytes", rows, rows*width)
	floats := arrow.ListOf(arrow.PrimitiveTypes.Float32)
	for name, c := range map[string]struct {
		format parser.Format
		file   func() []byte
		want   string
	}{
		"Parquet, text": {parser.Parquet, func() []byte {
			return oneGroup(t, wideRows(arrow.BinaryTypes.String, rows, width, 0), compress.Codecs.Uncompressed, 1)
		}, all},
		"Parquet, bytes, compressed": {parser.Parquet, func() []byte {
			return oneGroup(t, wideRows(arrow.BinaryTypes.Binary, rows, width, 0), compress.Codecs.Snappy, 1)
		}, all},
		"Parquet, lists": {parser.Parquet, func() []byte {
			return oneGroup(t, wideRows(floats, rows, width, 0), compress.Codecs.Uncompressed, 1)
		}, all},
		"Parquet, few values that repeat": {parser.Parquet, func() []byte {
			return oneGroup(t, wideRows(arrow.BinaryTypes.String, 500, 64<<10, 3), compress.Codecs.Snappy, 32)
		}, fmt.Sprintf("%d rows, %d bytes", 16_000, 16_000*64<<10)},
		"Arrow, text": {parser.Arrow, func() []byte {
			return oneBatch(t, wideRows(arrow.BinaryTypes.String, rows, width, 0))
		}, all},
		"Arrow, lists": {parser.Arrow, func() []byte { return oneBatch(t, wideRows(floats, rows, width, 0)) }, all},
		"Arrow, compressed, too large": {parser.Arrow, func() []byte {
			return oneBatch(t, wideRows(arrow.BinaryTypes.String, 24_000, width, 0), ipc.WithZstd())
		}, "a record batch needs more than 256MiB of memory"},
		"JSON": {parser.JSONLines, func() []byte {
			return bytes.Repeat([]byte(`{"wide":"`+strings.Repeat("x", width)+"\"}\n"), rows)
		}, all},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "PARSE_WITH_LITTLE_MEMORY="+string(c.format), fmt.Sprintf("GOMEMLIMIT=%d", smallMemory/4*3))
			cmd.Stdin = bytes.NewReader(c.file())
			out, err := cmd.Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(out) == 0 {
				t.Fatalf("%v: %.400s", err, exit.Stderr)
			}
			if !strings.HasPrefix(string(out), c.want) {
				t.Errorf("%s, want %s", out, c.want)
			}
		})
	}
}
