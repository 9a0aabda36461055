// Package table keeps record batches as immutable tables: Parquet data files,
// sealed or open, under Apache Iceberg v2 metadata with stable field IDs.
//
// # Map
//
//   - Schema, Field, Type: the column types that Falaj keeps, and what they are in
//     Arrow, Parquet and Iceberg.
//   - Normalize brings the columns that files and engines give to those types, or
//     refuses with the reason.
//   - FileWriter and OpenFile write and read one data file; a Seal encrypts it
//     with Parquet's modular encryption.
//   - WriteManifest, WriteManifestList and WriteMetadata describe tables to other
//     Iceberg readers; commit.go says what those who write want of one.
//
// # Guarantees
//
// What was written is what is read: types, nulls, NaN, field IDs. A sealed file
// opens with its own key and name only; one that was changed, cut or swapped for
// another is an error. Descriptions of tables hold no values of the data.
package table

import (
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Type of a column.
type Type string

// The scalars. Timestamps are UTC to the microsecond; dates are days. A column may
// also hold lists of one of them (ListOf) but dates, none of whose elements is null.
const (
	String    Type = "string"
	Int32     Type = "int32"
	Int64     Type = "int64"
	Float32   Type = "float32"
	Float64   Type = "float64"
	Bool      Type = "bool"
	Timestamp Type = "timestamp"
	Date      Type = "date"
)

// The instants and days that tables keep are those of the years 1 to 9999: what every client
// can read, and what JSON's times can say.
const (
	MinInstant = -62_135_596_800_000_000 // 0001-01-01T00:00:00Z, in microseconds since 1970
	MaxInstant = 253_402_300_799_999_999 // 9999-12-31T23:59:59.999999Z
	MinDay     = -719_162                // 0001-01-01, in days since 1970
	MaxDay     = 2_932_896               // 9999-12-31
)

// WrongYear is what is said of an instant or a day outside them.
const WrongYear = "the year is outside 1 to 9999"

// Types lists the scalars, in the order of the documentation.
func Types() []Type { return []Type{String, Int32, Int64, Float32, Float64, Bool, Timestamp, Date} }

var arrowTypes = map[Type]arrow.DataType{
	String:    arrow.BinaryTypes.String,
	Int32:     arrow.PrimitiveTypes.Int32,
	Int64:     arrow.PrimitiveTypes.Int64,
	Float32:   arrow.PrimitiveTypes.Float32,
	Float64:   arrow.PrimitiveTypes.Float64,
	Bool:      arrow.FixedWidthTypes.Boolean,
	Timestamp: arrow.FixedWidthTypes.Timestamp_us,
	Date:      arrow.FixedWidthTypes.Date32,
}

func init() {
	for _, t := range Types() {
		if t != Date {
			arrowTypes[ListOf(t)] = arrow.ListOf(t.Arrow())
		}
	}
}

// ListOf is the type of lists of a scalar: "list<int64>".
func ListOf(t Type) Type { return "list<" + t + ">" }

// Elem is the type of the elements of a list; ok is false for a scalar.
func (t Type) Elem() (elem Type, ok bool) {
	inner, ok := strings.CutPrefix(string(t), "list<")
	return Type(strings.TrimSuffix(inner, ">")), ok
}

// Arrow is the type's Arrow type; nil for an unknown type.
func (t Type) Arrow() arrow.DataType { return arrowTypes[t] }

// Valid reports whether t is one of the types.
func (t Type) Valid() bool { return arrowTypes[t] != nil }

// Numeric reports whether values of the type have a mean.
func (t Type) Numeric() bool { return t.Integer() || t == Float32 || t == Float64 }

// Integer reports whether values of the type are whole numbers.
func (t Type) Integer() bool { return t == Int32 || t == Int64 }

// Wider is the type of two that holds the values of both: of int32 and int64
// int64, of float32 and float64 float64. ok is false for types that have none.
func Wider(a, b Type) (t Type, ok bool) {
	switch {
	case a == b:
		return a, true
	case a.Integer() && b.Integer():
		return Int64, true
	case a.Numeric() && b.Numeric() && !a.Integer() && !b.Integer():
		return Float64, true
	}
	return "", false
}

// Continues checks that a dataset's new version keeps the columns of an earlier one: each
// exists, with a type that holds the values of both. Errors: fault.Conflict, which calls
// the new rows by their origin and the earlier ones by their version.
func (s Schema) Continues(was Schema, origin, version string) *fault.Error {
	for _, f := range was {
		now, ok := s.Column(f.Name)
		if !ok {
			return fault.New(fault.Conflict, "column %q does not exist in the %s, and exists in %s", f.Name, origin, version)
		}
		if _, ok := Wider(now.Type, f.Type); !ok {
			return fault.New(fault.Conflict, "column %q is %s in the %s and %s in %s", f.Name, now.Type, origin, f.Type, version)
		}
	}
	return nil
}

// TypeOf finds the type whose Arrow type is exactly dt.
func TypeOf(dt arrow.DataType) (Type, bool) {
	for t, a := range arrowTypes {
		if arrow.TypeEqual(a, dt) {
			return t, true
		}
	}
	return "", false
}

// Field is a column of a table. The ID is the column's identity across the
// versions of a dataset; 0 means none given yet. Element is that of a list's
// elements, as other engines have it.
type Field struct {
	ID      int    `json:"id"`
	Name    string `json:"name"`
	Type    Type   `json:"type"`
	Element int    `json:"element,omitempty"`
}

// Schema is a table's columns in order. Every column may hold nulls.
type Schema []Field

// fieldIDKey is how Parquet libraries for Arrow carry field IDs.
const fieldIDKey = "PARQUET:field_id"

// Arrow is the schema in Arrow, field IDs in the metadata of the fields.
func (s Schema) Arrow() *arrow.Schema {
	fields := make([]arrow.Field, len(s))
	for i, f := range s {
		fields[i] = arrow.Field{Name: f.Name, Type: f.Type.Arrow(), Nullable: true}
		if elem, list := f.Type.Elem(); list && f.Element > 0 {
			fields[i].Type = arrow.ListOfField(arrow.Field{
				Name: "element", Type: elem.Arrow(), Nullable: true,
				Metadata: arrow.NewMetadata([]string{fieldIDKey}, []string{strconv.Itoa(f.Element)}),
			})
		}
		if f.ID > 0 {
			fields[i].Metadata = arrow.NewMetadata([]string{fieldIDKey}, []string{strconv.Itoa(f.ID)})
		}
	}
	return arrow.NewSchema(fields, nil)
}

// Column finds a column by name.
func (s Schema) Column(name string) (Field, bool) {
	for _, f := range s {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}

// Names lists the columns' names in order.
func (s Schema) Names() []string {
	names := make([]string, len(s))
	for i, f := range s {
		names[i] = f.Name
	}
	return names
}

// Select is the part of the schema with these columns, in the order asked; all
// of it for none. An unknown or repeated name is fault.Invalid.
func (s Schema) Select(names []string) (Schema, error) {
	if len(names) == 0 {
		return s, nil
	}
	part := make(Schema, 0, len(names))
	for _, name := range names {
		f, ok := s.Column(name)
		if !ok {
			return nil, fault.New(fault.Invalid, "there is no column %q", name).WithHint("The columns are %s.", quoteList(s.Names()))
		}
		if _, twice := part.Column(name); twice {
			return nil, fault.New(fault.Invalid, "duplicate column %q", name)
		}
		part = append(part, f)
	}
	return part, nil
}

// FromArrow reads an Arrow schema whose types are already those kept; IDs are not
// taken over. Names are checked with CheckNames.
func FromArrow(a *arrow.Schema) (Schema, error) {
	s := make(Schema, a.NumFields())
	for i, f := range a.Fields() {
		t, ok := TypeOf(f.Type)
		if !ok {
			return nil, fault.New(fault.Invalid, "column %q has the type %s, which tables do not support", f.Name, f.Type).
				WithHint("Cast it to one of %s.", typeList())
		}
		s[i] = Field{Name: f.Name, Type: t}
	}
	return s, CheckNames(s.Names())
}

// typeList is the types for people.
func typeList() string {
	names := make([]string, 0, len(arrowTypes))
	for _, t := range Types() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ") + ", or a list of them"
}

func quoteList(names []string) string {
	const most = 30
	out := ""
	for i, n := range names {
		if i == most {
			return out + " and " + strconv.Itoa(len(names)-most) + " more"
		}
		if i > 0 {
			out += ", "
		}
		out += strconv.Quote(n)
	}
	return out
}
