package parser

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/pierrec/lz4/v4"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestParquetTexts: columns that tables have no type for are kept as text, as those of JSON
// and Avro are, or refused with the row.
func TestParquetTexts(t *testing.T) {
	address := arrow.StructOf(arrow.Field{Name: "zip", Type: arrow.BinaryTypes.String, Nullable: true}, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	for _, c := range []struct {
		of         arrow.DataType
		rows, want string
	}{
		{address, `[{"c": {"zip": "007", "n": 9007199254740993}}, {"c": null}, {"c": {"zip": null, "n": 1}}]`, `[{"n":9007199254740993,"zip":"007"}] [(null)] [{"n":1,"zip":null}]`},
		{arrow.ListOf(address), `[{"c": [{"zip": "a", "n": 1}]}, {"c": []}]`, `[[{"n":1,"zip":"a"}]] [[]]`},
		{arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int64)), `[{"c": [[1], []]}]`, `[[[1],[]]]`},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Float64), `[{"c": [{"key": "k", "value": 0.1}]}]`, `[[{"key":"k","value":0.1}]]`},
		{arrow.BinaryTypes.Binary, `[{"c": "Y2Fmw6k="}, {"c": ""}, {"c": null}]`, `[café] [] [(null)]`},
		{&arrow.FixedSizeBinaryType{ByteWidth: 2}, `[{"c": "YWI="}]`, `[ab]`},
		{arrow.FixedWidthTypes.Time32ms, `[{"c": "23:59:59.5"}]`, `[23:59:59.500]`},
		{arrow.FixedWidthTypes.Time64us, `[{"c": "00:00:00.000001"}, {"c": null}]`, `[00:00:00.000001] [(null)]`},
		{arrow.StructOf(arrow.Field{Name: "t", Type: arrow.FixedWidthTypes.Time64us}), `[{"c": {"t": "12:00:00"}}]`, `[{"t":"12:00:00"}]`},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.of, Nullable: true}}, nil)
		got, _, err := parse(parquetOf(t, schema, c.rows), Request{})
		if err != nil {
			t.Errorf("%s: %v", c.of, err)
			continue
		}
		if said := strings.Trim(fmt.Sprint(got.rows), "[]"); said != strings.Trim(c.want, "[]") || got.schema.Field(0).Type.ID() != arrow.STRING {
			t.Errorf("%s: %s, want %s", c.of, got.rows, c.want)
		}
	}
	for _, c := range []struct {
		of         arrow.DataType
		rows, want string
	}{
		{arrow.BinaryTypes.Binary, `[{"c": "YQ=="}, {"c": "/w=="}]`, `row 2, column "c" contains bytes that are not text`},
		{arrow.BinaryTypes.Binary, `[{"c": "AA=="}]`, `row 1, column "c" contains a NUL byte`},
		{arrow.ListOf(arrow.BinaryTypes.Binary), `[{"c": ["/w=="]}]`, `column "c" has the type`},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.of, Nullable: true}}, nil)
		if _, _, err := parse(parquetOf(t, schema, c.rows), Request{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.of, err, c.want)
		}
	}
	// Text inside that is no text: Parquet does not say so of its strings.
	b := array.NewStructBuilder(memory.DefaultAllocator, address)
	defer b.Release()
	b.Append(true)
	b.FieldBuilder(0).(*array.StringBuilder).Append("caf\xe9")
	b.FieldBuilder(1).(*array.Int64Builder).Append(1)
	a := b.NewArray()
	defer a.Release()
	if _, why := textOf(a, 0); why != "contains text that is not UTF-8" {
		t.Errorf("%q", why)
	}
}

// parquetPages is a file of one column of ints whose pages are compressed by a codec.
func parquetPages(tb testing.TB, codec compress.Compression, version parquet.DataPageVersion, values []int64) string {
	tb.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(values, make([]bool, len(values)))
	for _, v := range values {
		if v != 0 {
			b.Field(0).(*array.Int64Builder).Append(v)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, parquet.NewWriterProperties(parquet.WithCompression(codec), parquet.WithDataPageVersion(version), parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return out.String()
}

// hadoop compresses as Hadoop's LZ4 does, in blocks of a few bytes.
type hadoop struct{ compress.Codec }

func (hadoop) Encode(_, src []byte) (out []byte) {
	const block = 64
	for len(src) > 0 {
		part := src[:min(block, len(src))]
		packed := make([]byte, lz4.CompressBlockBound(len(part)))
		n, err := lz4.CompressBlock(part, packed, nil)
		if err != nil || n == 0 { // it does not become shorter: literals alone
			n = copy(packed, append([]byte{0xf0, byte(len(part) - 15)}, part...))
		}
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		out = binary.BigEndian.AppendUint32(out, uint32(n))
		out, src = append(out, packed[:n]...), src[len(part):]
	}
	return out
}

// TestHadoopLZ4: blocks behind lengths, and a bare block, are read; what is neither is an error.
func TestHadoopLZ4(t *testing.T) {
	page := bytes.Repeat([]byte("abcdefgh01234567"), 12)
	framed := hadoop{}.Encode(nil, page)
	bare := make([]byte, lz4.CompressBlockBound(len(page)))
	n, err := lz4.CompressBlock(page, bare, nil)
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	for name, packed := range map[string][]byte{"Hadoop": framed, "bare": bare[:n]} {
		if got, err := (hadoopLZ4{}).DecodeWithError(make([]byte, len(page)), packed); err != nil || !bytes.Equal(got, page) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, packed := range map[string][]byte{"cut": framed[:len(framed)-1], "short": framed[:3], "long": binary.BigEndian.AppendUint32(nil, 1<<31)} {
		if got, err := (hadoopLZ4{}).DecodeWithError(make([]byte, len(page)), packed); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	codec, err := compress.GetCodec(compress.Codecs.Lz4)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := compress.Decode(codec, make([]byte, len(page)), framed); err != nil || !bytes.Equal(got, page) {
		t.Errorf("by the library: %q, %v", got, err)
	}
}

func FuzzHadoopLZ4(f *testing.F) {
	f.Add(hadoop{}.Encode(nil, bytes.Repeat([]byte("ab"), 100)))
	f.Fuzz(func(t *testing.T, packed []byte) {
		if got, err := (hadoopLZ4{}).DecodeWithError(make([]byte, 4096), packed); err == nil && len(got) > 4096 {
			t.Error(len(got))
		}
	})
}

// TestEmptyPages: a page of nulls alone has nothing to decompress.
func TestEmptyPages(t *testing.T) {
	for _, codec := range []compress.Compression{compress.Codecs.Snappy, compress.Codecs.Gzip, compress.Codecs.Zstd, compress.Codecs.Brotli, compress.Codecs.Lz4Raw} {
		of, err := compress.GetCodec(codec)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := compress.Decode(of, make([]byte, 0, 8), nil); err != nil || len(got) != 0 {
			t.Errorf("%s: %v, %v", codec, got, err)
		}
		for _, version := range []parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2} {
			got, sum, err := parse(parquetPages(t, codec, version, []int64{0, 0, 7}), Request{})
			if err != nil || sum.Rows != 4 || fmt.Sprint(got.rows) != "[[(null)] [(null)] [(null)] [7]]" {
				t.Errorf("%s: %v, %v", codec, got, err)
			}
		}
	}
}
