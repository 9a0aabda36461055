package onnx

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	opened.Lock()
	was := opened.done
	opened.done = false
	opened.Unlock()
	t.Cleanup(func() { opened.done = was })
	_, err := New("nowhere/libonnxruntime.so").Load(t.Context(), model(t, "logistic.onnx"), serving.Options{})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "make deps") {
		t.Errorf("got %v", err)
	}
}

func TestRuntime(t *testing.T) {
	rt := New(library(t))
	for name, m := range map[string][]byte{"echo.onnx": echo, "total.onnx": total, "divide.onnx": divide, "optional.onnx": optional} { // files for who tests another runtime
		if *rewrite {
			if err := os.WriteFile("testdata/"+name, m, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(m, model(t, name)) {
			t.Errorf("testdata/%s is another model: run this test with -rewrite", name)
		}
	}
	runtimetest.Run(t, rt, runtimetest.Models{Logistic: model(t, "logistic.onnx"), Echo: echo, Total: total, Optional: optional})
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

// TestSmallAndLarge: runs whose tensors are copied and runs whose tensors are not take turns
// with the same memory, and so do outputs of numbers and of texts at the same place.
func TestSmallAndLarge(t *testing.T) {
	s := load(t, modelOf(
		part(1, op("Identity", []string{"x"}, []string{"y"})), part(1, op("Identity", []string{"s"}, []string{"u"})), part(1, op("Identity", []string{"x"}, []string{"z"})),
		part(11, port("x", float32s, -1)), part(11, port("s", stringsT, -1)),
		part(12, port("y", float32s, -1)), part(12, port("u", stringsT, -1)), part(12, port("z", float32s, -1)),
	))
	wants := [][]string{{"y"}, {"u"}, {"y", "z"}, {"u", "y"}, {"z", "u"}}
	for i, n := range []int{1, 0, 1023, 1024, 1025, 511, 512, 513, 5000, 3, 1024, 7, 0, 2000, 1, 1024, 512} {
		x, texts := make([]float32, n), make([]string, n%5)
		for k := range x {
			x[k] = float32(i*10_000 + k)
		}
		for k := range texts {
			texts[k] = strings.Repeat("x", i+k)
		}
		in := append(floats("x", []int64{int64(n)}, x...), serving.Tensor{Name: "s", Datatype: serving.Bytes, Shape: []int64{int64(len(texts))}, Data: texts})
		for _, wanted := range wants {
			out, err := s.Infer(t.Context(), in, wanted)
			if err != nil {
				t.Fatalf("%d, %v: %v", n, wanted, err)
			}
			for k, name := range wanted {
				want := any(x)
				if name == "u" {
					want = texts
				}
				if !reflect.DeepEqual(out[k].Data, want) {
					t.Errorf("%d: %s is %v, want %v", n, name, out[k].Data, want)
				}
			}
		}
	}
}

// TestEveryDatatype: what goes in comes out, of each datatype and rank.
func TestEveryDatatype(t *testing.T) {
	for _, c := range []struct {
		datatype serving.Datatype
		data     any
	}{
		{serving.Bool, []bool{true, false}},
		{serving.Bytes, []string{"a\x00b", "نخلة"}},
		{serving.Uint8, []uint8{0, math.MaxUint8}},
		{serving.Uint16, []uint16{1, math.MaxUint16}},
		{serving.Uint32, []uint32{1, math.MaxUint32}},
		{serving.Uint64, []uint64{1, math.MaxUint64}},
		{serving.Int8, []int8{math.MinInt8, 1}},
		{serving.Int16, []int16{math.MinInt16, 1}},
		{serving.Int32, []int32{math.MinInt32, 1}},
		{serving.Int64, []int64{math.MinInt64, 1}},
		{serving.FP16, []uint16{0x3c00, 0xfc00}},
		{serving.BF16, []uint16{0x3f80, 0xff80}},
		{serving.FP32, []float32{float32(math.Inf(-1)), math.SmallestNonzeroFloat32}},
		{serving.FP64, []float64{math.MaxFloat64, -0.5}},
	} {
		t.Run(string(c.datatype), func(t *testing.T) {
			element := uint64(slices.Index(datatypes[:], c.datatype))
			s := load(t, modelOf(part(1, op("Identity", []string{"x"}, []string{"y"})), part(11, shapeless("x", element)), part(12, shapeless("y", element))))
			if got := s.Metadata().Inputs[0].Datatype; got != c.datatype {
				t.Fatalf("the model takes %s", got)
			}
			for _, shape := range [][]int64{{2}, {1, 2}, {}, {1}, {0}, {2, 0, 3}} {
				n, err := serving.Elements(shape)
				if err != nil {
					t.Fatal(err)
				}
				data := reflect.ValueOf(c.data).Slice(0, n).Interface()
				out, err := s.Infer(t.Context(), []serving.Tensor{{Name: "x", Datatype: c.datatype, Shape: shape, Data: data}}, []string{"y"})
				if err != nil {
					t.Fatalf("%v: %v", shape, err)
				}
				if out[0].Datatype != c.datatype || out[0].Shape == nil || !slices.Equal(out[0].Shape, shape) || !reflect.DeepEqual(out[0].Data, data) {
					t.Errorf("%v %v came out as %+v", shape, data, out[0])
				}
			}
		})
	}
	t.Run("all datatypes", func(t *testing.T) {
		for _, d := range serving.Datatypes {
			if !slices.Contains(datatypes[:], d) {
				t.Errorf("%s has no element type", d)
			}
		}
	})
}

// TestBadTensors: what is not what it says never reaches the library, which
// would read beyond it.
func TestBadTensors(t *testing.T) {
	s := load(t, model(t, "logistic.onnx"))
	for name, in := range map[string]serving.Tensor{
		"fewer elements":  {Name: "X", Datatype: serving.FP32, Shape: []int64{2, 2}, Data: []float32{1, 2, 3}},
		"more elements":   {Name: "X", Datatype: serving.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2, 3}},
		"other elements":  {Name: "X", Datatype: serving.FP32, Shape: []int64{1, 2}, Data: []float64{1, 2}},
		"no elements":     {Name: "X", Datatype: serving.FP32, Shape: []int64{1, 2}},
		"negative":        {Name: "X", Datatype: serving.FP32, Shape: []int64{-1, -2}, Data: []float32{1, 2}},
		"overflowing":     {Name: "X", Datatype: serving.FP32, Shape: []int64{1 << 62, 4, 2}, Data: []float32{}},
		"many dimensions": {Name: "X", Datatype: serving.FP32, Shape: slices.Repeat([]int64{1}, 33), Data: []float32{1}},
	} {
		if _, err := s.Infer(t.Context(), []serving.Tensor{in}, []string{"label"}); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBoolBytes: a model's file may hold bools that are neither 0 nor 1.
func TestBoolBytes(t *testing.T) {
	two := slices.Concat(word(1, "value"), part(5, count(1, 2), count(2, 9), part(9, []byte{2, 0})), count(20, 4))
	s := load(t, modelOf(
		part(1, op("Constant", nil, []string{"c"}, two)), part(1, op("Identity", []string{"x"}, []string{"z"})),
		part(11, port("x", float32s, 1)), part(12, port("c", 9, 2)), part(12, port("z", float32s, 1)),
	))
	out, err := s.Infer(t.Context(), floats("x", []int64{1}, 1), []string{"c"})
	if err != nil {
		t.Fatal(err)
	}
	if got := out[0].Data.([]bool); !reflect.DeepEqual(got, []bool{true, false}) {
		t.Errorf("got %v", got)
	}
}

// TestCancel ends a run that would take very long, and the session goes on.
func TestCancel(t *testing.T) {
	one := slices.Concat(word(1, "value"), part(5, count(2, 9), part(9, []byte{1})), count(20, 4))
	body := [][]byte{
		word(2, "body"), part(1, op("Identity", []string{"on"}, []string{"again"})), part(1, op("Add", []string{"v", "v"}, []string{"w"})),
		part(11, port("i", int64s)), part(11, port("on", 9)), part(11, shapeless("v", float32s)), part(12, port("again", 9)), part(12, shapeless("w", float32s)),
	}
	s := load(t, modelOf(
		part(1, op("Constant", nil, []string{"yes"}, one)),
		part(1, op("Loop", []string{"n", "yes", "x"}, []string{"y"}, slices.Concat(word(1, "body"), part(6, body...), count(20, 5)))),
		part(11, port("n", int64s)), part(11, port("x", float32s, 1)), part(12, shapeless("y", float32s)),
	))
	rounds := func(n int64) []serving.Tensor {
		return append(floats("x", []int64{1}, 1), serving.Tensor{Name: "n", Datatype: serving.Int64, Shape: []int64{}, Data: []int64{n}})
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.Infer(ctx, rounds(math.MaxInt64), []string{"y"})
		cancel()
		if !fault.Is(err, fault.Timeout) {
			t.Fatalf("without an end: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		out, err := s.Infer(ctx, rounds(3), []string{"y"})
		cancel()
		if err != nil || !slices.Equal(out[0].Data.([]float32), []float32{8}) {
			t.Fatalf("after it: %+v, %v", out, err)
		}
	}
}

// TestOutputsTwice: an output may be wanted more than once.
func TestOutputsTwice(t *testing.T) {
	out, err := load(t, model(t, "logistic.onnx")).Infer(t.Context(), floats("X", []int64{1, 2}, 4, 3), []string{"label", "probabilities", "label"})
	if err != nil || len(out) != 3 || !reflect.DeepEqual(out[0], out[2]) || out[1].Name != "probabilities" {
		t.Errorf("%+v, %v", out, err)
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
			tellsNothing(t, err)
			t.Log(err)
		})
	}
	if err := kindOf(&failure{"Invalid argument"}); !fault.Is(err, fault.Internal) {
		t.Errorf("our own mistake: kind %s: %v", fault.KindOf(err), err)
	}
}

// TestReadable: messages of the library without its lines and functions.
func TestReadable(t *testing.T) {
	for message, want := range map[string]string{
		"Status Message: element_wise_ops.cc:692 Compute Integer division by zero": "Status Message: Integer division by zero",
		"a mod.cc:2242 operator() Integer\nmodulo by zero":                         "a Integer modulo by zero",
		"/onnxruntime_src/onnxruntime/core/reshape_helper.h:47 onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, bool) size == 3 was false. (a)": "size == 3 was false. (a)",
		"safeint.h:17 static void Handler<onnxruntime::Exception>::SafeIntOnOverflow() Integer overflow":                                                                  "Integer overflow",
		"frame.cc:1 f::<lambda()> no room in /opt/onnxruntime/lib for onnxruntime::Tensor now":                                                                            "no room in … for … now",
		"evil:Identity(-1) is not a registered function/op":                                                                                                               "evil:Identity(-1) is not a registered function/op",
	} {
		if got := readable(message); got != want {
			t.Errorf("%q became %q", message, got)
		}
	}
}

// tellsNothing: an error names no file, line or function of the library.
func tellsNothing(t *testing.T, err error) {
	t.Helper()
	for _, word := range []string{".cc", ".h:", "::", "onnxruntime_src", "operator()"} {
		if strings.Contains(err.Error(), word) {
			t.Errorf("it tells of the library's inside: %v", err)
		}
	}
}

// TestShared: a model that is loaded twice is in memory once, until nobody has
// it.
func TestShared(t *testing.T) {
	rt := New(library(t))
	open := func(threads int) *session {
		s, err := rt.Load(t.Context(), model(t, "logistic.onnx"), serving.Options{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		return s.(*session)
	}
	a, b, other := open(1), open(1), open(2)
	if a.model != b.model || a.model == other.model {
		t.Error("the same options are not the same session, or others are")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Infer(t.Context(), floats("X", []int64{1, 2}, 4, 3), []string{"label"}); err != nil {
		t.Errorf("after the other's end: %v", err)
	}
	for _, s := range []*session{b, other} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(rt.loaded) != 0 {
		t.Errorf("%d are left", len(rt.loaded))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				s, err := rt.Load(t.Context(), model(t, "logistic.onnx"), serving.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Infer(t.Context(), floats("X", []int64{1, 2}, 4, 3), []string{"label"}); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// perceptron is a model of layers of side by side weights.
func perceptron(side, layers int) []byte {
	var graph [][]byte
	at := "x"
	for i := range layers {
		w, v, next := fmt.Sprintf("w%d", i), fmt.Sprintf("v%d", i), fmt.Sprintf("h%d", i)
		if i == layers-1 {
			next = "y"
		}
		graph = append(graph, part(graphInitializer, tensorFile(w, float32s, bytes.Repeat([]byte{0, 0, 0, 0x3a}, side*side), uint64(side), uint64(side))),
			part(1, op("MatMul", []string{at, w}, []string{v})), part(1, op("Relu", []string{v}, []string{next})))
		at = next
	}
	return modelOf(append(graph, part(graphInput, port("x", float32s, -1, int64(side))), part(graphOutput, port("y", float32s, -1, int64(side))))...)
}

// BenchmarkInfer is one request; "raw" is the library's own run, called from C's
// side of the boundary once.
func BenchmarkInfer(b *testing.B) {
	for _, c := range []struct {
		name  string
		model []byte
		in    serving.Tensor
		out   string
	}{
		{"logistic", model(b, "logistic.onnx"), floats("X", []int64{1, 2}, 1, 2)[0], "probabilities"},
		{"mlp-0.5M", perceptron(512, 2), floats("x", []int64{1, 512}, make([]float32, 512)...)[0], "y"},
		{"mlp-12.6M", perceptron(1024, 12), floats("x", []int64{1, 1024}, make([]float32, 1024)...)[0], "y"},
	} {
		s, err := New(library(b)).Load(b.Context(), c.model, serving.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			in, out := []serving.Tensor{c.in}, []string{c.out}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Infer(b.Context(), in, out); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/raw", func(b *testing.B) {
			s := s.(*session)
			wanted, err := s.wanted(nil, []string{c.out})
			if err != nil {
				b.Fatal(err)
			}
			call, err := s.model.begin()
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := call.give(0, c.in); err != nil {
					b.Fatal(err)
				}
				if err := s.model.run(call, wanted); err != nil {
					b.Fatal(err)
				}
				call.empty()
			}
			s.model.end(call)
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
