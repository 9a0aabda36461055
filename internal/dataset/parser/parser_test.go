package parser

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// collect is a sink that keeps the cells as text.
type collect struct {
	schema *arrow.Schema
	rows   [][]string
	count  int64
	most   int // rows kept; 0 for all
}

func (c *collect) Begin(s *arrow.Schema) error { c.schema = s; return nil }

func (c *collect) Write(rec arrow.RecordBatch) error {
	c.count += rec.NumRows()
	for i := range int(rec.NumRows()) {
		if c.most > 0 && len(c.rows) >= c.most {
			break
		}
		row := make([]string, rec.NumCols())
		for j := range row {
			row[j] = rec.Column(j).ValueStr(i)
		}
		c.rows = append(c.rows, row)
	}
	return nil
}

var na = []string{"", "NA"}

func parse(body string, req Request) (*collect, Summary, error) {
	c := &collect{}
	if req.Nulls == nil {
		req.Nulls = na
	}
	sum, err := Parse(strings.NewReader(body), req, c)
	return c, sum, err
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

func TestInference(t *testing.T) {
	for _, c := range []struct {
		cells []string
		want  table.Type
	}{
		{[]string{"1", "-2", "NA", "", "0"}, table.Int64},
		{[]string{"9223372036854775807"}, table.Int64},
		{[]string{"9223372036854775808"}, table.String},
		{[]string{"1", "2.5"}, table.Float64},
		{[]string{"1e3", ".5", "-0.25"}, table.Float64},
		{[]string{"007"}, table.String},
		{[]string{"1", "007"}, table.String},
		{[]string{"00.5"}, table.String},
		{[]string{"+1"}, table.String},
		{[]string{"0x1F"}, table.String},
		{[]string{"1_000"}, table.String},
		{[]string{"NaN"}, table.String},
		{[]string{"inf", "-Infinity", "NaN"}, table.String},
		{[]string{"1.5", "NaN", "-inf", "nan"}, table.Float64},
		{[]string{"NaN", "NA", "3"}, table.Float64},
		{[]string{"NaN", "9007199254740993"}, table.String},
		{[]string{"NaN", "x"}, table.String},
		{[]string{" 1"}, table.String},
		{[]string{"true", "FALSE"}, table.Bool},
		{[]string{"true", "1"}, table.String},
		{[]string{"t"}, table.String},
		{[]string{"2013-01-31"}, table.Date},
		{[]string{"2013-02-30"}, table.String},
		{[]string{"2013-01-01T10:00:00Z"}, table.Timestamp},
		{[]string{"2013-01-01 10:00:00.123456+04:00", "2013-01-01 10:00"}, table.Timestamp},
		{[]string{"2013-01-01T10:00:00.1234567Z"}, table.String},
		{[]string{"2013-01-31", "2013-01-01T10:00:00Z"}, table.String},
		{[]string{"NA", "", "NA"}, table.String},
		{[]string{"1", "x"}, table.String},
	} {
		var b strings.Builder
		b.WriteString("c,row\n")
		for i, cell := range c.cells {
			fmt.Fprintf(&b, "%s,%d\n", cell, i)
		}
		got, _, err := parse(b.String(), Request{})
		if err != nil {
			t.Errorf("%q: %v", c.cells, err)
			continue
		}
		if typ, _ := table.TypeOf(got.schema.Field(0).Type); typ != c.want {
			t.Errorf("%q: %s, want %s", c.cells, typ, c.want)
		}
		if len(got.rows) != len(c.cells) {
			t.Errorf("%q: %d rows", c.cells, len(got.rows))
		}
	}
}

func TestCells(t *testing.T) {
	for _, c := range []struct {
		typ  table.Type
		cell string
		want string // as Arrow writes it; "!" for a refusal
	}{
		{table.Int64, "+007", "7"},
		{table.Int64, "1.0", "!"},
		{table.Int64, "1e3", "!"},
		{table.Int64, "", "(null)"},
		{table.Float64, "NaN", "NaN"},
		{table.Float64, "-Inf", "-Inf"},
		{table.Float64, "1e400", "!"},
		{table.Float64, "0x1p-2", "!"},
		{table.Float64, "1,5", "!"},
		{table.Float32, "1.000000059604644775390626", "1.0000001"}, // between two, nearer to this one than as a float64
		{table.Float32, "-Inf", "-Inf"},
		{table.Float32, "3.5e38", "!"},
		{table.Bool, "1", "true"},
		{table.Bool, "f", "false"},
		{table.Bool, "yes", "!"},
		{table.Date, "1969-12-31", "1969-12-31"},
		{table.Date, "1/2/2013", "!"},
		{table.Date, "2013-1-2", "!"},
		{table.Timestamp, "2013-01-01T10:00:00Z", "2013-01-01T10:00:00Z"},
		{table.Timestamp, "2013-01-01T10:00:00+04:00", "2013-01-01T06:00:00Z"},
		{table.Timestamp, "2013-01-01 10:00:00.123456", "2013-01-01T10:00:00.123456Z"},
		{table.Timestamp, "2013-01-01", "!"},
		{table.Timestamp, "1357034400", "!"},
		{table.String, "NA", "(null)"},
		{table.String, " NA", " NA"},
		{table.String, "é\u2028", "é\u2028"},
	} {
		got, _, err := parse("c,d\n\""+c.cell+"\",1\n", Request{Columns: []Column{{"c", c.typ}}})
		if c.want == "!" {
			if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), `row 1 (line 2), column "c" `) || fault.DataOf(err) != strconv.Quote(c.cell) {
				t.Errorf("%s %q: %v", c.typ, c.cell, fault.Told(err))
			}
			continue
		}
		if err != nil || got.rows[0][0] != c.want {
			t.Errorf("%s %q: %v %v, want %q", c.typ, c.cell, got.rows, err, c.want)
		}
	}
}

