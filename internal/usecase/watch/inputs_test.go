package watch

import (
	"math"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/serving"
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
	columns := []string{"departs", "hours", "weather__temp", "renamed", "plane__built", "late"}
	inputs, unscored, _ := inputsOf(spec, set.ColumnsOf(columns))
	if !strings.Contains(unscored, "plane:seats") {
		t.Errorf("plane:seats is in no column: %q", unscored)
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
	if _, unscored, _ := inputsOf(spec, set.ColumnsOf(columns)); unscored != "" {
		t.Error(unscored)
	}
	if inputs, unscored, _ := inputsOf(spec, (&feature.TrainingSet{}).ColumnsOf(columns)); unscored == "" || len(inputs) != 3 { // an imported dataset: by convention
		t.Errorf("%+v", inputs)
	}
}
