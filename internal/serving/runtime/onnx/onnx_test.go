package onnx_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/onnx"
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

func TestRuntime(t *testing.T) {
	if s, err := onnx.New("nowhere/libonnxruntime.so").Load(t.Context(), model(t, "logistic.onnx"), runtime.Options{}); err == nil {
		_ = s.Close()
		t.Error("loaded without a library")
	} else if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "make deps") {
		t.Errorf("without a library: %v", err)
	}
	rt := onnx.New(library(t))
	runtimetest.Run(t, rt, model(t, "logistic.onnx"))
	t.Run("maps are refused with advice", func(t *testing.T) {
		_, err := rt.Load(t.Context(), model(t, "zipmap.onnx"), runtime.Options{})
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "zipmap") {
			t.Errorf("got %v", err)
		}
	})
}

func BenchmarkInfer(b *testing.B) {
	s, err := onnx.New(library(b)).Load(b.Context(), model(b, "logistic.onnx"), runtime.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	in := []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 2}, Data: []float32{1, 2}}}
	for b.Loop() {
		if _, err := s.Infer(b.Context(), in, []string{"probabilities"}); err != nil {
			b.Fatal(err)
		}
	}
}
