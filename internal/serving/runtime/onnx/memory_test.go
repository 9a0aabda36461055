package onnx

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// TestMain opens the library as a server does, with a bound of the memory of runs.
func TestMain(m *testing.M) {
	if path, err := filepath.Abs("../../../../lib/libonnxruntime.so"); err == nil {
		_ = New(path).Within(resource.GiB).open() // without it each test says so
	}
	os.Exit(m.Run()) //nolint:forbidigo // what a TestMain does
}

// expand is a model whose answer is as large as a value of its input says.
func expand() []byte {
	return modelOf(
		part(1, op("Expand", []string{"x", "n"}, []string{"y"})),
		part(graphInput, port("x", float32s, 1)), part(graphInput, port("n", int64s, 1)), part(graphOutput, port("y", float32s, -1)),
	)
}

func expanded(n int64) []serving.Tensor {
	return append(floats("x", []int64{1}, 1), serving.Tensor{Name: "n", Datatype: serving.Int64, Shape: []int64{1}, Data: []int64{n}})
}

// TestLargeAnswers: what a run takes is bounded, what it answers is, and it is given
// back.
func TestLargeAnswers(t *testing.T) {
	s := load(t, expand())
	answers := func(n int64) error {
		t.Helper()
		out, err := s.Infer(t.Context(), expanded(n), []string{"y"})
		if err == nil && len(out[0].Data.([]float32)) != int(n) {
			t.Errorf("%d numbers", len(out[0].Data.([]float32)))
		}
		return err
	}
	if err := answers(8); err != nil {
		t.Fatal(err)
	}
	before := resident(t)
	for n, kind := range map[int64]fault.Kind{
		1 << 29:                 fault.Exhausted, // 2 GiB
		serving.MaxAnswer/4 + 1: fault.TooLarge,
		math.MaxInt64 / 8:       fault.Exhausted,
	} {
		if err := answers(n); fault.KindOf(err) != kind || err == nil || fault.HintOf(err) == "" {
			t.Errorf("%d numbers: %v", n, err)
		}
		if err := answers(8); err != nil { // which gives back what one before it could not have
			t.Errorf("after %d numbers: %v", n, err)
		}
	}
	if grown := resident(t) - before; grown > 64<<20 {
		t.Errorf("%d MB are kept", grown>>20)
	}
}

// fan is a model that has many tensors at a time.
func fan(tensors int) []byte {
	var graph [][]byte
	all := make([]string, tensors)
	for i := range all {
		c := fmt.Sprintf("c%d", i)
		all[i] = fmt.Sprintf("v%d", i)
		graph = append(graph, part(graphInitializer, tensorFile(c, float32s, []byte{byte(i), byte(i >> 8), 0, 0x3f}, 1)), part(1, op("Mul", []string{"x", c}, all[i:i+1])))
	}
	return modelOf(append(graph, part(1, op("Sum", all, []string{"y"})), part(graphInput, port("x", float32s, -1)), part(graphOutput, port("y", float32s, -1)))...)
}

// TestManyShapes: a shape that was asked once is not remembered for ever.
func TestManyShapes(t *testing.T) {
	s := load(t, fan(300))
	ask := func(from, to int) {
		for n := from; n < to; n++ {
			if _, err := s.Infer(t.Context(), floats("x", []int64{int64(n)}, make([]float32, n)...), []string{"y"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask(1, 1000)
	before := resident(t)
	ask(1000, 3000)
	grown := resident(t) - before
	t.Logf("%d kB", grown>>10)
	if grown > 8<<20 {
		t.Errorf("2000 shapes are kept in %d kB", grown>>10)
	}
}

// TestData: what the library says of a run may have values of rows, and is data of
// who asked.
func TestData(t *testing.T) {
	lookup := modelOf(
		part(1, op("Gather", []string{"x", "i"}, []string{"y"})),
		part(graphInput, port("x", float32s, -1)), part(graphInput, port("i", int64s, -1)), part(graphOutput, port("y", float32s, -1)),
	)
	in := append(floats("x", []int64{2}, 1, 2), serving.Tensor{Name: "i", Datatype: serving.Int64, Shape: []int64{1}, Data: []int64{4711}})
	_, err := load(t, lookup).Infer(t.Context(), in, []string{"y"})
	if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "4711") || !strings.Contains(fault.Told(err), "4711") {
		t.Errorf("a log has %q, who asked hears %q", err, fault.Told(err))
	}
}

// TestHungLoad: who loads a model that does not load gives up in its time; what comes
// of it later is unloaded, and until then nobody begins to load it again.
func TestHungLoad(t *testing.T) {
	rt := New(library(t))
	if err := rt.open(); err != nil {
		t.Fatal(err)
	}
	file := model(t, "logistic.onnx")
	meta, err := inspect(file)
	if err != nil {
		t.Fatal(err)
	}
	hang, loads := make(chan struct{}), atomic.Int32{}
	var of content
	slow := func() (*native, *failure) {
		loads.Add(1)
		<-hang
		return loadNative(file, meta, settings{threads: 1, arena: true, entries: entries})
	}
	first := rt.use(of, slow)
	for range 2 {
		if _, err := rt.wait(t.Context(), of, rt.use(of, slow), time.Millisecond); !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "1ms") {
			t.Errorf("got %v", err)
		}
	}
	if loads.Load() != 1 {
		t.Errorf("it is loaded %d times", loads.Load())
	}
	rt.leave(of, first)
	close(hang)
	<-first.done
	if len(rt.loaded) != 0 {
		t.Error("it stays loaded")
	}
	runtime.KeepAlive(file)
}

// TestHungFirstRun: a model is loaded when its first run has ended, and who waits for it
// gives up in its time.
func TestHungFirstRun(t *testing.T) {
	rt := New(library(t))
	if err := rt.slots.Acquire(t.Context(), int64(rt.cores)); err != nil { // the run does not begin
		t.Fatal(err)
	}
	file := model(t, "logistic.onnx")
	var first sync.WaitGroup
	first.Go(func() {
		s, err := rt.Load(t.Context(), file, serving.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		_ = s.Close()
	})
	for begun := false; !begun; {
		rt.mu.Lock()
		begun = len(rt.loaded) > 0
		rt.mu.Unlock()
	}
	limit := warmTime / 10
	if _, err := rt.Load(t.Context(), file, serving.Options{Time: limit}); !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
	rt.slots.Release(int64(rt.cores))
	first.Wait()
	if len(rt.loaded) != 0 {
		t.Error("it stays loaded")
	}
}
