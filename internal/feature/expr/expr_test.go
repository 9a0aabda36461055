package expr

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

var variables = []Variable{
	{"i", value.Int64, 0},
	{"f", value.Float64, 1},
	{"s", value.String, 2},
	{"b", value.Bool, 3},
	{"t", value.Timestamp, 4},
	{"none", value.Float64, 5},
	{"weather__f", value.Float64, 1},
	{"not-a-name", value.Int64, 0},
	{"in", value.Int64, 0},
	{"noon", value.Timestamp, 6},
}

// half is 2013-01-01T10:30:00.000001Z.
const half = 1357036200_000001

func row() []value.Value {
	return []value.Value{
		value.OfInt(7), value.OfFloat(2.5), value.OfString("café"), value.OfBool(true), value.OfMicros(half),
		value.Null(value.Float64), value.Null(value.Timestamp),
	}
}

func TestEval(t *testing.T) {
	null := value.Value{}
	for _, c := range []struct {
		source string
		typ    value.Type
		want   value.Value
		is     Outcome
	}{
		{"f * 2.0 + double(i)", value.Float64, value.OfFloat(12), Computed},
		{"weather__f", value.Float64, value.OfFloat(2.5), Computed},
		{"i / 2 + i % 2", value.Int64, value.OfInt(4), Computed},
		{"int(f)", value.Int64, value.OfInt(2), Computed},
		{"s + '!'", value.String, value.OfString("café!"), Computed},
		{"size(s)", value.Int64, value.OfInt(4), Computed},
		{"s.startsWith('ca') && !b", value.Bool, value.OfBool(false), Computed},
		{"s.matches('^c.f') ? 'yes' : 'no'", value.String, value.OfString("yes"), Computed},
		{"s in ['tea', 'café']", value.Bool, value.OfBool(true), Computed},
		{"t + duration('90m')", value.Timestamp, value.OfMicros(half + 90*60*1e6), Computed},
		{"(t - timestamp('2013-01-01T00:00:00Z')).getHours()", value.Int64, value.OfInt(10), Computed},
		{"duration('1h30m1.5s').getMinutes()", value.Int64, value.OfInt(90), Computed},
		{"duration('1h30m1.5s').getSeconds()", value.Int64, value.OfInt(5401), Computed},
		{"duration('1h30m1.5s').getMilliseconds()", value.Int64, value.OfInt(5_401_500), Computed},
		{"int(timestamp('1970-01-01T00:01:00Z'))", value.Int64, value.OfInt(60), Computed},
		{"timestamp('2013-01-01T10:00:00+04:00').getHours()", value.Int64, value.OfInt(6), Computed},
		{"t.getDayOfWeek()", value.Int64, value.OfInt(2), Computed},
		{"math.hypot(3.0, 4.0) + math.exp(0.0) + math.abs(-1.0)", value.Float64, value.OfFloat(7), Computed},
		{"math.least(f, 1.0)", value.Float64, value.OfFloat(1), Computed},
		{"math.argmax([1.0, f, 2.5])", value.Int64, value.OfInt(1), Computed},
		{"math.argmax([0.0/0.0, -1.0])", value.Int64, value.OfInt(1), Computed},
		{"math.softmax([f, f, f, f])[3]", value.Float64, value.OfFloat(0.25), Computed},
		{"math.softmax([1000.0, 0.0])[0]", value.Float64, value.OfFloat(1), Computed},
		{"math.argmax([none, f])", value.Int64, null, Null},
		{"math.softmax([f, f])[2]", value.Float64, null, Failed},
		{"math.log(0.0)", value.Float64, value.OfFloat(math.Inf(-1)), Computed},
		{"0.0 / 0.0", value.Float64, value.OfFloat(math.NaN()), Computed},

		// Nulls.
		{"none", value.Float64, null, Null},
		{"none + f", value.Float64, null, Null},
		{"none == null", value.Bool, value.OfBool(true), Computed},
		{"f == null", value.Bool, value.OfBool(false), Computed},
		{"none == 1.0", value.Bool, value.OfBool(false), Computed},
		{"none < 1.0", value.Bool, null, Null},
		{"none < 1.0 || b", value.Bool, value.OfBool(true), Computed},
		{"none < 1.0 && b", value.Bool, null, Null},
		{"coalesce(none, f)", value.Float64, value.OfFloat(2.5), Computed},
		{"coalesce(none, 0.0) + 1.0", value.Float64, value.OfFloat(1), Computed},
		{"coalesce(f, none)", value.Float64, value.OfFloat(2.5), Computed},
		{"coalesce(s, 'x') + coalesce(s, 'y') + string(i) + (b ? string(f) : s)", value.String, value.OfString("cafécafé72.5"), Computed},
		{"(b ? s : null) + (b ? 'x' : s)", value.String, value.OfString("caféx"), Computed},
		{"coalesce(none, none)", value.Float64, null, Null},
		{"coalesce(noon, t)", value.Timestamp, value.OfMicros(half), Computed},
		{"noon == null ? -1 : noon.getHours()", value.Int64, value.OfInt(-1), Computed},
		{"noon + duration('1h')", value.Timestamp, null, Null},
		{"b ? none : f", value.Float64, null, Null},
		{"!b ? f : null", value.Float64, null, Null},
		{"i > 100 ? none : f", value.Float64, value.OfFloat(2.5), Computed},

		// What cannot be computed.
		{"i / (i - 7)", value.Int64, null, Failed},
		{"i + 9223372036854775807", value.Int64, null, Failed},
		{"int(s)", value.Int64, null, Failed},
		{"int(f * 1e300)", value.Int64, null, Failed},
		{"timestamp(s)", value.Timestamp, null, Failed},
		{"t + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h') + duration('2000000h')", value.Timestamp, null, Failed},
	} {
		p, err := Compile(c.source, c.typ, variables)
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		if c.want.Type() == 0 {
			c.want = value.Null(c.typ)
		}
		if got, is := p.Eval(row()); !got.Equal(c.want) || is != c.is {
			t.Errorf("%s is %s (%d), want %s (%d)", c.source, got, is, c.want, c.is)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	long := strings.Repeat("s + ", 100) + "s"
	for _, c := range []struct {
		source string
		typ    value.Type
		words  string
	}{
		{"", value.Int64, "empty"},
		{strings.Repeat(" ", MaxSource) + "1", value.Int64, "limit of 4096"},
		{"f +", value.Float64, "line 1, column 4: "},
		{"1 +\n tmp", value.Int64, "line 2, column 2: undeclared reference to 'tmp'"},
		{"f + i", value.Float64, "line 1, column 3: found no matching overload"},
		{"f", value.Int64, "its value is float64, not int64"},
		{"i", value.Float64, "its value is int64, not float64"},
		{"[1, 2]", value.Int64, "its value is list<int64>, not int64"},
		{"null", value.Int64, "not int64"},
		{"b ? null : f", value.Float64, "its value is null_type"},
		{"in + 1", value.Int64, "line 1"},
		{"dyn(f)", value.Float64, "undeclared reference"},
		{"[i, f][0]", value.Int64, "its value is dyn"},
		{"[1, 2, 3].exists(x, x == i)", value.Bool, "undeclared reference"},
		{"t.getHours('Asia/Dubai')", value.Int64, "no matching overload"},
		{"t.getMilliseconds('+04:00')", value.Int64, "no matching overload"},
		{"now()", value.Timestamp, "undeclared reference"},
		{"s.matches('(')", value.Bool, "error parsing regexp"},
		{"size(" + long + ")", value.Int64, "steps"},
		{strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300), value.Int64, "recursion"},
	} {
		_, err := Compile(c.source, c.typ, variables)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%.40s: error %v, want %q", c.source, err, c.words)
		}
	}
	_, err := Compile("tmp", value.Int64, variables)
	at, ok := errors.AsType[*Error](err)
	if !ok || at.Line != 1 || at.Column != 1 || !strings.Contains(fault.HintOf(err), "The available names are i, f, s, b, t, none, weather__f, noon.") {
		t.Errorf("error %#v, hint %q", err, fault.HintOf(err))
	}
}

