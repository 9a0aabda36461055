package runtime_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

func TestStandsIn(t *testing.T) {
	in := func(name string, d runtime.Datatype, shape ...int64) runtime.Spec {
		return runtime.Spec{Name: name, Datatype: d, Shape: shape}
	}
	meta := func(inputs []runtime.Spec, outputs ...runtime.Spec) runtime.Metadata {
		return runtime.Metadata{Inputs: inputs, Outputs: outputs}
	}
	score := in("score", runtime.FP32, -1, 1)
	stable := meta([]runtime.Spec{in("X", runtime.FP32, -1, 2)}, score)
	anything := runtime.Spec{Name: "X", Datatype: runtime.FP32}
	for name, tt := range map[string]struct {
		candidate, stable runtime.Metadata
		may               bool
	}{
		"the same":                  {stable, stable, true},
		"any width":                 {meta([]runtime.Spec{in("X", runtime.FP32, -1, -1)}, score), stable, true},
		"any shape":                 {meta([]runtime.Spec{anything}, score), stable, true},
		"another output":            {meta(stable.Inputs, score, in("label", runtime.Int64, -1)), stable, true},
		"another shape of output":   {meta(stable.Inputs, in("score", runtime.FP32, -1)), stable, true},
		"another width":             {meta([]runtime.Spec{in("X", runtime.FP32, -1, 3)}, score), stable, false},
		"one row":                   {meta([]runtime.Spec{in("X", runtime.FP32, 1, 2)}, score), stable, false},
		"another rank":              {meta([]runtime.Spec{in("X", runtime.FP32, -1)}, score), stable, false},
		"another type":              {meta([]runtime.Spec{in("X", runtime.FP64, -1, 2)}, score), stable, false},
		"another name":              {meta([]runtime.Spec{in("x", runtime.FP32, -1, 2)}, score), stable, false},
		"an input more":             {meta(append([]runtime.Spec{in("z", runtime.FP32)}, stable.Inputs...), score), stable, false},
		"an input less":             {meta(nil, score), stable, false},
		"less than any shape":       {stable, meta([]runtime.Spec{anything}, score), false},
		"an output less":            {meta(stable.Inputs), stable, false},
		"an output of another type": {meta(stable.Inputs, in("score", runtime.FP64, -1, 1)), stable, false},
	} {
		if err := tt.candidate.StandsIn(tt.stable); (err == nil) != tt.may {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestElements(t *testing.T) {
	for name, tt := range map[string]struct {
		shape []int64
		want  int // -1: refused
	}{
		"a scalar":                  {nil, 1},
		"nothing":                   {[]int64{0, 4}, 0},
		"the most":                  {[]int64{2, runtime.MaxElements / 2}, runtime.MaxElements},
		"more":                      {[]int64{2, runtime.MaxElements/2 + 1}, -1},
		"negative":                  {[]int64{-1}, -1},
		"nothing of too many":       {[]int64{0, runtime.MaxElements + 1}, -1},
		"too many of nothing":       {[]int64{1 << 62, 0}, -1},
		"more than a number counts": {[]int64{1 << 40, 1 << 40}, -1},
	} {
		got, err := runtime.Elements(tt.shape)
		if (err != nil) != (tt.want < 0) || err == nil && got != tt.want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

// TestArrange: a table that names its columns has them in the order of each model, and of none
// another table's.
func TestArrange(t *testing.T) {
	table := func(columns []string, data any, d runtime.Datatype) []runtime.Tensor {
		return []runtime.Tensor{{Name: "s", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"x"}}, {Name: "X", Datatype: d, Shape: []int64{2, 3}, Data: data, Columns: columns}}
	}
	model := runtime.Metadata{Inputs: []runtime.Spec{{Name: "s", Datatype: runtime.Bytes, Shape: []int64{-1}}, {Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 3}, Columns: []string{"a", "b", "c"}}}}
	rows := []float32{1, 2, 3, 4, 5, 6}
	for _, c := range []struct {
		columns []string
		want    []float32
	}{
		{nil, rows}, {[]string{"a", "b", "c"}, rows}, {[]string{"c", "a", "b"}, []float32{2, 3, 1, 5, 6, 4}}, {[]string{"a", "b", "d"}, nil}, {[]string{"a", "b"}, nil},
	} {
		given := table(c.columns, slices.Clone(rows), runtime.FP32)
		got, err := model.Arrange(given)
		if c.want == nil {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "a, b, c") {
				t.Errorf("%v: %v", c.columns, err)
			}
			continue
		}
		if err != nil || !slices.Equal(got[1].Data.([]float32), c.want) || !slices.Equal(given[1].Data.([]float32), rows) {
			t.Errorf("%v: %v of %v, %v", c.columns, got[1].Data, given[1].Data, err)
		}
	}
	unnamed := runtime.Metadata{Inputs: []runtime.Spec{model.Inputs[0], {Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 3}}}}
	if got, err := unnamed.Arrange(table([]string{"c", "a", "b"}, rows, runtime.FP32)); err != nil || !slices.Equal(got[1].Data.([]float32), rows) {
		t.Errorf("a model without names: %v, %v", got, err)
	}
}
