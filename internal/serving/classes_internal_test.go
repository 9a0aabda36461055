package serving

import (
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// What a model answers is what the manifest declares or what its outputs are, and never
// what the numbers of an answer look like.
func TestTaskOfAModel(t *testing.T) {
	number := func(shape ...int64) runtime.Spec {
		return runtime.Spec{Name: "p", Datatype: runtime.FP32, Shape: shape}
	}
	label := func(kind runtime.Datatype, shape ...int64) runtime.Spec {
		return runtime.Spec{Name: "label", Datatype: kind, Shape: shape}
	}
	one := 1
	for name, test := range map[string]struct {
		outputs     []runtime.Spec
		spec        *PredictionSpec
		answer      []runtime.Tensor
		task        prediction.Task
		predicted   string
		probability int // how many are remembered
		refused     string
	}{
		"a lone number":             {outputs: []runtime.Spec{number(-1, 1)}},
		"a lone number, by rows":    {outputs: []runtime.Spec{number(-1)}},
		"two columns":               {outputs: []runtime.Spec{number(-1, 2)}},
		"three columns":             {outputs: []runtime.Spec{number(-1, 3)}},
		"a declared regression":     {outputs: []runtime.Spec{number(-1, 3)}, spec: &PredictionSpec{Task: prediction.Regression}, task: prediction.Regression},
		"a declared probability":    {outputs: []runtime.Spec{number(-1)}, spec: &PredictionSpec{Task: prediction.Binary}, task: prediction.Binary},
		"a classifier of two":       {outputs: []runtime.Spec{label(runtime.Int64, -1), number(-1, 2)}, task: prediction.Binary},
		"a classifier's margin":     {outputs: []runtime.Spec{label(runtime.Int64, -1, 1), number(-1, 1)}, task: prediction.Binary},
		"one column of three":       {outputs: []runtime.Spec{label(runtime.Int64, -1), number(-1, 3)}, spec: &PredictionSpec{Index: &one}},
		"one column of two":         {outputs: []runtime.Spec{label(runtime.Int64, -1), number(-1, 2)}, spec: &PredictionSpec{Index: &one}, task: prediction.Binary},
		"two outputs of classes":    {outputs: []runtime.Spec{label(runtime.Int64, -1), {Name: "other", Datatype: runtime.Int64, Shape: []int64{-1}}, number(-1, 3)}},
		"classes for each position": {outputs: []runtime.Spec{label(runtime.Int64, -1, 5), number(-1, 3)}},
		"a classifier of three": {
			outputs: []runtime.Spec{label(runtime.Int64, -1), number(-1, 3)},
			answer:  []runtime.Tensor{{Name: "label", Data: []int64{2, 0}}, {Name: "p", Data: []float32{.1, .2, .7, .8, .1, .1}}},
			task:    prediction.Multiclass, predicted: "2 0", probability: 6,
		},
		"classes of text": {
			outputs: []runtime.Spec{label(runtime.Bytes, -1), number(-1, 3)},
			answer:  []runtime.Tensor{{Name: "label", Data: []string{"cat", "dog"}}, {Name: "p", Data: []float32{.1, .2, .7, .8, .1, .1}}},
			task:    prediction.Multiclass, predicted: "cat dog", probability: 6,
		},
		"metadata without the width": {
			outputs: []runtime.Spec{label(runtime.Int32, -1), number(-1, -1)},
			answer:  []runtime.Tensor{{Name: "label", Data: []int32{1, 1}}, {Name: "p", Data: []float32{.1, .9, .2, .8}}},
			task:    prediction.Binary,
		},
		"declared, and no output of classes": {
			outputs: []runtime.Spec{number(-1, 3)}, spec: &PredictionSpec{Task: prediction.Multiclass, Classes: []string{"a", "b", "c"}},
			answer: []runtime.Tensor{{Name: "p", Data: []float32{.1, .2, .7, .8, .1, .1}}},
			task:   prediction.Multiclass, predicted: "c a", probability: 6,
		},
		"another number of classes": {outputs: []runtime.Spec{number(-1, 3)}, spec: &PredictionSpec{Task: prediction.Multiclass, Classes: []string{"a", "b"}}, refused: "2 names do not match"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := scoreOf(test.spec, runtime.Metadata{Outputs: test.outputs})
			if test.refused != "" {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			task, predicted, p := c.task, []string(nil), []float64(nil)
			if c.ofClasses() {
				task, predicted, p = c.classes(test.answer, 2)
			}
			if task != test.task || strings.Join(predicted, " ") != test.predicted || len(p) != test.probability {
				t.Errorf("task %q, predicted %q, %d probabilities", task, predicted, len(p))
			}
		})
	}
}

func TestTaskOfAManifest(t *testing.T) {
	zero := 0
	for text, p := range map[string]*PredictionSpec{
		"":                        {Task: prediction.Multiclass, Classes: []string{"a", "b", "c"}},
		"unknown task \"guess\"":  {Task: "guess"},
		"not allowed with task":   {Task: prediction.Multiclass, Index: &zero},
		"number of names: 1":      {Classes: []string{"a"}},
		"number of names: 2":      {Task: prediction.Regression, Classes: []string{"a", "b"}},
		"number of names: 3":      {Task: prediction.Binary, Classes: []string{"a", "b", "c"}},
		`classes[1]: "a" is not`:  {Task: prediction.Multiclass, Classes: []string{"a", "a"}},
		`classes[0]: "\xff" is`:   {Task: prediction.Multiclass, Classes: []string{"\xff", "a"}},
		"spec.prediction.classes": {Task: prediction.Multiclass, Classes: slices.Repeat([]string{"x"}, 1001)},
	} {
		err := Spec{Model: "m", Prediction: p}.Validate()
		if text == "" && err != nil || text != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), text)) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
