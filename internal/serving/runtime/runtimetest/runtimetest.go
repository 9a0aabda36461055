// Package runtimetest is the suite that every serving runtime passes, and a
// fake for tests of what stands above runtimes; the fake passes it too.
package runtimetest

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// The logistic regression that the suite asks: P(1) = sigmoid(W·x + B), from
// onnx/testdata/make.py.
var (
	W = [2]float64{0.8316221833229065, 0.7340753078460693}
	B = -3.372769355773926
)

// Logistic is the expected probability of class 1.
func Logistic(x0, x1 float32) float64 {
	return 1 / (1 + math.Exp(-(W[0]*float64(x0) + W[1]*float64(x1) + B)))
}

// Run checks a runtime. model is the logistic regression in the runtime's form,
// with input X [-1,2] FP32 and outputs label [-1] INT64, probabilities [-1,2] FP32.
func Run(t *testing.T, rt runtime.Runtime, model []byte) {
	t.Helper()
	load := func(t *testing.T) runtime.Session {
		t.Helper()
		s, err := rt.Load(t.Context(), model, runtime.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	input := func(rows ...float32) []runtime.Tensor {
		return []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{int64(len(rows) / 2), 2}, Data: rows}}
	}
	t.Run("metadata", func(t *testing.T) {
		m := load(t).Metadata()
		if len(m.Inputs) != 1 || m.Inputs[0].Name != "X" || m.Inputs[0].Datatype != runtime.FP32 || !slices.Equal(m.Inputs[0].Shape, []int64{-1, 2}) {
			t.Errorf("inputs %+v", m.Inputs)
		}
		if len(m.Outputs) != 2 || m.Outputs[0].Name != "label" || m.Outputs[0].Datatype != runtime.Int64 || m.Outputs[1].Name != "probabilities" {
			t.Errorf("outputs %+v", m.Outputs)
		}
	})
	t.Run("answers", func(t *testing.T) {
		out, err := load(t).Infer(t.Context(), input(0, 0, 4, 3), []string{"probabilities", "label"})
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Name != "probabilities" || !slices.Equal(out[0].Shape, []int64{2, 2}) || !slices.Equal(out[1].Data.([]int64), []int64{0, 1}) {
			t.Fatalf("got %+v", out)
		}
		p := out[0].Data.([]float32)
		for i, want := range []float64{Logistic(0, 0), Logistic(4, 3)} {
			if math.Abs(float64(p[2*i+1])-want) > 1e-5 {
				t.Errorf("row %d: %v, want %v", i, p[2*i+1], want)
			}
		}
	})
	t.Run("side by side", func(t *testing.T) {
		s := load(t)
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := range 50 {
					x := float32(g*50+i) / 200
					out, err := s.Infer(t.Context(), input(x, 1), []string{"probabilities"})
					if err != nil {
						t.Error(err)
						return
					}
					if got := float64(out[0].Data.([]float32)[1]); math.Abs(got-Logistic(x, 1)) > 1e-5 {
						t.Errorf("x %v: %v, want %v", x, got, Logistic(x, 1))
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("outlives a reload", func(t *testing.T) {
		a, b := load(t), load(t)
		for _, s := range []runtime.Session{a, b} {
			if _, err := s.Infer(t.Context(), input(1, 1), []string{"label"}); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("context over", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := load(t)
		if _, err := s.Infer(ctx, input(1, 1), []string{"label"}); err != nil && !fault.Is(err, fault.Timeout) {
			t.Errorf("kind %s: %v", fault.KindOf(err), err)
		}
		if _, err := s.Infer(t.Context(), input(1, 1), []string{"label"}); err != nil {
			t.Errorf("after a cancelled call: %v", err)
		}
	})
	t.Run("unknown output", func(t *testing.T) {
		if _, err := load(t).Infer(t.Context(), input(1, 1), []string{"nothing"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("got %v", err)
		}
	})
	for name, bad := range map[string][]byte{"empty": {}, "garbage": []byte("this is no model at all"), "cut": model[:len(model)/2]} {
		t.Run("refuses "+name, func(t *testing.T) {
			s, err := rt.Load(t.Context(), bad, runtime.Options{})
			if err == nil {
				_ = s.Close()
			}
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// FakeModel is the model file that a Fake accepts.
var FakeModel = []byte("fake logistic regression\n")

// Fake answers with the logistic regression, in Go.
type Fake struct{}

var _ runtime.Runtime = Fake{}

// Load implements runtime.Runtime.
func (Fake) Load(_ context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	if string(model) != string(FakeModel) {
		return nil, fault.New(fault.Invalid, "not a model")
	}
	return fakeSession{}, nil
}

type fakeSession struct{}

func (fakeSession) Metadata() runtime.Metadata {
	return runtime.Metadata{
		Platform: "fake",
		Inputs:   []runtime.Spec{{Name: "X", Datatype: runtime.FP32, Shape: []int64{-1, 2}}},
		Outputs: []runtime.Spec{
			{Name: "label", Datatype: runtime.Int64, Shape: []int64{-1}},
			{Name: "probabilities", Datatype: runtime.FP32, Shape: []int64{-1, 2}},
		},
	}
}

func (fakeSession) Infer(_ context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	x := inputs[0].Data.([]float32)
	n := len(x) / 2
	labels, probabilities := make([]int64, n), make([]float32, 2*n)
	for i := range n {
		p := Logistic(x[2*i], x[2*i+1])
		probabilities[2*i], probabilities[2*i+1] = float32(1-p), float32(p)
		if p > 0.5 {
			labels[i] = 1
		}
	}
	var out []runtime.Tensor
	for _, name := range outputs {
		switch name {
		case "label":
			out = append(out, runtime.Tensor{Name: name, Datatype: runtime.Int64, Shape: []int64{int64(n)}, Data: labels})
		case "probabilities":
			out = append(out, runtime.Tensor{Name: name, Datatype: runtime.FP32, Shape: []int64{int64(n), 2}, Data: probabilities})
		default:
			return nil, fault.New(fault.Invalid, "the model has no output %q", name)
		}
	}
	return out, nil
}

func (fakeSession) Close() error { return nil }
