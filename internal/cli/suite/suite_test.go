package suite_test

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/cli/suite"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/*.golden")

// TestDecode compares what is taken and what is left, of a suite of each release.
func TestDecode(t *testing.T) {
	for _, name := range []string{"v0", "v1"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		taken, left, err := suite.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		accepted(t, taken)
		var b strings.Builder
		for _, x := range taken {
			line, err := json.Marshal(x)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(string(line) + "\n")
		}
		for _, l := range left {
			b.WriteString("left: " + l.String() + "\n")
		}
		golden := "testdata/" + name + ".golden"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// accepted asks the server's own type: a field that it does not know, or an
// expectation that it refuses, fails.
func accepted(t *testing.T, taken []suite.Expectation) {
	t.Helper()
	for _, x := range taken {
		line, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		d := json.NewDecoder(strings.NewReader(string(line)))
		d.DisallowUnknownFields()
		var e expectation.Rule
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestNotASuite(t *testing.T) {
	for _, c := range []string{"", "[]", "{}", `{"expectations": null}`, `{"expectations": [1]}`, `{"expectations": []} x`, `{"expectations": [{"kwargs": NaN}]}`} {
		if _, _, err := suite.Decode([]byte(c)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v", c, err)
		}
	}
	taken, left, err := suite.Decode([]byte(`{"expectations": [{}]}`))
	if err != nil || len(taken) != 0 || len(left) != 1 || left[0].Why != "it has no type" {
		t.Errorf("%v, %v, %v", taken, left, err)
	}
}

// FuzzDecode: every entry is taken or left, and what is taken the server accepts.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"testdata/v0.json", "testdata/v1.json"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		taken, left, err := suite.Decode(data)
		if err != nil {
			if _, known := errors.AsType[*fault.Error](err); !known {
				t.Errorf("not a fault: %v", err)
			}
			return
		}
		var doc struct {
			Expectations []json.RawMessage `json:"expectations"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		if len(taken)+len(left) != len(doc.Expectations) {
			t.Errorf("%d taken and %d left of %d", len(taken), len(left), len(doc.Expectations))
		}
		accepted(t, taken)
	})
}
