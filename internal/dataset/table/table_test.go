package table

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/iceberg-go"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

var all = Schema{
	{ID: 1, Name: "s", Type: String},
	{ID: 2, Name: "i", Type: Int64},
	{ID: 7, Name: "f", Type: Float64},
	{ID: 4, Name: "b", Type: Bool},
	{ID: 5, Name: "t", Type: Timestamp},
	{ID: 6, Name: "d", Type: Date},
	{ID: 8, Name: "n", Type: Int32},
	{ID: 9, Name: "v", Type: Float32},
	{ID: 10, Name: "words", Type: ListOf(String), Element: 11},
	{ID: 12, Name: "vector", Type: ListOf(Float32), Element: 13},
	{ID: 14, Name: "times", Type: ListOf(Timestamp), Element: 15},
}

// draw makes a batch of every type with nulls.
func draw(t *rapid.T, rows int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, all.Arrow())
	defer b.Release()
	null := rapid.Bool()
	for range rows {
		for i, f := range all {
			if null.Draw(t, "null") {
				b.Field(i).AppendNull()
				continue
			}
			switch f.Type {
			case String:
				b.Field(i).(*array.StringBuilder).Append(rapid.String().Draw(t, "s"))
			case Int64:
				b.Field(i).(*array.Int64Builder).Append(rapid.Int64().Draw(t, "i"))
			case Float64:
				b.Field(i).(*array.Float64Builder).Append(rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN()), rapid.Just(math.Inf(-1))).Draw(t, "f"))
			case Bool:
				b.Field(i).(*array.BooleanBuilder).Append(rapid.Bool().Draw(t, "b"))
			case Timestamp:
				b.Field(i).(*array.TimestampBuilder).Append(arrow.Timestamp(rapid.Int64().Draw(t, "t")))
			case Int32:
				b.Field(i).(*array.Int32Builder).Append(rapid.Int32().Draw(t, "n"))
			case Float32:
				b.Field(i).(*array.Float32Builder).Append(rapid.Float32().Draw(t, "v"))
			case ListOf(String):
				l := b.Field(i).(*array.ListBuilder)
				l.Append(true)
				l.ValueBuilder().(*array.StringBuilder).AppendValues(rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "words"), nil)
			case ListOf(Float32):
				l := b.Field(i).(*array.ListBuilder)
				l.Append(true)
				l.ValueBuilder().(*array.Float32Builder).AppendValues(rapid.SliceOfN(rapid.Float32(), 0, 3).Draw(t, "vector"), nil)
			case ListOf(Timestamp):
				l := b.Field(i).(*array.ListBuilder)
				l.Append(true)
				for _, at := range rapid.SliceOfN(rapid.Int64(), 0, 3).Draw(t, "times") {
					l.ValueBuilder().(*array.TimestampBuilder).Append(arrow.Timestamp(at))
				}
			case Date:
				b.Field(i).(*array.Date32Builder).Append(arrow.Date32(rapid.Int32().Draw(t, "d")))
			}
		}
	}
	return b.NewRecordBatch()
}

func cells(rec arrow.RecordBatch) [][]string {
	var out [][]string
	for i := range int(rec.NumRows()) {
		row := make([]string, rec.NumCols())
		for c := range row {
			row[c] = rec.Column(c).ValueStr(i)
			if f, ok := rec.Column(c).(*array.Float64); ok && f.IsValid(i) {
				row[c] = strconv.FormatUint(math.Float64bits(f.Value(i)), 16)
			}
		}
		out = append(out, row)
	}
	return out
}

func write(tb interface{ Fatal(...any) }, seal Seal, recs ...arrow.RecordBatch) []byte {
	var buf bytes.Buffer
	w, err := NewFileWriter(&buf, all, seal)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range recs {
		if err := w.Write(r); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func read(data []byte, columns []string, seal Seal) ([][]string, *arrow.Schema, error) {
	r, err := OpenFile(context.Background(), bytes.NewReader(data), int64(len(data)), all, columns, seal)
	if err != nil {
		return nil, nil, err
	}
	defer r.Release()
	var out [][]string
	for r.Next() {
		out = append(out, cells(r.RecordBatch())...)
	}
	return out, r.Schema(), r.Err()
}

func seals() map[string]Seal {
	return map[string]Seal{"open": {}, "sealed": {Key: bytes.Repeat([]byte{7}, 32), Name: "dsv_1/00000"}}
}

// What is written is what is read, for every type, any nulls, any batches.
func TestFileKeepsValues(t *testing.T) {
	for name, seal := range seals() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			var recs []arrow.RecordBatch
			var want [][]string
			for range rapid.IntRange(0, 3).Draw(t, "batches") {
				rec := draw(t, rapid.IntRange(0, 20).Draw(t, "rows"))
				defer rec.Release()
				recs = append(recs, rec)
				want = append(want, cells(rec)...)
			}
			got, schema, err := read(write(t, seal, recs...), nil, seal)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("got %v, want %v", got, want)
			}
			if !schema.Equal(all.Arrow()) {
				t.Fatalf("schema %v", schema)
			}
		}))
	}
}