// hostile files and what is said about them.
func TestAttacks(t *testing.T) {
	many := make([]string, 10_000)
	for i := range many {
		many[i] = "c" + strconv.Itoa(i)
	}
	small := Limits{Field: 1000, Record: 5000, Rows: 50, Expanded: 64 << 20}
	for _, c := range []struct {
		name, body string
		req        Request
		kind       fault.Kind // Internal for accepted
		want       string     // in the error, or the first row
	}{
		{name: "empty", body: "", kind: fault.Invalid, want: "empty"},
		{name: "header only", body: "a,b\n", want: ""},
		{name: "no last newline", body: "a,b\n1,2", want: "1 2"},
		{name: "CRLF", body: "a,b\r\n1,x\r\n", want: "1 x"},
		{name: "BOM", body: "\xef\xbb\xbfa,b\n1,2\n", want: "1 2"},
		{name: "newline in quotes", body: "a,b\n1,\"x\ny\"\n", want: "1 x\ny"},
		{name: "doubled quotes", body: "a,b\n1,\"x\"\"y\"\n", want: `1 x"y`},
		{name: "bare quote", body: "a,b\n1,x\"y\n", kind: fault.Invalid, want: "row 1 (line 2)"},
		{name: "open quote", body: "a,b\n1,\"xy\n2,z\n", kind: fault.Invalid, want: "row 1"},
		{name: "too few", body: "a,b,c\n1,2,3\n1,2\n", kind: fault.Invalid, want: "row 2 (line 3) has 2 columns instead of 3"},
		{name: "too many", body: "a,b\n1,2,3\n", kind: fault.Invalid, want: `row 1 (line 2) has 3 columns instead of 2: "3"`},
		{name: "letter in a number", body: "a,b\n1,2\n3,4x\n", req: Request{Columns: []Column{{"b", table.Int64}}}, kind: fault.Invalid, want: `row 2 (line 3), column "b" is not an int64: "4x"`},
		{name: "NUL", body: "a,b\n1,x\x00y\n", kind: fault.Invalid, want: `column "b" contains a NUL byte: "x\x00y"`},
		{name: "NUL in the header", body: "a\x00,b\n1,2\n", kind: fault.Invalid, want: "control character"},
		{name: "not UTF-8", body: "a,b\n1,\xff\xfe\n", kind: fault.Invalid, want: "is not UTF-8"},
		{name: "UTF-16", body: "\xff\xfea\x00,\x00", kind: fault.Invalid, want: "UTF-16"},
		{name: "10,000 columns", body: strings.Join(many, ",") + "\n", kind: fault.Invalid, want: "10000 columns are over the limit"},
		{name: "empty column name", body: "a,,c\n1,2,3\n", want: "1 2 3"},
		{name: "huge cell", body: "a,b\n1," + strings.Repeat("x", 1001) + "\n", req: Request{Limits: small}, kind: fault.TooLarge, want: `row 1 (line 2), column "b": a cell of 1001 bytes`},
		{name: "endless row", body: "a,b\n1," + strings.Repeat("x", 1<<20), req: Request{Limits: small}, kind: fault.TooLarge, want: "row 1 is over the limit of 5000 bytes"},
		{name: "endless quote", body: "a,b\n1,\"" + strings.Repeat("x\n", 1<<20), req: Request{Limits: small}, kind: fault.TooLarge, want: "row 1 is over"},
		{name: "endless header", body: strings.Repeat("a,", 1<<20), req: Request{Limits: small}, kind: fault.TooLarge, want: "over the limit"},
		{name: "too many rows", body: "a,b\n" + strings.Repeat("1,2\n", 51), req: Request{Limits: small}, kind: fault.TooLarge, want: "more than 50 rows"},
		{name: "blank line in one column", body: "a\n1\n\n2\n", kind: fault.Invalid, want: "line 3 is blank"},
		{name: "quoted null in one column", body: "a\n1\n\"\"\n2\n", want: "1"},
		{name: "blank line in two columns", body: "a,b\n1,2\n\n3,4\n", want: "1 2"},
		{name: "zip", body: "PK\x03\x04aaaa", kind: fault.Invalid, want: "zip archive"},
		{name: "zstd broken", body: "\x28\xb5\x2f\xfdaaaa", kind: fault.Invalid, want: "zstd"},
		{name: "gzip", body: zipped("a,b\n1,2\n"), want: "1 2"},
		{name: "two gzip members", body: zipped("a,b\n1,2\n") + zipped("3,4\n"), want: "1 2"},
		{name: "gzip cut off", body: zipped("a,b\n" + strings.Repeat("1,2\n", 1000))[:40], kind: fault.Invalid, want: "truncated"},
		{name: "gzip broken", body: zipped("a,b\n1,2\n")[:18] + "xxxxxxxxxxxxxxxxxxxxx", kind: fault.Invalid, want: "gzip"},
		{name: "gzip header broken", body: "\x1f\x8b\xff\xffaaaaaaaaaaaaa", kind: fault.Invalid, want: "gzip header"},
		{name: "gzip in gzip", body: zipped(zipped("a,b\n1,2\n")), kind: fault.Invalid, want: "contains csv.gz"},
		{name: "gzip bomb", body: zipped("a,b\n" + strings.Repeat("1,2\n", 5<<20)), kind: fault.TooLarge, want: "200-fold"},
		{name: "gzip over the limit", body: zipped("a,b\n" + strings.Repeat("1,2\n", 1<<20)), req: Request{Limits: Limits{Expanded: 1 << 20}}, kind: fault.TooLarge, want: "when decompressed"},
		{name: "Parquet magic only", body: "PAR1", kind: fault.Invalid, want: "Parquet file cannot be read"},
		{name: "Parquet garbage", body: "PAR1" + strings.Repeat("\xff", 5000) + "PAR1", kind: fault.Invalid, want: "Parquet"},
		{name: "Parquet with a huge footer", body: "PAR1" + strings.Repeat("a", 100) + "\xff\xff\xff\x7fPAR1", kind: fault.Invalid, want: "Parquet"},
		{name: "encrypted Parquet", body: "PAREaaaa", kind: fault.Invalid, want: "encrypted"},
		{name: "Parquet over the limit", body: "PAR1" + strings.Repeat("a", 100), req: Request{Limits: Limits{Parquet: 50}}, kind: fault.TooLarge, want: "over the limit of 50"},
		{name: "another format than said", body: "a,b\n1,2\n", req: Request{Format: Parquet}, kind: fault.Invalid, want: "content is csv"},
		{name: "declared column missing", body: "a,b\n1,2\n", req: Request{Columns: []Column{{"c", table.Int64}}}, kind: fault.Invalid, want: `no column "c"`},
		{name: "semicolons", body: "a;b\n1;2\n", req: Request{Delimiter: ";"}, want: "1 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := parse(c.body, c.req)
			if c.kind != fault.Internal {
				if !fault.Is(err, c.kind) || !strings.Contains(fault.Told(err), c.want) {
					t.Fatalf("%v (%v), want %v %q", err, fault.KindOf(err), c.kind, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			first := ""
			if len(got.rows) > 0 {
				first = strings.Join(got.rows[0], " ")
			}
			if first != c.want {
				t.Errorf("first row %q, want %q", first, c.want)
			}
		})
	}
}

// The types of the first rows hold for all: a row beyond the sample that breaks
// them is named.
func TestLateRow(t *testing.T) {
	var b strings.Builder
	b.WriteString("id,temp\n")
	for i := 1; i <= 250_000; i++ {
		if i == 200_001 {
			b.WriteString("200001,3x.5\n")
			continue
		}
		fmt.Fprintf(&b, "%d,%d.5\n", i, i%40)
	}
	_, _, err := parse(b.String(), Request{})
	if !fault.Is(err, fault.Invalid) || fault.Told(err) != `row 200001 (line 200002), column "temp" is not a float64: "3x.5"` || strings.Contains(err.Error(), "3x.5") {
		t.Fatal(err)
	}
	if !strings.Contains(fault.HintOf(err), "declare the column's type") {
		t.Error(fault.HintOf(err))
	}
}

// What encoding/csv writes is what is read, in every batch size that comes out.
func TestRoundTrip(t *testing.T) {
	// A carriage return before a newline inside quotes is read as a newline.
	cell := rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 && r != '\r' && r != '\uFFFD' }), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.SliceOfN(cell, 2, 2), 0, 20).Draw(t, "rows")
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		_ = w.Write([]string{"x", "y"})
		_ = w.WriteAll(rows)
		got, sum, err := parse(b.String(), Request{Nulls: []string{}, Columns: []Column{{"x", table.String}, {"y", table.String}}})
		if err != nil {
			t.Fatal(err)
		}
		if sum.Rows != int64(len(rows)) || fmt.Sprintf("%q", got.rows) != fmt.Sprintf("%q", rows) && len(rows) > 0 {
			t.Fatalf("got %q, want %q", got.rows, rows)
		}
	})
}

