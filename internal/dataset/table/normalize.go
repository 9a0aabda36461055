package table

import (
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Normal is the type that a column of an Arrow type is kept as: the narrowest that
// holds all its values. Integers that fit 32 bits with sign are int32 and others
// int64, floating point is float32 or float64, decimals are float64 (without
// fraction int64), timestamps UTC microseconds, dictionaries what they hold, lists of
// any kind lists of such. Error: fault.Invalid for other nested and binary types.
func Normal(name string, dt arrow.DataType) (Type, error) {
	switch dt.ID() {
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW, arrow.NULL:
		return String, nil
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.UINT8, arrow.UINT16:
		return Int32, nil
	case arrow.INT64, arrow.UINT32, arrow.UINT64:
		return Int64, nil
	case arrow.FLOAT16, arrow.FLOAT32:
		return Float32, nil
	case arrow.FLOAT64:
		return Float64, nil
	case arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		const most = 76 // digits of the largest decimal: a scale beyond is no number of anybody's
		switch d, ok := dt.(arrow.DecimalType); {
		case ok && d.GetScale() == 0:
			return Int64, nil
		case ok && d.GetScale() <= most && d.GetScale() >= -most:
			return Float64, nil
		}
	case arrow.BOOL:
		return Bool, nil
	case arrow.TIMESTAMP:
		return Timestamp, nil
	case arrow.DATE32, arrow.DATE64:
		return Date, nil
	case arrow.DICTIONARY:
		if d, ok := dt.(*arrow.DictionaryType); ok && d.ValueType.ID() != arrow.DICTIONARY {
			return Normal(name, d.ValueType)
		}
	case arrow.EXTENSION:
		if e, ok := dt.(arrow.ExtensionType); ok {
			return Normal(name, e.StorageType())
		}
	case arrow.LIST, arrow.LARGE_LIST, arrow.FIXED_SIZE_LIST, arrow.LIST_VIEW:
		if l, ok := dt.(arrow.ListLikeType); ok {
			if elem, err := Normal(name, l.Elem()); err == nil && ListOf(elem).Valid() {
				return ListOf(elem), nil
			}
		}
	default:
	}
	return "", fault.New(fault.Invalid, "column %q has the type %s, which tables do not support", name, dt).
		WithHint("Cast it to one of %s, or omit it.", typeList())
}

// NormalSchema is the schema that batches of an Arrow schema are kept as.
func NormalSchema(a *arrow.Schema) (Schema, error) {
	s := make(Schema, a.NumFields())
	for i, f := range a.Fields() {
		t, err := Normal(f.Name, f.Type)
		if err != nil {
			return nil, err
		}
		s[i] = Field{Name: f.Name, Type: t}
	}
	return s, CheckNames(s.Names())
}

// Normalize brings a batch to the types of its NormalSchema. row is the number
// of the batch's first row, counted from 1, for messages. A value that the type
// cannot hold exactly (an integer over 63 bits, time below the microsecond, text
// that is not UTF-8), and time outside the years 1 to 9999, is fault.Invalid with row and
// column. A decimal becomes the float64 nearest to it; where the schema says String, its
// text. Release the result.
func Normalize(rec arrow.RecordBatch, s Schema, row int64) (arrow.RecordBatch, error) {
	return NormalizeIn(rec, s, row, Local{})
}

// NormalizeIn is Normalize where times without a zone are of one.
func NormalizeIn(rec arrow.RecordBatch, s Schema, row int64, local Local) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, len(s))
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, f := range s {
		col, err := normalizeColumn(rec.Column(i), f, row, local)
		if err != nil {
			return nil, err
		}
		cols[i] = col
	}
	return array.NewRecordBatch(s.Arrow(), cols, rec.NumRows()), nil
}

// Widen is an array of a type as one of a wider type, or itself. Release the result.
// Error: fault.Invalid where the type is not wider.
func Widen(a arrow.Array, t Type) (arrow.Array, error) {
	if arrow.TypeEqual(a.DataType(), t.Arrow()) {
		a.Retain()
		return a, nil
	}
	return normalizeColumn(a, Field{Type: t}, 1, Local{})
}

