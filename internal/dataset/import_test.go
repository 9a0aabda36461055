package dataset_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/parser"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	names "github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

const weather = `origin,temp,wind_gust,time_hour,day,raining
EWR,39.02,NA,2013-01-01T06:00:00Z,2013-01-01,false
JFK,,12,2013-01-01T07:00:00Z,2013-01-01,true
LGA,-3.5,12.5,2013-01-01T08:00:00Z,2013-01-02,NA
`

func TestImport(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "weather", dataset.Spec{Description: "hourly"})
	v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "weather", Filename: `C:\up\..\weather.csv`, Body: strings.NewReader(weather)})
	if err != nil {
		t.Fatal(err)
	}
	if v.Ref().String() != "weather@1" || v.State != dataset.Accepted || v.Rows != 3 || v.CreatedBy != "usr_1" || v.Bytes == 0 {
		t.Errorf("%+v", v)
	}
	var types []table.Type
	for i, f := range v.Schema {
		types = append(types, f.Type)
		if f.ID != i+1 {
			t.Errorf("column %s has ID %d", f.Name, f.ID)
		}
	}
	if !slices.Equal(types, []table.Type{table.String, table.Float64, table.Float64, table.Timestamp, table.Date, table.Bool}) {
		t.Error(types)
	}
	src := v.Lineage.Source
	if src == nil || src.Filename != "weather.csv" || src.Bytes != int64(len(weather)) || src.Format != dataset.CSV || len(src.Digest) != 71 {
		t.Errorf("source %+v", src)
	}
	want := []string{
		"EWR|39.02|<nil>|2013-01-01T06:00:00Z|2013-01-01|false", "JFK|<nil>|12|2013-01-01T07:00:00Z|2013-01-01|true",
		"LGA|-3.5|12.5|2013-01-01T08:00:00Z|2013-01-02|<nil>",
	}
	if got := rowsOf(t, h, "weather"); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := rowsOf(t, h, "weather@1", "day", "origin"); got[0] != "2013-01-01|EWR" {
		t.Errorf("got %q", got)
	}
	temp := v.Statistics[1]
	if temp.Count != 2 || temp.Nulls != 1 || temp.Min != "-3.5" || temp.Max != "39.02" || temp.Distinct != 2 || math.Abs(*temp.Mean-17.76) > 1e-9 || math.Abs(*temp.Std-21.26*math.Sqrt2) > 1e-9 {
		t.Errorf("%+v", temp)
	}
	if s := v.Statistics[3]; s.Min != "2013-01-01T06:00:00Z" || s.Mean != nil {
		t.Errorf("%+v", s)
	}
}