func parquetOf(tb testing.TB, schema *arrow.Schema, json string) string {
	tb.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(json))
	if err != nil {
		tb.Fatal(err)
	}
	defer rec.Release()
	var b bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &b, nil, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func TestParquet(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.LargeString, Nullable: true},
		{Name: "t", Type: &arrow.TimestampType{Unit: arrow.Millisecond}, Nullable: true},
	}, nil)
	file := parquetOf(t, schema, `[{"i": 1, "s": "a", "t": "2013-01-01 10:00:00"}, {"i": null, "s": null, "t": null}]`)
	got, sum, err := parse(file, Request{})
	if err != nil || sum.Format != Parquet || sum.Rows != 2 {
		t.Fatal(sum, err)
	}
	if fmt.Sprint(got.rows) != "[[1 a 2013-01-01T10:00:00Z] [(null) (null) (null)]]" {
		t.Error(got.rows)
	}
	if _, _, err := parse(file, Request{Columns: []Column{{"i", table.String}}}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `column "i" is int32`) {
		t.Error(err)
	}
	if got, _, err := parse(file, Request{Columns: []Column{{"i", table.Int64}}}); err != nil || !strings.Contains(fmt.Sprint(got.schema), "i: type=int64") {
		t.Error("an int32 that is declared int64:", err)
	}
	lists := arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true}}, nil)
	if got, _, err := parse(parquetOf(t, lists, `[{"l": [1, 0.5]}, {"l": null}, {"l": []}]`), Request{}); err != nil || fmt.Sprint(got.rows) != "[[[1,0.5]] [(null)] [[]]]" {
		t.Error(got, err)
	}
	for i := 4; i < len(file); i += 7 { // no change of a byte may panic or hang
		bent := []byte(file)
		bent[i] ^= 0x55
		_, _, _ = parse(string(bent), Request{})
	}
}

