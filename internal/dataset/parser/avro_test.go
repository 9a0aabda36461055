package parser

import (
	"bytes"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"

	"github.com/falaj-ml/falaj/internal/fault"
)

// The files are of the Apache Avro project, written by its Java library.
func TestAvroOfOthers(t *testing.T) {
	files, err := filepath.Glob("testdata/avro/weather*.avro")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	const want = `station utf8, time int64, temp int32
011990-99999|-619524000000|0
011990-99999|-619506000000|22
011990-99999|-619484400000|-11
012650-99999|-655531200000|111
012650-99999|-655509600000|78`
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got := &lines{}
		sum, err := Parse(bytes.NewReader(body), Request{}, got)
		if err != nil || sum != (Summary{Format: Avro, Rows: 5}) || strings.Join(got.out, "\n") != want {
			t.Errorf("%s: %v, %+v\n%s", name, err, sum, strings.Join(got.out, "\n"))
		}
		// Whatever is cut off or changed is refused, or is other rows; it is no panic.
		for i := range body {
			if sum, err := Parse(bytes.NewReader(body[:i]), Request{Format: Avro}, &lines{}); err == nil && sum.Rows > 0 { // the head alone is a file without rows
				t.Errorf("%s: the first %d bytes are accepted", name, i)
			}
			changed := bytes.Clone(body)
			changed[i] ^= 0x55
			_, _ = Parse(bytes.NewReader(changed), Request{Format: Avro}, &lines{})
		}
	}
}

const allTypes = `{"type": "record", "name": "r", "namespace": "n", "fields": [
	{"name": "s", "type": "string"}, {"name": "i", "type": "int"}, {"name": "l", "type": "long"},
	{"name": "f", "type": "float"}, {"name": "d", "type": "double"}, {"name": "b", "type": "boolean"},
	{"name": "maybe", "type": ["null", "long"], "default": null},
	{"name": "day", "type": {"type": "int", "logicalType": "date"}},
	{"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
	{"name": "ms", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
	{"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
	{"name": "whole", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18}},
	{"name": "color", "type": {"type": "enum", "name": "color", "symbols": ["RED", "GREEN"]}},
	{"name": "other", "type": ["null", "n.color"]},
	{"name": "list", "type": {"type": "array", "items": "int"}},
	{"name": "either", "type": ["string", "long"]},
	{"name": "inner", "type": {"type": "record", "name": "in", "fields": [{"name": "x", "type": "double"}]}}
]}`

func sample() map[string]any {
	at := time.Date(2024, 2, 29, 12, 30, 0, 1000, time.UTC)
	return map[string]any{
		"s": "ä", "i": int32(-7), "l": int64(1) << 62, "f": float32(0.5), "d": 1e300, "b": true, "maybe": nil, "day": at.Truncate(24 * time.Hour),
		"at": at, "ms": at.Truncate(time.Millisecond), "money": big.NewRat(-1234, 100), "whole": big.NewRat(99, 1), "color": "GREEN", "other": "RED",
		"list": []any{int32(1), int32(2)}, "either": int64(3), "inner": map[string]any{"x": 1.5},
	}
}