func one(tb testing.TB) arrow.RecordBatch {
	tb.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, all.Arrow())
	defer b.Release()
	for i := range 5000 {
		b.Field(0).(*array.StringBuilder).Append(fmt.Sprintf("secret-%d", i))
		b.Field(1).(*array.Int64Builder).Append(int64(i))
		b.Field(2).(*array.Float64Builder).Append(float64(i) / 2)
		b.Field(3).(*array.BooleanBuilder).Append(i%2 == 0)
		b.Field(4).(*array.TimestampBuilder).Append(arrow.Timestamp(i))
		b.Field(5).(*array.Date32Builder).Append(arrow.Date32(i))
		for _, rest := range b.Fields()[6:] {
			rest.AppendNull()
		}
	}
	rec := b.NewRecordBatch()
	tb.Cleanup(rec.Release)
	return rec
}

func TestColumnsInTheOrderAsked(t *testing.T) {
	for name, seal := range seals() {
		data := write(t, seal, one(t))
		got, schema, err := read(data, []string{"d", "s"}, seal)
		if err != nil {
			t.Fatal(name, err)
		}
		if schema.Field(0).Name != "d" || schema.Field(1).Name != "s" || len(got) != 5000 || got[3][1] != "secret-3" {
			t.Fatal(name, schema, len(got), got[3])
		}
		if id, _ := schema.Field(0).Metadata.GetValue(fieldIDKey); id != "6" {
			t.Errorf("%s: field ID %q, want 6", name, id)
		}
		if _, _, err := read(data, []string{"nope"}, seal); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: unknown column: %v", name, err)
		}
	}
}

func TestSealedFileHidesAndRefuses(t *testing.T) {
	seal := seals()["sealed"]
	data := write(t, seal, one(t))
	for _, word := range []string{"secret-", "falaj"} {
		if bytes.Contains(data, []byte(word)) {
			t.Errorf("the sealed file shows %q", word)
		}
	}
	if plain := write(t, Seal{}, one(t)); !bytes.Contains(plain, []byte("secret-")) {
		t.Fatal("the search for plaintext finds nothing in a plain file either")
	}
	refuse := func(what string, data []byte, seal Seal) {
		t.Helper()
		got, _, err := read(data, nil, seal)
		if err == nil {
			t.Errorf("%s: opened with %d rows", what, len(got))
		}
	}
	refuse("another key", data, Seal{Key: bytes.Repeat([]byte{8}, 32), Name: seal.Name})
	refuse("another name", data, Seal{Key: seal.Key, Name: "dsv_1/00001"})
	refuse("no seal", data, Seal{})
	refuse("a plain file for a sealed one", write(t, Seal{}, one(t)), seal)
	refuse("a cut file", data[:len(data)-100], seal)
	for i := 4; i < len(data); i += len(data) / 97 {
		bent := bytes.Clone(data)
		bent[i] ^= 0x40
		refuse(fmt.Sprintf("a changed byte %d of %d", i, len(data)), bent, seal)
	}
}

func TestOpenFileOfGarbage(t *testing.T) {
	for _, data := range [][]byte{nil, []byte("PAR1"), []byte("PAR1PAR1"), bytes.Repeat([]byte("PAR1"), 100), bytes.Repeat([]byte{0xff}, 1000)} {
		if _, _, err := read(data, nil, Seal{}); err == nil {
			t.Errorf("%d bytes of garbage opened", len(data))
		}
	}
}

