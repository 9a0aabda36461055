// Package cell reads the values of a table one by one: as text, number or JSON, and in the form
// that versions are identified by.
package cell

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Text is a value as people read it; "null" for null.
func Text(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch v := a.(type) {
	case *array.String:
		return v.Value(i)
	case *array.Int32:
		return strconv.FormatInt(int64(v.Value(i)), 10)
	case *array.Float32:
		return Float32Text(v.Value(i))
	case *array.Int64:
		return strconv.FormatInt(v.Value(i), 10)
	case *array.Float64:
		return FloatText(v.Value(i))
	case *array.Boolean:
		return strconv.FormatBool(v.Value(i))
	case *array.Timestamp:
		return TimestampText(int64(v.Value(i)))
	case *array.Date32:
		return DateText(int64(v.Value(i)))
	}
	if elements, _, _ := Elements(a, i); elements != nil {
		text, _ := json.Marshal(Value(a, i)) // of numbers and texts there is no error
		return string(text)
	}
	return a.ValueStr(i)
}

// FloatText writes whole numbers without exponent or fraction.
func FloatText(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// Float32Text is FloatText with the digits that tell a float32 from its neighbours.
func Float32Text(f float32) string {
	if wide := float64(f); wide == math.Trunc(wide) && math.Abs(wide) < 1e15 {
		return FloatText(wide)
	}
	return strconv.FormatFloat(float64(f), 'g', -1, 32)
}

// TimestampText is a timestamp, in microseconds, as people read it.
func TimestampText(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }

// DateText is a date, in days, as people read it.
func DateText(days int64) string { return time.Unix(days*86400, 0).UTC().Format(time.DateOnly) }

// Number is a value that is not null as a number: of days for dates, of
// microseconds for timestamps.
func Number(a arrow.Array, i int) float64 {
	switch v := a.(type) {
	case *array.Int32:
		return float64(v.Value(i))
	case *array.Int64:
		return float64(v.Value(i))
	case *array.Float32:
		return float64(v.Value(i))
	case *array.Float64:
		return v.Value(i)
	case *array.Timestamp:
		return float64(v.Value(i))
	case *array.Date32:
		return float64(v.Value(i))
	}
	return math.NaN()
}

// Int is a value that is not null of a column that keeps integers: days for dates,
// microseconds for timestamps.
func Int(a arrow.Array, i int) int64 {
	switch v := a.(type) {
	case *array.Int32:
		return int64(v.Value(i))
	case *array.Int64:
		return v.Value(i)
	case *array.Timestamp:
		return int64(v.Value(i))
	case *array.Date32:
		return int64(v.Value(i))
	}
	return 0
}

// Elements are the elements of a list, and where those of a row are; nil for another
// array.
func Elements(a arrow.Array, i int) (elements arrow.Array, from, to int) {
	l, ok := a.(*array.List)
	if !ok {
		return nil, 0, 0
	}
	start, end := l.ValueOffsets(i)
	return l.ListValues(), int(start), int(end)
}

// Append adds an unambiguous form of a value that is not null. Equal values
// of a column give equal bytes: -0 is 0, every NaN the same. So do equal numbers of
// columns that are whole, or that are not, whatever their width.
func Append(b []byte, a arrow.Array, i int) []byte {
	switch v := a.(type) {
	case *array.String:
		s := v.Value(i)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // a cell is below 4 GiB
		return append(b, s...)
	case *array.Int32:
		return binary.LittleEndian.AppendUint64(b, uint64(int64(v.Value(i)))) //nolint:gosec // the same bits as in an int64
	case *array.Float32:
		return binary.LittleEndian.AppendUint64(b, FloatBits(float64(v.Value(i))))
	case *array.Int64:
		return binary.LittleEndian.AppendUint64(b, uint64(v.Value(i))) //nolint:gosec // the same bits
	case *array.Float64:
		return binary.LittleEndian.AppendUint64(b, FloatBits(v.Value(i)))
	case *array.Boolean:
		if v.Value(i) {
			return append(b, 1)
		}
		return append(b, 0)
	case *array.Timestamp:
		return binary.LittleEndian.AppendUint64(b, uint64(v.Value(i))) //nolint:gosec // the same bits
	case *array.Date32:
		return binary.LittleEndian.AppendUint32(b, uint32(v.Value(i))) //nolint:gosec // the same bits
	}
	if elements, from, to := Elements(a, i); elements != nil {
		b = binary.LittleEndian.AppendUint32(b, uint32(to-from)) //nolint:gosec // a batch has less
		for j := from; j < to; j++ {
			b = Append(b, elements, j)
		}
	}
	return b
}

// FloatBits are the bits of a number, the same for 0 and -0, and for every NaN.
func FloatBits(f float64) uint64 {
	switch {
	case f == 0:
		return 0
	case math.IsNaN(f):
		return math.Float64bits(math.NaN())
	}
	return math.Float64bits(f)
}

// Value is a value for JSON, which has no NaN: it becomes a string.
func Value(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch v := a.(type) {
	case *array.Int32:
		return v.Value(i)
	case *array.Int64:
		return v.Value(i)
	case *array.Float32:
		if f := v.Value(i); f-f == 0 {
			return f
		}
	case *array.Float64:
		if f := v.Value(i); f-f == 0 {
			return f
		}
	case *array.Boolean:
		return v.Value(i)
	case *array.String:
		return strings.Clone(v.Value(i))
	}
	if elements, from, to := Elements(a, i); elements != nil {
		list := make([]any, 0, to-from)
		for j := from; j < to; j++ {
			list = append(list, Value(elements, j))
		}
		return list
	}
	return Text(a, i)
}

// Copy appends a cell to a builder of the array's type.
func Copy(b array.Builder, a arrow.Array, i int) {
	if a.IsNull(i) {
		b.AppendNull()
		return
	}
	switch v := a.(type) {
	case *array.String:
		b.(*array.StringBuilder).Append(v.Value(i))
	case *array.Int32:
		b.(*array.Int32Builder).Append(v.Value(i))
	case *array.Float32:
		b.(*array.Float32Builder).Append(v.Value(i))
	case *array.Int64:
		b.(*array.Int64Builder).Append(v.Value(i))
	case *array.Float64:
		b.(*array.Float64Builder).Append(v.Value(i))
	case *array.Boolean:
		b.(*array.BooleanBuilder).Append(v.Value(i))
	case *array.Timestamp:
		b.(*array.TimestampBuilder).Append(v.Value(i))
	case *array.Date32:
		b.(*array.Date32Builder).Append(v.Value(i))
	case *array.List:
		into := b.(*array.ListBuilder)
		into.Append(true)
		elements, from, to := Elements(a, i)
		for j := from; j < to; j++ {
			Copy(into.ValueBuilder(), elements, j)
		}
	}
}
