package training_test

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

func TestTrainedOn(t *testing.T) {
	data := func(name string) training.Input { return training.Input{Name: name, Ref: "dataset " + name + "@1"} }
	model := training.Input{Name: "base", Ref: "model delay@3"}
	for name, test := range map[string]struct {
		declared string
		inputs   []training.Input
		want     string
	}{
		"declared":                   {"train", []training.Input{data("test"), data("train")}, "train"},
		"the only dataset":           {"", []training.Input{data("train")}, "train"},
		"the only one beside models": {"", []training.Input{model, data("train")}, "train"},
		"what a model was":           {"base", []training.Input{model, data("rows")}, "base"},
		"several":                    {"", []training.Input{data("test"), data("train")}, ""},
		"none":                       {"", nil, ""},
	} {
		j := training.Job{Spec: training.Spec{Trains: test.declared}, Inputs: test.inputs}
		if got := j.TrainedOn(); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	spec := training.Spec{Command: []string{"/bin/true"}, Data: map[string]string{"train": "flights", "test": "flights"}, Trains: "valid"}
	if err := spec.Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "test, train") {
		t.Errorf("%v, %s", err, fault.HintOf(err))
	}
	spec.Trains = "train"
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}