func TestCheckNames(t *testing.T) {
	many := make([]string, 10_000)
	for i := range many {
		many[i] = fmt.Sprintf("c%d", i)
	}
	for _, c := range []struct {
		names []string
		want  string // in the error; empty for none
	}{
		{[]string{"a", "b c", "température", "x.y", `q"uote`}, ""},
		{nil, "at least one column"},
		{[]string{"a", ""}, "column 2 has no name"},
		{[]string{"a", "b", "a"}, `columns 1 and 3 are both named "a"`},
		{[]string{"Origin", "origin"}, "columns 1 and 2"},
		{[]string{"a\x00b"}, "control character"},
		{[]string{"a\nb"}, "control character"},
		{[]string{"a\xff"}, "not UTF-8"},
		{[]string{strings.Repeat("x", 256)}, "256 bytes"},
		{many, "10000 columns are over the limit of 4096"},
		{many[:4096], ""},
	} {
		err := CheckNames(c.names)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.60q: %v, want %q", c.names, err, c.want)
		}
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%.60q: kind %v", c.names, fault.KindOf(err))
		}
	}
}

// arrayOf builds an array of a type from JSON.
func arrayOf(tb testing.TB, dt arrow.DataType, values string) arrow.Array {
	tb.Helper()
	a, _, err := array.FromJSON(memory.DefaultAllocator, dt, strings.NewReader(values))
	if err != nil {
		tb.Fatal(dt, err)
	}
	tb.Cleanup(a.Release)
	return a
}

func TestNormalize(t *testing.T) {
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	for _, c := range []struct {
		dt     arrow.DataType
		values string
		typ    Type
		want   string // values, or the error
	}{
		{arrow.PrimitiveTypes.Int8, `[1, null, -3]`, Int32, "1 (null) -3"},
		{arrow.PrimitiveTypes.Int32, `[2147483647]`, Int32, "2147483647"},
		{arrow.PrimitiveTypes.Uint32, `[4294967295]`, Int64, "4294967295"},
		{arrow.PrimitiveTypes.Uint64, `[1, 9223372036854775807]`, Int64, "1 9223372036854775807"},
		{arrow.PrimitiveTypes.Uint64, `[1, 9223372036854775808]`, Int64, `row 12, column "c": the value exceeds`},
		{arrow.PrimitiveTypes.Float32, `[0.1, null]`, Float32, "0.1 (null)"},
		{arrow.FixedWidthTypes.Float16, `[0.5, null]`, Float32, "0.5 (null)"},
		{arrow.ListOf(arrow.PrimitiveTypes.Int16), `[[1, 2], null, []]`, ListOf(Int32), "[1,2] (null) []"},
		{arrow.LargeListOf(arrow.BinaryTypes.LargeString), `[["a"], ["b", ""]]`, ListOf(String), `["a"] ["b",""]`},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32), `[[1, 2], null, [3, 4]]`, ListOf(Float32), "[1,2] (null) [3,4]"},
		{arrow.ListOf(dict), `[["x", "y"]]`, ListOf(String), `["x","y"]`},
		{arrow.ListOf(arrow.PrimitiveTypes.Int64), `[[1], [2, null]]`, ListOf(Int64), `row 12, column "c": an element of the list is null`},
		{&arrow.Decimal128Type{Precision: 10, Scale: 2}, `["1.25", null]`, Float64, "1.25 (null)"},
		{&arrow.Decimal128Type{Precision: 38, Scale: 0}, `["12", null]`, Int64, "12 (null)"},
		{arrow.BinaryTypes.LargeString, `["a", null, ""]`, String, "a (null) "},
		{arrow.BinaryTypes.StringView, `["a long string that is not inlined", null]`, String, "a long string that is not inlined (null)"},
		{arrow.Null, `[null, null]`, String, "(null) (null)"},
		{&arrow.TimestampType{Unit: arrow.Second}, `["1970-01-01 00:00:01"]`, Timestamp, "1970-01-01T00:00:01Z"},
		{&arrow.TimestampType{Unit: arrow.Nanosecond}, `["1970-01-01 00:00:00.000001"]`, Timestamp, "1970-01-01T00:00:00.000001Z"},
		{&arrow.TimestampType{Unit: arrow.Nanosecond}, `["1970-01-01 00:00:00.000000001"]`, Timestamp, "not a whole number of microseconds"},
		{arrow.FixedWidthTypes.Date64, `["1970-01-02"]`, Date, "1970-01-02"},
		{dict, `["x", null, "y", "x"]`, String, "x (null) y x"},
	} {
		a := arrayOf(t, c.dt, c.values)
		raw := arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.dt, Nullable: true}}, nil)
		s, err := NormalSchema(raw)
		if err != nil || s[0].Type != c.typ {
			t.Errorf("%s: schema %v, %v", c.dt, s, err)
			continue
		}
		rec := array.NewRecordBatch(raw, []arrow.Array{a}, int64(a.Len()))
		norm, err := Normalize(rec, s, 11)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || !fault.Is(err, fault.Invalid) {
				t.Errorf("%s %s: %v, want %s", c.dt, c.values, err, c.want)
			}
			continue
		}
		got := make([]string, a.Len())
		for i := range got {
			got[i] = norm.Column(0).ValueStr(i)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %s: %q, want %q", c.dt, c.values, strings.Join(got, " "), c.want)
		}
	}
	huge := decimal128.FromU64(math.MaxUint64)
	b := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 38})
	b.Append(huge)
	raw := arrow.NewSchema([]arrow.Field{{Name: "c", Type: &arrow.Decimal128Type{Precision: 38}}}, nil)
	rec := array.NewRecordBatch(raw, []arrow.Array{b.NewArray()}, 1)
	if _, err := Normalize(rec, Schema{{Name: "c", Type: Int64}}, 1); !fault.Is(err, fault.Invalid) {
		t.Errorf("2^64-1 as int64: %v", err)
	}
	for _, dt := range []arrow.DataType{
		arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int64)), arrow.ListOf(arrow.FixedWidthTypes.Date32), arrow.StructOf(), arrow.BinaryTypes.Binary, arrow.FixedWidthTypes.Time64us,
		arrow.FixedWidthTypes.Duration_s, arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64),
	} {
		if typ, err := Normal("c", dt); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%s is kept as %q, %v", dt, typ, err)
		}
	}
}

