// Package value has the typed values of features, the bytes of an entity key
// and the packed row that holds the features of one entity at one time.
//
// # Map
//
//   - Type and Value are the types a feature may have (type.go): scalars, lists of
//     them and vectors. Values survive JSON: an int32 and an int64 stay what they
//     are, a timestamp is an instant in UTC. list.go has what is in lists.
//   - AppendKey gives the bytes that identify an entity; the offline join and
//     the online store use the same ones.
//   - AppendRow and DecodeRow are the packed row (row.go has the format).
//
// Instants have a resolution of one microsecond; what is finer is cut off.
package value

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Value is one value of a type, or NULL of that type. Values are comparable
// with Equal; the zero Value has no type.
type Value struct {
	typ  Type
	null bool
	bits uint64 // of a number, a bool and a timestamp; of a list how long it is
	str  string // of a string; of a list its elements, as in a packed row
}

// Null is NULL of a type.
func Null(t Type) Value { return Value{typ: t, null: true} }

// OfInt is an int64.
func OfInt(v int64) Value { return Value{typ: Int64, bits: uint64(v)} } //nolint:gosec // the bits are meant

// OfInt32 is an int32.
func OfInt32(v int32) Value { return Value{typ: Int32, bits: uint64(int64(v))} } //nolint:gosec // the bits are meant

// OfFloat32 is a float32; NaN is a value, not NULL.
func OfFloat32(v float32) Value { return Value{typ: Float32, bits: uint64(math.Float32bits(v))} }

// OfFloat is a float64; NaN is a value, not NULL.
func OfFloat(v float64) Value { return Value{typ: Float64, bits: math.Float64bits(v)} }

// OfString is a string.
func OfString(v string) Value { return Value{typ: String, str: v} }

// OfBool is a bool.
func OfBool(v bool) Value {
	if v {
		return Value{typ: Bool, bits: 1}
	}
	return Value{typ: Bool}
}

// OfMicros is an instant in microseconds since 1970.
func OfMicros(v int64) Value { return Value{typ: Timestamp, bits: uint64(v)} } //nolint:gosec // the bits are meant

// The instants that features hold are those of the years 1 to 9999, in microseconds since
// 1970: JSON's times can say no others. Datasets have the same (table.MinInstant).
const (
	MinInstant = -62_135_596_800_000_000
	MaxInstant = 253_402_300_799_999_999
)

// OfTime is an instant, cut to the microsecond.
func OfTime(t time.Time) Value { return OfMicros(t.UnixMicro()) }

// Type is the value's type.
func (v Value) Type() Type { return v.typ }

// IsNull reports whether v is NULL (or the zero Value).
func (v Value) IsNull() bool { return v.null || v.typ == 0 }

// Int is the int64 or int32, or the microseconds of a timestamp.
func (v Value) Int() int64 { return int64(v.bits) } //nolint:gosec // the bits are meant

// Float is the float64, or the float32 as one.
func (v Value) Float() float64 {
	if v.typ == Float32 {
		return float64(math.Float32frombits(uint32(v.bits))) //nolint:gosec // the bits are meant
	}
	return math.Float64frombits(v.bits)
}

// Str is the string.
func (v Value) Str() string { return v.str }

// Bool is the bool.
func (v Value) Bool() bool { return v.bits != 0 }

// Time is the instant in UTC.
func (v Value) Time() time.Time { return time.UnixMicro(v.Int()).UTC() }

// Equal reports whether two values are the same, bit for bit; every NaN equals
// every other.
func (v Value) Equal(w Value) bool {
	if v.typ != w.typ || v.IsNull() != w.IsNull() {
		return false
	}
	if v.IsNull() {
		return true
	}
	if (v.typ == Float64 || v.typ == Float32) && math.IsNaN(v.Float()) {
		return math.IsNaN(w.Float())
	}
	return v.bits == w.bits && v.str == w.str
}

