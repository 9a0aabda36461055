package onnx

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// library is what `make deps` fetched; `make test` always runs that first.
func library(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.Abs("../../../../lib/libonnxruntime.so")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("%v: run `make deps`", err)
	}
	return path
}

func model(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestWithoutALibrary(t *testing.T) {
	initMu.Lock()
	was := inited
	inited = false
	initMu.Unlock()
	t.Cleanup(func() { inited = was })
	_, err := New("nowhere/libonnxruntime.so").Load(t.Context(), model(t, "logistic.onnx"), serving.Options{})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "make deps") {
		t.Errorf("got %v", err)
	}
}

func TestRuntime(t *testing.T) {
	rt := New(library(t))
	runtimetest.Run(t, rt, runtimetest.Models{Logistic: model(t, "logistic.onnx"), Echo: echo, Total: total})
	t.Run("maps are refused with advice", func(t *testing.T) {
		_, err := rt.Load(t.Context(), model(t, "zipmap.onnx"), serving.Options{})
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "zipmap") {
			t.Errorf("got %v", err)
		}
	})
}

func load(t *testing.T, model []byte) serving.Session {
	t.Helper()
	s, err := New(library(t)).Load(t.Context(), model, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func floats(name string, shape []int64, data ...float32) []serving.Tensor {
	return []serving.Tensor{{Name: name, Datatype: serving.FP32, Shape: shape, Data: data}}
}

// TestUndeclaredScalars asks models whose outputs have no dimension where their
// files say nothing of it, or sometimes have one and sometimes not.
func TestUndeclaredScalars(t *testing.T) {
	s := load(t, modelOf(
		part(1, op("ReduceSum", []string{"x"}, []string{"a"}, number("keepdims", 0))),
		part(1, op("ReduceMax", []string{"x"}, []string{"b"}, number("keepdims", 0))),
		part(1, op("Squeeze", []string{"x"}, []string{"c"})),
		part(11, shapeless("x", float32s)),
		part(12, shapeless("a", float32s)), part(12, shapeless("b", float32s)), part(12, shapeless("c", float32s)),
	))
	for range 2 {
		for _, c := range []struct {
			x, shape []int64
			want     []float32
		}{
			{x: []int64{3, 1}, shape: []int64{3}, want: []float32{1, 2, 3}},
			{x: []int64{1, 1}, shape: []int64{}, want: []float32{1}},
			{x: []int64{}, shape: []int64{}, want: []float32{1}},
			{x: []int64{2}, shape: []int64{2}, want: []float32{1, 2}},
		} {
			data := []float32{1, 2, 3}[:len(c.want)]
			in := floats("x", c.x, data...)
			if err := s.Metadata().Check(in); err != nil {
				t.Error(err)
			}
			out, err := s.Infer(t.Context(), in, []string{"a", "b", "c"})
			if err != nil {
				t.Errorf("%v: %v", c.x, err)
				continue
			}
			if out[1].Data.([]float32)[0] != slices.Max(data) || len(out[1].Shape) != 0 || len(out[0].Shape) != 0 {
				t.Errorf("%v: %+v", c.x, out)
			}
			if !slices.Equal(out[2].Data.([]float32), c.want) || !slices.Equal(out[2].Shape, c.shape) {
				t.Errorf("%v squeezed is %+v", c.x, out[2])
			}
		}
	}
}

// TestScalarString takes one string out of several.
func TestScalarString(t *testing.T) {
	zero := slices.Concat(word(1, "value"), part(5, count(2, int64s), part(7, []byte{0})), count(20, 4))
	s := load(t, modelOf(
		part(1, op("Constant", nil, []string{"i"}, zero)), part(1, op("Gather", []string{"s", "i"}, []string{"first"})),
		part(11, port("s", stringsT, -1)), part(12, port("first", stringsT)),
	))
	out, err := s.Infer(t.Context(), []serving.Tensor{{Name: "s", Datatype: serving.Bytes, Shape: []int64{2}, Data: []string{"a", "b"}}}, []string{"first"})
	if err != nil || !slices.Equal(out[0].Data.([]string), []string{"a"}) || len(out[0].Shape) != 0 {
		t.Errorf("%+v %v", out, err)
	}
}

// TestNULs: the library's binding would cut the string there.
func TestNULs(t *testing.T) {
	_, err := load(t, echo).Infer(t.Context(), []serving.Tensor{{Name: "s", Datatype: serving.Bytes, Shape: []int64{2}, Data: []string{"a", "b\x00"}}}, []string{"e"})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `input "s": element 1 has a NUL`) {
		t.Errorf("got %v", err)
	}
}

// TestFailedRuns: whose fault it is decides the kind.
func TestFailedRuns(t *testing.T) {
	lookup := modelOf(
		part(1, op("Gather", []string{"x", "i"}, []string{"y"})),
		part(11, port("x", float32s, -1)), part(11, port("i", int64s, -1)), part(12, port("y", float32s, -1)),
	)
	indexed := func(i int64) []serving.Tensor {
		return append(floats("x", []int64{2}, 1, 2), serving.Tensor{Name: "i", Datatype: serving.Int64, Shape: []int64{1}, Data: []int64{i}})
	}
	expand := modelOf(
		part(1, op("Expand", []string{"x", "n"}, []string{"y"})),
		part(11, port("x", float32s, 1)), part(11, port("n", int64s, 1)), part(12, port("y", float32s, -1)),
	)
	expanded := func(n int64) []serving.Tensor {
		return append(floats("x", []int64{1}, 1), serving.Tensor{Name: "n", Datatype: serving.Int64, Shape: []int64{1}, Data: []int64{n}})
	}
	for name, c := range map[string]struct {
		model []byte
		in    []serving.Tensor
		kind  fault.Kind
	}{
		"beyond the table": {lookup, indexed(7), fault.Invalid},
		"wrong shape":      {model(t, "logistic.onnx"), floats("X", []int64{1, 3}, 1, 2, 3), fault.Invalid},
		"wrong rank":       {model(t, "logistic.onnx"), floats("X", []int64{2}, 1, 2), fault.Invalid},
		"wrong type":       {model(t, "logistic.onnx"), []serving.Tensor{{Name: "X", Datatype: serving.FP64, Shape: []int64{1, 2}, Data: []float64{1, 2}}}, fault.Invalid},
		"too much memory":  {expand, expanded(1 << 50), fault.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			s := load(t, c.model)
			var outputs []string
			for _, o := range s.Metadata().Outputs {
				outputs = append(outputs, o.Name)
			}
			_, err := s.Infer(t.Context(), c.in, outputs)
			if fault.KindOf(err) != c.kind || err == nil {
				t.Errorf("kind %s: %v", fault.KindOf(err), err)
			}
			t.Log(err)
		})
	}
	s := load(t, model(t, "logistic.onnx"))
	if _, err := s.(*session).answer(t.Context(), nil); !fault.Is(err, fault.Internal) {
		t.Errorf("our own mistake: kind %s: %v", fault.KindOf(err), err)
	}
}

func BenchmarkInfer(b *testing.B) {
	s, err := New(library(b)).Load(b.Context(), model(b, "logistic.onnx"), serving.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	in := []serving.Tensor{{Name: "X", Datatype: serving.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}}}
	for b.Loop() {
		if _, err := s.Infer(b.Context(), in, []string{"probabilities"}); err != nil {
			b.Fatal(err)
		}
	}
}
