package parser

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestHintsNameTheSetting: an error that a setting of the file's layout avoids names it.
func TestHintsNameTheSetting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		req  Request
		hint string
	}{
		"latin1":                    {"a,b\n1,caf\xe9\n", Request{}, "spec.csv.encoding"},
		"latin1 after the sample":   {"a,b\n" + strings.Repeat("1,x\n", sampleRows) + "1,caf\xe9\n", Request{}, "spec.csv.encoding"},
		"latin1 in the header":      {"a,caf\xe9\n1,2\n", Request{}, "spec.csv.encoding"},
		"tabs":                      {"a\tb\n1\t2\n", Request{}, `spec.delimiter to "\t"`},
		"semicolons":                {"a;b\n1,5;2\n", Request{}, "spec.delimiter"},
		"lines before the header":   {"report of May\na,b\n1,2\n", Request{}, "spec.csv.skip_lines"},
		"a decimal comma":           {"a;b\n1,5;2\n", Request{Delimiter: ";", Columns: []Column{{"a", table.Float64}}}, "spec.csv.decimal"},
		"thousands":                 {"a;b\n1,500,000;2\n", Request{Delimiter: ";", Columns: []Column{{"a", table.Int64}}}, "spec.csv.thousands"},
		"a comma in what is a text": {"a,b\n1,\"x,y\"\n", Request{Columns: []Column{{"b", table.Int64}}}, "declare another type"},
	} {
		if _, _, err := parse(c.body, c.req); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), c.hint) {
			t.Errorf("%s: %v, hint %q, want %q", name, err, fault.HintOf(err), c.hint)
		}
	}
}