// Any is the value as nil, int64, int32, float64, float32, string, bool, time.Time,
// or a list of these.
func (v Value) Any() any {
	if v.IsNull() {
		return nil
	}
	switch v.typ {
	case Int64:
		return v.Int()
	case Int32:
		return int32(v.Int()) //nolint:gosec // it is one
	case Float64:
		return v.Float()
	case Float32:
		return float32(v.Float())
	case String:
		return v.str
	case Bool:
		return v.Bool()
	case Timestamp:
		return v.Time()
	}
	list := make([]any, 0, v.Len())
	for x := range v.Elements() {
		list = append(list, x.Any())
	}
	return list
}

// String is the value for people.
func (v Value) String() string {
	if v.IsNull() {
		return "NULL"
	}
	switch v.typ {
	case Int64, Int32:
		return strconv.FormatInt(v.Int(), 10)
	case Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case Float32:
		return strconv.FormatFloat(v.Float(), 'g', -1, 32)
	case String:
		return v.str
	case Bool:
		return strconv.FormatBool(v.Bool())
	case Timestamp:
		return v.Time().Format(time.RFC3339Nano)
	}
	return string(v.AppendJSON(nil))
}

// MarshalJSON writes null, a number, a string, a bool, an RFC 3339 instant, or a list
// of them. A float32 has the digits that tell it from its neighbours, no more. A
// float always has a point or an exponent, so that it stays one; NaN and the
// infinities, which JSON cannot say, are the strings "NaN", "Infinity" and
// "-Infinity".
func (v Value) MarshalJSON() ([]byte, error) { return v.AppendJSON(nil), nil }

// AppendJSON appends what MarshalJSON writes.
func (v Value) AppendJSON(dst []byte) []byte {
	if v.IsNull() {
		return append(dst, "null"...)
	}
	switch v.typ {
	case Int64, Int32:
		return strconv.AppendInt(dst, v.Int(), 10)
	case Float64:
		return appendFloat(dst, v.Float(), 64)
	case Float32:
		return appendFloat(dst, v.Float(), 32)
	case Bool:
		return strconv.AppendBool(dst, v.Bool())
	case Timestamp:
		return v.Time().AppendFormat(append(dst, '"'), time.RFC3339Nano+`"`)
	case String:
		return appendText(dst, v.str)
	}
	dst = append(dst, '[')
	for x := range v.Elements() {
		dst = append(x.AppendJSON(dst), ',')
	}
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, ']')
}

