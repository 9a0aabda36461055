package batching_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/serving/batching"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

// loaded is a session of ONNX Runtime.
func loaded(tb testing.TB, model []byte) runtime.Session {
	tb.Helper()
	library, err := filepath.Abs("../../../lib/libonnxruntime.so")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		tb.Fatalf("%v: run `make deps`", err)
	}
	s, err := onnx.New(library).Load(tb.Context(), model, runtime.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// TestONNX: rows of a real model, asked by many at once, are answered as the model
// answers them alone.
func TestONNX(t *testing.T) {
	model, err := os.ReadFile("../runtime/onnx/testdata/logistic.onnx")
	if err != nil {
		t.Fatal(err)
	}
	s := loaded(t, model)
	v := batching.Try(t.Context(), batching.NewCores(1), s, batching.Options{})
	if v.May != batching.Yes {
		t.Fatalf("%+v", v)
	}
	var most atomic.Int64
	q := batching.New(batching.NewCores(1), s, batching.Options{}, v, func(r batching.Run) { most.Store(max(most.Load(), int64(r.Rows))) })
	round := func() {
		var all sync.WaitGroup
		for g := range 16 {
			all.Go(func() {
				for i := range 50 {
					x := float32(g*50+i) / 200
					a, err := q.Infer(t.Context(), batching.Request{
						Inputs: []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{x, 1}}}, Outputs: []string{"probabilities", "label"},
					})
					if err != nil {
						t.Error(err)
						return
					}
					if got := float64(a.Outputs[0].Data.([]float32)[1]); math.Abs(got-runtimetest.Logistic(x, 1)) > 1e-5 || len(a.Outputs[1].Data.([]int64)) != 1 {
						t.Errorf("%v: %+v", x, a.Outputs)
					}
				}
			})
		}
		all.Wait()
	}
	for n := 0; n == 0 || n < 50 && most.Load() < 2; n++ { // a busy machine may run one goroutine at a time
		round()
	}
	if most.Load() < 2 {
		t.Error("nothing ran together")
	}
}

