package runtime_test

import (
	"testing"

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
