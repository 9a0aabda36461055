package serving_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// stepped is a deployment of the logistic regression that takes a temperature and a
// carrier, and answers a text.
func stepped() serving.Spec {
	return serving.Spec{
		Model:  "delay",
		Inputs: []chain.InputSpec{{Name: "temp", Datatype: runtime.FP64}, {Name: "carrier", Datatype: runtime.Bytes}},
		Before: []chain.StepSpec{
			{Model: "words", Inputs: map[string]string{"s": "carrier"}, Outputs: map[string]string{"e": "known"}},
			{Compute: map[string]string{"scaled": "(temp - 10.0) / 10.0", "code": "{'AA': 4.0, 'UA': 3.0}[known]"}},
			{Tensor: &chain.TensorSpec{Name: "X", Datatype: runtime.FP32, From: []string{"scaled", "code"}}},
		},
		After:   []chain.StepSpec{{Compute: map[string]string{"text": "['on time', 'late'][label]"}}},
		Outputs: []string{"text"},
	}
}

func (w *world) words(alias string, version int64) {
	m := serving.Model{Name: "words", Version: version, Digest: fmt.Sprintf("sha256:w%d", version), File: runtimetest.FakeModels.Echo}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.models["words/"+alias], w.models[fmt.Sprintf("words/%d", version)] = m, m
}

// brook is a service with steps, and what it remembers.
func brook(t *testing.T) (*world, *notes, func() *services) {
	t.Helper()
	w, n := newWorld(), &notes{}
	w.words("champion", 1)
	db := storetest.SQLite(t, servingsql.Migrations)
	return w, n, func() *services {
		return newServices(serving.Config{DB: db, Store: servingsql.Store{}, Authz: w, Models: w, Journal: w, Guard: w, Runtime: runtimetest.Fake{}, Predictions: n})
	}
}

func flights(temps []float64, carriers ...string) serving.Request {
	n := int64(len(temps))
	return serving.Request{Project: "nyc", Name: "delay", Inputs: []runtime.Tensor{
		{Name: "temp", Datatype: runtime.FP64, Shape: []int64{n}, Data: temps},
		{Name: "carrier", Datatype: runtime.Bytes, Shape: []int64{n}, Data: carriers},
	}}
}