// The same bytes give the same version, whose files stay, under whatever name
// they come; another spec gives another version with the same content.
func TestImportAgain(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "weather", dataset.Spec{})
	first, err := imports(t, h, "weather", weather)
	if err != nil {
		t.Fatal(err)
	}
	files := h.Files.List(t)
	again, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "weather", Filename: "other.csv", Body: strings.NewReader(weather)})
	if err != nil || again.ID != first.ID {
		t.Fatalf("%v, %v", again.Ref(), err)
	}
	if first.Unchanged || !again.Unchanged || again.Current != "weather@1" {
		t.Errorf("the first says unchanged %t, the second %t and that weather means %q", first.Unchanged, again.Unchanged, again.Current)
	}
	if now := h.Files.List(t); !slices.Equal(now, files) {
		t.Errorf("files were %v and are %v", files, now)
	}
	if got := rowsOf(t, h, "weather@1"); len(got) != 3 {
		t.Errorf("%q", got)
	}
	h.Declare(t, "weather", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "origin"}}})
	other, err := imports(t, h, "weather", weather)
	if err != nil || other.Number != 2 || other.Unchanged || other.ContentDigest != first.ContentDigest {
		t.Fatalf("%+v, %v", other, err)
	}
	// Content of before does not become what the name means, and says so.
	third, err := imports(t, h, "weather", weather+"LGA,3,3,2013-01-02T03:00:00Z,2013-01-02,true\n")
	if err != nil || third.Number != 3 {
		t.Fatalf("%+v, %v", third, err)
	}
	earlier, err := imports(t, h, "weather", weather)
	if err != nil || earlier.Number != 2 || !earlier.Unchanged || earlier.Current != "weather@3" {
		t.Errorf("earlier content gives %s, unchanged %t, weather means %q, %v", earlier.Ref(), earlier.Unchanged, earlier.Current, err)
	}
	if kept, err := h.Definitions.Version(datasettest.Context(t), project, earlier.Ref()); err != nil || kept.Unchanged || kept.Current != "" {
		t.Errorf("stored: %+v, %v", kept, err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = io.WriteString(w, weather)
	_ = w.Close()
	zipped, err := imports(t, h, "weather", z.String())
	if err != nil || zipped.ContentDigest != first.ContentDigest || zipped.Lineage.Source.Digest == first.Lineage.Source.Digest || zipped.Lineage.Source.Format != dataset.CSVGzip {
		t.Fatalf("%+v, %v", zipped, err)
	}
}

// Columns keep their IDs over versions; one that changes its type is another.
func TestFieldIDs(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	ids := func(body string) string {
		v, err := importsChanged(t, h, "d", body)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, f := range v.Schema {
			fmt.Fprintf(&out, "%s:%d ", f.Name, f.ID)
		}
		return out.String()
	}
	for _, c := range [][2]string{
		{"a,b\n1,x\n", "a:1 b:2 "}, {"b,c,a\nx,1,2\n", "b:2 c:3 a:1 "}, {"a,b\nword,x\n", "a:4 b:2 "}, {"a\n5\n", "a:1 "},
	} {
		if got := ids(c[0]); got != c[1] {
			t.Errorf("%q: %s, want %s", c[0], got, c[1])
		}
	}
}

func TestExpectations(t *testing.T) {
	body := "id,city,temp,at\n1,NYC,10,2013-01-01\n2,LA,20,2013-01-02\n2,NYC,999,2013-01-03\n,NYC,NA,2014-01-01\n"
	for _, c := range []struct {
		e    expectation.Rule
		want string // of the verdict's text; empty when it passes
	}{
		{expectation.Rule{Check: expectation.NotNull, Column: "city"}, ""},
		{expectation.Rule{Check: expectation.NotNull, Column: "id"}, `not_null(id) fails for 1 of 4 rows, first at row 4, column "id": "null"`},
		{expectation.Rule{Check: expectation.NotNull, Column: "id", Mostly: 0.75}, ""},
		{expectation.Rule{Check: expectation.NotNull, Column: "id", Mostly: 0.76}, "for 0.76 of the rows fails for 1 of 4"},
		{expectation.Rule{Check: expectation.Unique, Column: "id"}, `unique(id) fails for 1 of 3 rows, first at row 3, column "id": "2"`},
		{expectation.Rule{Check: expectation.Unique, Columns: []string{"id", "city"}}, ""},
		{expectation.Rule{Check: expectation.Unique, Columns: []string{"city"}}, `first at row 3`},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Min: -40.0, Max: 120.0}, `between(temp, -40, 120) fails for 1 of 3 rows, first at row 3, column "temp": "999"`},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Min: 10.0}, ""},
		{expectation.Rule{Check: expectation.Between, Column: "at", Min: "2013-01-01", Max: "2013-12-31"}, `first at row 4, column "at": "2014-01-01"`},
		{expectation.Rule{Check: expectation.Between, Column: "city", Min: 1.0}, "has no order"},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Min: "2013-01-01"}, "is not a valid bound"},
		{expectation.Rule{Check: expectation.InSet, Column: "city", Values: []any{"NYC", "LA"}}, ""},
		{expectation.Rule{Check: expectation.InSet, Column: "city", Values: []any{"NYC"}}, `in_set(city, NYC) fails for 1 of 4 rows, first at row 2, column "city": "LA"`},
		{expectation.Rule{Check: expectation.InSet, Column: "id", Values: []any{1.0, 2.0}}, ""},
		{expectation.Rule{Check: expectation.InSet, Column: "id", Values: []any{"1", "2"}}, "in_set(id, 1, 2) fails: the column is int64, and no value in the set has that type"},
		{expectation.Rule{Check: expectation.InSet, Column: "id", Values: []any{1, "2"}}, "in_set(id, 1, 2) fails for 2 of 3 rows"},
		{expectation.Rule{Check: expectation.InSet, Column: "city", Values: []any{1, true}}, "the column is string, and no value in the set has that type"},
		{expectation.Rule{Check: expectation.InSet, Column: "at", Values: []any{"2013-01-01", "2013-01-02", "2013-01-03", "2014-01-01"}}, ""},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Min: 10.0, StrictMin: true}, `between(temp, >10, …) fails for 1 of 3 rows, first at row 1`},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Max: 999.0, StrictMax: true}, `between(temp, …, <999) fails for 1 of 3 rows, first at row 3`},
		{expectation.Rule{Check: expectation.Between, Column: "temp", Min: 9.0, StrictMin: true, Max: 1000.0, StrictMax: true}, ""},
		{expectation.Rule{Check: expectation.Matches, Column: "city", Pattern: "[YA]"}, ""},
		{expectation.Rule{Check: expectation.Matches, Column: "city", Pattern: "^N"}, `matches(city, "^N") fails for 1 of 4 rows, first at row 2, column "city": "LA"`},
		{expectation.Rule{Check: expectation.Matches, Column: "temp", Pattern: "1"}, "a column of int64 is not text"},
		{expectation.Rule{Check: expectation.Length, Column: "city", Min: 2.0, Max: 3.0}, ""},
		{expectation.Rule{Check: expectation.Length, Column: "city", Min: 3.0}, `length(city, 3, …) fails for 1 of 4 rows, first at row 2`},
		{expectation.Rule{Check: expectation.HasColumn, Column: "at"}, ""},
		{expectation.Rule{Check: expectation.HasColumn, Column: "nope"}, `has_column(nope) fails: there is no column "nope"`},
		{expectation.Rule{Check: expectation.RowCount, Min: 4.0, Max: 4.0}, ""},
		{expectation.Rule{Check: expectation.RowCount, Min: 5.0}, "row_count(5, …) fails: it has 4 rows"},
		{expectation.Rule{Check: expectation.NotNull, Column: "nope"}, `there is no column "nope"`},
	} {
		h := datasettest.New(t, nil)
		h.Declare(t, "d", dataset.Spec{Protection: dataset.Open, Expectations: []expectation.Rule{{Check: expectation.RowCount, Min: 1.0}, c.e}})
		v, err := imports(t, h, "d", body)
		if err != nil {
			t.Fatal(c.e, err)
		}
		r := v.Expectations[1]
		if c.want == "" {
			if !r.Passed || v.State != dataset.Accepted || v.Reason != "" {
				t.Errorf("%s: %+v", c.e, r)
			}
			continue
		}
		if r.Passed || v.State != dataset.Rejected || v.Reason != r.String() || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%s: %q, want %q", c.e, v.Reason, c.want)
		}
	}
}

