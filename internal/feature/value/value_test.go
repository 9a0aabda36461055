package value

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/dataset/valuetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

func draw(t *rapid.T, typ Type) Value {
	if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
		return Null(typ)
	}
	if !typ.Scalar() {
		n := typ.Length()
		if typ.IsList() {
			n = rapid.IntRange(0, n).Draw(t, "length")
		}
		elements := make([]Value, n)
		for i := range elements {
			for elements[i] = Null(typ.Elem()); elements[i].IsNull(); {
				elements[i] = draw(t, typ.Elem())
			}
		}
		list, err := OfList(typ, elements)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	switch typ {
	case Int32:
		return OfInt32(rapid.Int32().Draw(t, "int"))
	case Float32:
		return OfFloat32(math.Float32frombits(rapid.Uint32().Draw(t, "float")))
	case Int64:
		return OfInt(rapid.Int64().Draw(t, "int"))
	case Float64:
		return OfFloat(math.Float64frombits(rapid.Uint64().Draw(t, "float")))
	case Bool:
		return OfBool(rapid.Bool().Draw(t, "bool"))
	case Timestamp:
		return OfMicros(rapid.Int64Range(MinInstant, MaxInstant).Draw(t, "micros"))
	default:
		return OfString(string(rapid.SliceOf(rapid.Byte()).Draw(t, "string")))
	}
}

func drawRow(t *rapid.T) []Value {
	types := rapid.SliceOfN(rapid.Map(rapid.IntRange(1, 18), func(i int) Type { return kind(byte(i)) }), 0, 20).Draw(t, "types")
	row := make([]Value, len(types))
	for i, typ := range types {
		row[i] = draw(t, typ)
	}
	return row
}

// kind is the type that a byte stands for: the scalars, lists of each, vectors.
func kind(b byte) Type {
	switch {
	case b <= byte(Float32):
		return Type(b)
	case b <= 2*byte(Float32):
		return ListOf(Type(b-byte(Float32)), int(b%4)+1)
	default:
		return VectorOf(int(b%8) + 1)
	}
}

var equal = cmp.Comparer(func(a, b Value) bool { return a.Equal(b) })

func TestRowRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := drawRow(t)
		packed, err := AppendRow([]byte("before"), row)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]Value, len(row))
		if err := DecodeRow(packed[len("before"):], Types(row), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(row, got, equal); diff != "" {
			t.Fatal(diff)
		}
	})
}

// A decoded row encodes to the very bytes it came from: nothing else is
// accepted.
func FuzzDecodeRow(f *testing.F) {
	row := []Value{OfInt(-1), OfFloat(1.5), OfString("EWR"), OfBool(true), OfMicros(1), Null(String)}
	packed, err := AppendRow(nil, row)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed, []byte{1, 2, 3, 4, 5, 3})
	vector, err := OfFloats(kind(18), []float32{1, 2, 3})
	if err != nil {
		f.Fatal(err)
	}
	words, err := OfList(kind(10), []Value{OfString("a"), OfString("")})
	if err != nil {
		f.Fatal(err)
	}
	if packed, err = AppendRow(nil, []Value{OfInt32(-1), OfFloat32(0.1), vector, words}); err != nil {
		f.Fatal(err)
	}
	f.Add(packed, []byte{6, 7, 18, 10})
	f.Add([]byte{1, 0}, []byte{})
	f.Add([]byte{1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{3})
	f.Fuzz(func(t *testing.T, packed, kinds []byte) {
		types := make([]Type, len(kinds))
		for i, k := range kinds {
			types[i] = kind(k)
		}
		out := make([]Value, len(types))
		if DecodeRow(packed, types, out) != nil {
			return
		}
		if len(types) > MaxFeatures || len(packed) > MaxRow {
			return // AppendRow refuses these
		}
		again, err := AppendRow(nil, out)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, packed) {
			t.Errorf("%x decodes, and encodes to %x", packed, again)
		}
	})
}

// No row holds an instant that JSON cannot say, alone or in a list.
func TestInstantsOutsideTheYears(t *testing.T) {
	for _, c := range []struct {
		micros int64
		ok     bool
	}{{MinInstant, true}, {MaxInstant, true}, {MinInstant - 1, false}, {MaxInstant + 1, false}, {math.MinInt64, false}, {math.MaxInt64, false}} {
		v := OfMicros(c.micros)
		if _, err := AppendRow(nil, []Value{v}); (err == nil) != c.ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("a row with %d: %v", c.micros, err)
		}
		if _, err := OfList(ListOf(Timestamp, 2), []Value{OfMicros(0), v}); (err == nil) != c.ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("a list with %d: %v", c.micros, err)
		}
		packed, err := AppendRow(nil, []Value{OfInt(c.micros)})
		if err != nil {
			t.Fatal(err)
		}
		if err := DecodeRow(packed, []Type{Timestamp}, make([]Value, 1)); (err == nil) != c.ok {
			t.Errorf("the stored bytes of %d: %v", c.micros, err)
		}
	}
}

