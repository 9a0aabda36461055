package watch

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Which of several datasets a version was trained on is declared, and never guessed by
// name, order or kind.
func TestTrainedOn(t *testing.T) {
	for name, test := range map[string]struct {
		datasets []string
		declared string
		want     string
		kind     fault.Kind
	}{
		"declared":  {[]string{"test@1", "train@1"}, "train@1", "train@1", 0},
		"only one":  {[]string{"train@1"}, "", "train@1", 0},
		"several":   {[]string{"test@1", "train@1"}, "", "", fault.Conflict},
		"unknown":   {nil, "", "", fault.NotFound},
		"inherited": {[]string{"calibration@1", "train@1"}, "train@1", "train@1", 0},
	} {
		v := registry.Version{Model: "delay", Number: 3, Origin: tracking.Origin{Datasets: test.datasets, TrainedOn: test.declared}}
		got, err := trainedOn(v)
		if got != test.want || (err != nil) != (test.kind != 0) || err != nil && !fault.Is(err, test.kind) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if fault.Is(err, fault.Conflict) && (!strings.Contains(err.Error(), "test@1, train@1") || !strings.Contains(fault.HintOf(err), "training_data")) {
			t.Errorf("%s: %v, %s", name, err, fault.HintOf(err))
		}
	}
}

// A feature, also a computed one, is found by either of its names in what was joined with
// full names or with short ones, and in a dataset of which nobody knows the features.
func TestInputsOfADataset(t *testing.T) {
	spec := &serving.FeaturesSpec{Columns: []string{"hour", "weather:temp", "delay:felt"}}
	set := func(temp, felt string) *feature.TrainingSet {
		return &feature.TrainingSet{
			Views:    []feature.UsedView{{View: "weather@3", Features: []feature.UsedFeature{{Feature: "temp", Column: temp}}}},
			Computed: []feature.ComputedFeature{{Feature: "delay@2:felt", Column: felt}},
		}
	}
	for name, test := range map[string]struct {
		set     *feature.TrainingSet
		columns string
		want    string
		without string
	}{
		"short names":            {set("temp", "felt"), "hour temp felt late", "hour temp felt", ""},
		"full names":             {set("weather__temp", "delay__felt"), "hour weather__temp delay__felt late", "hour weather__temp delay__felt", ""},
		"a dataset, short names": {&feature.TrainingSet{}, "hour temp felt", "hour temp felt", ""},
		"a dataset, full names":  {&feature.TrainingSet{}, "hour weather__temp delay__felt", "hour weather__temp delay__felt", ""},
		"one is missing":         {set("temp", "felt"), "hour temp", "hour temp", "delay:felt"},
	} {
		inputs, unscored, _ := inputsOf(spec, test.set.ColumnsOf(strings.Fields(test.columns)))
		var got []string
		for _, in := range inputs {
			got = append(got, in.Column)
		}
		if strings.Join(got, " ") != test.want || (unscored != "") != (test.without != "") || !strings.Contains(unscored, test.without) {
			t.Errorf("%s: %v, %q", name, got, unscored)
		}
	}
	two := &serving.FeaturesSpec{Columns: []string{"weather:temp", "sea:temp"}}
	inputs, unscored, note := inputsOf(two, (&feature.TrainingSet{}).ColumnsOf([]string{"temp"}))
	if len(inputs) != 0 || unscored == "" || note != "column temp may be sea:temp or weather:temp" {
		t.Errorf("%v, %q, %q", inputs, unscored, note)
	}
}
