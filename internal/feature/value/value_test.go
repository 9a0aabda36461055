package value

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

func draw(t *rapid.T, typ Type) Value {
	if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
		return Null(typ)
	}
	switch typ {
	case Int64:
		return OfInt(rapid.Int64().Draw(t, "int"))
	case Float64:
		return OfFloat(math.Float64frombits(rapid.Uint64().Draw(t, "float")))
	case Bool:
		return OfBool(rapid.Bool().Draw(t, "bool"))
	case Timestamp:
		return OfMicros(rapid.Int64().Draw(t, "micros"))
	default:
		return OfString(string(rapid.SliceOf(rapid.Byte()).Draw(t, "string")))
	}
}

func drawRow(t *rapid.T) []Value {
	types := rapid.SliceOfN(rapid.Map(rapid.IntRange(1, 5), func(i int) Type { return Type(i) }), 0, 20).Draw(t, "types")
	row := make([]Value, len(types))
	for i, typ := range types {
		row[i] = draw(t, typ)
	}
	return row
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
	f.Add([]byte{1, 0}, []byte{})
	f.Add([]byte{1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{3})
	f.Fuzz(func(t *testing.T, packed, kinds []byte) {
		types := make([]Type, len(kinds))
		for i, k := range kinds {
			types[i] = Type(k)
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
		{String, json.Number("1"), "1 is not a string"},
		{Bool, "true", `"true" is not a bool`},
		{Timestamp, "yesterday", `"yesterday" is not a timestamp such as 2013-01-01T10:00:00Z`},
		{Float64, []any{1}, "a list is not a float64"},
	} {
		if _, err := Parse(c.typ, c.in); err == nil || err.Error() != c.want || !fault.Is(err, fault.Invalid) {
			t.Errorf("Parse(%s, %v) = %v, want %s", c.typ, c.in, err, c.want)
		}
	}
}
