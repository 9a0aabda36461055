package offline

import (
	"encoding/binary"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// column is an Arrow array read as one of the types. It borrows the
// array's memory where the types agree and converts into its own otherwise; the
// batch it came from must be retained while it is used.
type column struct {
	typ    value.Type
	valid  []byte  // bitmap; nil when there is no NULL
	offset int     // of row 0 in valid
	ints   []int64 // of int32, too
	floats []float64
	single []float32
	bools  []bool
	texts  texts
	lists  func(i int) value.Value
}

// texts is what the Arrow string arrays have in common.
type texts interface{ Value(i int) string }

type textList []string

func (l textList) Value(i int) string { return l[i] }

func (c *column) null(i int) bool {
	return c.valid != nil && !bitutil.BitIsSet(c.valid, c.offset+i)
}

func (c *column) value(i int) value.Value {
	if c.null(i) {
		return value.Null(c.typ)
	}
	switch c.typ {
	case value.Int64:
		return value.OfInt(c.ints[i])
	case value.Int32:
		return value.OfInt32(int32(c.ints[i])) //nolint:gosec // it is one
	case value.Timestamp:
		return value.OfMicros(c.ints[i])
	case value.Float64:
		return value.OfFloat(c.floats[i])
	case value.Float32:
		return value.OfFloat32(c.single[i])
	case value.Bool:
		return value.OfBool(c.bools[i])
	case value.String:
		return value.OfString(c.texts.Value(i))
	default:
		return c.lists(i)
	}
}

// Readable reports whether a column of the Arrow type can be read as t without
// losing anything but sub-microsecond time and, from wide integers and decimals
// to float64, digits beyond the sixteenth. A type that could hold only some of the
// column's values is not readable, whatever values there are.
//
// Of a list it is the elements' type that counts; its length is seen when it is read. A list of fixed size is a vector of that dimension only.
func Readable(from arrow.DataType, t value.Type) bool {
	if fixed, ok := from.(*arrow.FixedSizeListType); ok && t.IsVector() && int(fixed.Len()) != t.Length() {
		return false
	}
	if !t.Scalar() {
		l, ok := from.(arrow.ListLikeType)
		return from.ID() == arrow.NULL || ok && from.ID() != arrow.MAP && Readable(l.Elem(), t.Elem())
	}
	switch from.ID() {
	case arrow.NULL:
		return true
	case arrow.INT8, arrow.INT16, arrow.UINT8, arrow.UINT16:
		return t == value.Int32 || t == value.Int64 || t == value.Float32 || t == value.Float64
	case arrow.INT32:
		return t == value.Int32 || t == value.Int64 || t == value.Float64
	case arrow.INT64, arrow.UINT32:
		return t == value.Int64 || t == value.Float64
	case arrow.FLOAT32:
		return t == value.Float32 || t == value.Float64
	case arrow.FLOAT64, arrow.DECIMAL128:
		return t == value.Float64
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW:
		return t == value.String
	case arrow.BOOL:
		return t == value.Bool
	case arrow.TIMESTAMP, arrow.DATE32:
		return t == value.Timestamp
	case arrow.DICTIONARY:
		d, ok := from.(*arrow.DictionaryType)
		return ok && t == value.String && Readable(d.ValueType, t)
	default:
		return false
	}
}

// read makes a column of type t from an array. Errors: fault.Invalid where the
// types do not fit or an instant is out of range.
func read(name string, a arrow.Array, t value.Type) (column, error) {
	if !Readable(a.DataType(), t) {
		return column{}, fault.New(fault.Invalid, "column %q is %s, not %s", name, a.DataType(), t).
			WithHint("Cast it in SQL.")
	}
	c := column{typ: t}
	if a.NullN() > 0 && a.DataType().ID() != arrow.NULL {
		c.valid, c.offset = a.NullBitmapBytes(), a.Data().Offset()
	}
	switch a := a.(type) {
	case *array.Null:
		c.allNull(a.Len())
	case *array.Int64:
		c.setInts(a.Int64Values())
	case *array.Int32:
		c.setInts(widen(a.Int32Values()))
	case *array.Int16:
		c.setInts(widen(a.Int16Values()))
	case *array.Int8:
		c.setInts(widen(a.Int8Values()))
	case *array.Uint32:
		c.setInts(widen(a.Uint32Values()))
	case *array.Uint16:
		c.setInts(widen(a.Uint16Values()))
	case *array.Uint8:
		c.setInts(widen(a.Uint8Values()))
	case *array.Float64:
		c.floats = a.Float64Values()
	case *array.Float32:
		if t == value.Float32 {
			c.single = a.Float32Values()
		} else {
			c.floats = toFloats(a.Float32Values())
		}
	case *array.Decimal128:
		c.floats = decimals(a)
	case *array.Boolean:
		c.bools = make([]bool, a.Len())
		for i := range c.bools {
			c.bools[i] = a.Value(i)
		}
	case *array.Date32:
		c.ints = make([]int64, a.Len())
		for i, d := range a.Date32Values() {
			c.ints[i] = int64(d) * 86_400_000_000
		}
	case *array.Timestamp:
		return c, c.setTimes(name, a)
	case array.ListLike:
		return c, c.setLists(name, a)
	case *array.Dictionary:
		c.setDictionary(a)
	case texts: // String, LargeString, StringView
		c.texts = a
	default:
		return column{}, fault.New(fault.Invalid, "column %q is %s, which features do not support", name, a.DataType())
	}
	return c, nil
}

func (c *column) setInts(ints []int64) {
	switch c.typ {
	case value.Float64:
		c.floats = toFloats(ints)
	case value.Float32:
		c.single = make([]float32, len(ints))
		for i, n := range ints {
			c.single[i] = float32(n)
		}
	default:
		c.ints = ints
	}
}

func (c *column) allNull(n int) {
	c.valid = make([]byte, bitutil.BytesForBits(int64(n)))
	c.ints, c.floats, c.single, c.bools, c.texts = make([]int64, n), make([]float64, n), make([]float32, n), make([]bool, n), make(textList, n)
}

func widen[T int32 | int16 | int8 | uint32 | uint16 | uint8](in []T) []int64 {
	out := make([]int64, len(in))
	for i, v := range in {
		out[i] = int64(v)
	}
	return out
}

func toFloats[T int64 | float32](in []T) []float64 {
	out := make([]float64, len(in))
	for i, v := range in {
		out[i] = float64(v)
	}
	return out
}

func decimals(a *array.Decimal128) []float64 {
	scale := a.DataType().(*arrow.Decimal128Type).Scale
	out := make([]float64, a.Len())
	for i := range out {
		if !a.IsNull(i) {
			out[i] = a.Value(i).ToFloat64(scale)
		}
	}
	return out
}

// setLists reads the elements as a column of their own. Each list is looked at here,
// so that what no feature can be is refused where it is read.
func (c *column) setLists(name string, a array.ListLike) error {
	t := c.typ
	elements, err := read(name, a.ListValues(), t.Elem())
	if err != nil {
		return err
	}
	for i := range a.Len() {
		if c.null(i) {
			continue
		}
		from, to := a.ValueOffsets(i)
		if err := t.Fits(int(to - from)); err != nil {
			return fault.Wrap(err, "column %q, row %d of a batch", name, i+1)
		}
		if err := elements.packs(t, int(from), int(to)); err != nil {
			return fault.Wrap(err, "column %q, row %d of a batch", name, i+1)
		}
		for j := int(from); elements.valid != nil && j < int(to); j++ {
			if elements.null(j) {
				return fault.New(fault.Invalid, "column %q: the list in row %d of a batch contains a NULL", name, i+1).WithHint("Remove NULLs in SQL with list_filter.")
			}
		}
	}
	var scratch []value.Value
	c.lists = func(i int) (v value.Value) {
		from, to := a.ValueOffsets(i)
		if t.Elem() == value.Float32 {
			v, _ = value.OfFloats(t, elements.single[from:to]) // it was looked at
			return v
		}
		scratch = scratch[:0]
		for j := int(from); j < int(to); j++ {
			scratch = append(scratch, elements.value(j))
		}
		v, _ = value.OfList(t, scratch) // as above
		return v
	}
	return nil
}

// packs refuses elements that together are larger than a list may be.
func (c *column) packs(t value.Type, from, to int) error {
	size := 8 * (to - from)
	var length [binary.MaxVarintLen64]byte
	if c.typ == value.String {
		for size = 0; from < to; from++ {
			n := len(c.texts.Value(from))
			size += n + len(binary.AppendUvarint(length[:0], uint64(n)))
		}
	}
	switch c.typ {
	case value.Float32, value.Int32:
		size /= 2
	case value.Bool:
		size /= 8
	default:
	}
	if size > value.MaxString {
		return fault.New(fault.TooLarge, "a %s of %d bytes exceeds the limit of %d", t, size, value.MaxString)
	}
	return nil
}

// setTimes converts to microseconds, towards the past.
func (c *column) setTimes(name string, a *array.Timestamp) error {
	unit := a.DataType().(*arrow.TimestampType).Unit
	in := arrow.Int64Traits.CastFromBytes(arrow.TimestampTraits.CastToBytes(a.TimestampValues()))
	if unit == arrow.Microsecond {
		c.ints = in
		return nil
	}
	c.ints = make([]int64, len(in))
	factor := int64(1000)
	if unit == arrow.Second {
		factor = 1_000_000
	}
	for i, t := range in {
		switch {
		case unit == arrow.Nanosecond:
			c.ints[i] = floorDiv(t, 1000)
		case t <= math.MaxInt64/factor && t >= math.MinInt64/factor:
			c.ints[i] = t * factor
		case !c.null(i):
			return fault.New(fault.Invalid, "column %q: an instant of row %d of a batch is out of range", name, i+1)
		}
	}
	return nil
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func (c *column) setDictionary(a *array.Dictionary) {
	dict := a.Dictionary()
	entries := dict.(texts)
	list := make(textList, a.Len())
	hasNull := a.NullN() > 0 || dict.NullN() > 0
	var valid []byte
	if hasNull {
		valid = make([]byte, bitutil.BytesForBits(int64(a.Len())))
	}
	for i := range list {
		if a.IsNull(i) {
			continue
		}
		at := a.GetValueIndex(i)
		if dict.IsNull(at) {
			continue
		}
		list[i] = entries.Value(at)
		if hasNull {
			bitutil.SetBit(valid, i)
		}
	}
	c.valid, c.offset, c.texts = valid, 0, list
}

// saturatingSub is a − b for b ≥ 0, stopping at the earliest instant.
func saturatingSub(a, b int64) int64 {
	if d := a - b; d <= a {
		return d
	}
	return math.MinInt64
}