// appendText writes what encoding/json writes.
func appendText(dst []byte, text string) []byte {
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			quoted, _ := json.Marshal(text) // of a string there is no error
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), text...), '"')
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', -1, bits)
	for _, c := range dst[n:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// Parse reads what JSON decoding gave (with or without UseNumber) as a value of
// the type; nil is NULL. It refuses what would change the value, such as 1.5 or
// "1" for an int64 and 3000000000 for an int32, and instants outside the years 1 to 9999; a
// number becomes the nearest float. Error: fault.Invalid.
func Parse(t Type, x any) (Value, error) {
	if x == nil {
		return Null(t), nil
	}
	if !t.Scalar() {
		return parseList(t, x)
	}
	if v, ok := parse(t, x); ok {
		return v, nil
	}
	return Value{}, fault.New(fault.Invalid, "%s is not %s", describe(x), article(t))
}

func parse(t Type, x any) (Value, bool) {
	switch t {
	case Int64:
		return parseInt(x)
	case Int32:
		v, ok := parseInt(x)
		n := v.Int()
		return OfInt32(int32(n)), ok && n == int64(int32(n)) //nolint:gosec // the second result says whether it fits
	case Float64:
		return parseFloat(x)
	case Float32:
		return parseFloat32(x)
	case String:
		s, ok := x.(string)
		return OfString(s), ok
	case Bool:
		b, ok := x.(bool)
		return OfBool(b), ok
	case Timestamp:
		return parseTime(x)
	}
	return Value{}, false
}

func parseInt(x any) (Value, bool) {
	switch n := x.(type) {
	case int64:
		return OfInt(n), true
	case int:
		return OfInt(int64(n)), true
	case int32:
		return OfInt(int64(n)), true
	case json.Number:
		i, err := strconv.ParseInt(string(n), 10, 64)
		return OfInt(i), err == nil
	case float64:
		const exact = 1 << 53 // itself it may be what 2^53 + 1 became
		if n != math.Trunc(n) || math.Abs(n) >= exact {
			return Value{}, false
		}
		return OfInt(int64(n)), true
	}
	return Value{}, false
}

func parseFloat(x any) (Value, bool) {
	switch n := x.(type) {
	case float64:
		return OfFloat(n), true
	case int64:
		return OfFloat(float64(n)), true
	case int:
		return OfFloat(float64(n)), true
	case json.Number:
		f, err := strconv.ParseFloat(string(n), 64)
		return OfFloat(f), err == nil
	case string:
		switch n {
		case "NaN":
			return OfFloat(math.NaN()), true
		case "Infinity":
			return OfFloat(math.Inf(1)), true
		case "-Infinity":
			return OfFloat(math.Inf(-1)), true
		}
	}
	return Value{}, false
}

// parseFloat32 rounds a fraction, and refuses whole numbers that would change.
func parseFloat32(x any) (Value, bool) {
	if f, is := x.(float32); is {
		return OfFloat32(f), true
	}
	v, ok := parseFloat(x)
	f := float32(v.Float())
	if n, is := x.(json.Number); is {
		exact, err := strconv.ParseFloat(string(n), 32) // not rounded twice
		if err != nil {
			return Value{}, false
		}
		f = float32(exact)
	}
	if math.IsInf(float64(f), 0) != math.IsInf(v.Float(), 0) {
		return Value{}, false
	}
	switch x.(type) {
	case int, int64:
		ok = ok && float64(f) == v.Float()
	}
	return OfFloat32(f), ok
}

func parseTime(x any) (Value, bool) {
	switch s := x.(type) {
	case time.Time:
		return inYears(OfTime(s))
	case string:
		if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
			return inYears(OfTime(t))
		}
	}
	return Value{}, false
}

func inYears(v Value) (Value, bool) { return v, v.Int() >= MinInstant && v.Int() <= MaxInstant }

func describe(x any) string {
	switch v := x.(type) {
	case string:
		return strconv.Quote(clip(v))
	case json.Number:
		return clip(string(v))
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case int64:
		return strconv.FormatInt(v, 10)
	case int:
		return strconv.Itoa(v)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "this"
}

func article(t Type) string {
	switch t {
	case Int64, Int32:
		return "an " + t.String()
	case Timestamp:
		return "a timestamp of the years 1 to 9999 such as 2013-01-01T10:00:00Z"
	default:
		return "a " + t.String()
	}
}

func clip(s string) string { return fault.Clip(s, 80) }

// AppendKey appends the bytes of one part of an entity key. Concatenated parts
// identify an entity: no two lists of values give the same bytes. v must be a scalar
// and not NULL: an entity without a key is none.
func AppendKey(dst []byte, v Value) []byte {
	dst = append(dst, byte(v.typ)) //nolint:gosec // a scalar's
	if v.typ == String {
		dst = binary.AppendUvarint(dst, uint64(len(v.str)))
		return append(dst, v.str...)
	}
	return binary.BigEndian.AppendUint64(dst, v.bits)
}

// SplitKey gives the parts of an entity key; false where it is none.
func SplitKey(key []byte) (parts [][]byte, ok bool) {
	for len(key) > 0 {
		n := 9
		if Type(key[0]) == String {
			length, size := binary.Uvarint(key[1:])
			if size <= 0 || length > uint64(len(key)) {
				return nil, false
			}
			n = 1 + size + int(length) //nolint:gosec // at most len(key)
		}
		if n > len(key) {
			return nil, false
		}
		parts = append(parts, key[:n:n])
		key = key[n:]
	}
	return parts, true
}