// The child's conversation: batches and a summary, or a fault.
func TestMainConversation(t *testing.T) {
	talk := func(req any, body string, finish bool) *child.Reader {
		var in, out bytes.Buffer
		w := child.NewWriter(&in)
		_ = w.Header(req)
		s := w.Stream()
		_, _ = io.WriteString(s, body)
		if finish {
			_ = s.Close()
		}
		if err := Main(&in, &out); err != nil {
			t.Fatal(err)
		}
		return child.NewReader(&out)
	}
	r := talk(Request{Nulls: na}, "a,b\n1,2\n", true)
	rows, err := r.Records()
	if err != nil || !rows.Next() || rows.RecordBatch().NumRows() != 1 || rows.Next() || rows.Err() != nil {
		t.Fatal(err, rows)
	}
	var sum Summary
	if err := r.Header(&sum); err != nil || sum.Rows != 1 {
		t.Fatal(sum, err)
	}
	if _, err := talk(Request{Nulls: na}, "", true).Records(); !fault.Is(err, fault.Invalid) {
		t.Errorf("empty file: %v", err)
	}
	// An upload that breaks off must not pass for a file that ends.
	r = talk(Request{Nulls: na}, "a,b\n1,2\n", false)
	if rows, err := r.Records(); err == nil {
		for rows.Next() {
		}
		if rows.Err() == nil {
			t.Error("half an upload became a whole file")
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a,b\n1,2\n", "a\n\"x\"\n", zipped("a,b\n1,2\n"), "PAR1", "\xef\xbb\xbfa\n1", "a,b\n\"", "a;b\n2013-01-01T10:00:00Z;true\n"} {
		f.Add([]byte(s))
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil)
	f.Add([]byte(parquetOf(f, schema, `[{"i": 1}]`)))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, sumA, errA := parse(string(body), Request{Limits: Limits{Expanded: 1 << 20, Rows: 10_000, Parquet: 1 << 20}})
		b, sumB, errB := parse(string(body), Request{Limits: Limits{Expanded: 1 << 20, Rows: 10_000, Parquet: 1 << 20}})
		if sumA != sumB || (errA == nil) != (errB == nil) || fmt.Sprint(a.rows) != fmt.Sprint(b.rows) {
			t.Fatalf("the same bytes gave different results: %v %v", errA, errB)
		}
		if errA == nil && sumA.Rows != a.count {
			t.Fatalf("%d rows said, %d sent", sumA.Rows, a.count)
		}
		if errA != nil && fault.KindOf(errA) != fault.Invalid && fault.KindOf(errA) != fault.TooLarge {
			t.Fatalf("kind %v: %v", fault.KindOf(errA), errA)
		}
	})
}

// TestOtherDates: a date as people write it, in a column declared as one, is refused with the way to keep it.
func TestOtherDates(t *testing.T) {
	for typ, cell := range map[table.Type]string{table.Date: "24.06.2025", table.Timestamp: "24/06/2025 10:00"} {
		_, err := Parse(strings.NewReader("a\n"+cell+"\n"), Request{Columns: []Column{{"a", typ}}}, &lines{})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "strptime(x, '%d.%m.%Y')") {
			t.Errorf("%s: %v, %q", cell, err, fault.HintOf(err))
		}
	}
}