// Texts are bounded where they go in and come out: what a program may cost was
// computed for such.
func TestTextsAreBounded(t *testing.T) {
	r := row()
	p, err := Compile("s + s", value.String, variables)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]Outcome{MaxText/2 - 1: Computed, MaxText/2 + 1: Failed, MaxText + 1: Failed} {
		r[2] = value.OfString(strings.Repeat("x", n))
		if got, is := p.Eval(r); is != want || got.IsNull() != (want == Failed) {
			t.Errorf("texts of %d bytes: outcome %d, want %d", n, is, want)
		}
	}
}

func TestInfer(t *testing.T) {
	for source, want := range map[string]value.Type{
		"f + 1.0": value.Float64, "i": value.Int64, "s + s": value.String, "i > 1": value.Bool, "none": value.Float64, "b ? f : null": value.Float64,
	} {
		p, err := Infer(source, variables)
		if err != nil || p.Result() != want {
			t.Errorf("%s: %v, %v", source, p, err)
		}
	}
	for source, words := range map[string]string{"[f]": "its value is list<float64>", "t": "its value is timestamp", "null": "null_type", "tmp": "undeclared"} {
		if _, err := Infer(source, variables); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", source, err)
		}
	}
}

func TestUses(t *testing.T) {
	p, err := Compile("s == 'x' ? f + weather__f : double(i)", value.Float64, variables)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Uses(); len(got) != 3 || got[0] != 0 || got[1] != 1 || got[2] != 2 {
		t.Errorf("it uses %v", got)
	}
}