func TestNormalizeRefusesBrokenText(t *testing.T) {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	b.Append("fine")
	b.Append("\xff\xfe")
	s := Schema{{Name: "c", Type: String}}
	rec := array.NewRecordBatch(s.Arrow(), []arrow.Array{b.NewArray()}, 2)
	if _, err := Normalize(rec, s, 1); err == nil || !strings.Contains(err.Error(), "row 2") {
		t.Errorf("got %v", err)
	}
}

// Another Iceberg reader finds schema, files and counts, and no bounds.
func TestIceberg(t *testing.T) {
	snap := Snapshot{ID: 3, Version: 3, Parent: 1, Time: time.UnixMilli(1_700_000_000_000), Schema: all, ManifestList: "file:///t/snap.avro", Rows: 10, Files: 1, Bytes: 99}
	var m, l bytes.Buffer
	mf, err := WriteManifest(&m, "file:///t/manifest.avro", snap, []DataFile{{URI: "file:///t/data.parquet", Rows: 10, Bytes: 99, Nulls: map[int]int64{1: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteManifestList(&l, snap, mf); err != nil {
		t.Fatal(err)
	}
	list, err := iceberg.ReadManifestList(bytes.NewReader(l.Bytes()))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if list[0].SnapshotID() != 3 || list[0].SequenceNum() != 3 || list[0].AddedRows() != 10 || list[0].Length() != int64(m.Len()) {
		t.Errorf("manifest list: %+v", list[0])
	}
	entries, err := iceberg.ReadManifest(list[0], bytes.NewReader(m.Bytes()), false)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	f := entries[0].DataFile()
	if f.FilePath() != "file:///t/data.parquet" || f.Count() != 10 || f.FileSizeBytes() != 99 || f.NullValueCounts()[1] != 4 {
		t.Errorf("data file: %+v", f)
	}
	if len(f.LowerBoundValues())+len(f.UpperBoundValues()) != 0 {
		t.Error("the manifest has bounds")
	}

	later := snap
	later.ID, later.Version, later.Parent, later.Schema = 4, 4, 3, all[:2]
	var meta, again bytes.Buffer
	table := Table{Name: "nyc/t", Location: "file:///t", LastField: 7, Snapshots: []Snapshot{snap, later}, Now: snap.Time}
	if err := WriteMetadata(&meta, table); err != nil {
		t.Fatal(err)
	}
	if err := WriteMetadata(&again, table); err != nil || !bytes.Equal(meta.Bytes(), again.Bytes()) {
		t.Error("equal tables give different metadata", err)
	}
	var got metadata
	if err := json.Unmarshal(meta.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.CurrentSnapshotID != 4 || got.Refs["main"].ID != 4 || got.Refs["v3"].ID != 3 || got.Snapshots[1].Parent != 3 || got.CurrentSchemaID != 1 || len(got.Schemas) != 2 {
		t.Errorf("metadata: %s", meta.String())
	}
	if got.Schemas[0].NumFields() != len(all) || got.Schemas[0].Field(2).ID != 7 || got.Schemas[0].Field(4).Type != iceberg.PrimitiveTypes.TimestampTz {
		t.Errorf("schema: %v", got.Schemas[0])
	}
}

// counted counts the bytes that are read.
type counted struct {
	*bytes.Reader
	n int64
}

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.Reader.ReadAt(p, off)
	c.n += int64(n)
	return n, err
}

// Rows in the middle of a file are what they are in the whole, and the row groups
// around them are not read.
func TestOpenRows(t *testing.T) {
	const rows = RowGroup + 1000
	schema := Schema{{ID: 1, Name: "n", Type: Int64}, {ID: 2, Name: "word", Type: String}}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema.Arrow())
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if i%7 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(strconv.Itoa(i * i))
		}
	}
	rec := b.NewRecordBatch()
	for name, seal := range seals() {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			w, err := NewFileWriter(&buf, schema, seal)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Write(rec); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			part := func(from, to int64) (bytesRead int64) {
				t.Helper()
				in := &counted{Reader: bytes.NewReader(buf.Bytes())}
				r, err := OpenRows(t.Context(), in, int64(buf.Len()), schema, []string{"word", "n"}, seal, from, to)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Release()
				next := from
				for r.Next() {
					words, n := r.RecordBatch().Column(0).(*array.String), r.RecordBatch().Column(1).(*array.Int64)
					for i := range int(r.RecordBatch().NumRows()) {
						if n.Value(i) != next || words.IsNull(i) != (next%7 == 0) || words.IsValid(i) && words.Value(i) != strconv.FormatInt(next*next, 10) {
							t.Fatalf("row %d of %d to %d is %d, %s", next, from, to, n.Value(i), words.ValueStr(i))
						}
						next++
					}
				}
				if want := max(from, min(to, rows)); r.Err() != nil || next != want {
					t.Fatalf("rows %d to %d end at %d, %v", from, to, next, r.Err())
				}
				return in.n
			}
			for _, p := range [][2]int64{
				{0, 1}, {rows - 1, rows}, {5, 5}, {rows, rows}, {RowGroup - 1, RowGroup + 1}, {readBatch - 3, readBatch + 3}, {RowGroup - 500, math.MaxInt64},
			} {
				part(p[0], p[1])
			}
			all, last := part(0, rows), part(RowGroup, rows)
			if last > all/20 {
				t.Errorf("the last 1000 rows took %d bytes of %d", last, all)
			}
		})
	}
}