// TestEveryFailureIsNamed: the reason has all expectations that fail, up to ten, and how
// many more there are.
func TestEveryFailureIsNamed(t *testing.T) {
	h := datasettest.New(t, nil)
	failing := func(n int) (list []expectation.Rule) {
		for i := range n {
			list = append(list, expectation.Rule{Check: expectation.Between, Column: "a", Min: 100.0 + float64(i)})
		}
		return list
	}
	for name, c := range map[string]struct {
		expectations []expectation.Rule
		want         string
	}{
		"one": {failing(1), `between(a, 100, …) fails for 2 of 2 rows, first at row 1, column "a": "1"`},
		"two and one that holds": {
			[]expectation.Rule{{Check: expectation.NotNull, Column: "b"}, {Check: expectation.RowCount, Min: 2.0}, {Check: expectation.Unique, Columns: []string{"c"}}},
			`not_null(b) fails for 1 of 2 rows, first at row 2, column "b": "null"; unique(c) fails for 1 of 2 rows, first at row 2, column "c": "x"`,
		},
		"twelve": {failing(12), "; and 2 more expectations fail"},
	} {
		h.Declare(t, "d", dataset.Spec{Protection: dataset.Open, Expectations: c.expectations})
		v, err := imports(t, h, "d", "a,b,c\n1,y,x\n2,,x\n")
		if err != nil || v.State != dataset.Rejected || !strings.HasSuffix(v.Reason, c.want) || name != "twelve" && v.Reason != c.want {
			t.Errorf("%s: %s %q, %v", name, v.State, v.Reason, err)
		}
	}
}

