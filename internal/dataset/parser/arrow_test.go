package parser

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
)

func arrowOf(tb testing.TB, schema *arrow.Schema, rows string, options ...ipc.Option) string {
	tb.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(rows))
	if err != nil {
		tb.Fatal(err)
	}
	var b bytes.Buffer
	w := ipc.NewWriter(&b, append(options, ipc.WithSchema(schema))...)
	if err := w.Write(rec); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

var mixed = arrow.NewSchema([]arrow.Field{
	{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "t", Type: &arrow.TimestampType{Unit: arrow.Nanosecond}, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
}, nil)

// Rows that are sent are of the types of tables, also when they are compressed.
func TestArrow(t *testing.T) {
	rows := `[{"i": 1, "t": "2024-01-01 00:00:00.000001", "s": "a", "d": "x"}, {"i": null, "t": null, "s": null, "d": null}]`
	for name, body := range map[string]string{"plain": arrowOf(t, mixed, rows), "zstd": arrowOf(t, mixed, rows, ipc.WithZstd()), "lz4": arrowOf(t, mixed, rows, ipc.WithLZ4())} {
		c, sum, err := parse(body, Request{Format: Arrow})
		if err != nil || sum != (Summary{Format: Arrow, Rows: 2}) {
			t.Fatal(name, sum, err)
		}
		if got := fmt.Sprint(c.rows, c.schema); got != fmt.Sprint([][]string{{"1", "2024-01-01T00:00:00.000001Z", "a", "x"}, {"(null)", "(null)", "(null)", "(null)"}}, c.schema) ||
			!strings.Contains(got, "i: type=int32") || !strings.Contains(got, "d: type=utf8") {
			t.Error(name, got)
		}
	}
}

func TestArrowRefused(t *testing.T) {
	one := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64}}, nil)
	list := arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int64))}}, nil)
	twice := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64}, {Name: "i", Type: arrow.PrimitiveTypes.Int64}}, nil)
	good := arrowOf(t, one, `[{"i": 1}, {"i": 2}, {"i": 3}]`)
	long := binary.LittleEndian.AppendUint32([]byte{0xff, 0xff, 0xff, 0xff}, 1<<30)
	for name, c := range map[string]struct {
		body   string
		limits Limits
		kind   fault.Kind
		want   string
	}{
		"no Arrow":     {"a,b\n1,2\n", Limits{}, fault.Invalid, "Arrow"},
		"nothing":      {"", Limits{}, fault.Invalid, "Arrow"},
		"lists":        {arrowOf(t, list, `[{"l": [[1]]}]`), Limits{}, fault.Invalid, `"l"`},
		"twice":        {arrowOf(t, twice, `[]`), Limits{}, fault.Invalid, "i"},
		"rows":         {good, Limits{Rows: 2}, fault.TooLarge, "2 rows"},
		"bytes":        {good, Limits{Parquet: 100}, fault.TooLarge, "100 bytes"},
		"a long head":  {string(long), Limits{}, fault.Invalid, "Arrow"},
		"cut off":      {good[:len(good)-40], Limits{}, fault.Invalid, "Arrow"},
		"a nanosecond": {arrowOf(t, mixed, `[{"t": "2024-01-01 00:00:00.000000001"}]`), Limits{}, fault.Invalid, "row 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(c.body, Request{Format: Arrow, Limits: c.limits})
			if fault.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

func FuzzArrow(f *testing.F) {
	f.Add([]byte(arrowOf(f, mixed, `[{"i": 1, "t": "2024-01-01 00:00:00", "s": "a", "d": "x"}]`)))
	f.Add([]byte(arrowOf(f, mixed, `[{"i": 1}]`, ipc.WithZstd())))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, sum, err := parse(string(body), Request{Format: Arrow, Limits: Limits{Rows: 10_000, Parquet: 1 << 20}})
		if err == nil && sum.Rows != c.count {
			t.Fatalf("%d rows said, %d sent", sum.Rows, c.count)
		}
		if err != nil && fault.KindOf(err) != fault.Invalid && fault.KindOf(err) != fault.TooLarge {
			t.Fatalf("kind %v: %v", fault.KindOf(err), err)
		}
	})
}