// TestLargeRows: a file of large rows has row groups, and is read in batches, that are
// bounded by their bytes.
func TestLargeRows(t *testing.T) {
	s := Schema{{Name: "text", Type: String}}
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	defer b.Release()
	const rows, size = 4000, 40_000
	for i := range rows {
		b.Field(0).(*array.StringBuilder).Append(strings.Repeat(string(rune('a'+i%26)), size))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var out bytes.Buffer
	w, err := NewFileWriter(&out, s, Seal{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	pf, err := openParquet(bytes.NewReader(out.Bytes()), int64(out.Len()), parquet.NewReaderProperties(memory.DefaultAllocator))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := pf.NumRowGroups(), rows*size/groupBytes; got < want {
		t.Errorf("%d row groups, want at least %d", got, want)
	}
	all, err := OpenFile(t.Context(), bytes.NewReader(out.Bytes()), int64(out.Len()), s, nil, Seal{})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Release()
	read := int64(0)
	for all.Next() {
		if n := sizeOf(all.RecordBatch()); n > 4*readBytes {
			t.Errorf("a batch of %d bytes", n)
		}
		read += all.RecordBatch().NumRows()
	}
	if err := all.Err(); err != nil || read != rows {
		t.Errorf("%d rows, %v", read, err)
	}
}
