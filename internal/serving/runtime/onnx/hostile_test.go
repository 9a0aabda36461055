package onnx

import (
	"bytes"
	"flag"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

var (
	cycles  = flag.Int("cycles", 20, "how often TestUnload loads and unloads")
	weights = flag.Int("weights", 4, "the size of its model in MB")
)

// wide is a model of one matrix of side by side numbers.
func wide(side int) []byte {
	matrix := bytes.Repeat([]byte{1, 2, 3, 0x3c}, side*side)
	return modelOf(
		part(1, op("MatMul", []string{"x", "w"}, []string{"y"})),
		part(graphInitializer, tensorFile("w", float32s, matrix, uint64(side), uint64(side))),
		part(graphInput, port("x", float32s, -1, int64(side))), part(graphOutput, port("y", float32s, -1, int64(side))),
	)
}

// TestUnload: loading, running and unloading again and again takes no more
// memory than a few times do. With -cycles 1000 -weights 50 it is the promise.
func TestUnload(t *testing.T) {
	side := 512
	for side*side*4 < *weights<<20 {
		side += 64
	}
	file := wide(side)
	rt := New(library(t))
	x := serving.Tensor{Name: "x", Datatype: serving.FP32, Shape: []int64{1, int64(side)}, Data: make([]float32, side)}
	cycle := func() {
		s, err := rt.Load(t.Context(), file, serving.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Infer(t.Context(), []serving.Tensor{x}, []string{"y"}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		cycle()
	}
	before := resident(t)
	for i := range *cycles {
		cycle()
		if i%100 == 99 {
			t.Logf("%d cycles: %d MB", i+1, resident(t)>>20)
		}
	}
	after := resident(t)
	t.Logf("%d MB, and after %d cycles of a model of %d MB %d MB", before>>20, *cycles, len(file)>>20, after>>20)
	if grown := after - before; grown > 2*int64(len(file))+32<<20 {
		t.Errorf("it grew by %d MB", grown>>20)
	}
}

// resident is the memory of this process.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// TestHostileFiles: files that are wrong where only the library looks are
// refused in words that tell nothing of its inside, and nothing is left behind.
func TestHostileFiles(t *testing.T) {
	rt := New(library(t))
	good := model(t, "logistic.onnx")
	identity := part(1, op("Identity", []string{"x"}, []string{"y"}))
	ports := slices.Concat(part(graphInput, port("x", float32s, 1)), part(graphOutput, port("y", float32s, 1)))
	weighted := func(w []byte) []byte {
		return modelOf(part(1, op("Add", []string{"x", "w"}, []string{"y"})), part(graphInitializer, w), ports)
	}
	graph := part(7, identity, ports, word(2, "g"))
	files := map[string][]byte{
		"an operator set to come":   slices.Concat(count(1, 8), graph, part(8, count(2, 9999))),
		"no operator set":           slices.Concat(count(1, 8), graph),
		"a version to come":         slices.Concat(count(1, 9999), graph, part(8, count(2, 17))),
		"an unknown domain":         slices.Concat(count(1, 8), part(7, part(1, op("Identity", []string{"x"}, []string{"y"}), word(7, "evil")), ports, word(2, "g")), part(8, count(2, 17)), part(8, word(1, "evil"), count(2, 1))),
		"an unknown operator":       modelOf(part(1, op("Steal", []string{"x"}, []string{"y"})), ports),
		"no such input":             modelOf(part(1, op("Identity", []string{"z"}, []string{"y"})), ports),
		"a circle":                  modelOf(part(1, op("Add", []string{"x", "b"}, []string{"a"})), part(1, op("Add", []string{"x", "a"}, []string{"b"})), identity, part(1, op("Add", []string{"a", "b"}, []string{"c"})), ports),
		"fewer weights than said":   weighted(tensorFile("w", float32s, make([]byte, 4), 2)),
		"more weights than said":    weighted(tensorFile("w", float32s, make([]byte, 12), 2)),
		"overflowing sizes":         weighted(tensorFile("w", float32s, make([]byte, 8), 1<<62, 4)),
		"overflowing to nothing":    weighted(tensorFile("w", float32s, nil, 1<<32, 1<<32)),
		"a negative size":           weighted(tensorFile("w", float32s, make([]byte, 8), 1<<64-2)),
		"a huge size":               weighted(tensorFile("w", float32s, nil, 1<<45)),
		"an element type to come":   weighted(tensorFile("w", 99, make([]byte, 8), 2)),
		"a name of another graph":   modelOf(identity, identity, ports),
		"an output of another type": modelOf(part(1, op("Cast", []string{"x"}, []string{"y"}, number("to", int64s))), ports),
	}
	for i := 1; i < 16; i++ {
		files["cut at "+strconv.Itoa(i)+"/16"] = good[:len(good)*i/16]
	}
	for name, file := range files {
		t.Run(name, func(t *testing.T) {
			s, err := rt.Load(t.Context(), file, serving.Options{})
			if err == nil {
				_ = s.Close()
			}
			if k := fault.KindOf(err); err == nil || k != fault.Invalid && k != fault.Unsupported && k != fault.Exhausted {
				t.Fatalf("kind %s: %v", k, err)
			}
			tellsNothing(t, err)
			t.Log(err)
		})
	}
}
