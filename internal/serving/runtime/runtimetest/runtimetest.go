// Package runtimetest is the suite that every serving runtime passes, and a
// fake for tests of what stands above runtimes; the fake passes it too.
package runtimetest

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
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

// Models are what the suite asks, in the runtime's form.
type Models struct {
	// Logistic is the logistic regression: X [-1,2] FP32 gives label [-1] INT64
	// and probabilities [-1,2] FP32.
	Logistic []byte
	// Echo answers s [-1] BYTES with the same as e.
	Echo []byte
	// Total takes x [-1] FP32 and scale [] FP32 and gives total [] FP32, the sum
	// of x times scale, and twice [-1] FP32, each of x doubled.
	Total []byte
	// Optional takes x [-1] FP32 and, where they are given, scale [] FP32, else 2, shift [1] FP32,
	// else 1, and tag [1] BYTES, else "none". It gives y [-1] FP32, x times scale and shift, and
	// is [1] BYTES, the tag. nil: the runtime has no optional inputs.
	Optional []byte
}

// Run checks a runtime.
func Run(t *testing.T, rt runtime.Runtime, models Models) {
	t.Helper()
	model := models.Logistic
	loadOf := func(t *testing.T, model []byte) runtime.Session {
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
	load := func(t *testing.T) runtime.Session {
		t.Helper()
		return loadOf(t, model)
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
	t.Run("outlives another session's end", func(t *testing.T) {
		kept := load(t)
		ended, err := rt.Load(t.Context(), model, runtime.Options{})
		if err != nil {
			t.Fatal(err)
		}
		before, err := ended.Infer(t.Context(), input(4, 3), []string{"label"})
		if err != nil {
			t.Fatal(err)
		}
		if err := ended.Close(); err != nil {
			t.Fatal(err)
		}
		after, err := kept.Infer(t.Context(), input(4, 3), []string{"label"})
		if err != nil {
			t.Fatal(err)
		}
		for when, out := range map[string][]runtime.Tensor{"before": before, "after": after} {
			if got := out[0].Data.([]int64); !slices.Equal(got, []int64{1}) { // an answer does not live in the session
				t.Errorf("%s the other's end: %v", when, got)
			}
		}
	})
	t.Run("context over", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := load(t)
		for range 20 {
			if out, err := s.Infer(ctx, input(1, 1), []string{"label"}); !fault.Is(err, fault.Timeout) {
				t.Fatalf("answered %v, kind %s: %v", out, fault.KindOf(err), err)
			}
		}
		if _, err := s.Infer(t.Context(), input(1, 1), []string{"label"}); err != nil {
			t.Errorf("after a cancelled call: %v", err)
		}
	})
	t.Run("no rows", func(t *testing.T) {
		out, err := load(t).Infer(t.Context(), []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{0, 2}, Data: []float32{}}}, []string{"probabilities"})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out[0].Shape, []int64{0, 2}) || len(out[0].Data.([]float32)) != 0 {
			t.Errorf("got %+v", out)
		}
	})
	t.Run("scalars", func(t *testing.T) {
		s := loadOf(t, models.Total)
		m := s.Metadata()
		if len(m.Inputs) != 2 || m.Inputs[1].Shape == nil || len(m.Inputs[1].Shape) != 0 || len(m.Outputs) != 2 || m.Outputs[0].Shape == nil || len(m.Outputs[0].Shape) != 0 {
			t.Fatalf("metadata %+v", m)
		}
		for _, x := range [][]float32{{1, 2, 3}, {}, {5}} {
			out, err := s.Infer(t.Context(), []runtime.Tensor{
				{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{2}},
				{Name: "x", Datatype: runtime.FP32, Shape: []int64{int64(len(x))}, Data: x},
			}, []string{"twice", "total"})
			if err != nil {
				t.Fatal(err)
			}
			var want float32
			for i, v := range x {
				want += 2 * v
				if got := out[0].Data.([]float32)[i]; got != 2*v {
					t.Errorf("twice %v is %v", v, got)
				}
			}
			if out[1].Shape == nil || len(out[1].Shape) != 0 || !slices.Equal(out[1].Data.([]float32), []float32{want}) {
				t.Errorf("total of %v: %+v, want %v", x, out[1], want)
			}
		}
	})
	t.Run("strings", func(t *testing.T) {
		s := loadOf(t, models.Echo)
		for _, words := range [][]string{{"a", "", "نخلة"}, {}, {""}, {"a", "b\x00c", "d"}, {"\x00"}} {
			in := []runtime.Tensor{{Name: "s", Datatype: runtime.Bytes, Shape: []int64{int64(len(words))}, Data: words}}
			out, err := s.Infer(t.Context(), in, []string{"e"})
			i := slices.IndexFunc(words, func(w string) bool { return strings.ContainsRune(w, 0) })
			if i >= 0 && fault.Is(err, fault.Invalid) && strings.Contains(err.Error(), "element "+strconv.Itoa(i)) {
				continue // refused, rather than cut
			}
			if err != nil {
				t.Errorf("%q: %v", words, err)
				continue
			}
			if got := out[0].Data.([]string); !slices.Equal(got, words) || !slices.Equal(out[0].Shape, []int64{int64(len(words))}) {
				t.Errorf("%q came back as %q %v", words, got, out[0].Shape)
			}
		}
	})
	t.Run("optional inputs", func(t *testing.T) {
		if models.Optional == nil {
			t.Skip("the runtime has none")
		}
		optional(t, loadOf(t, models.Optional))
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

// optional asks the model Optional with each set of its optional inputs, one after the other
// and at the same time: none sees what another was given.
func optional(t *testing.T, s runtime.Session) {
	t.Helper()
	m := s.Metadata()
	if len(m.Inputs) != 1 || len(m.Optional) != 3 || m.Validate() != nil {
		t.Fatalf("metadata %+v", m)
	}
	ask := func(set int, x float32) {
		scale, shift, tag := float32(2), float32(1), "none"
		in := []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{x}}}
		if set&1 != 0 {
			tag = "tag " + strconv.Itoa(int(x))
			in = slices.Insert(in, 0, runtime.Tensor{Name: "tag", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{tag}})
		}
		if set&2 != 0 {
			shift = x + 3
			in = append(in, runtime.Tensor{Name: "shift", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{shift}})
		}
		if set&4 != 0 {
			scale = x + 5
			in = append(in, runtime.Tensor{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{scale}})
		}
		if err := m.Check(in); err != nil {
			t.Error(err)
		}
		out, err := s.Infer(t.Context(), in, []string{"is", "y"})
		if err != nil {
			t.Errorf("set %d: %v", set, err)
			return
		}
		if got := out[1].Data.([]float32); !slices.Equal(got, []float32{x*scale + shift}) || !slices.Equal(out[0].Data.([]string), []string{tag}) {
			t.Errorf("set %d of %v: %v %v, want %v and %q", set, x, got, out[0].Data, x*scale+shift, tag)
		}
	}
	for set := range 8 {
		ask(set, float32(set))
		ask(0, 1)
	}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() { ask(i%8, float32(i)) })
	}
	all.Wait()
	for name, in := range map[string]runtime.Tensor{
		"another datatype": {Name: "scale", Datatype: runtime.FP64, Shape: []int64{}, Data: []float64{1}},
		"another shape":    {Name: "shift", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1, 2}},
		"a constant":       {Name: "w", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}},
	} {
		x := runtime.Tensor{Name: "x", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}}
		if err := m.Check([]runtime.Tensor{x, in}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.Check([]runtime.Tensor{{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{1}}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("without x: %v", err)
	}
}

// FakeModel is the logistic regression for a Fake.
var FakeModel = []byte("fake logistic regression\n")

// FakeModels are the suite's models for a Fake.
var FakeModels = Models{Logistic: FakeModel, Echo: []byte("fake echo\n"), Total: []byte("fake total\n")}

// Fake runs FakeModels in Go.
type Fake struct{}

var _ runtime.Runtime = Fake{}

// Load implements runtime.Runtime.
func (Fake) Load(_ context.Context, model []byte, _ runtime.Options) (runtime.Session, error) {
	one := func(name string, d runtime.Datatype, shape ...int64) runtime.Spec {
		return runtime.Spec{Name: name, Datatype: d, Shape: append([]int64{}, shape...)}
	}
	s := fakeSession{meta: runtime.Metadata{Platform: "fake"}}
	switch string(model) {
	case string(FakeModels.Logistic):
		s.meta.Inputs = []runtime.Spec{one("X", runtime.FP32, -1, 2)}
		s.meta.Outputs = []runtime.Spec{one("label", runtime.Int64, -1), one("probabilities", runtime.FP32, -1, 2)}
		s.answer = logistic
	case string(FakeModels.Echo):
		s.meta.Inputs, s.meta.Outputs = []runtime.Spec{one("s", runtime.Bytes, -1)}, []runtime.Spec{one("e", runtime.Bytes, -1)}
		s.answer = func(in map[string]runtime.Tensor) map[string]runtime.Tensor {
			return map[string]runtime.Tensor{"e": {Shape: in["s"].Shape, Data: slices.Clone(in["s"].Data.([]string))}}
		}
	case string(FakeModels.Total):
		s.meta.Inputs = []runtime.Spec{one("x", runtime.FP32, -1), one("scale", runtime.FP32)}
		s.meta.Outputs = []runtime.Spec{one("total", runtime.FP32), one("twice", runtime.FP32, -1)}
		s.answer = total
	default:
		return nil, fault.New(fault.Invalid, "not a model")
	}
	return s, nil
}

type fakeSession struct {
	meta   runtime.Metadata
	answer func(in map[string]runtime.Tensor) map[string]runtime.Tensor
}

func (s fakeSession) Metadata() runtime.Metadata { return s.meta }

func (s fakeSession) Infer(ctx context.Context, inputs []runtime.Tensor, outputs []string) ([]runtime.Tensor, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request's time is up")
	}
	in := make(map[string]runtime.Tensor, len(inputs))
	for _, t := range inputs {
		in[t.Name] = t
	}
	answers := s.answer(in)
	out := make([]runtime.Tensor, len(outputs))
	for i, name := range outputs {
		j := slices.IndexFunc(s.meta.Outputs, func(o runtime.Spec) bool { return o.Name == name })
		if j < 0 {
			return nil, fault.New(fault.Invalid, "the model has no output %q", name)
		}
		out[i] = answers[name]
		out[i].Name, out[i].Datatype = name, s.meta.Outputs[j].Datatype
	}
	return out, nil
}

func (fakeSession) Close() error { return nil }

func logistic(in map[string]runtime.Tensor) map[string]runtime.Tensor {
	x := in["X"].Data.([]float32)
	n := len(x) / 2
	labels, probabilities := make([]int64, n), make([]float32, 2*n)
	for i := range n {
		p := Logistic(x[2*i], x[2*i+1])
		probabilities[2*i], probabilities[2*i+1] = float32(1-p), float32(p)
		if p > 0.5 {
			labels[i] = 1
		}
	}
	return map[string]runtime.Tensor{
		"label":         {Shape: []int64{int64(n)}, Data: labels},
		"probabilities": {Shape: []int64{int64(n), 2}, Data: probabilities},
	}
}

func total(in map[string]runtime.Tensor) map[string]runtime.Tensor {
	x, scale := in["x"].Data.([]float32), in["scale"].Data.([]float32)[0]
	var sum float32
	twice := make([]float32, len(x))
	for i, v := range x {
		sum += v
		twice[i] = 2 * v
	}
	return map[string]runtime.Tensor{
		"total": {Shape: []int64{}, Data: []float32{sum * scale}},
		"twice": {Shape: []int64{int64(len(x))}, Data: twice},
	}
}
