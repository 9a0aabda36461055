package parser

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/dataset/valuetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

// door writes a number as one of the formats has it.
type door struct {
	name  string
	req   Request
	write func(tb testing.TB, n valuetest.Number) []byte
}

func decimalBatch(n valuetest.Number) (*arrow.Schema, arrow.RecordBatch) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "v", Type: &arrow.Decimal128Type{Precision: 38, Scale: int32(n.Scale)}}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.Decimal128Builder).Append(decimal128.FromBigInt(n.Unscaled))
	return schema, b.NewRecordBatch()
}

var doors = []door{
	{"CSV", Request{}, func(_ testing.TB, n valuetest.Number) []byte { return []byte("v\n" + n.Text + "\n") }},
	{"CSV beside a fraction", Request{}, func(_ testing.TB, n valuetest.Number) []byte { return []byte("v\n" + n.Text + "\n0.5\n") }},
	{"JSON lines", Request{}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`{"v":` + n.Text + "}\n") }},
	{"JSON lines beside a fraction", Request{}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`{"v":` + n.Text + "}\n{\"v\":0.5}\n") }},
	{"JSON array", Request{}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`[{"v":` + n.Text + "}]") }},
	{"JSON document", Request{Format: JSON}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`[{"v":` + n.Text + "}]") }},
	{"messages as text", Request{Format: JSONLines, Only: true, Columns: []Column{{"v", table.String}}}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`{"v":` + n.Text + "}\n") }},
	{"messages as int64", Request{Format: JSONLines, Only: true, Columns: []Column{{"v", table.Int64}}}, func(_ testing.TB, n valuetest.Number) []byte { return []byte(`{"v":` + n.Text + "}\n") }},
	{"Parquet", Request{}, parquetDecimal},
	{"Parquet as text", Request{Columns: []Column{{"v", table.String}}}, parquetDecimal},
	{"Arrow", Request{Format: Arrow}, arrowDecimal}, // also what Flight and Feast send
	{"Arrow as text", Request{Format: Arrow, Columns: []Column{{"v", table.String}}}, arrowDecimal},
	{"Avro", Request{}, avroDecimal},
	{"Avro as text", Request{Columns: []Column{{"v", table.String}}}, avroDecimal},
}

func parquetDecimal(tb testing.TB, n valuetest.Number) []byte {
	tb.Helper()
	schema, rec := decimalBatch(n)
	defer rec.Release()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, nil, pqarrow.DefaultWriterProps())
	if err == nil {
		err = errors.Join(w.Write(rec), w.Close())
	}
	if err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func arrowDecimal(tb testing.TB, n valuetest.Number) []byte {
	tb.Helper()
	schema, rec := decimalBatch(n)
	defer rec.Release()
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(schema))
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func avroDecimal(tb testing.TB, n valuetest.Number) []byte {
	tb.Helper()
	schema, err := avro.Parse(fmt.Sprintf(`{"type": "record", "name": "r", "fields": [{"name": "v", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": %d}}]}`, n.Scale))
	if err != nil {
		tb.Fatal(err)
	}
	var out bytes.Buffer
	w, err := ocf.NewWriter(&out, schema)
	if err == nil {
		err = errors.Join(w.Encode(map[string]any{"v": n.Exact}), w.Close())
	}
	if err != nil {
		tb.Fatal(n.Text, err)
	}
	return out.Bytes()
}

// first keeps the first value.
type first struct{ value any }

func (f *first) Begin(*arrow.Schema) error { return nil }

func (f *first) Write(rec arrow.RecordBatch) error {
	switch c := rec.Column(0).(type) {
	case *array.Int64:
		f.value = c.Value(0)
	case *array.Float64:
		f.value = c.Value(0)
	case *array.String:
		f.value = c.Value(0)
	}
	return nil
}

// Every door takes every number as what it is, as the float64 nearest to it, or refuses it with
// the row and the column.
func TestDoors(t *testing.T) {
	for _, n := range valuetest.Numbers(1) {
		for _, d := range doors {
			got := &first{}
			if _, err := Parse(bytes.NewReader(d.write(t, n)), d.req, got); err != nil {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "row 1") || !strings.Contains(err.Error(), `column "v"`) {
					t.Errorf("%s of %s: %v", d.name, n.Text, err)
				}
				continue
			}
			if wrong := valuetest.Wrong(n, got.value); wrong != "" {
				t.Errorf("%s: %s", d.name, wrong)
			}
		}
	}
}