func TestRowLimits(t *testing.T) {
	if _, err := AppendRow(nil, make([]Value, MaxFeatures+1)); !fault.Is(err, fault.TooLarge) {
		t.Errorf("too many features: %v", err)
	}
	if _, err := AppendRow(nil, []Value{OfString(strings.Repeat("x", MaxString+1))}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("too long a string: %v", err)
	}
	var row []Value
	for range 17 {
		row = append(row, OfString(strings.Repeat("x", MaxString)))
	}
	if _, err := AppendRow(nil, row); !fault.Is(err, fault.TooLarge) {
		t.Errorf("too large a row: %v", err)
	}
}

// Different lists of values have different keys, whatever is in the strings.
func TestKeysIdentify(t *testing.T) {
	key := func(row []Value) string {
		var b []byte
		for _, v := range row {
			b = AppendKey(b, v)
		}
		return string(b)
	}
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[ab\x00-\x05]{0,3}`), 1, 3)
		list := func(what string) (row []Value) {
			for _, s := range texts.Draw(t, what) {
				row = append(row, OfString(s))
			}
			return row
		}
		a, b := list("a"), list("b")
		if same := cmp.Equal(a, b, equal); (key(a) == key(b)) != same {
			t.Fatalf("%v and %v: keys %x and %x", a, b, key(a), key(b))
		}
	})
	if key([]Value{OfInt(1)}) == key([]Value{OfMicros(1)}) {
		t.Error("an int64 and a timestamp have the same key")
	}
}

func TestJSON(t *testing.T) {
	at := time.Date(2013, 1, 1, 10, 0, 0, 5000, time.UTC)
	for _, c := range []struct {
		value Value
		want  string
	}{
		{OfInt(1 << 62), `4611686018427387904`},
		{OfInt32(-1 << 31), `-2147483648`},
		{OfFloat32(0.1), `0.1`},
		{OfFloat32(16777216), `1.6777216e+07`},
		{OfFloat32(float32(math.Inf(1))), `"Infinity"`},
		{must(OfList(ListOf(String, 3), []Value{OfString("a"), OfString(`"`)})), `["a","\""]`},
		{must(OfList(ListOf(Timestamp, 1), []Value{OfTime(at)})), `["2013-01-01T10:00:00.000005Z"]`},
		{must(OfList(ListOf(Bool, 1), nil)), `[]`},
		{must(OfFloats(VectorOf(2), []float32{0.1, float32(math.NaN())})), `[0.1,"NaN"]`},
		{Null(VectorOf(2)), `null`},
		{OfFloat(3), `3.0`},
		{OfFloat(1e300), `1e+300`},
		{OfFloat(math.NaN()), `"NaN"`},
		{OfFloat(math.Inf(-1)), `"-Infinity"`},
		{OfString(`a"b`), `"a\"b"`},
		{OfBool(true), `true`},
		{OfTime(at), `"2013-01-01T10:00:00.000005Z"`},
		{Null(Float64), `null`},
	} {
		b, err := json.Marshal(c.value)
		if err != nil || string(b) != c.want {
			t.Errorf("%v: %s %v, want %s", c.value, b, err, c.want)
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		var x any
		if err := d.Decode(&x); err != nil {
			t.Fatal(err)
		}
		back, err := Parse(c.value.Type(), x)
		if err != nil || !back.Equal(c.value) {
			t.Errorf("%s reads as %v %v, want %v", b, back, err, c.value)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		typ  Type
		in   any
		want string
	}{
		{Int64, json.Number("1.5"), "1.5 is not an int64"},
		{Int64, 1e300, "1e+300 is not an int64"},
		{Int64, "1", `"1" is not an int64`},
		{Int32, json.Number("2147483648"), "2147483648 is not an int32"},
		{Int32, int64(-1 << 32), "-4294967296 is not an int32"},
		{Float32, json.Number("1e39"), "1e39 is not a float32"},
		{Float32, int64(1<<24 + 1), "16777217 is not a float32"},
		{VectorOf(2), []any{1.0}, "a vector has 1 dimensions instead of the 2 of vector(2)"},
		{VectorOf(1), []any{nil}, "element 1: this is not a float32"},
		{VectorOf(1), json.Number("1"), "1 is not a vector(1)"},
		{ListOf(Int64, 1), []any{json.Number("1"), json.Number("2")}, "a list has 2 elements, over the 1 of list<int64>(1)"},
		{ListOf(Int64, 2), []any{json.Number("1"), "2"}, `element 2: "2" is not an int64`},
		{String, json.Number("1"), "1 is not a string"},
		{Bool, "true", `"true" is not a bool`},
		{Timestamp, "yesterday", `"yesterday" is not a timestamp of the years 1 to 9999 such as 2013-01-01T10:00:00Z`},
		{Timestamp, "0000-12-31T23:59:59Z", `"0000-12-31T23:59:59Z" is not a timestamp of the years 1 to 9999 such as 2013-01-01T10:00:00Z`},
		{Timestamp, "9999-12-31T23:59:59-01:00", `"9999-12-31T23:59:59-01:00" is not a timestamp of the years 1 to 9999 such as 2013-01-01T10:00:00Z`},
		{Timestamp, time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), "this is not a timestamp of the years 1 to 9999 such as 2013-01-01T10:00:00Z"},
		{Int64, float64(1 << 53), "9.007199254740992e+15 is not an int64"},
		{Float64, []any{1}, "a list is not a float64"},
	} {
		if _, err := Parse(c.typ, c.in); err == nil || err.Error() != c.want || !fault.Is(err, fault.Invalid) {
			t.Errorf("Parse(%s, %v) = %v, want %s", c.typ, c.in, err, c.want)
		}
	}
}

func must(v Value, err error) Value {
	if err != nil {
		panic(err)
	}
	return v
}

// Types are written one way, and nothing else is read.
func TestTypeNames(t *testing.T) {
	for _, name := range append(Names(), "list<int64>(1)", "list<string>(16384)", "vector(384)", "list<float32>(12)") {
		var typ Type
		if err := typ.UnmarshalText([]byte(name)); err != nil || !typ.Valid() || typ.String() != name {
			t.Errorf("%s reads as %s, %v", name, typ, err)
		}
	}
	for name, want := range map[string]string{
		"int": "unknown type", "list<int64>": "has no length", "vector": "has no length", "vector(0)": "must be between",
		"vector(16385)": "must be between", "vector(03)": "has no length", "list<vector(3)>(2)": "unknown type", "list<>(2)": "unknown type",
		"list<int64(2)": "unknown type", "vector(3)x": "has no length", "float32(3)": "unknown type", "": "unknown type",
	} {
		var typ Type
		if err := typ.UnmarshalText([]byte(name)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q reads as %s, %v, want %s", name, typ, err, want)
		}
	}
	for _, typ := range []Type{0, Float32 + 1, ListOf(Int64, 0), VectorOf(MaxLength + 1), Int64 | shapeVec | 3<<lengthBits, Int64 | 3<<lengthBits} {
		if typ.Valid() {
			t.Errorf("%x is valid", uint32(typ))
		}
	}
}

// Rows that an earlier release wrote are read, and written, as they were.
func TestFirstFormat(t *testing.T) {
	row := []Value{OfInt(-1), OfFloat(1.5), OfString("EWR"), OfBool(true), OfMicros(1)}
	packed, err := AppendRow(nil, row)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(packed); got != "010500ffffffffffffffff000000000000f83f03455752010100000000000000" {
		t.Errorf("a row is written as %s", got)
	}
	if packed[0] = typedFormat; DecodeRow(packed, Types(row), make([]Value, len(row))) == nil {
		t.Error("a row has two forms")
	}
	if packed, err = AppendRow(nil, append(row, Null(VectorOf(3)))); err != nil || packed[0] != typedFormat {
		t.Errorf("a row with a vector begins with %d, %v", packed[0], err)
	}
}

// A push takes every number as what it is, as the float64 nearest to it, or refuses it.
func TestParseNumbers(t *testing.T) {
	for _, n := range valuetest.Numbers(3) {
		whole, err := Parse(Int64, json.Number(n.Text))
		if err == nil {
			if wrong := valuetest.Wrong(n, whole.Int()); wrong != "" {
				t.Error(wrong)
			}
		}
		f, err := Parse(Float64, json.Number(n.Text))
		if nearest, _ := n.Exact.Float64(); err != nil || f.Float() != nearest {
			t.Errorf("%s as float64: %v, %v, want %v", n.Text, f, err, nearest)
		}
	}
}