// Numbers of a manifest are compared as they are written: not as the float64 that
// JSON makes of them.
func TestWholeNumbersAreExact(t *testing.T) {
	const most = "9223372036854775807"
	for _, c := range []struct {
		manifest, rows string
		want           string // rows that fail, or why; empty when it passes
	}{
		{`{"check": "in_set", "column": "n", "values": [999999999999999, 1000000000000000, 9007199254740993]}`, "999999999999999\n1000000000000000\n9007199254740993", ""},
		{`{"check": "in_set", "column": "n", "values": [9007199254740993]}`, "9007199254740992\n9007199254740993\n9007199254740994", "2 of 3 rows"},
		{`{"check": "in_set", "column": "n", "values": [1e15, 1.5]}`, "1000000000000000", ""},
		{`{"check": "in_set", "column": "n", "values": [1e15, 1.5]}`, "1000000000000000.0\n1.5", ""},
		{`{"check": "between", "column": "n", "max": 9007199254740992}`, "9007199254740992\n9007199254740993", "1 of 2 rows"},
		{`{"check": "between", "column": "n", "max": 9007199254740993, "strict_max": true}`, "9007199254740992\n9007199254740993", "1 of 2 rows"},
		{`{"check": "between", "column": "n", "min": 9007199254740993}`, "9007199254740992\n9007199254740993", "1 of 2 rows"},
		{`{"check": "between", "column": "n", "min": 9007199254740992, "strict_min": true}`, "9007199254740992\n9007199254740993", "1 of 2 rows"},
		{`{"check": "between", "column": "n", "min": -0.5, "max": 1.5}`, "-1\n0\n1\n2", "2 of 4 rows"},
		{`{"check": "between", "column": "n", "min": -1e30, "max": 1e30}`, "-" + most + "\n" + most, ""},
		{`{"check": "between", "column": "n", "min": 1e30}`, most, "1 of 1 rows"},
		{`{"check": "between", "column": "n", "min": ` + most + `, "strict_min": true}`, most, "1 of 1 rows"},
		{`{"check": "between", "column": "n", "min": "0001-01-01 10:00:00", "max": "9999-12-31T23:59:59"}`, "2262-01-01T00:00:00Z\n9999-12-31T23:59:59Z", ""},
		{`{"check": "between", "column": "n", "max": "9999-12-31T00:00:00.000002Z"}`, "9999-12-31T00:00:00.000002Z\n9999-12-31T00:00:00.000003Z", "1 of 2 rows"},
		{`{"check": "in_set", "column": "n", "values": ["2024-01-01 00:00:00", "2024-01-02"]}`, "2024-01-01T00:00:00Z\n2024-01-02T00:00:00Z", ""},
	} {
		h := datasettest.New(t, nil)
		var spec dataset.Spec
		if err := json.Unmarshal([]byte(`{"protection": "open", "expectations": [`+c.manifest+`]}`), &spec); err != nil {
			t.Fatal(err)
		}
		h.Declare(t, "d", spec)
		v, err := imports(t, h, "d", "n\n"+c.rows+"\n")
		if err != nil {
			t.Fatal(c.manifest, err)
		}
		if again, err := h.Definitions.Version(datasettest.Context(t), project, v.Ref()); err != nil || again.Expectations[0].Expectation.String() != spec.Expectations[0].String() {
			t.Errorf("%s is kept as %s, %v", c.manifest, again.Expectations[0].Expectation, err)
		}
		if (v.State == dataset.Accepted) != (c.want == "") || !strings.Contains(v.Reason, c.want) {
			t.Errorf("%s on %q: %q, want %q", c.manifest, c.rows, v.Reason, c.want)
		}
	}
}

