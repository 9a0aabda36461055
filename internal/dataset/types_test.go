package dataset_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// create makes a version of rows in JSON, of columns of these types.
func create(t *testing.T, h *datasettest.Harness, name, rows string, types ...arrow.DataType) dataset.Version {
	t.Helper()
	fields := make([]arrow.Field, len(types))
	for i, typ := range types {
		fields[i] = arrow.Field{Name: string(rune('a' + i)), Type: typ, Nullable: true}
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrow.NewSchema(fields, nil), strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	r, err := array.NewRecordReader(rec.Schema(), []arrow.RecordBatch{rec})
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.Writes.Create(datasettest.Context(t), dataset.CreateRequest{Project: project, Name: name, Rows: r})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func kinds(v dataset.Version) (out []string) {
	for _, f := range v.Schema {
		out = append(out, string(f.Type))
	}
	return out
}

// A column is as wide as it ever was: what reads the dataset sees no narrower one.
func TestWidths(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{})
	narrow := []arrow.DataType{arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Float32}
	wide := []arrow.DataType{arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float64}
	for _, step := range []struct {
		types []arrow.DataType
		want  string
	}{{narrow, "int32 float32"}, {wide, "int64 float64"}, {narrow, "int64 float64"}} {
		v := create(t, h, "d", `[{"a": 7, "b": 0.5}]`, step.types...)
		if got := strings.Join(kinds(v), " "); got != step.want {
			t.Errorf("%s is of %s, want %s", v.Ref(), got, step.want)
		}
		if got := rowsOf(t, h, v.Ref().String()); !slices.Equal(got, []string{"7|0.5"}) {
			t.Errorf("%s: %q", v.Ref(), got)
		}
	}
	// Unless the manifest says otherwise, and of CSV it is the manifest that says it.
	spec := dataset.Spec{Columns: []dataset.Column{{Name: "a", Type: table.Int32}, {Name: "b", Type: table.Float32}, {Name: "c", Type: table.ListOf(table.Float32)}}}
	v := h.Put(t, "d", spec, "a,b,c\n-2147483648,0.1,\"[1, 0.5]\"\n,,\n")
	if got := strings.Join(kinds(v), " "); got != "int32 float32 list<float32>" {
		t.Errorf("declared: %s", got)
	}
	if got := rowsOf(t, h, "d"); !slices.Equal(got, []string{"-2147483648|0.1|[1 0.5]", "<nil>|<nil>|<nil>"}) {
		t.Errorf("declared: %q", got)
	}
	for file, want := range map[string]string{
		"a,b,c\n2147483648,0,[]\n": `column "a"`, "a,b,c\n0,1e39,[]\n": `column "b"`, "a,b,c\n0,0,5\n": `column "c" is not a list`,
		"a,b,c\n0,0,[null]\n": `column "c" has element 1, which is not a float32`, "a,b,c\n0,0,\"[1, \"\"x\"\"]\"\n": `has element 2, which is not a float32`,
	} {
		_, err := imports(t, h, "d", file)
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
	}
}

// Lists have statistics, expectations and a digest, as other columns have.
func TestLists(t *testing.T) {
	h := datasettest.New(t, nil)
	h.Declare(t, "d", dataset.Spec{Expectations: []expectation.Rule{{Check: expectation.NotNull, Column: "a", Otherwise: "quarantine"}}})
	v := create(t, h, "d", `[{"a": ["x", "y"], "b": [1, 2]}, {"a": null, "b": [3, 4]}, {"a": [], "b": null}, {"a": ["x", "y"], "b": [1, 2]}]`,
		arrow.ListOf(arrow.BinaryTypes.String), arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32))

	if got := fmt.Sprint(kinds(v)); got != "[list<string> list<float32>]" {
		t.Error(got)
	}
	if got := rowsOf(t, h, "d"); !slices.Equal(got, []string{"[x y]|[1 2]", "[]|<nil>", "[x y]|[1 2]"}) {
		t.Errorf("%q", got)
	}
	if s := v.Statistics[0]; s.Count != 3 || s.Distinct != 2 || s.Min != "" || s.Mean != nil || v.Quarantined != 1 {
		t.Errorf("%+v, %d aside", s, v.Quarantined)
	}
	aside, err := h.Reads.Quarantined(datasettest.Context(t), dataset.OpenRequest{Project: project, Ref: v.Ref()}, 0, 5)
	if err != nil || len(aside.Rows) != 1 || fmt.Sprint(aside.Rows[0].Values) != "[<nil> [3 4]]" {
		t.Errorf("%+v, %v", aside, err)
	}
	other := create(t, h, "d", `[{"a": ["x"], "b": [1, 2]}, {"a": ["y"], "b": null}]`, arrow.ListOf(arrow.BinaryTypes.String), arrow.ListOf(arrow.PrimitiveTypes.Float32))
	joined := create(t, h, "d", `[{"a": ["x", "y"], "b": [1, 2]}, {"a": [], "b": null}]`, arrow.ListOf(arrow.BinaryTypes.String), arrow.ListOf(arrow.PrimitiveTypes.Float32))
	if other.ContentDigest == joined.ContentDigest {
		t.Error("where a list ends is not in the digest")
	}
}
