package dataset

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// cellText is a value as people read it; "null" for null.
func cellText(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch v := a.(type) {
	case *array.String:
		return v.Value(i)
	case *array.Int32:
		return strconv.FormatInt(int64(v.Value(i)), 10)
	case *array.Float32:
		return float32Text(v.Value(i))
	case *array.Int64:
		return strconv.FormatInt(v.Value(i), 10)
	case *array.Float64:
		return floatText(v.Value(i))
	case *array.Boolean:
		return strconv.FormatBool(v.Value(i))
	case *array.Timestamp:
		return timestampText(int64(v.Value(i)))
	case *array.Date32:
		return dateText(int64(v.Value(i)))
	}
	if elements, _, _ := elementsOf(a, i); elements != nil {
		text, _ := json.Marshal(cellValue(a, i)) // of numbers and texts there is no error
		return string(text)
	}
	return a.ValueStr(i)
}

// floatText writes whole numbers without exponent or fraction.
func floatText(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// float32Text is floatText with the digits that tell a float32 from its neighbours.
func float32Text(f float32) string {
	if wide := float64(f); wide == math.Trunc(wide) && math.Abs(wide) < 1e15 {
		return floatText(wide)
	}
	return strconv.FormatFloat(float64(f), 'g', -1, 32)
}

func timestampText(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339Nano) }

func dateText(days int64) string { return time.Unix(days*86400, 0).UTC().Format(time.DateOnly) }

// cellNumber is a value that is not null as a number: of days for dates, of
// microseconds for timestamps.
func cellNumber(a arrow.Array, i int) float64 {
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

// cellInt is a value that is not null of a column that keeps integers: days for dates,
// microseconds for timestamps.
func cellInt(a arrow.Array, i int) int64 {
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

// elementsOf are the elements of a list, and where those of a row are; nil for another
// array.
func elementsOf(a arrow.Array, i int) (elements arrow.Array, from, to int) {
	l, ok := a.(*array.List)
	if !ok {
		return nil, 0, 0
	}
	start, end := l.ValueOffsets(i)
	return l.ListValues(), int(start), int(end)
}

// appendCell adds an unambiguous form of a value that is not null. Equal values
// of a column give equal bytes: -0 is 0, every NaN the same. So do equal numbers of
// columns that are whole, or that are not, whatever their width.
func appendCell(b []byte, a arrow.Array, i int) []byte {
	switch v := a.(type) {
	case *array.String:
		s := v.Value(i)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // a cell is below 4 GiB
		return append(b, s...)
	case *array.Int32:
		return binary.LittleEndian.AppendUint64(b, uint64(int64(v.Value(i)))) //nolint:gosec // the same bits as in an int64
	case *array.Float32:
		return binary.LittleEndian.AppendUint64(b, floatBits(float64(v.Value(i))))
	case *array.Int64:
		return binary.LittleEndian.AppendUint64(b, uint64(v.Value(i))) //nolint:gosec // the same bits
	case *array.Float64:
		return binary.LittleEndian.AppendUint64(b, floatBits(v.Value(i)))
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
	if elements, from, to := elementsOf(a, i); elements != nil {
		b = binary.LittleEndian.AppendUint32(b, uint32(to-from)) //nolint:gosec // a batch has less
		for j := from; j < to; j++ {
			b = appendCell(b, elements, j)
		}
	}
	return b
}

func floatBits(f float64) uint64 {
	switch {
	case f == 0:
		return 0
	case math.IsNaN(f):
		return math.Float64bits(math.NaN())
	}
	return math.Float64bits(f)
}