// An expectation that says nothing, or what its check does not know, is refused.
func TestExpectationRefused(t *testing.T) {
	for _, c := range []struct {
		e    expectation.Rule
		want string
	}{
		{expectation.Rule{Check: "regex", Column: "a"}, "there is no check"},
		{expectation.Rule{Check: expectation.Matches, Column: "a"}, "matches requires a pattern"},
		{expectation.Rule{Check: expectation.Matches, Column: "a", Pattern: "(?!x)"}, "not a valid RE2"},
		{expectation.Rule{Check: expectation.Matches, Column: "a", Pattern: strings.Repeat("x", 5000)}, "over the limit"},
		{expectation.Rule{Check: expectation.NotNull, Column: "a", Pattern: "x"}, "matches requires a pattern"},
		{expectation.Rule{Check: expectation.Length, Column: "a"}, "min or max is required"},
		{expectation.Rule{Check: expectation.Length, Column: "a", Min: "2013-01-01"}, "is not a number"},
		{expectation.Rule{Check: expectation.Length, Column: "a", Min: 1.0, StrictMin: true}, "valid only with the check between"},
		{expectation.Rule{Check: expectation.Between, Column: "a", Min: 1.0, StrictMax: true}, "strict_max needs max"},
		{expectation.Rule{Check: expectation.HasColumn}, "column is required"},
	} {
		wantFault(t, c.e.Validate(), fault.Invalid, c.want)
	}
}

// A search finds a dataset by the columns of its accepted versions, not by those of rejected ones.
func TestSearchedColumns(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a", Max: 5.0}}})
	for _, step := range []struct {
		body  string
		state dataset.State
		want  []string
	}{
		{"a,wrong\n9,1\n", dataset.Rejected, nil},
		{"a,b\n1,2\n", dataset.Accepted, []string{"a", "b"}},
		{"a,c\n9,2\n", dataset.Rejected, []string{"a", "b"}},
		{"a,d\n1,2\n", dataset.Accepted, []string{"a", "b", "d"}},
		{"a,c\n1,2\n", dataset.Accepted, []string{"a", "b", "c", "d"}},
	} {
		if v, err := importsChanged(t, h, "d", step.body); err != nil || v.State != step.state {
			t.Fatal(v.State, v.Reason, err)
		}
		d, err := h.Definitions.One(datasettest.Context(t), project, "d")
		if err != nil || !slices.Equal(d.SearchFields(), store.FieldsOf("column", step.want...)) {
			t.Errorf("after %q: %v, %v", step.body, d.SearchFields(), err)
		}
	}
}

// A rejected version is kept to look at, and nothing can use it.
func TestRejected(t *testing.T) {
	h := datasettest.New(t, nil)
	ctx := datasettest.Context(t)
	h.Declare(t, "d", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Between, Column: "a", Max: 5.0}}})
	v, err := imports(t, h, "d", "a\n1\n9\n")
	if err != nil || v.State != dataset.Rejected {
		t.Fatal(v.State, err)
	}
	for _, r := range []string{"d", "d@1"} {
		_, err = h.Reads.Open(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, r)})
		wantFault(t, err, fault.Conflict, "d@1 is rejected", "between(a, …, 5)", "row 2")
		if strings.Contains(err.Error(), `"9"`) {
			t.Errorf("a text that is written down has a value of sealed rows: %v", err)
		}
		_, _, err = h.Reads.Export(ctx, dataset.ExportRequest{OpenRequest: dataset.OpenRequest{Project: project, Ref: ref(t, r)}, Dir: private(t)})
		wantFault(t, err, fault.Conflict, "rejected")
		_, err = h.Writes.Create(ctx, dataset.CreateRequest{Project: project, Name: "e", Rows: empty(t), Parents: []dataset.Ref{ref(t, r)}})
		wantFault(t, err, fault.Conflict, "rejected")
	}
	if v, err = h.Definitions.Version(ctx, project, ref(t, "d@1")); err != nil || v.Expectations[0].Examples[0].Value != "9" || v.Statistics[0].Max != "9" {
		t.Errorf("%+v, %v", v, err)
	}
	if err := h.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		kept, err := datasetsql.Store{}.VersionByID(ctx, tx, project, v.ID)
		if kept.Statistics != nil || kept.Expectations != nil || len(kept.SealedStatistics) == 0 {
			t.Errorf("in the clear: %+v", kept)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	preview, _, err := h.Reads.Preview(ctx, dataset.OpenRequest{Project: project, Ref: ref(t, "d@1")}, 1)
	if err != nil || fmt.Sprint(preview.Rows) != "[[1]]" {
		t.Errorf("%v, %v", preview, err)
	}
	if d, _ := h.Definitions.One(ctx, project, "d"); d.Latest != 1 || d.Accepted != 0 || d.Metadata != "" {
		t.Errorf("%+v", d)
	}
	good, err := imports(t, h, "d", "a\n1\n")
	if err != nil || good.Number != 2 {
		t.Fatal(good, err)
	}
	if got := rowsOf(t, h, "d"); len(got) != 1 {
		t.Error(got)
	}
	bad, err := imports(t, h, "d", "a\n1\n9\n")
	if err != nil || bad.ID != v.ID {
		t.Errorf("the same bad bytes: %v, %v", bad.Ref(), err)
	}
}

