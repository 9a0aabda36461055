package value

import (
	"encoding/binary"
	"iter"
	"math"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
)

// OfList is a list or a vector of a type. Error: fault.Invalid for an element that is
// NULL or of another type, for more elements than the type's length, and for a vector
// of another dimension; fault.TooLarge for more than MaxString bytes.
func OfList(t Type, elements []Value) (Value, error) {
	if err := t.Fits(len(elements)); err != nil {
		return Value{}, err
	}
	var b []byte
	for i, e := range elements {
		if e.IsNull() || e.typ != t.Elem() {
			return Value{}, fault.New(fault.Invalid, "element %d of a %s is %s", i+1, t, describeElement(e))
		}
		if _, ok := inYears(e); e.typ == Timestamp && !ok {
			return Value{}, fault.New(fault.Invalid, "element %d of a %s is a timestamp with a year outside 1 to 9999", i+1, t)
		}
		b = e.canonical().append(b)
	}
	return ofPacked(t, len(elements), b)
}

func describeElement(e Value) string {
	if e.IsNull() {
		return "NULL"
	}
	return article(e.typ)
}

// OfFloats is a vector, or a list of float32. Errors as of OfList.
func OfFloats(t Type, elements []float32) (Value, error) {
	if err := t.Fits(len(elements)); err != nil {
		return Value{}, err
	}
	b := make([]byte, 0, 4*len(elements))
	for _, f := range elements {
		b = OfFloat32(f).canonical().append(b)
	}
	return ofPacked(t, len(elements), b)
}

func ofPacked(t Type, n int, b []byte) (Value, error) {
	if len(b) > MaxString {
		return Value{}, fault.New(fault.TooLarge, "a %s of %d bytes exceeds the limit of %d", t, len(b), MaxString)
	}
	return Value{typ: t, bits: uint64(n), str: unsafe.String(unsafe.SliceData(b), len(b))}, nil //nolint:gosec // b is nobody else's
}

// Fits refuses lists of another length than the type's. Error: fault.Invalid.
func (t Type) Fits(n int) error {
	switch {
	case t.IsVector() && n != t.Length():
		return fault.New(fault.Invalid, "a vector has %d dimensions instead of the %d of %s", n, t.Length(), t).
			WithHint("Compute all vectors with the same model, or change the type in a new version of the view.")
	case n > t.Length():
		return fault.New(fault.Invalid, "a list has %d elements, over the %d of %s", n, t.Length(), t).
			WithHint("Shorten the lists, or raise the length in the type.")
	}
	return nil
}

// Holds refuses a list that reads as another list type and does not fit t: of another
// length, or too large with t's elements. Errors: fault.Invalid, fault.TooLarge.
func (t Type) Holds(v Value) error {
	if err := t.Fits(v.Len()); err != nil {
		return err
	}
	if size := max(v.Len()*int(t.Elem().width()), len(v.str)); size > MaxString { //nolint:gosec // 8 at most
		return fault.New(fault.TooLarge, "a %s of %d bytes exceeds the limit of %d", t, size, MaxString)
	}
	return nil
}

// canonical makes every NaN the same, so that equal lists have equal bytes.
func (v Value) canonical() Value {
	switch {
	case v.typ == Float64 && math.IsNaN(v.Float()):
		return OfFloat(math.NaN())
	case v.typ == Float32 && math.IsNaN(v.Float()):
		return OfFloat32(float32(math.NaN()))
	}
	return v
}

// AppendPacked appends a value that is not NULL as a packed row has it.
func (v Value) AppendPacked(dst []byte) []byte { return v.append(dst) }

// Packed reads what AppendPacked appended. Strings and lists are views into b. Error:
// fault.Internal, because only a defect makes one.
func Packed(t Type, b []byte) (Value, error) {
	v, rest, ok := decode(t, b)
	if !ok || len(rest) > 0 {
		return Value{}, errRow("bad value")
	}
	return v, nil
}

// Len is how many elements a list or a vector has.
func (v Value) Len() int {
	if v.typ.Scalar() || v.null {
		return 0
	}
	return int(v.bits) //nolint:gosec // at most MaxLength
}

// Elements are those of a list or a vector, in order.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		rest := unsafe.Slice(unsafe.StringData(v.str), len(v.str)) //nolint:gosec // only read
		for range v.Len() {
			e, left, ok := decode(v.typ.Elem(), rest)
			if !ok || !yield(e) {
				return
			}
			rest = left
		}
	}
}

// Floats appends the elements of a vector, or of a list of float32.
func (v Value) Floats(dst []float32) []float32 {
	for i := 0; i+4 <= len(v.str); i += 4 {
		dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32([]byte(v.str[i:i+4]))))
	}
	return dst
}

// Clone is the value in memory of its own: strings and lists may be views into a
// batch or a row that goes away.
func (v Value) Clone() Value {
	v.str = string(append([]byte(nil), v.str...))
	return v
}

// decodeList reads a list or a vector.
func decodeList(t Type, row []byte) (Value, []byte, bool) {
	no := func() (Value, []byte, bool) { return Value{}, nil, false }
	n, size := uint64(t.Length()), uint64(4*t.Length()) //nolint:gosec // at most MaxLength
	switch {
	case !t.Valid() || t.Scalar():
		return no()
	case t.IsList():
		var head int
		if n, head = uvarint(row); head <= 0 || n > uint64(t.Length()) { //nolint:gosec // at most MaxLength
			return no()
		}
		row = row[head:]
		if size, head = uvarint(row); head <= 0 {
			return no()
		}
		row = row[head:]
	}
	if size > MaxString || size > uint64(len(row)) {
		return no()
	}
	elements := row[:size]
	v := Value{typ: t, bits: n, str: unsafe.String(unsafe.SliceData(elements), len(elements))} //nolint:gosec // the caller promises that row does not change
	if width := t.Elem().width(); width > 0 && t.Elem() != Bool {
		return v, row[size:], size == n*width
	}
	rest := elements
	for range n {
		var ok bool
		if _, rest, ok = decode(t.Elem(), rest); !ok {
			return no()
		}
	}
	return v, row[size:], len(rest) == 0
}

// width is the bytes of a scalar in a row; 0 where they differ.
func (t Type) width() uint64 {
	switch t {
	case Int64, Float64, Timestamp:
		return 8
	case Int32, Float32:
		return 4
	case Bool:
		return 1
	default:
		return 0
	}
}

// parseList reads a JSON list.
func parseList(t Type, x any) (Value, error) {
	list, ok := x.([]any)
	if !ok {
		return Value{}, fault.New(fault.Invalid, "%s is not %s", describe(x), article(t))
	}
	if err := t.Fits(len(list)); err != nil {
		return Value{}, err
	}
	elements := make([]Value, len(list))
	for i, e := range list {
		v, ok := parse(t.Elem(), e)
		if !ok {
			return Value{}, fault.New(fault.Invalid, "element %d: %s is not %s", i+1, describe(e), article(t.Elem()))
		}
		elements[i] = v
	}
	return OfList(t, elements)
}
