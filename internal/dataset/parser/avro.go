package parser

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds on a block of an Avro file, which is held in memory, as it is stored and as
// it is unpacked.
const maxBlock = 64 << 20

// parseAvro reads an Avro object container file: null, deflate, snappy and zstandard.
// The fields of its record are columns; what is nested in them is kept as JSON text,
// as it is of JSON.
func parseAvro(body io.Reader, req Request, sink Sink) (int64, error) {
	rows, err := readAvro(body, req, sink)
	if _, known := errors.AsType[*fault.Error](err); err != nil && !known {
		return 0, fault.New(fault.Invalid, "the Avro file cannot be read after row %d: %v", rows, err)
	}
	return rows, err
}

// days tells dates from timestamps, which the library gives as the same type.
var days = avro.CustomType{LogicalType: "date", AvroType: "int", Decode: func(v any, _ *avro.SchemaNode) (any, error) {
	n, ok := v.(int32)
	if !ok {
		return nil, avro.ErrSkipCustomType
	}
	return arrow.Date32(n), nil
}}

func readAvro(body io.Reader, req Request, sink Sink) (rows int64, err error) {
	packed := []ocf.Codec{ocf.DeflateCodec(-1), ocf.SnappyCodec(), ocf.MustZstdCodec(nil, nil)}
	opts := []ocf.ReaderOpt{ocf.WithMaxBlockBytes(maxBlock), ocf.WithMaxDecompressedBlockBytes(maxBlock), ocf.WithSchemaOpts(days)}
	expanded := int64(0)
	for _, c := range packed {
		opts = append(opts, ocf.WithCodec(counted{c, &expanded, req.Limits.Expanded}))
	}
	file, err := ocf.NewReader(body, opts...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	root := file.Schema().Root()
	if root.Type != "record" {
		return 0, fault.New(fault.Invalid, "the Avro file holds values of the type %.80q, not records", root.Type).WithHint("Write records: their fields become the columns.")
	}
	if n := len(root.Fields); n > table.MaxColumns {
		return 0, fault.New(fault.Invalid, "%d columns are over the limit of %d", n, table.MaxColumns)
	}
	named := map[string]avro.SchemaNode{}
	define(root, named)
	fields := slices.DeleteFunc(slices.Clone(root.Fields), func(f avro.SchemaField) bool { return slices.Contains(req.LeaveOut, f.Name) })
	schema := make(table.Schema, len(fields))
	columns := make([]*column, len(fields))
	nested := make([]bool, len(fields))
	textual := make([]bool, len(fields)) // they may be declared as string
	for i, f := range fields {
		schema[i].Name = f.Name
		if schema[i].Type, nested[i], err = avroType(f.Name, f.Type, named); err != nil {
			return 0, err
		}
		textual[i] = decimal(f.Type)
	}
	if err := table.CheckNames(schema.Names()); err != nil {
		return 0, err
	}
	absent, err := declaredMatch(schema, textual, req)
	if err != nil {
		return 0, err
	}
	schema = slices.Concat(schema, absent)
	columns, nested = slices.Concat(columns, make([]*column, len(absent))), slices.Concat(nested, make([]bool, len(absent)))
	for i, f := range schema {
		columns[i] = newColumn(f.Type, false, nil)
	}
	out := &batcher{sink: sink, schema: schema.Arrow(), columns: columns, names: schema.Names()}
	defer out.release()
	if err := sink.Begin(out.schema); err != nil {
		return 0, err
	}
	for {
		var record map[string]any
		if err := file.Decode(&record); errors.Is(err, io.EOF) {
			return rows, out.flush()
		} else if err != nil {
			return rows, err
		}
		if rows++; rows > req.Limits.Rows {
			return 0, fault.New(fault.TooLarge, "there are more than %d rows", req.Limits.Rows)
		}
		size := 0
		for i, f := range schema {
			n, why := appendAvro(columns[i].build, record[f.Name], nested[i])
			if why != "" {
				return 0, fault.New(fault.Invalid, "row %d, column %q: %s", rows, f.Name, why)
			}
			if n > req.Limits.Field {
				return 0, fault.New(fault.TooLarge, "row %d, column %q: %d bytes are over the limit of %d", rows, f.Name, n, req.Limits.Field)
			}
			size += n
		}
		if size > req.Limits.Record {
			return 0, fault.New(fault.TooLarge, "row %d has %d bytes, over the limit of %d", rows, size, req.Limits.Record)
		}
		out.rows++
		if out.bytes += size; out.rows >= batchRows || out.bytes >= batchBytes {
			if err := out.flush(); err != nil {
				return 0, err
			}
		}
	}
}

// counted bounds what all blocks of a file unpack to.
type counted struct {
	ocf.Codec
	n     *int64
	limit int64
}

// DecompressBounded implements ocf.BoundedDecompressor.
func (c counted) DecompressBounded(src []byte, most int64) ([]byte, error) {
	bounded, ok := c.Codec.(ocf.BoundedDecompressor)
	if !ok {
		return nil, errors.New("the codec cannot limit its output")
	}
	b, err := bounded.DecompressBounded(src, most)
	if *c.n += int64(len(b)); err == nil && *c.n > c.limit {
		err = fault.New(fault.TooLarge, "the file has more than %d bytes when decompressed", c.limit).WithHint("Split it.")
	}
	return b, err
}

// decimal reports whether values are decimals, or null.
func decimal(n avro.SchemaNode) bool {
	if n.Type == "union" {
		return slices.ContainsFunc(n.Branches, decimal)
	}
	return n.LogicalType == "decimal" || n.LogicalType == "big-decimal"
}

// define finds the named types, which may be used by their names again.
func define(n *avro.SchemaNode, named map[string]avro.SchemaNode) {
	switch n.Type {
	case "record", "enum", "fixed", "error":
		name := n.Name
		if n.Namespace != "" && !strings.Contains(name, ".") {
			name = n.Namespace + "." + name
		}
		if _, again := named[name]; again {
			return
		}
		named[name] = *n
	}
	for i := range n.Fields {
		define(&n.Fields[i].Type, named)
	}
	for i := range n.Branches {
		define(&n.Branches[i], named)
	}
	for _, inner := range []*avro.SchemaNode{n.Items, n.Values} {
		if inner != nil {
			define(inner, named)
		}
	}
}

// avroType is what a field's values are kept as, and whether they are nested.
func avroType(name string, n avro.SchemaNode, named map[string]avro.SchemaNode) (t table.Type, nested bool, err error) {
	if of, ok := named[n.Type]; ok {
		n = of
	}
	switch logical := n.LogicalType; n.Type {
	case "string", "enum", "null":
		return table.String, false, nil
	case "boolean":
		return table.Bool, false, nil
	case "float":
		return table.Float32, false, nil
	case "double":
		return table.Float64, false, nil
	case "int":
		switch logical {
		case "date":
			return table.Date, false, nil
		case "time-millis":
		default:
			return table.Int32, false, nil
		}
	case "long":
		switch logical {
		case "timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos":
			return table.Timestamp, false, nil
		case "time-micros":
		default:
			return table.Int64, false, nil
		}
	case "bytes", "fixed":
		switch {
		case logical == "decimal" && n.Scale == 0:
			return table.Int64, false, nil
		case logical == "decimal", logical == "big-decimal":
			return table.Float64, false, nil
		}
	case "union":
		var only []avro.SchemaNode
		for _, b := range n.Branches {
			if b.Type != "null" {
				only = append(only, b)
			}
		}
		if len(only) == 1 {
			return avroType(name, only[0], named)
		}
		return table.String, true, nil
	case "record", "error", "array", "map":
		return table.String, true, nil
	}
	what := n.Type
	if n.LogicalType != "" {
		what += " (" + n.LogicalType + ")"
	}
	return "", false, fault.New(fault.Invalid, "column %q has the type %.80s, which tables do not support", name, what).
		WithHint("Cast it to a number, text or time, or omit it.")
}

const (
	wrongYear = "has a year outside 1 to 9999"
	noNumber  = "contains NaN or an infinity, which JSON cannot represent: write null"
)

// plain is a nested value as JSON lines would have it, or what is wrong with it:
// numbers for decimals, texts for times, and nothing that columns do not keep either.
func plain(v any) (out any, why string) {
	switch v := v.(type) {
	case nil, bool, int32, int64, string:
		return v, ""
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, noNumber
		}
		return v, ""
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, noNumber
		}
		return v, ""
	case *big.Rat:
		text, ok := digits(v)
		if !ok {
			return nil, "is not a decimal"
		}
		return json.Number(text), ""
	case arrow.Date32:
		if y := v.ToTime().Year(); y < 1 || y > 9999 {
			return nil, wrongYear
		}
		return v.FormattedString(), ""
	case time.Time:
		if v.Year() < 1 || v.Year() > 9999 {
			return nil, wrongYear
		}
		return v.Format(time.RFC3339Nano), ""
	case []any:
		for i := range v {
			if v[i], why = plain(v[i]); why != "" {
				return nil, why
			}
		}
		return v, ""
	case map[string]any:
		for name := range v {
			if v[name], why = plain(v[name]); why != "" {
				return nil, why
			}
		}
		return v, ""
	}
	return nil, "contains bytes, a time of day or a duration, which JSON cannot represent: cast it, or omit the field"
}