// FuzzExpression: whatever compiles can be evaluated, gives the same twice, and a
// value of its type.
func FuzzExpression(f *testing.F) {
	for _, seed := range []string{
		"f * 2.0 + double(i)", "s + '!'", "b ? i / 0 : 1", "coalesce(none, f)", "t + duration('90m')", "timestamp(s)", "s.matches(s)", "'' in ['']",
		"{'a': 1}['a']", "-(-9223372036854775808)", "[i][i]", "b'x'", "1u", "math.round(f)", "string(t)", "duration(s) > duration('1s')", "true ? null : f",
		"math.bitShiftLeft(i, i)", "math.argmax([f, 1.0])", "math.softmax([f])[i]", "\"\\u0000\"", "s[0]", "optional.none()", "has(s.x)", "i.f",
	} {
		f.Add(seed, int64(1), 0.5, "x", true)
	}
	f.Fuzz(func(t *testing.T, source string, i int64, x float64, s string, b bool) {
		for _, typ := range []value.Type{value.Int64, value.Float64, value.String, value.Bool, value.Timestamp} {
			p, err := Compile(source, typ, variables)
			if err != nil {
				continue
			}
			full := []value.Value{
				value.OfInt(i), value.OfFloat(x), value.OfString(s), value.OfBool(b), value.OfMicros(i), value.Null(value.Float64), value.Null(value.Timestamp),
			}
			empty := make([]value.Value, len(full))
			for n, v := range full {
				empty[n] = value.Null(v.Type())
			}
			for _, r := range [][]value.Value{full, empty} {
				v, is := p.Eval(r)
				again, was := p.Eval(r)
				if !v.Equal(again) || is != was {
					t.Errorf("%s is %s and then %s", source, v, again)
				}
				if v.Type() != typ || v.IsNull() != (is != Computed) {
					t.Errorf("%s is %s of type %s with outcome %d, want a %s", source, v, v.Type(), is, typ)
				}
			}
		}
	})
}

func BenchmarkEval(b *testing.B) {
	for name, source := range map[string]string{
		"arithmetic": "f * 1.8 + 32.0 - double(i) / 2.0",
		"null":       "coalesce(none, 0.0) + f",
		"failed":     "double(i / (i - 7))",
		"haversine":  "2.0 * 6371.0 * math.asin(math.sqrt(math.pow(math.sin((f - 1.5) / 2.0), 2.0) + math.cos(f) * math.cos(1.5) * math.pow(math.sin((f - 2.0) / 2.0), 2.0)))",
	} {
		b.Run(name, func(b *testing.B) {
			p, err := Compile(source, value.Float64, variables)
			if err != nil {
				b.Fatal(err)
			}
			r := row()
			b.ReportAllocs()
			for b.Loop() {
				p.Eval(r)
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile("f * 1.8 + 32.0 - double(i) / 2.0", value.Float64, variables); err != nil {
			b.Fatal(err)
		}
	}
}
