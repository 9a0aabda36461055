package parser

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// What is between quotes is kept to the byte, wherever the reading is cut into pieces.
func TestCarriageReturns(t *testing.T) {
	const file = "id,note\r\n1,\"first\r\nsecond\"\r\n2,\"lone\rcr\"\r\n3,\"lf\nonly\"\r\n4,\"\r\n\"\"\r\n\"\"\r\r\n\"\r\n5,plain\r\n\"6\",\"\"\r\n"
	want := [][]string{{"1", "first\r\nsecond"}, {"2", "lone\rcr"}, {"3", "lf\nonly"}, {"4", "\r\n\"\r\n\"\r\r\n"}, {"5", "plain"}, {"6", ""}}
	var l batches
	for name, in := range map[string]*lines{"whole": {}, "byte by byte": {}} {
		body := strings.NewReader(file)
		var err error
		if name == "whole" {
			_, err = Parse(body, Request{}, &l)
		} else {
			_, err = Parse(iotest.OneByteReader(body), Request{}, in)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if name == "byte by byte" {
			if got := strings.Join(in.out[1:], "\n"); got != "1|first\r\nsecond\n2|lone\rcr\n3|lf\nonly\n4|\r\n\"\r\n\"\r\r\n\n5|plain\n6|" {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	if got := fmt.Sprintf("%q", l.text); got != fmt.Sprintf("%q", want) {
		t.Errorf("got  %s\nwant %q", got, want)
	}
}

// batches keeps cells.
type batches struct{ text [][]string }

func (b *batches) Begin(*arrow.Schema) error { return nil }

func (b *batches) Write(rec arrow.RecordBatch) error {
	for i := range int(rec.NumRows()) {
		var row []string
		for _, c := range rec.Columns() {
			row = append(row, c.ValueStr(i))
		}
		b.text = append(b.text, row)
	}
	return nil
}

func TestColumnsWithoutNames(t *testing.T) {
	for in, want := range map[string]string{
		",city,n\n0,Doha,1\n":       "column1 int64, city utf8, n int64",
		"column2,,\n1,2,3\n":        "column2 int64, column2_1 int64, column3 int64",
		"a,b,A,a,a_1\n1,2,3,4,5\n":  "a int64, b int64, A_2 int64, a_3 int64, a_1 int64",
		"\"\",a\n1,2\n":             "column1 int64, a int64",
		"\xef\xbb\xbf,a\r\n1,2\r\n": "column1 int64, a int64",
	} {
		var l lines
		if _, err := Parse(strings.NewReader(in), Request{}, &l); err != nil || l.out[0] != want {
			t.Errorf("%q: %v, %v, want %s", in, l.out, err, want)
		}
	}
}

// What JSON may look like in a file.
func TestJSONShapes(t *testing.T) {
	const rows = "id int64, city utf8\n1|Doha\n2|Muscat"
	one, two := `{"id": 1, "city": "Doha"}`, `{"id": 2, "city": "Muscat"}`
	for in, want := range map[string]string{
		one + "\n" + two:                          rows,
		one + "\r\n\r\n" + two + "\r\n":           rows,
		"\n  \n" + one + "\n" + two:               rows,
		"\xef\xbb\xbf" + one + "\n" + two:         rows,
		"\xef\xbb\xbf\n[" + one + "," + two + "]": rows,
		"[" + one + ", " + two + "]":              rows,
		"[\n" + one + "\n,\n" + two + "\n]\n":     rows,
		"{\n \"id\": 1,\n \"city\": \"Doha\"\n}\n{\n\"id\":2,\"city\":\"Muscat\"}": rows,
		"[]":                              "the JSON has no rows",
		"[\n\n]":                          "the JSON has no rows",
		"[\n1\n]":                         "row 1 (line 2) is not a JSON object",
		"[1, 2]":                          "row 1 (line 1) is not a JSON object",
		"[null]":                          "row 1 (line 1) is not a JSON object",
		"[" + one + ", 5]":                "row 2 (line 1) is not a JSON object",
		"[" + one + "] x":                 "data after the array",
		"[" + one:                         "row 2 (line 1) is not JSON",
		"[" + one + " " + two + "]":       "row 2 (line 1) is not JSON",
		one + "\n" + two + " 5":           "row 3 (line 2) is not a JSON object",
		one + "\n\n{\n\"id\":\n\"\xe9\"}": `row 2 (line 3), column "id" is not UTF-8`,
		"[id],[name]\n1,2":                "[id] int64, [name] int64\n1|2",
		"[x\n1\n":                         "[x int64\n1",
	} {
		for _, format := range []Format{"", JSONLines} {
			if format != "" && strings.HasPrefix(want, "[") {
				continue
			}
			var l lines
			_, err := Parse(strings.NewReader(in), Request{Format: format}, &l)
			got := strings.Join(l.out, "\n")
			if err != nil {
				got = err.Error()
			}
			if got != want && (err == nil || !strings.Contains(got, want)) {
				t.Errorf("%q as %q: got %s, want %s", in, format, got, want)
			}
		}
	}
}

func TestJSONThatIsNoText(t *testing.T) {
	for in, want := range map[string]string{
		"{\"shop\":\"a\"}\n{\"shop\":\"caf\xe9\"}": `row 2 (line 2), column "shop" is not UTF-8`,
		"{\"caf\xe9\":1}":                          `row 1 (line 1) has a field name that is not UTF-8`,
		`{"shop":"\ud800"}`:                        `column "shop" is half a surrogate pair`,
		`{"shop":{"x":["\udc00"]}}`:                `column "shop" is half a surrogate pair`,
		`{"\ud800":1}`:                             `has a field name that is half a surrogate pair`,
		`{"shop":"a","shop":"b"}`:                  `duplicate field "shop"`,
		`{"shop":"a","sh\u006fp":"b"}`:             `duplicate field "shop"`,
		`{"shop":{"a":1,"a":2}}`:                   `has the duplicate field "a" within "shop"`,
	} {
		for name, req := range map[string]Request{
			"file":     {},
			"messages": {Format: JSONLines, Only: true, Columns: []Column{{"shop", table.String}}},
			"document": {Format: JSON},
		} {
			text := in
			if name == "document" {
				text = "[" + strings.ReplaceAll(in, "\n", ",") + "]"
			}
			_, err := Parse(strings.NewReader(text), req, &lines{})
			if !fault.Is(err, fault.Invalid) || name != "document" && !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v, want %s", name, text, err, want)
			}
		}
	}
	if _, err := Parse(strings.NewReader(`{"shop":"\ud83d\ude00é"}`), Request{}, &lines{}); err != nil {
		t.Error(err)
	}
}

// Numbers that no number of tables holds stay text, or are refused.
func TestWholeNumbersStayThemselves(t *testing.T) {
	for in, want := range map[string]string{
		"id\n18446744073709551614\n18446744073709551615\n9223372036854775808\n": "id utf8\n18446744073709551614\n18446744073709551615\n9223372036854775808",
		"{\"v\":9007199254740993}\n{\"v\":1.5}\n":                               "v utf8\n9007199254740993\n1.5",
		"{\"v\":18446744073709551615}\n":                                        "v utf8\n18446744073709551615",
		"v\n9007199254740992\n0.5\n":                                            "v float64\n9.007199254740992e+15\n0.5",
		"v\n-9007199254740993\n0.5\n":                                           "v utf8\n-9007199254740993\n0.5",
		"v\n1e300\n0.5\n":                                                       "v float64\n1e+300\n0.5",
		"v\n123456789012345678.0\n":                                             "v float64\n1.2345678901234568e+17",
	} {
		var l lines
		if _, err := Parse(strings.NewReader(in), Request{}, &l); err != nil || strings.Join(l.out, "\n") != want {
			t.Errorf("%q: %q, %v", in, strings.Join(l.out, "\n"), err)
		}
	}
	var b strings.Builder
	b.WriteString("v\n")
	for range sampleRows {
		b.WriteString("0.5\n")
	}
	b.WriteString("9007199254740993\n")
	if _, err := Parse(strings.NewReader(b.String()), Request{}, &lines{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), fmt.Sprintf("row %d", sampleRows+1)) {
		t.Error(err)
	}
}

func TestYears(t *testing.T) {
	for _, text := range []string{"0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "10000-01-01T00:00:00Z"} {
		_, err := Parse(strings.NewReader("t\n"+text+"\n"), Request{Columns: []Column{{"t", table.Timestamp}}}, &lines{})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `row 1 (line 2), column "t"`) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"} {
		if _, err := Parse(strings.NewReader("t\n"+text+"\n"), Request{Columns: []Column{{"t", table.Timestamp}}}, &lines{}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Parse(strings.NewReader("d\n0000-12-31\n"), Request{Columns: []Column{{"d", table.Date}}}, &lines{}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// What Spark before 3.0 and Impala write, with a sentinel that nanoseconds since 1970 do not
// reach.
func TestINT96(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "t", Type: arrow.FixedWidthTypes.Timestamp_ns, Nullable: true},
		{Name: "s", Type: arrow.StructOf(arrow.Field{Name: "t", Type: arrow.PrimitiveTypes.Int64})},
	}, nil)
	flat := arrow.NewSchema(schema.Fields()[:2], nil)
	file := func(instants ...int64) []byte {
		b := array.NewRecordBuilder(memory.DefaultAllocator, flat)
		defer b.Release()
		for i, ns := range instants {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			if ns == 0 {
				b.Field(1).AppendNull()
				continue
			}
			b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(ns))
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		var out bytes.Buffer
		w, err := pqarrow.NewFileWriter(flat, &out, nil, pqarrow.NewArrowWriterProperties(pqarrow.WithDeprecatedInt96Timestamps(true), pqarrow.WithStoreSchema()))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Write(rec), w.Close()); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var l lines
	if _, err := Parse(bytes.NewReader(file(1_700_000_000_123_456_000, 0, -1000)), Request{}, &l); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(l.out, "\n"), "id int64, t timestamp[us, tz=UTC]\n0|2023-11-14T22:13:20.123456Z\n1|null\n2|1969-12-31T23:59:59.999999Z"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if _, err := Parse(bytes.NewReader(file(1000, 0, 1)), Request{}, &lines{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `row 3, column "t": the time is not a whole number`) {
		t.Error(err)
	}
	// The writer knows nanoseconds only, so other days are made from the bytes of a value.
	a := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, &arrow.FixedSizeBinaryType{ByteWidth: 12})
	defer a.Release()
	value := func(nanos uint64, day uint32) []byte {
		b := make([]byte, 12)
		for i := range 8 {
			b[i] = byte(nanos >> (8 * i))
		}
		for i := range 4 {
			b[8+i] = byte(day >> (8 * i))
		}
		return b
	}
	const epoch, last = 2_440_588, 2_440_588 + table.MaxDay
	for _, c := range []struct {
		nanos uint64
		day   uint32
		want  string
	}{
		{86_399_000_000_000, last, "9999-12-31T23:59:59Z"},
		{0, epoch + table.MinDay, "0001-01-01T00:00:00Z"},
		{0, last + 1, `row 7, column "t": the year`},
		{0, 0, `row 7, column "t": the year`},
		{86_400_000_000_000, epoch, `row 7, column "t": the INT96 timestamp is corrupt`},
	} {
		a.Append(value(c.nanos, c.day))
		in := a.NewArray()
		got, err := instantsOf(in, "t", 7)
		in.Release()
		switch {
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%+v: %v", c, err)
		case err == nil && got.ValueStr(0) != c.want:
			t.Errorf("%+v: %s", c, got.ValueStr(0))
		}
	}
}
