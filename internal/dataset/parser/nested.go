package parser

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// textColumns are the columns of a Parquet file, by number, whose types tables do not keep and
// that are kept as text: what is nested as JSON, as it is of JSON and Avro; times of day and
// UUIDs as they are written; bytes where they are text, which Hive and Impala write so.
type textColumns []int

func textColumnsOf(s *arrow.Schema) textColumns {
	var c textColumns
	for i, f := range s.Fields() {
		if _, err := table.Normal(f.Name, f.Type); err != nil && (bytesType(f.Type) || texted(f.Type)) {
			c = append(c, i)
		}
	}
	return c
}

// texted reports whether values of a type that is not bytes have a text.
func texted(dt arrow.DataType) bool {
	switch dt := dt.(type) {
	case *arrow.Time32Type, *arrow.Time64Type, *extensions.UUIDType:
		return true
	case *arrow.StructType:
		return !slices.ContainsFunc(dt.Fields(), func(f arrow.Field) bool { return !within(f.Type) })
	case *arrow.MapType:
		return within(dt.KeyType()) && within(dt.ItemType())
	case arrow.ListLikeType:
		return within(dt.Elem())
	}
	return false
}

// within reports whether a value may stand in JSON.
func within(dt arrow.DataType) bool {
	_, err := table.Normal("", dt)
	return err == nil || texted(dt)
}

func bytesType(dt arrow.DataType) bool {
	switch dt.ID() {
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.BINARY_VIEW, arrow.FIXED_SIZE_BINARY:
		return true
	default:
		return false
	}
}

// schema is the file's with texts.
func (c textColumns) schema(s *arrow.Schema) *arrow.Schema {
	if len(c) == 0 {
		return s
	}
	fields := slices.Clone(s.Fields())
	for _, i := range c {
		fields[i].Type = arrow.BinaryTypes.String
	}
	meta := s.Metadata()
	return arrow.NewSchema(fields, &meta)
}

// texts is a batch with them, which begins with a row of the file. Release it.
func (c textColumns) texts(rec arrow.RecordBatch, row int64, limits Limits) (arrow.RecordBatch, error) {
	if len(c) == 0 {
		rec.Retain()
		return rec, nil
	}
	columns := slices.Clone(rec.Columns())
	for _, i := range c {
		made, err := textsOf(rec.Column(i), rec.ColumnName(i), row, limits)
		if err != nil {
			return nil, err
		}
		defer made.Release()
		columns[i] = made
	}
	return array.NewRecordBatch(c.schema(rec.Schema()), columns, rec.NumRows()), nil
}

func textsOf(a arrow.Array, name string, row int64, limits Limits) (arrow.Array, error) {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
			continue
		}
		text, why := textOf(a, i)
		switch {
		case why != "":
			return nil, fault.New(fault.Invalid, "row %d, column %q %s", row+int64(i), name, why).
				WithHint("Write text or a number in the file, or omit the column.")
		case len(text) > limits.Field:
			return nil, fault.New(fault.TooLarge, "row %d, column %q: %d bytes are over the limit of %d", row+int64(i), name, len(text), limits.Field)
		}
		b.Append(text)
	}
	return b.NewArray(), nil
}

// textOf is a value that is not null as text, or what is wrong with it.
func textOf(a arrow.Array, i int) (text, why string) {
	switch v := a.(type) {
	case *array.Binary:
		text = string(v.Value(i))
	case *array.LargeBinary:
		text = string(v.Value(i))
	case *array.BinaryView:
		text = string(v.Value(i))
	case *array.FixedSizeBinary:
		text = string(v.Value(i))
	case *array.Time32, *array.Time64, *extensions.UUIDArray:
		return a.ValueStr(i), ""
	default:
		b, err := json.Marshal(a.GetOneForMarshal(i))
		switch {
		case err != nil:
			return "", "cannot be stored as JSON: " + err.Error()
		case strings.Contains(string(b), `\ufffd`): // how JSON is written of bytes that are no text
			return "", "contains text that is not UTF-8"
		}
		return string(b), ""
	}
	switch {
	case !utf8.ValidString(text):
		return "", "contains bytes that are not text"
	case strings.IndexByte(text, 0) >= 0:
		return "", "contains a NUL byte"
	}
	return text, ""
}