// digits are the text of a decimal, exactly.
func digits(v *big.Rat) (text string, ok bool) {
	if v == nil {
		return "", false
	}
	places, finite := v.FloatPrec()
	return v.FloatString(places), finite
}

// appendAvro appends a value; it gives about its size, and what is wrong with it.
func appendAvro(b array.Builder, v any, nested bool) (size int, why string) {
	if v == nil {
		b.AppendNull()
		return 1, ""
	}
	switch b := b.(type) {
	case *array.StringBuilder:
		s, ok := v.(string)
		if nested {
			x, why := plain(v)
			if why != "" {
				return 0, why
			}
			text, err := json.Marshal(x)
			if err != nil {
				return 0, "cannot be stored as JSON: " + err.Error()
			}
			s, ok = string(text), true
		}
		switch {
		case !ok:
			r, is := v.(*big.Rat)
			if s, ok = digits(r); !is || !ok {
				return 0, "is not text"
			}
		case !utf8.ValidString(s):
			return 0, "is not UTF-8"
		case strings.IndexByte(s, 0) >= 0:
			return 0, "contains a NUL byte"
		}
		b.Append(s)
		return len(s), ""
	case *array.BooleanBuilder:
		if v, ok := v.(bool); ok {
			b.Append(v)
			return 1, ""
		}
	case *array.Int32Builder:
		if v, ok := v.(int32); ok {
			b.Append(v)
			return 4, ""
		}
	case *array.Float32Builder:
		if v, ok := v.(float32); ok {
			b.Append(v)
			return 4, ""
		}
	case *array.Int64Builder:
		switch v := v.(type) {
		case int32:
			b.Append(int64(v))
			return 8, ""
		case int64:
			b.Append(v)
			return 8, ""
		case *big.Rat:
			if !v.IsInt() || !v.Num().IsInt64() {
				return 0, "exceeds a signed 64-bit integer"
			}
			b.Append(v.Num().Int64())
			return 8, ""
		}
	case *array.Float64Builder:
		switch v := v.(type) {
		case float32:
			b.Append(float64(v))
			return 8, ""
		case float64:
			b.Append(v)
			return 8, ""
		case *big.Rat:
			f, _ := v.Float64()
			b.Append(f)
			return 8, ""
		}
	case *array.TimestampBuilder:
		if v, ok := v.(time.Time); ok {
			switch {
			case v.Nanosecond()%1000 != 0:
				return 0, "has a time with more than microsecond precision"
			case v.Year() < 1 || v.Year() > 9999:
				return 0, wrongYear
			}
			b.Append(arrow.Timestamp(v.UnixMicro()))
			return 8, ""
		}
	case *array.Date32Builder:
		if v, ok := v.(arrow.Date32); ok {
			if y := v.ToTime().Year(); y < 1 || y > 9999 {
				return 0, wrongYear
			}
			b.Append(v)
			return 4, ""
		}
	}
	return 0, "does not match the file's schema"
}
