package parser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/fault"
)

// lines keeps what is parsed as text.
type lines struct{ out []string }

func (l *lines) Begin(s *arrow.Schema) error {
	var names []string
	for _, f := range s.Fields() {
		names = append(names, f.Name+" "+f.Type.String())
	}
	l.out = append(l.out, strings.Join(names, ", "))
	return nil
}

func (l *lines) Write(rec arrow.RecordBatch) error {
	for i := range int(rec.NumRows()) {
		var cells []string
		for c := range int(rec.NumCols()) {
			cell := "null"
			if !rec.Column(c).IsNull(i) {
				cell = rec.Column(c).ValueStr(i)
			}
			cells = append(cells, cell)
		}
		l.out = append(l.out, strings.Join(cells, "|"))
	}
	return nil
}

func TestJSON(t *testing.T) {
	for _, c := range []struct {
		name, in string
		req      Request
		want     string // or the words of the refusal
	}{
		{
			"types", `{"i": 1, "f": 1.5, "b": true, "s": "007", "t": "2024-01-01T00:00:00Z", "d": "2024-01-31", "n": {"x": [1, 2]}, "z": null}` + "\n" + `{"i": 2, "f": 2, "more": 3}`,
			Request{},
			"i int64, f float64, b bool, s utf8, t timestamp[us, tz=UTC], d date32, n utf8, z utf8, more int64\n1|1.5|true|007|2024-01-01T00:00:00Z|2024-01-31|{\"x\":[1,2]}|null|null\n2|2|null|null|null|null|null|null|3",
		},
		{"quoted numbers and booleans are text", `{"a": "1", "b": "true"}`, Request{}, "a utf8, b utf8\n1|true"},
		{"declared", `{"a": "1", "x": 2}`, Request{Columns: []Column{{"a", "int64"}}}, "a int64, x int64\n1|2"},
		{"declared and no others", `{"a": 1, "x": 2}` + "\n\n" + `{"x": 5}`, Request{Format: JSONLines, Columns: []Column{{"a", "int64"}, {"b", "string"}}, Only: true}, "a int64, b utf8\n1|null\nnull|null"},
		{"empty text is text", `{"a": ""}`, Request{Nulls: []string{"", "NA"}}, "a utf8\n"},
		{"a document", `{"data": {"items": [{"a": 1}, {"a": 2}]}, "next": "t2"}`, Request{Format: JSON, Records: "data.items", Next: "next"}, "a int64\n1\n2\nnext t2"},
		{"a document that is a list", `[{"a": 1}]`, Request{Format: JSON}, "a int64\n1"},
		{"the end of pages", `{"items": [], "next": null}`, Request{Format: JSON, Records: "items", Next: "next", Columns: []Column{{"a", "int64"}}}, "a int64"},
		{"a number that does not fit", `{"a": 1}` + "\n" + `{"a": 9223372036854775808}`, Request{Columns: []Column{{"a", "int64"}}}, `row 2 (line 2), column "a"`},
		{"no object", `{"a": 1}` + "\n[1]", Request{}, "row 2 (line 2) is not a JSON object"},
		{"cut off", `{"a": 1`, Request{}, "row 1 (line 1) is not JSON"},
		{"something after it", `{"a": 1} {"a": 2}`, Request{}, "data after the object"},
		{"a field twice", `{"a": 1, "a": 2}`, Request{}, `duplicate field "a"`},
		{"a NUL", `{"a": "x\u0000"}`, Request{}, "NUL"},
		{"no list", `{"items": 5}`, Request{Format: JSON, Records: "items"}, `no list at "items"`},
		{"nothing", "\n\n", Request{Format: JSONLines}, "no rows"},
		{"a long line", `{"a": "` + strings.Repeat("x", 2000) + `"}`, Request{Limits: Limits{Record: 1000}}, "over the limit of 1000"},
		{"a long cell", `{"a": "` + strings.Repeat("x", 2000) + `"}`, Request{Limits: Limits{Field: 1000}}, "over the limit of 1000"},
		{"many rows", strings.Repeat("{\"a\": 1}\n", 5), Request{Limits: Limits{Rows: 4}}, "more than 4 rows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l lines
			sum, err := Parse(strings.NewReader(c.in), c.req, &l)
			got := strings.Join(l.out, "\n")
			if sum.Next != "" {
				got += "\nnext " + sum.Next
			}
			if err != nil {
				if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
					t.Errorf("%v is %v", err, fault.KindOf(err))
				}
				got = err.Error()
				if strings.Contains(got, c.want) {
					return
				}
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Fields that come after the beginning of a file are refused, not dropped.
func TestJSONFieldsThatComeLate(t *testing.T) {
	var b strings.Builder
	for i := range sampleRows + 1 {
		fmt.Fprintf(&b, "{\"a\": %d}\n", i)
	}
	b.WriteString(`{"a": 1, "late": 2}`)
	if _, err := Parse(strings.NewReader(b.String()), Request{}, &lines{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `"late"`) {
		t.Errorf("%v", err)
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a": 1, "b": [1, {"c": "x"}]}`), false)
	f.Add([]byte("{}\n{\"a\": null}\n"), true)
	f.Fuzz(func(_ *testing.T, b []byte, document bool) {
		req := Request{Format: JSONLines}
		if document {
			req = Request{Format: JSON, Records: "a", Next: "b"}
		}
		_, _ = Parse(strings.NewReader(string(b)), req, &lines{}) // no panic, no more
	})
}