func normalizeColumn(a arrow.Array, f Field, row int64, local Local) (arrow.Array, error) {
	elem, list := f.Type.Elem()
	refuse := func(i int, why string) *fault.Error {
		return fault.New(fault.Invalid, "row %d, column %q: %s", row+int64(i), f.Name, why)
	}
	if arrow.TypeEqual(a.DataType(), f.Type.Arrow()) && f.Type != String && !list {
		if i := beyondYears(a); i >= 0 {
			return nil, refuse(i, WrongYear).WithData("%s", a.ValueStr(i))
		}
		a.Retain()
		return a, nil
	}
	if e, ok := a.(array.ExtensionArray); ok {
		a = e.Storage()
	}
	if list {
		return normalizeList(a, f, elem, row, local)
	}
	at := func(i int) int { return i }
	rows := a
	if d, ok := a.(*array.Dictionary); ok {
		a, at = d.Dictionary(), d.GetValueIndex
		if e, ok := a.(array.ExtensionArray); ok {
			a = e.Storage()
		}
	}
	switch f.Type {
	case String:
		value, ok := stringsOf(a)
		if !ok {
			value, ok = digitsOf(a)
		}
		if !ok {
			return nil, refuse(0, "unreadable as string")
		}
		b := array.NewStringBuilder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(i, j int) error {
			v := value(j)
			if !utf8.ValidString(v) {
				return refuse(i, "the text is not UTF-8")
			}
			b.Append(v)
			return nil
		})
	case Int32:
		value, ok := intsOf(a)
		if !ok {
			return nil, refuse(0, "unreadable as int32")
		}
		b := array.NewInt32Builder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(i, j int) error {
			v, fits := value(j)
			if !fits || v > math.MaxInt32 || v < math.MinInt32 {
				return refuse(i, "the value exceeds a signed 32-bit integer").WithData("%s", a.ValueStr(j))
			}
			b.Append(int32(v))
			return nil
		})
	case Float32:
		value, ok := float32sOf(a)
		if !ok {
			return nil, refuse(0, "unreadable as float32")
		}
		b := array.NewFloat32Builder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(_, j int) error { b.Append(value(j)); return nil })
	case Int64:
		value, ok := intsOf(a)
		if !ok {
			return nil, refuse(0, "unreadable as int64")
		}
		b := array.NewInt64Builder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(i, j int) error {
			v, fits := value(j)
			if !fits {
				return refuse(i, "the value exceeds a signed 64-bit integer").WithData("%s", a.ValueStr(j))
			}
			b.Append(v)
			return nil
		})
	case Float64:
		value, ok := floatsOf(a)
		if !ok {
			return nil, refuse(0, "unreadable as float64")
		}
		b := array.NewFloat64Builder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(_, j int) error { b.Append(value(j)); return nil })
	case Bool:
		v, ok := a.(*array.Boolean)
		if !ok {
			return nil, refuse(0, "unreadable as bool")
		}
		b := array.NewBooleanBuilder(memory.DefaultAllocator)
		return build(b, rows, a, at, func(_, j int) error { b.Append(v.Value(j)); return nil })
	case Timestamp:
		v, ok := a.(*array.Timestamp)
		t, ok2 := a.DataType().(*arrow.TimestampType)
		if !ok || !ok2 {
			return nil, refuse(0, "unreadable as timestamp")
		}
		instant := local.instants()
		b := array.NewTimestampBuilder(memory.DefaultAllocator, arrow.FixedWidthTypes.Timestamp_us.(*arrow.TimestampType))
		return build(b, rows, a, at, func(i, j int) error {
			us, exact := micros(int64(v.Value(j)), t.Unit)
			if t.TimeZone == "" {
				us = instant(us)
			}
			switch {
			case !exact:
				return refuse(i, "the time is not a whole number of microseconds in range").WithData("%s", a.ValueStr(j))
			case us < MinInstant || us > MaxInstant:
				return refuse(i, WrongYear).WithData("%s", a.ValueStr(j))
			}
			b.Append(arrow.Timestamp(us))
			return nil
		})
	case Date:
		b := array.NewDate32Builder(memory.DefaultAllocator)
		switch v := a.(type) {
		case *array.Date64:
			const day = 24 * time.Hour / time.Millisecond
			return build(b, rows, a, at, func(i, j int) error {
				ms := int64(v.Value(j))
				switch days := ms / int64(day); {
				case ms%int64(day) != 0:
					return refuse(i, "the value is not a day").WithData("%s", a.ValueStr(j))
				case days < MinDay || days > MaxDay:
					return refuse(i, WrongYear).WithData("%s", a.ValueStr(j))
				}
				b.Append(arrow.Date32(ms / int64(day)))
				return nil
			})
		case *array.Date32:
			return build(b, rows, a, at, func(i, j int) error {
				if d := v.Value(j); d < MinDay || d > MaxDay {
					return refuse(i, WrongYear).WithData("%s", a.ValueStr(j))
				}
				b.Append(v.Value(j))
				return nil
			})
		}
	}
	return nil, refuse(0, "unreadable as "+string(f.Type))
}