// nothingLeft checks that no file, staging row or version is there.
func nothingLeft(t *testing.T, h *datasettest.Harness, name string) {
	t.Helper()
	if files := h.Files.List(t); len(files) > 0 {
		t.Errorf("files left: %v", files)
	}
	if vs, _, err := h.Definitions.Versions(datasettest.Context(t), project, name, dataset.Page{}); err != nil || len(vs) > 0 {
		t.Errorf("versions left: %v, %v", vs, err)
	}
	err := h.DB.View(context.Background(), func(ctx context.Context, tx *store.Tx) error {
		left, err := h.Config.Store.Stagings(ctx, tx, "test", time.Now())
		if len(left) > 0 {
			t.Errorf("staging left: %v", left)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func corrupt(rows, bad int, line string) string {
	var b strings.Builder
	b.WriteString("id,temp\n")
	for i := 1; i <= rows; i++ {
		if i == bad {
			b.WriteString(line)
			continue
		}
		fmt.Fprintf(&b, "%d,%d.5\n", i, i%40)
	}
	return b.String()
}

// A corrupt row far into a file is named, and nothing of the file stays.
func TestCorruptRow(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	_, err := imports(t, h, "d", corrupt(250_000, 200_001, "200001,3x.5\n"))
	wantFault(t, err, fault.Invalid, "row 200001 (line 200002)", `column "temp"`)
	if fault.DataOf(err) != `"3x.5"` || strings.Contains(err.Error(), "3x.5") {
		t.Errorf("%v, and the value is %s", err, fault.DataOf(err))
	}
	nothingLeft(t, h, "d")
	_, err = imports(t, h, "d", corrupt(250_000, 200_001, "200001\n"))
	wantFault(t, err, fault.Invalid, "row 200001 (line 200002) has 1 columns instead of 2")
	nothingLeft(t, h, "d")
}

func TestImportRefusals(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Limits.Upload = 1000
		c.Limits.Parser.Rows = 100
		c.Limits.UniqueKeys = 10
	})
	ctx := datasettest.Context(t)
	_, err := imports(t, h, "nope", "a\n1\n")
	wantFault(t, err, fault.NotFound, `"nope"`)
	for _, name := range []string{"../etc", "a/b", "..", "", "A", "a\x00", strings.Repeat("a", 64), "a@1", "-a", "a.b"} {
		_, err := imports(t, h, name, "a\n1\n")
		wantFault(t, err, fault.Invalid, "not a name")
		_, _, err = h.Definitions.Apply(ctx, dataset.ApplyRequest{Project: project, Name: name})
		wantFault(t, err, fault.Invalid, "not a name")
	}
	h.Declare(t, "d", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.Unique, Column: "a"}}})
	_, err = imports(t, h, "d", "a\n"+strings.Repeat("1\n", 1000))
	wantFault(t, err, fault.TooLarge, "over the limit of 1000 bytes")
	_, err = imports(t, h, "d", "a\n"+strings.Repeat("1\n", 101))
	wantFault(t, err, fault.TooLarge, "more than 100 rows")
	_, err = imports(t, h, "d", "a\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n")
	wantFault(t, err, fault.TooLarge, "distinct keys")
	_, err = h.Writes.Import(ctx, dataset.ImportRequest{Project: project, Name: "d", Body: io.MultiReader(strings.NewReader("a\n1\n"), failing{})})
	wantFault(t, err, fault.Internal, "the line was cut")
	h.Config.Limits.Upload = 0
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := h.Writes.Import(gone, dataset.ImportRequest{Project: project, Name: "d", Body: strings.NewReader("a\n1\n")}); !errors.Is(err, context.Canceled) && fault.KindOf(err) != fault.Unavailable {
		t.Errorf("cancelled: %v", err)
	}
	nothingLeft(t, h, "d")
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the line was cut") }