func avroOf(tb testing.TB, schema string, records []map[string]any, opts ...ocf.WriterOpt) []byte {
	tb.Helper()
	s, err := avro.Parse(schema)
	if err != nil {
		tb.Fatal(err)
	}
	var out bytes.Buffer
	w, err := ocf.NewWriter(&out, s, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	for _, r := range records {
		if err := w.Encode(r); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func TestAvroTypes(t *testing.T) {
	const want = `s utf8, i int32, l int64, f float32, d float64, b bool, maybe int64, day date32, at timestamp[us, tz=UTC], ms timestamp[us, tz=UTC], money float64, whole int64, color utf8, other utf8, list utf8, either utf8, inner utf8
ä|-7|4611686018427387904|0.5|1e+300|true|null|2024-02-29|2024-02-29T12:30:00.000001Z|2024-02-29T12:30:00Z|-12.34|99|GREEN|RED|[1,2]|3|{"x":1.5}`
	got := &lines{}
	_, err := Parse(bytes.NewReader(avroOf(t, allTypes, []map[string]any{sample()})), Request{Columns: []Column{{"l", "int64"}, {"day", "date"}}}, got)
	if err != nil || strings.Join(got.out, "\n") != want {
		t.Errorf("%v\n%s", err, strings.Join(got.out, "\n"))
	}
}

// What is nested is as JSON lines would have it, not as Go's types are.
func TestAvroNested(t *testing.T) {
	nested := func(typ string) string {
		return `{"type": "record", "name": "r", "fields": [{"name": "x", "type": ` + typ + `}]}`
	}
	at := time.Date(2024, 2, 29, 12, 30, 0, 1000, time.UTC)
	const money = `{"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}`
	const times = `{"type": "record", "name": "in", "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}`
	for _, c := range []struct {
		typ  string
		x    any
		want string // of the row, or, in brackets, of the error
	}{
		{`{"type": "array", "items": ` + money + `}`, []any{big.NewRat(-1234, 100), big.NewRat(7, 1)}, "[-12.34,7]"},
		{`["null", "long", ` + money + `]`, big.NewRat(1, 4), "0.25"},
		{times, map[string]any{"day": at.Truncate(24 * time.Hour), "at": at}, `{"at":"2024-02-29T12:30:00.000001Z","day":"2024-02-29"}`},
		{`{"type": "map", "values": {"type": "string", "logicalType": "uuid"}}`, map[string]any{"a": "12345678-1234-1234-1234-123456789abc"}, `{"a":"12345678-1234-1234-1234-123456789abc"}`},
		{`{"type": "array", "items": ["null", "float"]}`, []any{float32(0.1), nil}, "[0.1,null]"},
		{`{"type": "array", "items": "double"}`, []any{math.NaN()}, `(row 1, column "x": contains NaN)`},
		{`{"type": "array", "items": "float"}`, []any{float32(math.Inf(-1))}, `(row 1, column "x": contains NaN or an infinity)`},
		{`{"type": "array", "items": "bytes"}`, []any{[]byte("a")}, `(row 1, column "x": contains bytes)`},
		{`{"type": "array", "items": {"type": "fixed", "name": "id", "size": 16, "logicalType": "uuid"}}`, []any{[16]byte{}}, `(row 1, column "x": contains bytes)`},
		{`{"type": "array", "items": {"type": "int", "logicalType": "time-millis"}}`, []any{time.Second}, `(row 1, column "x": contains bytes, a time of day)`},
		{`{"type": "array", "items": {"type": "int", "logicalType": "date"}}`, []any{time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}, `(row 1, column "x": has a year)`},
	} {
		got := &lines{}
		_, err := Parse(bytes.NewReader(avroOf(t, nested(c.typ), []map[string]any{{"x": c.x}})), Request{}, got)
		if said, wrong := strings.CutPrefix(c.want, "("); wrong {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), strings.TrimSuffix(said, ")")) {
				t.Errorf("%s: %v", c.typ, err)
			}
			continue
		}
		if err != nil || got.out[len(got.out)-1] != c.want {
			t.Errorf("%s: %v\n%s", c.typ, err, strings.Join(got.out, "\n"))
		}
	}
}

func TestAvroLimits(t *testing.T) {
	one := func(fields string) string { return `{"type": "record", "name": "r", "fields": [` + fields + `]}` }
	text := one(`{"name": "s", "type": "string"}`)
	long := avroOf(t, text, []map[string]any{{"s": strings.Repeat("a", 1<<20)}, {"s": strings.Repeat("b", 1<<20)}}, ocf.WithCodec(ocf.MustZstdCodec(nil, []zstd.DOption{})))
	for _, c := range []struct {
		name string
		body []byte
		req  Request
		kind fault.Kind
		want string
	}{
		{"expanded", long, Request{Limits: Limits{Expanded: 1 << 20}}, fault.TooLarge, "when decompressed"},
		{"a field", long, Request{Limits: Limits{Field: 1 << 10}}, fault.TooLarge, `row 1, column "s"`},
		{"a row", long, Request{Limits: Limits{Record: 1 << 10}}, fault.TooLarge, "row 1 has"},
		{"rows", long, Request{Limits: Limits{Rows: 1}}, fault.TooLarge, "more than 1 rows"},
		{"no record", avroOf(t, `"string"`, nil), Request{}, fault.Invalid, "not records"},
		{"bytes", avroOf(t, one(`{"name": "x", "type": "bytes"}`), nil), Request{}, fault.Invalid, `column "x" has the type bytes`},
		{"a time of day", avroOf(t, one(`{"name": "x", "type": {"type": "int", "logicalType": "time-millis"}}`), nil), Request{}, fault.Invalid, "time-millis"},
		{"declared as another type", avroOf(t, text, nil), Request{Columns: []Column{{"s", "int64"}}}, fault.Invalid, `column "s" is string`},
		{"declared and not there", avroOf(t, text, nil), Request{Columns: []Column{{"x", "int64"}}}, fault.Invalid, `no column "x"`},
		{"a year", avroOf(t, one(`{"name": "x", "type": {"type": "long", "logicalType": "timestamp-millis"}}`), []map[string]any{{"x": int64(1) << 60}}), Request{}, fault.Invalid, "year"},
		{"NUL", avroOf(t, text, []map[string]any{{"s": "a\x00"}}), Request{}, fault.Invalid, "NUL"},
		{"asked for as CSV", avroOf(t, text, nil), Request{Format: CSV}, fault.Invalid, "content is avro"},
	} {
		_, err := Parse(bytes.NewReader(c.body), c.req, &lines{})
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func FuzzAvro(f *testing.F) {
	f.Add(avroOf(f, allTypes, []map[string]any{sample(), sample()}))
	f.Add(avroOf(f, allTypes, []map[string]any{sample()}, ocf.WithCodec(ocf.DeflateCodec(-1))))
	f.Add(avroOf(f, allTypes, []map[string]any{sample()}, ocf.WithCodec(ocf.SnappyCodec())))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, sum, err := parse(string(body), Request{Format: Avro, Limits: Limits{Rows: 10_000, Expanded: 1 << 20}})
		if err == nil && sum.Rows != c.count {
			t.Fatalf("%d rows said, %d sent", sum.Rows, c.count)
		}
		if err != nil && fault.KindOf(err) != fault.Invalid && fault.KindOf(err) != fault.TooLarge {
			t.Fatalf("kind %v: %v", fault.KindOf(err), err)
		}
	})
}
