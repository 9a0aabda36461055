package source

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Builder makes record batches of values as drivers hand them over. Release it.
type Builder struct {
	schema table.Schema
	rows   *array.RecordBuilder
	n      int
	bytes  int
}

// NewBuilder makes a builder for rows of a schema.
func NewBuilder(s table.Schema) *Builder {
	return &Builder{schema: s, rows: array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())}
}

// Add appends a row; values are nil, bool, int64, uint64, float64, string, []byte
// or time.Time, by column. row is its number for messages. Error: fault.Invalid
// for a value that the column's type cannot hold, naming row and column.
func (b *Builder) Add(row int64, values []any) error {
	for i, f := range b.schema {
		if err := b.add(i, f.Type, values[i]); err != nil {
			return fault.New(fault.Invalid, "row %d, column %q: %w", row, f.Name, err)
		}
	}
	b.n++
	return nil
}

// Rows is how many are in the batch.
func (b *Builder) Rows() int { return b.n }

// Full reports whether the batch should be handed on.
func (b *Builder) Full(rows int) bool { return b.n >= rows || b.bytes >= BatchBytes }

// Take is the batch; the builder is empty afterwards.
func (b *Builder) Take() arrow.RecordBatch {
	b.n, b.bytes = 0, 0
	return b.rows.NewRecordBatch()
}

// Release frees rows that were not taken.
func (b *Builder) Release() { b.rows.Release() }

func (b *Builder) add(i int, t table.Type, value any) error {
	if value == nil {
		b.rows.Field(i).AppendNull()
		b.bytes += 8
		return nil
	}
	v, err := Convert(t, value)
	if err != nil {
		return err
	}
	b.bytes += 8
	switch f := b.rows.Field(i).(type) {
	case *array.StringBuilder:
		s := v.(string)
		b.bytes += len(s)
		f.Append(s)
	case *array.Int32Builder:
		f.Append(int32(v.(int64))) //nolint:gosec // Convert has seen that it fits
	case *array.Float32Builder:
		f.Append(float32(v.(float64)))
	case *array.Int64Builder:
		f.Append(v.(int64))
	case *array.Float64Builder:
		f.Append(v.(float64))
	case *array.BooleanBuilder:
		f.Append(v.(bool))
	case *array.TimestampBuilder:
		f.Append(arrow.Timestamp(v.(time.Time).UnixMicro()))
	case *array.Date32Builder:
		f.Append(arrow.Date32FromTime(v.(time.Time)))
	default:
		return fmt.Errorf("a column of %s", f.Type())
	}
	return nil
}

// Convert brings a value to what a type's values are in Go: string, int64 (also of
// int32), float64 (also of float32), bool, or time.Time in UTC. Error: fault.Invalid, with the value as data.
func Convert(t table.Type, value any) (any, error) {
	if b, ok := value.([]byte); ok {
		value = string(b)
	}
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, format, args...).WithData("%.80q", fmt.Sprint(value))
	}
	no := func() error { return bad("the value is not a %s", t) }
	const tooLarge = "the value exceeds a signed 64-bit integer"
	switch t {
	case table.Int32:
		v, err := Convert(table.Int64, value)
		if err != nil {
			return nil, no()
		}
		if n := v.(int64); n > math.MaxInt32 || n < math.MinInt32 {
			return nil, bad("the value exceeds a signed 32-bit integer")
		}
		return v, nil
	case table.Float32:
		if text, ok := value.(string); ok { // at once: a float64 between would round twice
			f, err := strconv.ParseFloat(text, 32)
			switch {
			case errors.Is(err, strconv.ErrRange):
				return nil, bad("the value exceeds a float32")
			case err != nil:
				return nil, no()
			}
			return f, nil
		}
		v, err := Convert(table.Float64, value)
		if err != nil {
			return nil, no()
		}
		f := float64(float32(v.(float64)))
		if math.IsInf(f, 0) && !math.IsInf(v.(float64), 0) {
			return nil, bad("the value exceeds a float32")
		}
		return f, nil
	case table.String:
		var s string
		switch v := value.(type) {
		case string:
			s = v
		case time.Time:
			s = v.Format(time.RFC3339Nano)
		default:
			s = fmt.Sprint(v)
		}
		if !utf8.ValidString(s) {
			return nil, errors.New("the text is not UTF-8")
		}
		return s, nil
	case table.Int64:
		switch v := value.(type) {
		case int64:
			return v, nil
		case uint64:
			if v > math.MaxInt64 {
				return nil, bad(tooLarge)
			}
			return int64(v), nil
		case bool:
			if v {
				return int64(1), nil
			}
			return int64(0), nil
		case float64:
			if v != math.Trunc(v) || math.Abs(v) > 1<<53 {
				return nil, no()
			}
			return int64(v), nil
		case string:
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				return n, nil
			}
			if r, ok := new(big.Rat).SetString(v); ok && r.IsInt() { // 1e3, 12.00
				if !r.Num().IsInt64() {
					return nil, bad(tooLarge)
				}
				return r.Num().Int64(), nil
			}
		}
	case table.Float64:
		switch v := value.(type) {
		case float64:
			return v, nil
		case float32:
			return float64(v), nil
		case int64:
			return float64(v), nil
		case uint64:
			return float64(v), nil
		case string:
			if f, err := strconv.ParseFloat(v, 64); err == nil {
				return f, nil
			}
		}
	case table.Bool:
		switch v := value.(type) {
		case bool:
			return v, nil
		case int64:
			if v == 0 || v == 1 {
				return v == 1, nil
			}
		case string:
			if b, err := strconv.ParseBool(strings.ToLower(v)); err == nil {
				return b, nil
			}
		}
	case table.Timestamp:
		switch v := value.(type) {
		case time.Time:
			return inMicros(v)
		case string:
			for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", time.DateOnly} {
				if x, err := time.Parse(layout, v); err == nil {
					return inMicros(x)
				}
			}
		}
	case table.Date:
		switch v := value.(type) {
		case time.Time:
			return inYears(v.UTC())
		case string:
			if x, err := time.Parse(time.DateOnly, v); err == nil {
				return inYears(x)
			}
		}
	}
	return nil, no()
}

func inYears(t time.Time) (any, error) {
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, fault.New(fault.Invalid, table.WrongYear).WithData("%s", t.Format(time.RFC3339Nano))
	}
	return t, nil
}

func inMicros(t time.Time) (any, error) {
	t = t.UTC()
	if t.Nanosecond()%1000 != 0 || t.Year() < 1 || t.Year() > 9999 {
		return nil, fault.New(fault.Invalid, "the time is not a whole number of microseconds of the years 1 to 9999").WithData("%s", t.Format(time.RFC3339Nano))
	}
	return t, nil
}

// Text is a value of a position as it is kept: what Parse reads.
func Text(t table.Type, value any) (string, error) {
	v, err := Convert(t, value)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case time.Time:
		if t == table.Date {
			return v.Format(time.DateOnly), nil
		}
		return v.Format(time.RFC3339Nano), nil
	default:
		return fmt.Sprint(v), nil
	}
}