// beyondYears is the first row of timestamps or days that is outside the years 1 to 9999;
// -1 for none.
func beyondYears(a arrow.Array) int {
	switch a := a.(type) {
	case *array.Timestamp:
		for i, v := range a.TimestampValues() {
			if (v < MinInstant || v > MaxInstant) && a.IsValid(i) {
				return i
			}
		}
	case *array.Date32:
		for i, v := range a.Date32Values() {
			if (v < MinDay || v > MaxDay) && a.IsValid(i) {
				return i
			}
		}
	}
	return -1
}

// normalizeList makes lists of a kind lists of normal elements, without what no row
// shows.
func normalizeList(a arrow.Array, f Field, elem Type, row int64, local Local) (arrow.Array, error) {
	refuse := func(i int, why string) *fault.Error {
		return fault.New(fault.Invalid, "row %d, column %q: %s", row+int64(i), f.Name, why)
	}
	l, ok := a.(array.ListLike)
	if !ok {
		if a.DataType().ID() == arrow.NULL {
			return array.MakeArrayOfNull(memory.DefaultAllocator, f.Type.Arrow(), a.Len()), nil
		}
		return nil, refuse(0, "unreadable as "+string(f.Type))
	}
	offsets := make([]int32, a.Len()+1)
	valid := make([]byte, bitutil.BytesForBits(int64(a.Len())))
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	total, from, to := int64(0), int64(0), int64(0) // from and to: elements that are not yet in parts
	take := func() {
		if from < to {
			parts = append(parts, array.NewSlice(l.ListValues(), from, to))
		}
	}
	for i := range a.Len() {
		if a.IsValid(i) {
			bitutil.SetBit(valid, i)
			start, end := l.ValueOffsets(i)
			if total += end - start; total > math.MaxInt32 {
				return nil, refuse(i, "the lists of one batch are too large")
			}
			if start != to {
				take()
				from = start
			}
			to = end
		}
		offsets[i+1] = int32(total)
	}
	take()
	if len(parts) == 0 {
		parts = append(parts, array.NewSlice(l.ListValues(), 0, 0))
	}
	values := parts[0]
	if len(parts) > 1 {
		var err error
		if values, err = array.Concatenate(parts, memory.DefaultAllocator); err != nil {
			return nil, err
		}
		defer values.Release()
	}
	rowOf := func(element int) int {
		return sort.Search(len(offsets), func(i int) bool { return int(offsets[i]) > element }) - 1
	}
	for i := range values.Len() {
		if values.IsNull(i) {
			return nil, refuse(rowOf(i), "an element of the list is null").WithHint("Remove the null, or replace it by a value.")
		}
	}
	elements, err := normalizeColumn(values, Field{Name: f.Name, Type: elem}, row, local)
	if err != nil {
		return nil, err
	}
	defer elements.Release()
	data := array.NewData(f.Type.Arrow(), a.Len(), []*memory.Buffer{
		memory.NewBufferBytes(valid), memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)),
	}, []arrow.ArrayData{elements.Data()}, a.NullN(), 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

// build runs append for each row that is not null; rows may be a dictionary
// array over values.
func build(b array.Builder, rows, values arrow.Array, at func(int) int, add func(i, j int) error) (arrow.Array, error) {
	defer b.Release()
	b.Reserve(rows.Len())
	if values.DataType().ID() == arrow.NULL { // it has no bitmap that says so
		b.AppendNulls(rows.Len())
		return b.NewArray(), nil
	}
	for i := range rows.Len() {
		if rows.IsNull(i) {
			b.AppendNull()
			continue
		}
		j := at(i)
		if values.IsNull(j) {
			b.AppendNull()
			continue
		}
		if err := add(i, j); err != nil {
			return nil, err
		}
	}
	return b.NewArray(), nil
}

func stringsOf(a arrow.Array) (func(int) string, bool) {
	switch v := a.(type) {
	case *array.String:
		return v.Value, true
	case *array.LargeString:
		return v.Value, true
	case *array.StringView:
		return v.Value, true
	case *array.Null:
		return func(int) string { return "" }, true
	}
	return nil, false
}

func intsOf(a arrow.Array) (func(int) (int64, bool), bool) {
	switch v := a.(type) {
	case *array.Int8:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Int16:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Int32:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Int64:
		return func(i int) (int64, bool) { return v.Value(i), true }, true
	case *array.Uint8:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Uint16:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Uint32:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Uint64:
		return func(i int) (int64, bool) {
			u := v.Value(i)
			return int64(u), u <= math.MaxInt64 //nolint:gosec // the second result says whether it fits
		}, true
	case *array.Decimal32:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Decimal64:
		return func(i int) (int64, bool) { return int64(v.Value(i)), true }, true
	case *array.Decimal128:
		return func(i int) (int64, bool) {
			b := v.Value(i).BigInt()
			return b.Int64(), b.IsInt64()
		}, true
	case *array.Decimal256:
		return func(i int) (int64, bool) {
			b := v.Value(i).BigInt()
			return b.Int64(), b.IsInt64()
		}, true
	}
	return nil, false
}

