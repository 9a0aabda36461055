package value

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Type of a feature or of a join key: a scalar, a list of scalars with the most that
// it holds, or a vector of float32 with its dimension.
//
// The lowest byte is the scalar, or the elements'; then a byte for the shape; then
// the length. Types are compared by ==.
type Type uint32

// The scalars. The zero Type is none of them.
const (
	Int64 Type = iota + 1
	Float64
	String
	Bool
	Timestamp
	Int32
	Float32
)

const (
	elemMask   = 0xff
	shapeList  = 1 << 8
	shapeVec   = 2 << 8
	shapeMask  = 0xff << 8
	lengthBits = 16
)

// MaxLength is the most elements that a list or a vector has.
const MaxLength = 16 << 10

var typeNames = [...]string{
	Int64: "int64", Float64: "float64", String: "string", Bool: "bool", Timestamp: "timestamp", Int32: "int32", Float32: "float32",
}

// Names lists the names of the scalars.
func Names() []string {
	return []string{"int32", "int64", "float32", "float64", "string", "bool", "timestamp"}
}

// Forms says how the types are written, for people.
func Forms() string {
	return strings.Join(Names(), ", ") + ", list<int64>(100) for a list of at most 100 elements, and vector(384)"
}

// ListOf is the type of lists with a maximum number of scalars.
func ListOf(elem Type, most int) Type {
	return elem | shapeList | Type(most)<<lengthBits //nolint:gosec // at most MaxLength
}

// VectorOf is the type of vectors of a dimension.
func VectorOf(dimension int) Type {
	return Float32 | shapeVec | Type(dimension)<<lengthBits //nolint:gosec // at most MaxLength
}

// Scalar reports whether t is neither a list nor a vector.
func (t Type) Scalar() bool { return t&shapeMask == 0 }

// IsList reports whether t is of lists.
func (t Type) IsList() bool { return t&shapeMask == shapeList }

// IsVector reports whether t is of vectors.
func (t Type) IsVector() bool { return t&shapeMask == shapeVec }

// Elem is the type of the elements of a list or a vector; of a scalar itself.
func (t Type) Elem() Type { return t & elemMask }

// Length is the most elements of a list, and the dimension of a vector.
func (t Type) Length() int { return int(t >> lengthBits) }

// Number reports whether values of the type are numbers, as models take them.
func (t Type) Number() bool {
	switch t {
	case Int64, Int32, Float64, Float32, Bool:
		return true
	default:
		return false
	}
}

// Keys reports whether join keys may be of the type: a float identifies nothing, and
// a list is no key.
func (t Type) Keys() bool { return t.Scalar() && t.Valid() && t != Float64 && t != Float32 }

// Valid reports whether t is one of the types.
func (t Type) Valid() bool {
	if e := t.Elem(); e < Int64 || e > Float32 {
		return false
	}
	n := t.Length()
	switch {
	case t.Scalar():
		return n == 0
	case t.IsList():
		return n >= 1 && n <= MaxLength
	default:
		return t.IsVector() && n >= 1 && n <= MaxLength && t.Elem() == Float32
	}
}

// String is the name used in manifests.
func (t Type) String() string {
	switch {
	case !t.Valid():
		return "none"
	case t.IsList():
		return fmt.Sprintf("list<%s>(%d)", typeNames[t.Elem()], t.Length())
	case t.IsVector():
		return fmt.Sprintf("vector(%d)", t.Length())
	}
	return typeNames[t]
}

// MarshalText writes the name. Error: fault.Invalid for no type.
func (t Type) MarshalText() ([]byte, error) {
	if !t.Valid() {
		return nil, fault.New(fault.Invalid, "type %d is not a type", uint32(t))
	}
	return []byte(t.String()), nil
}

// UnmarshalText reads a name. Error: fault.Invalid.
func (t *Type) UnmarshalText(b []byte) error {
	name := string(b)
	if is, ok := scalar(name); ok {
		*t = is
		return nil
	}
	unknown := fault.New(fault.Invalid, "unknown type %q", clip(name)).WithHint("Use one of %s.", Forms())
	shape, rest, _ := strings.Cut(name, "(")
	elem, list := strings.CutPrefix(shape, "list<")
	if list {
		elem, list = strings.CutSuffix(elem, ">")
	}
	of, ok := scalar(elem)
	if known := list && ok || shape == "vector"; !known {
		return unknown
	}
	digits, closed := strings.CutSuffix(rest, ")")
	n, err := strconv.Atoi(digits)
	switch {
	case !closed || err != nil || strconv.Itoa(n) != digits:
		return fault.New(fault.Invalid, "type %q has no length", clip(name)).WithHint("Write list<int64>(100) for at most 100 elements, or vector(384) for exactly 384.")
	case n < 1 || n > MaxLength:
		return fault.New(fault.Invalid, "the length of type %q must be between 1 and %d", clip(name), MaxLength)
	case list:
		*t = ListOf(of, n)
	default:
		*t = VectorOf(n)
	}
	return nil
}

// scalar finds a scalar by its name.
func scalar(name string) (Type, bool) {
	for i, n := range typeNames {
		if i > 0 && n == name {
			return Type(i), true
		}
	}
	return 0, false
}
