package parser

import (
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/unicode"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestLayouts(t *testing.T) {
	windows, _ := charmap.Windows1252.NewEncoder().String("Straße,preis\nÄ 1,€\n")
	wide, _ := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String("a,b\né,1\n")
	narrow, _ := unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM).NewEncoder().String("a,b\né,1\n")
	shift, _ := japanese.ShiftJIS.NewEncoder().String("都市\n東京\n")
	for name, c := range map[string]struct {
		in   string
		req  Request
		want string // the schema, then the rows; or a refusal
	}{
		"windows-1252":       {windows, Request{CSV: &Layout{Encoding: "windows-1252"}}, "Straße utf8, preis utf8\nÄ 1|€"},
		"the same, packed":   {zipped(windows), Request{CSV: &Layout{Encoding: "cp1252"}}, "Straße utf8, preis utf8\nÄ 1|€"},
		"UTF-16":             {wide, Request{CSV: &Layout{Encoding: "utf-16le"}}, "a utf8, b int64\né|1"},
		"UTF-16, packed":     {zipped(wide), Request{CSV: &Layout{Encoding: "utf-16le"}}, "a utf8, b int64\né|1"},
		"UTF-16, no mark":    {narrow, Request{CSV: &Layout{Encoding: "utf-16be"}}, "a utf8, b int64\né|1"},
		"UTF-16 by its mark": {wide, Request{CSV: &Layout{Encoding: "windows-1252"}}, "a utf8, b int64\né|1"},
		"UTF-16, not said":   {wide, Request{}, "the file is UTF-16"},
		"Shift JIS":          {shift, Request{CSV: &Layout{Encoding: "shift_jis"}}, "都市 utf8\n東京"},
		"UTF-8 by name":      {"a\né\n", Request{CSV: &Layout{Encoding: "utf-8"}}, "a utf8\né"},
		"not of it":          {"a\nok\n\x81\n", Request{CSV: &Layout{Encoding: "shift_jis"}}, `row 2 (line 3), column "a" contains bytes that are not shift_jis`},
		"a name not of it":   {"a,\x81\n1,2\n", Request{CSV: &Layout{Encoding: "shift_jis"}}, "the name of column 2 contains bytes that are not shift_jis"},
		"skipped lines":      {"Report of, \"May\nno table\na,b\n1,x\n", Request{CSV: &Layout{SkipLines: 2}}, "a int64, b utf8\n1|x"},
		"their numbers":      {"no table\na,b\n1,x,2\n", Request{CSV: &Layout{SkipLines: 1}}, "row 1 (line 3) has 3 columns instead of 2"},
		"too many skipped":   {"a\n1\n", Request{CSV: &Layout{SkipLines: 3}}, "the file has 2 lines, and skip_lines skips 3"},
		"no header":          {"1,x\n2,y\n", Request{CSV: &Layout{Header: []string{"n", "s"}}}, "n int64, s utf8\n1|x\n2|y"},
		"another header":     {"1,x\n", Request{CSV: &Layout{Header: []string{"n"}}}, "row 1 (line 1) has 2 columns instead of 1"},
		"decimal comma":      {"a;b;c\n1,5;1;1.5\n-0,25;2;x\n", Request{Delimiter: ";", CSV: &Layout{Decimal: ","}}, "a float64, b int64, c utf8\n1.5|1|1.5\n-0.25|2|x"},
		"both":               {"a;b\n1.234,5;1.234\n12;-1.000.000\n", Request{Delimiter: ";", CSV: &Layout{Decimal: ",", Thousands: "."}}, "a float64, b int64\n1234.5|1234\n12|-1000000"},
		"no group of three":  {"a\n1.5\n12.34\n", Request{CSV: &Layout{Decimal: ",", Thousands: "."}}, "a utf8\n1.5\n12.34"},
		"thousands":          {"a\n\"1,234.5\"\n\"1,000\"\n", Request{CSV: &Layout{Thousands: ","}}, "a float64\n1234.5\n1000"},
		"declared":           {"a\n\"1,234\"\n\"12,34\"\n", Request{CSV: &Layout{Thousands: ","}, Columns: []Column{{"a", table.Int64}}}, `row 2 (line 3), column "a" is not an int64`},
		"left out":           {"a,b,c\n1,2,3\n", Request{LeaveOut: []string{"b", "absent"}}, "a int64, c int64\n1|3"},
		"all left out":       {"a\n1\n", Request{LeaveOut: []string{"a"}}, "a table needs at least one column"},
		"optional":           {"a\n1\n", Request{Columns: []Column{{"b", table.Float64}, {"a", table.Int64}}, Optional: []string{"b"}}, "a int64, b float64\n1|(null)"},
		"optional and there": {"a,b\n1,2\n", Request{Columns: []Column{{"b", table.Float64}}, Optional: []string{"b"}}, "a int64, b float64\n1|2"},
		"of another file":    {"a\n007\n", Request{Columns: []Column{{"a", table.Int64}}, Inferred: []string{"a"}}, `column "a" is not an int64`},
		"JSON left out":      {`{"a":1,"b":{"c":2}}`, Request{LeaveOut: []string{"b"}}, "a int64\n1"},
		"encoding":           {"a\n1\n", Request{CSV: &Layout{Encoding: "klingon"}}, `encoding: "klingon" is not known`},
		"replacement":        {"a\n1\n", Request{CSV: &Layout{Encoding: "iso-2022-kr"}}, `encoding: "iso-2022-kr" is not known`},
		"decimal":            {"a\n1\n", Request{CSV: &Layout{Decimal: ";"}}, "decimal:"},
		"the same":           {"a\n1\n", Request{CSV: &Layout{Decimal: ",", Thousands: ","}}, "thousands:"},
		"the point":          {"a\n1\n", Request{CSV: &Layout{Thousands: "."}}, "thousands:"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := parse(c.in, c.req)
			if err != nil {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				return
			}
			if said := shown(got); said != c.want {
				t.Errorf("%q, want %q", said, c.want)
			}
		})
	}
}