// A file that cannot be stored, at any step, leaves nothing.
func TestStorageFails(t *testing.T) {
	for _, at := range []string{"create", "commit"} {
		for _, what := range []string{"data-", "manifest-", "snapshot-", "metadata.json"} {
			h := datasettest.New(t, nil)
			h.Declare(t, "d", dataset.Spec{})
			h.Files.Hook = func(step, key string) error {
				if step == at && strings.Contains(key, what) {
					return fault.New(fault.Exhausted, "the disk is full")
				}
				return nil
			}
			_, err := imports(t, h, "d", "a\n1\n")
			wantFault(t, err, fault.Exhausted, "the disk is full")
			nothingLeft(t, h, "d")
		}
	}
}

// A server that is killed while it imports leaves files; the next start removes
// them, and the import can be repeated.
func TestKilledWhileImporting(t *testing.T) {
	for _, step := range []string{"data-", "snapshot-", "metadata.json"} {
		dir := t.TempDir()
		p, err := modeOf("crash").Launch(t.Context(), "", child.LaunchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := p.Command()
		killed(t, cmd, step+" "+dir+"\n"+weather)
		h := datasettest.At(t, dir, func(c *dataset.Config) { c.Instance = "another" })
		if len(h.Files.List(t)) == 0 {
			t.Fatalf("%s: the killed server left no files, or another instance removed them", step)
		}
		h = datasettest.At(t, dir, nil)
		nothingLeft(t, h, "d")
		v, err := imports(t, h, "d", weather)
		if err != nil || v.Number != 1 {
			t.Fatal(v, err)
		}
		if got := rowsOf(t, h, "d"); len(got) != 3 {
			t.Error(got)
		}
	}
}

// killed runs a command until it says "now", then kills it.
func killed(t *testing.T, cmd *exec.Cmd, stdin string) {
	t.Helper()
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if line != "now\n" {
		t.Fatalf("the child said %q, %v: %s", line, err, stderr.String())
	}
}

// Concurrent imports get numbers without gaps; equal ones share a version.
func TestConcurrentImports(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	var wg sync.WaitGroup
	ids := make([]dataset.VersionID, 8)
	for i := range ids {
		wg.Go(func() {
			v, err := imports(t, h, "d", fmt.Sprintf("a\n%d\n", i/2))
			if err != nil {
				t.Error(err)
			}
			ids[i] = v.ID
		})
	}
	wg.Wait()
	vs, _, err := h.Definitions.Versions(datasettest.Context(t), project, "d", dataset.Page{})
	if err != nil || len(vs) != 4 {
		t.Fatalf("%d versions, %v", len(vs), err)
	}
	for i, v := range vs {
		if v.Number != int64(4-i) {
			t.Errorf("version %d has number %d", i, v.Number)
		}
		if got := rowsOf(t, h, v.Ref().String()); len(got) != 1 {
			t.Errorf("%s: %v", v.Ref(), got)
		}
	}
	for i := 0; i < len(ids); i += 2 {
		if ids[i] != ids[i+1] {
			t.Errorf("the same bytes gave %s and %s", ids[i], ids[i+1])
		}
	}
	if n := len(h.Files.List(t)); n < 16 || n > 40 {
		t.Errorf("%d files", n)
	}
}

// Data goes only where it may be: not to this server when its zone is not in the
// label.
func TestImportOutsideItsZone(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{Residency: residency.Of("AE")})
	_, err := imports(t, h, "d", "a\n1\n")
	wantFault(t, err, fault.PermissionDenied, "dataset d is allowed only in AE")
	nothingLeft(t, h, "d")
}

func TestProjectDefaults(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) {
		c.Zone = "AE"
		c.Defaults = func(context.Context, names.Name) (dataset.Defaults, error) {
			return dataset.Defaults{Residency: residency.Of("AE"), Classification: dataset.Restricted}, nil
		}
	})
	v := h.Put(t, "d", dataset.Spec{}, "a\n1\n2\n")
	if v.Residency.String() != "AE" || v.Classification != dataset.Restricted {
		t.Errorf("%v %v", v.Residency, v.Classification)
	}
	if s := v.Statistics[0]; s.Min != "" || s.Max != "" {
		t.Errorf("restricted data shows its values: %+v", s)
	}
	_, _, err := h.Definitions.Apply(datasettest.Context(t), dataset.ApplyRequest{Project: project, Name: "d", Spec: dataset.Spec{Residency: residency.Of("AE", "DE")}})
	wantFault(t, err, fault.PermissionDenied, "has the residency AE")
	if !strings.Contains(fault.HintOf(err), "second approver") {
		t.Error(fault.HintOf(err))
	}
	h.Declare(t, "o", dataset.Spec{Protection: dataset.Open})
	_, err = imports(t, h, "o", "a\n1\n")
	wantFault(t, err, fault.Invalid, "cannot be open")
}