func part(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func word(number protowire.Number, s string) []byte { return part(number, []byte(s)) }

func count(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

// port is FP32 [-1, width] by a name.
func port(name string, width int) []byte {
	shape := slices.Concat(part(1, word(2, "N")), part(1, count(1, uint64(width))))
	return slices.Concat(word(1, name), part(2, part(1, count(1, 1), part(2, shape))))
}

// forest is a regression of trees that split at random, x [-1, features] to
// y [-1, targets]: target i is 1000 to the power of -i times as large as the first.
func forest(trees, depth, features, targets int) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	ints, floats, modes := map[string][]byte{}, map[string][]byte{}, []byte(nil)
	whole := func(name string, v int) { ints[name] = append(ints[name], count(8, uint64(v))...) }
	fraction := func(name string, v float64) {
		floats[name] = protowire.AppendFixed32(protowire.AppendTag(floats[name], 7, protowire.Fixed32Type), math.Float32bits(float32(v)))
	}
	for tree := range trees {
		for node := range 1<<(depth+1) - 1 {
			mode, leaf := "BRANCH_LEQ", node >= 1<<depth-1
			yes, no := 2*node+1, 2*node+2
			if leaf {
				mode, yes, no = "LEAF", 0, 0
				for target := range targets {
					whole("target_treeids", tree)
					whole("target_nodeids", node)
					whole("target_ids", target)
					fraction("target_weights", r.NormFloat64()*math.Pow(1000, -float64(target)))
				}
			}
			whole("nodes_treeids", tree)
			whole("nodes_nodeids", node)
			whole("nodes_featureids", r.IntN(features))
			whole("nodes_truenodeids", yes)
			whole("nodes_falsenodeids", no)
			fraction("nodes_values", r.NormFloat64())
			modes = append(modes, word(9, mode)...)
		}
	}
	node := slices.Concat(word(1, "x"), word(2, "y"), word(4, "TreeEnsembleRegressor"), word(7, "ai.onnx.ml"),
		part(5, word(1, "n_targets"), count(3, uint64(targets)), count(20, 2)), part(5, word(1, "nodes_modes"), modes, count(20, 8)))
	for name, v := range ints {
		node = append(node, part(5, word(1, name), v, count(20, 7))...)
	}
	for name, v := range floats {
		node = append(node, part(5, word(1, name), v, count(20, 6))...)
	}
	graph := slices.Concat(part(1, node), word(2, "forest"), part(11, port("x", features)), part(12, port("y", targets)))
	return slices.Concat(count(1, 8), part(7, graph), part(8, count(2, 17)), part(8, word(1, "ai.onnx.ml"), count(2, 3)))
}

// TestKnownModels: models that answer row by row are seen to.
func TestKnownModels(t *testing.T) {
	logistic, err := os.ReadFile("../runtime/onnx/testdata/logistic.onnx")
	if err != nil {
		t.Fatal(err)
	}
	small, _ := perceptron(8, 64, 64, 1)
	wide, _ := perceptron(300, 1000, 1000, 100)
	for name, model := range map[string][]byte{
		"logistic regression": logistic, "forest": forest(100, 6, 12, 1), "forest of targets apart": forest(50, 5, 12, 4), "perceptron": small, "wide perceptron": wide,
	} {
		if v := batching.Try(t.Context(), batching.NewCores(1), loaded(t, model), batching.Options{}); v.May != batching.Yes {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// perceptron is a model of dense layers with ReLU between them, x [-1, first] to
// y [-1, last], in ONNX's wire format.
func perceptron(widths ...int) (model []byte, parameters int) {
	r := rand.New(rand.NewPCG(1, 2))
	node := func(kind, out string, in ...string) []byte {
		var b []byte
		for _, i := range in {
			b = append(b, word(1, i)...)
		}
		return part(1, b, word(2, out), word(4, kind))
	}
	var graph []byte
	value := "x"
	for i := range len(widths) - 1 {
		from, to, n := widths[i], widths[i+1], string(rune('0'+i))
		for name, shape := range map[string][]int{"w" + n: {from, to}, "b" + n: {to}} {
			size := 1
			var dims []byte
			for _, d := range shape {
				size *= d
				dims = append(dims, count(1, uint64(d))...)
			}
			raw := make([]byte, 0, 4*size)
			for range size {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(r.NormFloat64()/math.Sqrt(float64(from)))))
			}
			parameters += size
			graph = append(graph, part(5, dims, count(2, 1), word(8, name), part(9, raw))...)
		}
		graph = append(graph, node("MatMul", "m"+n, value, "w"+n)...)
		value = "y"
		if i < len(widths)-2 {
			value = "r" + n
			graph = append(graph, node("Add", "a"+n, "m"+n, "b"+n)...)
			graph = append(graph, node("Relu", value, "a"+n)...)
			continue
		}
		graph = append(graph, node("Add", value, "m"+n, "b"+n)...)
	}
	graph = append(graph, word(2, "perceptron")...)
	graph = append(graph, part(11, port("x", widths[0]))...)
	graph = append(graph, part(12, port("y", widths[len(widths)-1]))...)
	return slices.Concat(count(1, 8), part(7, graph), part(8, count(2, 17))), parameters
}

// BenchmarkConcurrent is single rows of 64 callers at once, on all cores: each alone,
// and batched as by default. One op is one row.
func BenchmarkConcurrent(b *testing.B) {
	model, parameters := perceptron(1050, 3000, 3000, 100)
	if parameters < 12_400_000 || parameters > 12_600_000 {
		b.Fatal(parameters)
	}
	s := loaded(b, model)
	v := batching.Try(b.Context(), batching.NewCores(1), s, batching.Options{})
	if v.May != batching.Yes {
		b.Fatalf("%+v", v)
	}
	for name, rows := range map[string]int{"alone": 1, "batched": 64} {
		b.Run(name, func(b *testing.B) {
			cores := goruntime.GOMAXPROCS(0)
			var runs atomic.Int64
			q := batching.New(batching.NewCores(cores), s, batching.Options{MaxRows: rows}, v, func(batching.Run) { runs.Add(1) })
			b.SetParallelism(64 / cores)
			b.RunParallel(func(pb *testing.PB) {
				x := make([]float32, 1050)
				for pb.Next() {
					if _, err := q.Infer(b.Context(), batching.Request{Inputs: []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{1, 1050}, Data: x}}, Outputs: []string{"y"}}); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/float64(max(1, runs.Load())), "rows/run")
		})
	}
}

// TestOptionalInputs: requests that give an input which has a default are answered with it,
// beside those that do not give it, and run alone.
func TestOptionalInputs(t *testing.T) {
	model, err := os.ReadFile("../runtime/onnx/testdata/optional.onnx")
	if err != nil {
		t.Fatal(err)
	}
	s := loaded(t, model)
	q := batching.New(batching.NewCores(1), s, batching.Options{}, batching.Verdict{May: batching.Yes}, func(batching.Run) {})
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			for i := range 50 {
				x, scale := float32(g*50+i), float32(2)
				in := []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{x, -x}}}
				if i%3 == 0 {
					scale = float32(g)
					in = slices.Insert(in, i/3%2, runtime.Tensor{Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{scale}})
				}
				if i%5 == 0 { // of a dimension that is not that of the rows
					in = append(in, runtime.Tensor{Name: "shift", Datatype: runtime.FP32, Shape: []int64{1}, Data: []float32{1}})
				}
				if rows := q.Rows(in); rows != 2 {
					t.Errorf("%d rows", rows)
				}
				a, err := q.Infer(t.Context(), batching.Request{Inputs: in, Outputs: []string{"y"}})
				if err != nil {
					t.Error(err)
					return
				}
				if got, want := a.Outputs[0].Data.([]float32), []float32{x*scale + 1, 1 - x*scale}; !slices.Equal(got, want) {
					t.Errorf("%v times %v: %v, want %v", x, scale, got, want)
				}
			}
		})
	}
	all.Wait()
}
