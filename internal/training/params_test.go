package training_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/training"
)

// TestParams: the program gets its hyper-parameters as they were written, in its
// command and as JSON, and the run has them.
func TestParams(t *testing.T) {
	w := newWorld(t)
	var spec training.Spec
	err := json.Unmarshal([]byte(`{"command": ["sh", "-c", "train --lr=${params.lr} --opt ${params.opt} ${HOME}", "${params.on}${params.none}"],
		"params": {"lr": 0.10, "opt": "adam w", "on": true, "none": null, "big": 9007199254740993}}`), &spec)
	if err != nil {
		t.Fatal(err)
	}
	j := w.submit(t, spec)
	h := w.started(t)
	got, _ := w.fake.Spec(h)
	if want := []string{"-c", "train --lr=0.10 --opt adam w ${HOME}", "truenull"}; !slices.Equal(got.Command[1:], want) {
		t.Errorf("the command is %q, want %q", got.Command[1:], want)
	}
	if want := `{"big":9007199254740993,"lr":0.10,"none":null,"on":true,"opt":"adam w"}`; got.Env["FALAJ_PARAMS"] != want {
		t.Errorf("$FALAJ_PARAMS is %s, want %s", got.Env["FALAJ_PARAMS"], want)
	}
	if p := w.runs.specs[0].Params; p["falaj.param.lr"] != "0.10" || p["falaj.param.opt"] != "adam w" {
		t.Errorf("the run has %v", p)
	}
	if j.Spec.Command[1] != spec.Command[1] {
		t.Errorf("the specification of the job is %q", j.Spec.Command)
	}
}

func TestParamsThatAreRefused(t *testing.T) {
	many := training.Params{}
	for i := range 129 {
		many[strings.Repeat("x", i+1)] = i
	}
	for name, spec := range map[string]training.Spec{
		"an unknown one": {Command: []string{"x", "${params.lx}"}, Params: training.Params{"lr": json.Number("1")}},
		"a list":         {Command: []string{"x"}, Params: training.Params{"lr": []any{1}}},
		"a bad name":     {Command: []string{"x"}, Params: training.Params{"a=b": true}},
		"no name":        {Command: []string{"x"}, Params: training.Params{"": true}},
		"a long text":    {Command: []string{"x"}, Params: training.Params{"a": strings.Repeat("x", 1001)}},
		"a zero byte":    {Command: []string{"x"}, Params: training.Params{"a": "\x00"}},
		"too many":       {Command: []string{"x"}, Params: many},
		"too much": {Command: []string{"x"}, Params: func() training.Params {
			p := training.Params{}
			for i := range 100 {
				p[strings.Repeat("y", i+1)] = strings.Repeat("x", 1000)
			}
			return p
		}()},
	} {
		if err := spec.Validate(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
