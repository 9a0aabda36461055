package app

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

func TestInputsOfATrainingSet(t *testing.T) {
	spec := &serving.FeaturesSpec{
		Columns:  []string{"hours", "weather:temp", "weather:wind", "plane:built", "plane:seats"},
		Defaults: map[string]serving.Number{"plane:built": 2000, "weather:*": serving.Number(math.NaN())},
	}
	set := &feature.TrainingSet{Views: []feature.UsedView{
		{View: "weather@3", Features: []feature.UsedFeature{{Feature: "temp", Column: "weather__temp"}, {Feature: "wind", Column: "renamed"}}},
		{View: "plane@1", Features: []feature.UsedFeature{{Feature: "built", Column: "plane__built"}}},
	}}
	var fields []arrow.Field
	for _, name := range []string{"departs", "hours", "weather__temp", "renamed", "plane__built", "late"} {
		fields = append(fields, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float64})
	}
	inputs, all := inputsOf(spec, arrow.NewSchema(fields, nil), set)
	if all {
		t.Error("plane:seats is in no column")
	}
	var got []string
	for _, in := range inputs {
		got = append(got, in.Name+"="+in.Column)
	}
	if s := strings.Join(got, " "); s != "hours=hours weather:temp=weather__temp weather:wind=renamed plane:built=plane__built" {
		t.Error(s)
	}
	if inputs[0].Otherwise != nil || inputs[1].Otherwise != nil || *inputs[3].Otherwise != 2000 {
		t.Errorf("%+v", inputs)
	}
	spec.Columns = spec.Columns[:4]
	if _, all := inputsOf(spec, arrow.NewSchema(fields, nil), set); !all {
		t.Error("all are there")
	}
	if inputs, all := inputsOf(spec, arrow.NewSchema(fields, nil), nil); all || len(inputs) != 3 { // an imported dataset: by convention
		t.Errorf("%+v", inputs)
	}
}

func TestScoresOfTensors(t *testing.T) {
	m := runtime.Metadata{
		Inputs:  []runtime.Spec{{Name: "X", Datatype: runtime.FP32}, {Name: "S", Datatype: runtime.Bytes}},
		Outputs: []runtime.Spec{{Name: "label", Datatype: runtime.Int64}, {Name: "probabilities", Datatype: runtime.FP32}},
	}
	in, err := tensorOf(m, "X", [][]float64{{1, 2}, {3, 4}, {5, 6}})
	if err != nil || !slices.Equal(in.Shape, []int64{3, 2}) || !slices.Equal(in.Data.([]float32), []float32{1, 2, 3, 4, 5, 6}) {
		t.Errorf("%+v, %v", in, err)
	}
	if _, err := tensorOf(m, "S", [][]float64{{1}}); err == nil {
		t.Error("text is no input of numbers")
	}
	if name, err := scoreOutput(nil, m); err != nil || name != "probabilities" {
		t.Error(name, err)
	}
	if _, err := scoreOutput(nil, runtime.Metadata{}); err == nil {
		t.Error("a model without floats has no score")
	}
	out := []runtime.Tensor{{Name: "probabilities", Shape: []int64{2, 2}, Data: []float32{.25, .75, .5, .5}}}
	first := 0
	for want, p := range map[float64]*serving.PredictionSpec{.75: nil, .25: {Index: &first}} {
		if got, err := column(out, p, 2); err != nil || got[0] != want {
			t.Errorf("%v, %v, want %g", got, err, want)
		}
	}
	seven := 7
	for _, err := range []error{
		wrong(column(out, &serving.PredictionSpec{Index: &seven}, 2)), wrong(column(out, nil, 3)), wrong(column(nil, nil, 1)),
		wrong(column([]runtime.Tensor{{Data: []string{"a"}}}, nil, 1)),
	} {
		if err == nil {
			t.Error("it was taken")
		}
	}
}

func wrong(_ []float64, err error) error { return err }