// Real data, with the statistics that others compute.
func TestFlights(t *testing.T) {
	f := open(t, "flights.csv.gz")
	h := datasettest.New(t, func(c *dataset.Config) { c.Limits.DataFile = 1 << 20 })
	h.Declare(t, "flights", dataset.Spec{Expectations: []expectation.Rule{
		{Check: expectation.RowCount, Min: 336776.0, Max: 336776.0},
		{Check: expectation.InSet, Column: "origin", Values: []any{"EWR", "JFK", "LGA"}},
		{Check: expectation.Unique, Columns: []string{"time_hour", "carrier", "flight", "origin", "sched_dep_time"}},
	}})
	last := dataset.Progress{}
	v, err := h.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: project, Name: "flights", Filename: "flights.csv.gz", Body: f, Progress: func(p dataset.Progress) {
		if p.Rows < last.Rows || p.Bytes < last.Bytes {
			t.Errorf("progress goes back from %+v to %+v", last, p)
		}
		last = p
	}})
	if err != nil || v.State != dataset.Accepted {
		t.Fatal(err, v.Reason)
	}
	if last.Rows != 336776 || len(v.Files) < 2 {
		t.Errorf("progress %+v, %d files", last, len(v.Files))
	}
	for _, s := range v.Statistics {
		switch s.Column {
		case "dep_delay":
			if s.Nulls != 8255 || math.Abs(*s.Mean-12.63907) > 1e-5 || math.Abs(*s.Std-40.21000) > 1e-3 || s.Min != "-43" || s.Max != "1301" {
				t.Errorf("%+v %v %v", s, *s.Mean, *s.Std)
			}
		case "tailnum":
			if s.Distinct < 3960 || s.Distinct > 4130 { // 4,043
				t.Errorf("%+v", s)
			}
		case "origin":
			if s.Distinct != 3 {
				t.Errorf("%+v", s)
			}
		}
	}
	if c, ok := v.Schema.Column("time_hour"); !ok || c.Type != table.Timestamp {
		t.Errorf("%+v", c)
	}
	rows, err := h.Reads.Open(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref(), Columns: []string{"distance"}})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	n := int64(0)
	for rows.Next() {
		n += rows.RecordBatch().NumRows()
	}
	if n != 336776 || rows.Err() != nil {
		t.Error(n, rows.Err())
	}
}

// torn is a body that breaks.
type torn struct {
	io.Reader
	err error
}

func (b torn) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = b.err
	}
	return n, err
}

// What ends the body that a source gives is what ends its rows, and a stream of
// messages may be longer than a file.
func TestParsedBodies(t *testing.T) {
	h := datasettest.New(t, func(c *dataset.Config) { c.Limits.Upload = 1000 })
	all := func(body io.Reader, req parser.Request) (n int64, err error) {
		rows, err := h.Writes.Parse(t.Context(), body, req)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for rows.Next() {
			n += rows.RecordBatch().NumRows()
		}
		return n, rows.Err()
	}
	_, err := all(torn{strings.NewReader("a\n1\n"), fault.New(fault.Unavailable, "h closed the connection")}, parser.Request{})
	wantFault(t, err, fault.Unavailable, "h closed the connection")
	if strings.Contains(err.Error(), "upload") {
		t.Errorf("nobody uploads: %v", err)
	}
	lines := strings.Repeat("{\"a\": 1}\n", 1000)
	_, err = all(strings.NewReader(lines), parser.Request{Format: parser.JSONLines})
	wantFault(t, err, fault.TooLarge, "1000 bytes")
	if n, err := all(strings.NewReader(lines), parser.Request{Format: parser.JSONLines, Only: true, Columns: []parser.Column{{Name: "a", Type: "int64"}}}); n != 1000 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
}