func TestSteps(t *testing.T) {
	w, n, start := brook(t)
	ctx, s := t.Context(), start()
	d, changed, err := s.Apply(ctx, "nyc", "delay", stepped(), false)
	if err != nil || !changed || len(d.Steps) != 1 || d.Steps[0].Step != "before[0]" || d.Steps[0].Version != 1 || d.Steps[0].Digest != "sha256:w1" {
		t.Fatalf("%+v %v %v", d, changed, err)
	}
	m, err := s.Metadata(ctx, "nyc", "delay", "")
	if got := fmt.Sprint(m.Inputs, m.Outputs); err != nil || got != "[{temp FP64 [-1] false []} {carrier BYTES [-1] false []}] [{text BYTES [-1] false []}]" {
		t.Errorf("it says %s, %v", got, err)
	}
	a, err := s.Infer(ctx, flights([]float64{10, 50}, "UA", "AA"))
	if err != nil || len(a.Outputs) != 1 || !slices.Equal(a.Outputs[0].Data.([]string), []string{"on time", "late"}) {
		t.Fatalf("%+v %v", a, err)
	}
	// What the model saw and its score are remembered, though neither was answered.
	r := n.last(t)
	if len(r.Inputs) != 2 || r.Inputs[0].Name != "scaled" || !slices.Equal(r.Inputs[0].Numbers, []float64{0, 4}) || r.Inputs[1].Name != "code" || !slices.Equal(r.Inputs[1].Numbers, []float64{3, 4}) {
		t.Errorf("remembered %+v", r.Inputs)
	}
	if want := runtimetest.Logistic(4, 4); len(r.Scores) != 2 || r.Scores[1]-want > 1e-6 || want-r.Scores[1] > 1e-6 || r.Failure != "" {
		t.Errorf("scores %v, failure %q", r.Scores, r.Failure)
	}
	st, err := s.Status(ctx, "nyc", "delay")
	if err != nil || len(st.Versions) != 1 || len(st.Versions[0].Steps) != 5 {
		t.Fatalf("%+v %v", st, err)
	}
	for i, step := range []string{"before[0]", "before[1]", "before[2]", "model", "after[0]"} {
		if c := st.Versions[0].Steps[i]; c.Step != step || c.Runs < 1 || c.Rows < 2 || c.Time <= 0 {
			t.Errorf("%+v", c)
		}
	}
	// A row that a step refuses is the asker's, and not the model's.
	for _, bad := range []serving.Request{flights([]float64{1, 2}, "AA", "hidden"), flights([]float64{1, 2}, "AA")} {
		if _, err = s.Infer(ctx, bad); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "step before[") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v", err)
		}
		if r := n.last(t); r.Failure == prediction.FailedInModel || r.Failure == "" || r.Inputs != nil {
			t.Errorf("remembered %+v", r)
		}
	}
	wrong := flights([]float64{1}, "AA")
	wrong.Inputs[0].Datatype, wrong.Inputs[0].Data = runtime.FP32, []float32{1}
	if _, err := s.Infer(ctx, wrong); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `input "temp" has datatype FP32`) {
		t.Errorf("%v", err)
	}

	// The step's version is the one that the alias meant, until it is applied again.
	w.words("champion", 2)
	again := start()
	if err := again.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if err := again.RunOnce(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err = again.One(ctx, "nyc", "delay"); err != nil || d.State != serving.Ready || d.Steps[0].Version != 1 {
		t.Fatalf("%+v %v", d, err)
	}
	for version, asks := range map[int64]bool{0: true, 1: true, 2: false} {
		if d.Asks("words", version) != asks || d.Asks("others", version) {
			t.Errorf("it asks version %d of words: %v", version, !asks)
		}
	}
	if a, err := again.Infer(ctx, flights([]float64{50}, "AA")); err != nil || a.Outputs[0].Data.([]string)[0] != "late" {
		t.Errorf("%+v %v", a, err)
	}
	if d, changed, err = again.Apply(ctx, "nyc", "delay", stepped(), false); err != nil || !changed || d.Steps[0].Version != 2 {
		t.Errorf("%+v %v %v", d, changed, err)
	}
	if _, changed, err := again.Apply(ctx, "nyc", "delay", stepped(), false); err != nil || changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}

	// A step that was changed since does not load.
	w.mu.Lock()
	m2 := w.models["words/2"]
	m2.Digest = "sha256:other"
	w.models["words/2"] = m2
	w.mu.Unlock()
	third := start()
	if err := third.RunOnce(ctx); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "spec.before[0]") {
		t.Errorf("%v", err)
	}
}

// A canary replaces the model's version; the steps stay.
func TestStepsOfARollout(t *testing.T) {
	_, n, start := brook(t)
	ctx, s := t.Context(), start()
	if _, _, err := s.Apply(ctx, "nyc", "delay", stepped(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ctx, "nyc", "delay", serving.RolloutRequest{Version: "2", Weight: 50}); err != nil {
		t.Fatal(err)
	}
	r := flights([]float64{50}, "AA")
	r.Version = "2"
	a, err := s.Infer(ctx, r)
	if err != nil || a.Version != 2 || a.Outputs[0].Data.([]string)[0] != "late" || n.last(t).Version != 2 {
		t.Errorf("%+v %v", a, err)
	}
	if _, err := s.Promote(ctx, "nyc", "delay", serving.RolloutEnd{}); err != nil {
		t.Fatal(err)
	}
	if d, err := s.One(ctx, "nyc", "delay"); err != nil || d.Version != 2 || d.State != serving.Ready || len(d.Steps) != 1 {
		t.Errorf("%+v %v", d, err)
	}
}

// A deployment is as classified as the strictest of its models, and may be where all may.
func TestStepsAreJoined(t *testing.T) {
	w, _, start := brook(t)
	ctx, s := t.Context(), start()
	m := w.models["words/1"]
	m.Classification, m.Residency = "restricted", residency.Of("home", "AE")
	w.models["words/1"], w.models["words/champion"] = m, m
	d, _, err := s.Apply(ctx, "nyc", "delay", stepped(), false)
	if err != nil || d.Classification != "restricted" || d.Residency.String() != "home" || d.Steps[0].Residency.String() != "AE, home" {
		t.Fatalf("%+v %v", d, err)
	}
	if _, err := s.Infer(ctx, flights([]float64{50}, "AA")); err != nil || len(w.recorded) != 1 {
		t.Errorf("journaled %v, %v", w.recorded, err)
	}
	m.Residency = residency.Of("AE")
	w.models["words/1"], w.models["words/champion"] = m, m
	if _, _, err := s.Apply(ctx, "nyc", "other", stepped(), false); !fault.Is(err, fault.PermissionDenied) || !strings.Contains(err.Error(), "spec.before[0]") || !strings.Contains(err.Error(), "only in AE") {
		t.Errorf("%v", err)
	}
	delete(w.models, "words/champion")
	if _, _, err := s.Apply(ctx, "nyc", "other", stepped(), false); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "spec.before[0]") {
		t.Errorf("%v", err)
	}
}