// shown is the schema and the rows as a test writes them.
func shown(got *collect) string {
	var heads, rows []string
	for _, f := range got.schema.Fields() {
		heads = append(heads, f.Name+" "+f.Type.Name())
	}
	for _, r := range got.rows {
		rows = append(rows, strings.Join(r, "|"))
	}
	return strings.Join(append([]string{strings.Join(heads, ", ")}, rows...), "\n")
}

// TestColumnarLeftOut: columns of Parquet and Avro are left out, whatever is in them, and those
// that may be missing are null.
func TestColumnarLeftOut(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "b", Type: arrow.BinaryTypes.Binary, Nullable: true}, {Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	}, nil)
	file := parquetOf(t, schema, `[{"b": "/w==", "a": 1}, {"b": null, "a": null}]`)
	req := Request{LeaveOut: []string{"b"}, Columns: []Column{{"late", table.Float64}}, Optional: []string{"late"}}
	got, _, err := parse(file, req)
	if err != nil || shown(got) != "a int64, late float64\n1|(null)\n(null)|(null)" {
		t.Errorf("Parquet: %v, %v", got, err)
	}
	container := avroOf(t, `{"type":"record","name":"r","fields":[{"name":"b","type":"bytes"},{"name":"a","type":"long"}]}`, []map[string]any{{"b": []byte{0xff}, "a": int64(1)}})
	got, _, err = parse(string(container), req)
	if err != nil || shown(got) != "a int64, late float64\n1|(null)" {
		t.Errorf("Avro: %v, %v", got, err)
	}
}

// TestGroupedNumbers: a number that is written with groups is read as the number it is.
func TestGroupedNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64().Draw(t, "n")
		text := strconv.FormatInt(n, 10)
		digits := strings.TrimPrefix(text, "-")
		var b strings.Builder
		for i, d := range digits {
			if i > 0 && (len(digits)-i)%3 == 0 {
				b.WriteByte('.')
			}
			b.WriteRune(d)
		}
		grouped := b.String()
		if n < 0 {
			grouped = "-" + grouped
		}
		l := &Layout{Decimal: ",", Thousands: "."}
		if got := l.plain(grouped); got != text {
			t.Fatalf("%s is read as %s", grouped, got)
		}
		if got := l.plain(grouped + ",5"); got != text+".5" {
			t.Fatalf("%s,5 is read as %s", grouped, got)
		}
	})
}