// float32sOf reads what a float32 holds exactly.
func float32sOf(a arrow.Array) (func(int) float32, bool) {
	switch v := a.(type) {
	case *array.Float16:
		return func(i int) float32 { return v.Value(i).Float32() }, true
	case *array.Float32:
		return v.Value, true
	}
	return nil, false
}

func floatsOf(a arrow.Array) (func(int) float64, bool) {
	var scale int32
	if d, ok := a.DataType().(arrow.DecimalType); ok {
		scale = d.GetScale()
	}
	switch v := a.(type) {
	case *array.Float16:
		return func(i int) float64 { return float64(v.Value(i).Float32()) }, true
	case *array.Float32:
		return func(i int) float64 { return float64(v.Value(i)) }, true
	case *array.Float64:
		return v.Value, true
	case *array.Decimal32:
		return func(i int) float64 { return nearest(int64(v.Value(i)), scale) }, true
	case *array.Decimal64:
		return func(i int) float64 { return nearest(int64(v.Value(i)), scale) }, true
	case *array.Decimal128:
		return func(i int) float64 {
			d := v.Value(i)
			if n := int64(d.LowBits()); d.HighBits() == n>>63 { //nolint:gosec // the bits are meant
				return nearest(n, scale)
			}
			return nearestBig(d.BigInt(), scale)
		}, true
	case *array.Decimal256:
		return func(i int) float64 { return nearestBig(v.Value(i).BigInt(), scale) }, true
	}
	return nil, false
}

// powers of ten that a float64 holds exactly.
var powers = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// nearest is the float64 nearest to n·10^-scale.
func nearest(n int64, scale int32) float64 {
	const exact = 1 << 53
	if n >= -exact && n <= exact && scale >= 0 && int(scale) < len(powers) {
		return float64(n) / powers[scale] // both are exact: only the division rounds
	}
	return nearestBig(big.NewInt(n), scale)
}

func nearestBig(n *big.Int, scale int32) float64 {
	f, _ := strconv.ParseFloat(n.String()+"e"+strconv.Itoa(-int(scale)), 64) // it is a number; one beyond a float64 is an infinity
	return f
}

// Digits reports whether an Arrow type has values that no number of tables holds exactly,
// and that have a text: a column of decimals or of uint64 may be declared as String.
func Digits(dt arrow.DataType) bool {
	_, decimal := dt.(arrow.DecimalType)
	return decimal || dt.ID() == arrow.UINT64
}

// digitsOf reads what Digits permits as text, with as many digits of a fraction as the type
// has.
func digitsOf(a arrow.Array) (func(int) string, bool) {
	var scale int
	if d, ok := a.DataType().(arrow.DecimalType); ok {
		scale = int(d.GetScale())
	}
	switch v := a.(type) {
	case *array.Uint64:
		return func(i int) string { return strconv.FormatUint(v.Value(i), 10) }, true
	case *array.Decimal32:
		return func(i int) string { return decimal(big.NewInt(int64(v.Value(i))), scale) }, true
	case *array.Decimal64:
		return func(i int) string { return decimal(big.NewInt(int64(v.Value(i))), scale) }, true
	case *array.Decimal128:
		return func(i int) string { return decimal(v.Value(i).BigInt(), scale) }, true
	case *array.Decimal256:
		return func(i int) string { return decimal(v.Value(i).BigInt(), scale) }, true
	}
	return nil, false
}

// decimal is n·10^-scale in digits.
func decimal(n *big.Int, scale int) string {
	text, sign := new(big.Int).Abs(n).String(), ""
	if n.Sign() < 0 {
		sign = "-"
	}
	switch {
	case scale == 0 || n.Sign() == 0 && scale < 0:
		return sign + text
	case scale < 0:
		return sign + text + strings.Repeat("0", -scale)
	}
	if short := scale + 1 - len(text); short > 0 {
		text = strings.Repeat("0", short) + text
	}
	return sign + text[:len(text)-scale] + "." + text[len(text)-scale:]
}

func micros(v int64, unit arrow.TimeUnit) (int64, bool) {
	switch unit {
	case arrow.Second:
		return v * 1_000_000, v <= math.MaxInt64/1_000_000 && v >= math.MinInt64/1_000_000
	case arrow.Millisecond:
		return v * 1000, v <= math.MaxInt64/1000 && v >= math.MinInt64/1000
	case arrow.Nanosecond:
		return v / 1000, v%1000 == 0
	default:
		return v, true
	}
}