func TestStepsAreChecked(t *testing.T) {
	_, _, start := brook(t)
	s := start()
	spec := stepped()
	spec.Before[1].Compute["code"] = "{'AA': 4, 'UA': 3}[unknown]"
	if _, _, err := s.Apply(t.Context(), "nyc", "delay", spec, false); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "spec.before[1]: compute.code: line 1") {
		t.Errorf("%v", err)
	}
	for output, ok := range map[string]bool{"label": true, "scaled": true, "text": false, "nothing": false} {
		spec := stepped()
		spec.Prediction = &serving.PredictionSpec{Output: output}
		if _, _, err := s.Apply(t.Context(), "nyc", "delay", spec, true); (err == nil) != ok {
			t.Errorf("score of %s: %v", output, err)
		}
	}
}

// Features come before the steps, which see them by their names.
func TestStepsAfterFeatures(t *testing.T) {
	p, _, n := fed(t)
	f := spec(serving.FeaturesSpec{})
	f.Features.Input = "F"
	f.Inputs = []chain.InputSpec{{Name: "origin", Datatype: runtime.Bytes}}
	f.Before = []chain.StepSpec{
		{Compute: map[string]string{"warm": "weather__temp * 2.0", "far": "origin == 'JFK' ? distance : 0.0"}},
		{Tensor: &chain.TensorSpec{Name: "X", Datatype: runtime.FP32, From: []string{"far", "warm"}}},
	}
	p.apply(t, f)
	if _, err := p.Infer(t.Context(), keyed([]float64{700, 800}, "JFK", "LGA")); err != nil {
		t.Fatal(err)
	}
	if r := n.last(t); len(r.Inputs) != 2 || r.Inputs[0].Name != "distance" || !slices.Equal(r.Inputs[1].Numbers, []float64{30, 20}) || r.Keys[0].Texts[1] != "LGA" {
		t.Errorf("remembered %+v", r)
	}
	m, err := p.Metadata(t.Context(), "nyc", "d", "")
	if got := fmt.Sprint(m.Inputs); err != nil || got != "[{origin BYTES [-1] false []} {F FP64 [-1 2] false [distance weather:temp]}]" {
		t.Errorf("it takes %s, %v", got, err)
	}
}

// TestOtherStepsEndATrial: what is tried has the label of the steps that it was begun
// with, so it is not promoted with others.
func TestOtherStepsEndATrial(t *testing.T) {
	w, _, start := brook(t)
	ctx, s := t.Context(), start()
	if _, _, err := s.Apply(ctx, "nyc", "delay", stepped(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ctx, "nyc", "delay", serving.RolloutRequest{Version: "2", Weight: 50}); err != nil {
		t.Fatal(err)
	}
	w.words("champion", 2)
	m := w.models["words/2"]
	m.Classification = "restricted"
	w.models["words/2"], w.models["words/champion"] = m, m
	d, changed, err := s.Apply(ctx, "nyc", "delay", stepped(), false)
	if err != nil || !changed || d.Classification != "restricted" || len(d.Targets) != 1 {
		t.Fatalf("%+v, %v, %v", d, changed, err)
	}
	if _, err := s.Promote(ctx, "nyc", "delay", serving.RolloutEnd{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("it is promoted all the same: %v", err)
	}
	if d, err = s.One(ctx, "nyc", "delay"); err != nil || d.Version != 1 || d.Classification != "restricted" {
		t.Errorf("%+v, %v", d, err)
	}
}
