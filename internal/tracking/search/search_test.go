package search

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
)

var grammar = Grammar{
	Attributes: map[string]Column{
		"name":       {Name: "name", List: true, Filter: true, Sort: true},
		"start_time": {Name: "start_time", Numeric: true, Filter: true, Sort: true},
		"Created":    {Name: "start_time", Numeric: true, Filter: true, Sort: true},
	},
	Entities: []Entity{Metric, Param, Tag, Dataset},
	Nulls:    true,
}

func TestParse(t *testing.T) {
	tests := []struct {
		in   string
		want []Comparison
	}{
		{"", nil},
		{"metrics.a > 1 and ", []Comparison{{Entity: Metric, Key: "a", Op: Greater, Number: 1}}},
		{"AND name = 'x' and AND metrics.'a ''b' > 1", []Comparison{{Entity: Attribute, Key: "name", Op: Equal, Text: "x"}, {Entity: Metric, Key: "a 'b", Op: Greater, Number: 1}}},
		{"and", nil},
		{"name='x'", []Comparison{{Entity: Attribute, Key: "name", Op: Equal, Text: "x"}}},
		{`attr."name" != "it's"`, []Comparison{{Entity: Attribute, Key: "name", Op: NotEqual, Text: "it's"}}},
		{"`run`.name = 'it''s'", []Comparison{{Entity: Attribute, Key: "name", Op: Equal, Text: "it's"}}},
		{"Created>=1e3 AND metrics.a/b-c.d<-.5", []Comparison{{Entity: Attribute, Key: "start_time", Op: AtLeast, Number: 1000}, {Entity: Metric, Key: "a/b-c.d", Op: Less, Number: -0.5}}},
		{"params.`a b``c` LIKE '%x_' and Tags.x = 'y'", nil},
		{"params.`a b``c` LIKE '%x_' aNd tags.x ilike ''", []Comparison{{Entity: Param, Key: "a b`c", Op: Like, Text: "%x_"}, {Entity: Tag, Key: "x", Op: ILike}}},
		{"name not in ( 'a' ,'b' )", []Comparison{{Entity: Attribute, Key: "name", Op: NotIn, List: []string{"a", "b"}}}},
		{`name IN ("it's", 'b')`, []Comparison{{Entity: Attribute, Key: "name", Op: In, List: []string{"it's", "b"}}}},
		{"name IN ('a',) AND name = 'b'", []Comparison{{Entity: Attribute, Key: "name", Op: In, List: []string{"a"}}, {Entity: Attribute, Key: "name", Op: Equal, Text: "b"}}}, // a tuple of Python
		{"dataset.context IN ('train')", []Comparison{{Entity: Dataset, Key: "context", Op: In, List: []string{"train"}}}},
		{"params.x IS NULL AND tag.y is not null", []Comparison{{Entity: Param, Key: "x", Op: IsNull}, {Entity: Tag, Key: "y", Op: IsNotNull}}},
	}
	for _, tt := range tests {
		got, err := grammar.Parse(tt.in)
		if tt.in == "params.`a b``c` LIKE '%x_' and Tags.x = 'y'" {
			if !fault.Is(err, fault.Invalid) { // entities are case-sensitive
				t.Errorf("%s: %v %v", tt.in, got, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.in, diff)
		}
	}
	for _, bad := range []string{
		"name", "name =", "= 'x'", "name = x", "name = 'x' name = 'y'", "name = 'x' OR name = 'y'", "(name = 'x')", "NOT name = 'x'", "name = 'x", " ", "\n\t", "'metrics'.a = 1",
		"name IN ()", "name IN (,)", "name IN ('a',,)", "name IN ('a'", "name IN ('a',", "name IN ('a' 'b')", "name IN (`a`)", "name IN (a)", "name IN 'a'", "name IN (1)", "metrics.a = 'x'", "metrics.a IN (1)", "metrics.a LIKE 'x'", "metrics.a = 1.2.3",
		"params.a > 'x'", "params.a = 5", "name NOT LIKE 'x'", "name IS 'x'", "other = 'x'", "foo.bar = 'x'", "dataset.source = 'x'", "name ! 'x'", "name == 'x'", "metrics. > 1", ".a = 'x'",
		"name = 'x'; DROP TABLE t", "start_time = '5'", "metrics.a > 1e999", strings.Repeat("name = 'x' AND ", 70) + "name = 'x'", strings.Repeat("x", MaxFilter+1),
	} {
		if got, err := grammar.Parse(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.60s: %v %v", bad, got, err)
		}
	}
}

func TestParseOrder(t *testing.T) {
	got, err := grammar.ParseOrder([]string{"metrics.`a b` DESC", "Created", "params.x asc"})
	want := []Order{{Metric, "a b", true}, {Attribute, "start_time", false}, {Param, "x", false}}
	if err != nil || cmp.Diff(want, got) != "" {
		t.Fatalf("%v %v", got, err)
	}
	for _, bad := range [][]string{{""}, {"name; DROP"}, {"name DESC ASC"}, {"name UP"}, {"nope"}, {"dataset.name"}, {"name", "name DESC"}, make([]string, 17), {"'name'"}} {
		if got, err := grammar.ParseOrder(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v %v", bad, got, err)
		}
	}
}

// TestLikeIsGlob compares the GLOB pattern with LIKE's meaning, by translating
// both to regular expressions.
func TestLikeIsGlob(t *testing.T) {
	alphabet := rapid.StringOfN(rapid.RuneFrom([]rune(`ab%_*?[]\^-é`)), 0, 6, -1)
	likeRE := func(p string) *regexp.Regexp {
		var b strings.Builder
		for _, r := range p {
			switch r {
			case '%':
				b.WriteString("(?s:.*)")
			case '_':
				b.WriteString("(?s:.)")
			default:
				b.WriteString(regexp.QuoteMeta(string(r)))
			}
		}
		return regexp.MustCompile("^" + b.String() + "$")
	}
	globRE := func(p string) *regexp.Regexp {
		var b strings.Builder
		runes := []rune(p)
		for i := 0; i < len(runes); i++ {
			switch runes[i] {
			case '*':
				b.WriteString("(?s:.*)")
			case '?':
				b.WriteString("(?s:.)")
			case '[': // glob writes one character between brackets
				b.WriteString(regexp.QuoteMeta(string(runes[i+1])))
				i += 2
			default:
				b.WriteString(regexp.QuoteMeta(string(runes[i])))
			}
		}
		return regexp.MustCompile("^" + b.String() + "$")
	}
	rapid.Check(t, func(rt *rapid.T) {
		pattern, text := alphabet.Draw(rt, "pattern"), alphabet.Draw(rt, "text")
		if likeRE(pattern).MatchString(text) != globRE(glob(pattern)).MatchString(text) {
			rt.Fatalf("LIKE %q and GLOB %q differ on %q", pattern, glob(pattern), text)
		}
	})
}

func TestTokens(t *testing.T) {
	for _, n := range []int{1, 7, 1000} {
		if got, err := Offset(Token(n)); got != n || err != nil {
			t.Errorf("%d became %d %v", n, got, err)
		}
	}
	if got, err := Offset(""); got != 0 || err != nil {
		t.Error(got, err)
	}
	for _, bad := range []string{"!", "AAAA", "eyJvZmZzZXQiOi0xfQ==", "eyJvZmZzZXQiOjk5OTk5OTk5OTk5OX0=", "e30="} {
		if got, err := Offset(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %d %v", bad, got, err)
		}
	}
}

// FuzzParse holds that every filter is refused with fault.Invalid or becomes
// comparisons whose SQL has as many placeholders as arguments and none of the
// filter's text.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"name = 'x'", "metrics.`a b` > 1 AND params.x IS NULL", "name IN ('a','b')", "tags.a ILIKE '%'", "a.b.c = \"d\"", "'", "`", "--", "/*", "name = '?'", "params.? = 'x'", "x\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, filter string) {
		comparisons, err := grammar.Parse(filter)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		for _, c := range comparisons {
			for _, sqlite := range []bool{true, false} {
				numeric := c.Entity == Metric || c.Key == "start_time"
				sql, args := Where(c, "x.value", numeric, sqlite)
				if strings.Count(sql, "?") != len(args) {
					t.Fatalf("%q: %s with %d arguments", filter, sql, len(args))
				}
				if strings.ContainsAny(strings.ReplaceAll(sql, "ESCAPE ''", ""), "'\"`;") {
					t.Fatalf("%q: %s", filter, sql)
				}
			}
			if math.IsInf(c.Number, 0) || math.IsNaN(c.Number) {
				t.Fatalf("%q: number %v", filter, c.Number)
			}
		}
	})
}
