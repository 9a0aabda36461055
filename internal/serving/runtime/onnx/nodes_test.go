package onnx

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// nodes is where Debian's package libonnx-testdata puts ONNX's backend tests of
// single operators: in each directory a model, and inputs with their outputs.
const nodes = "/usr/share/libonnx-testdata/data/node"

var rewrite = flag.Bool("rewrite", false, "write testdata/nodes.txt anew")

// TestNodes runs all of them. Those that fail are exactly the ones that
// testdata/nodes.txt names, for the reason it gives.
func TestNodes(t *testing.T) {
	all, err := filepath.Glob(nodes + "/*/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			t.Fatal("libonnx-testdata is not installed: make engines")
		}
		t.Skip("libonnx-testdata is not installed: make engines")
	}
	rt := New(library(t))
	why := map[string]string{}
	for _, file := range all {
		dir := filepath.Dir(file)
		name := filepath.Base(dir)
		err := node(t, rt, dir)
		switch {
		case err == nil:
		case strings.Contains(err.Error(), "Failed to construct locale"): // as the machine is
			t.Logf("%s: needs the locale en_US.UTF-8", name)
		default:
			why[name] = reason(name, err)
		}
	}
	t.Logf("%d pass, %d fail", len(all)-len(why), len(why))
	const list = "testdata/nodes.txt"
	want, err := os.ReadFile(list)
	if err != nil && !*rewrite {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(want), "\n\n")
	got := head + "\n\n" + lines(why)
	if *rewrite {
		if err := os.WriteFile(list, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(want)[len(head):]) {
		known[line] = true
	}
	for line := range strings.Lines(lines(why)) {
		if !known[line] {
			t.Errorf("fails and is not on the list: %s", line)
		}
		delete(known, line)
	}
	delete(known, "\n")
	for line := range known {
		t.Errorf("on the list and does not fail like this: %s", line)
	}
}

func lines(why map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(why)) {
		fmt.Fprintf(&b, "%s: %s\n", name, why[name])
	}
	return b.String()
}

// Why a test fails that the library is not asked, or asked and answers.
var (
	errDiffers     = errors.New("differs")
	errContradicts = errors.New("the test's data are not of its model")
)

// reason is why a test fails, in words that do not change from run to run.
func reason(name string, err error) string {
	switch {
	case errors.Is(err, errDiffers):
		for start, words := range differing {
			if strings.HasPrefix(name, start) {
				return words
			}
		}
		return err.Error()
	case errors.Is(err, errContradicts):
		return err.Error()
	case strings.Contains(err.Error(), "the model has no inputs"):
		return "no request can ask it: the model has no inputs"
	case fault.Is(err, fault.Unsupported):
		return "no form in the protocol: " + err.Error()
	}
	_, words, ok := strings.Cut(err.Error(), " can run: ")
	if !ok {
		words = err.Error()
	}
	return "ONNX Runtime lacks it: " + words
}

// differing are the tests whose answers are others, by the beginnings of names.
var differing = map[string]string{
	"test_cast_FLOAT_to_BFLOAT16":                        "ONNX Runtime rounds to the nearest, these tests towards zero",
	"test_cast_FLOAT_to_STRING":                          "ONNX Runtime writes floats as text in other digits",
	"test_castlike_FLOAT_to_STRING":                      "ONNX Runtime writes floats as text in other digits",
	"test_dft":                                           "ONNX Runtime rounds: up to 2e-4 where 0 is expected",
	"test_stft":                                          "ONNX Runtime rounds: up to 2e-4 where 0 is expected",
	"test_maxunpool_export_with_output_shape":            "ONNX Runtime takes the indices as those of the larger shape",
	"test_resize_downsample_scales_cubic_align_corners":  "ONNX Runtime aligns corners by the rounded size, these tests by the scale",
	"test_resize_downsample_scales_linear_align_corners": "ONNX Runtime aligns corners by the rounded size, these tests by the scale",
}

// random are the tests whose elements are drawn anew: only their datatypes and
// shapes are compared.
var random = []string{
	"test_bernoulli", "test_bernoulli_double", "test_bernoulli_double_expanded", "test_bernoulli_expanded", "test_bernoulli_seed",
	"test_bernoulli_seed_expanded", "test_training_dropout", "test_training_dropout_default", "test_training_dropout_default_mask",
	"test_training_dropout_mask",
}

// node runs the tests of a directory; an error says why one fails.
func node(t *testing.T, rt *Runtime, dir string) error {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dir, "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := rt.Load(t.Context(), file, serving.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	meta := s.Metadata()
	sets, err := filepath.Glob(dir + "/test_data_set_*")
	if err != nil || len(sets) == 0 {
		t.Fatalf("%s has no tests: %v", dir, err)
	}
	for _, set := range sets {
		inputs := tensors(t, set, "input", meta.Inputs)
		want := tensors(t, set, "output", meta.Outputs)
		if err := meta.Check(inputs); err != nil {
			return fmt.Errorf("%w: %w", errContradicts, err)
		}
		got, err := s.Infer(t.Context(), inputs, namesOf(meta.Outputs))
		if err != nil {
			return err
		}
		for i := range want {
			if slices.Contains(random, filepath.Base(dir)) && want[i].Datatype == got[i].Datatype && slices.Equal(want[i].Shape, got[i].Shape) {
				continue
			}
			if err := near(want[i], got[i]); err != nil {
				return fmt.Errorf("%w: output %q %w", errDiffers, want[i].Name, err)
			}
		}
	}
	return nil
}

// tensors reads the files of a test, one for each port of the model.
func tensors(t *testing.T, set, role string, specs []serving.Spec) []serving.Tensor {
	t.Helper()
	out := make([]serving.Tensor, len(specs))
	for i, s := range specs {
		b, err := os.ReadFile(fmt.Sprintf("%s/%s_%d.pb", set, role, i))
		if err == nil {
			out[i], err = tensorOf(b)
		}
		if err != nil {
			t.Fatalf("%s, %s %d: %v", set, role, i, err)
		}
		out[i].Name = s.Name
		if s.Datatype == serving.BF16 && out[i].Datatype == serving.Uint16 { // so these tests write them
			out[i].Datatype = serving.BF16
		}
	}
	return out
}

// tensorOf reads a TensorProto: dims 1, data_type 2, float_data 4, int32_data 5,
// string_data 6, int64_data 7, raw_data 9, double_data 10, uint64_data 11.
func tensorOf(b []byte) (serving.Tensor, error) {
	t := serving.Tensor{Shape: []int64{}}
	var raw []byte
	var words []string
	var whole []uint64 // of the integer fields
	var fixed []byte   // of the float fields
	err := fields(b, func(f field) error {
		varints := func(each func(uint64)) {
			if f.wire == protowire.VarintType {
				each(f.varint)
			}
			for b := f.bytes; len(b) > 0; {
				v, n := protowire.ConsumeVarint(b)
				if n < 0 {
					return
				}
				each(v)
				b = b[n:]
			}
		}
		switch f.number {
		case 1:
			varints(func(v uint64) { t.Shape = append(t.Shape, int64(v)) })
		case 2:
			t.Datatype = datatypeOf(f.varint)
		case 4, 10:
			fixed = append(fixed, f.bytes...)
		case 5, 7, 11:
			varints(func(v uint64) { whole = append(whole, v) })
		case 6:
			words = append(words, string(f.bytes))
		case 9:
			raw = f.bytes
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	n, err := serving.Elements(t.Shape)
	if err != nil {
		return t, err
	}
	data := serving.Zeros(t.Datatype, n)
	if data == nil {
		return t, fmt.Errorf("datatype %q", t.Datatype)
	}
	t.Data = data
	switch {
	case t.Datatype == serving.Bytes:
		t.Data = append([]string{}, words...)
	case raw != nil || n == 0:
		_, err = binary.Decode(raw, binary.LittleEndian, data)
	case fixed != nil:
		_, err = binary.Decode(fixed, binary.LittleEndian, data)
	default:
		v := reflect.ValueOf(data)
		if len(whole) != n {
			return t, fmt.Errorf("%d numbers for shape %v", len(whole), t.Shape)
		}
		for i, w := range whole {
			switch e := v.Index(i); {
			case e.CanInt():
				e.SetInt(int64(w))
			case e.CanUint():
				e.SetUint(w)
			default:
				e.SetBool(w != 0)
			}
		}
	}
	return t, err
}

// near compares an answer by the tolerances of ONNX's own runner.
func near(want, got serving.Tensor) error {
	const relative, absolute = 1e-3, 1e-7
	if want.Datatype != got.Datatype || !slices.Equal(want.Shape, got.Shape) {
		return fmt.Errorf("is %s %v, want %s %v", got.Datatype, got.Shape, want.Datatype, want.Shape)
	}
	w, g := floatsOf(want), floatsOf(got)
	if w == nil {
		if !reflect.DeepEqual(want.Data, got.Data) {
			return errors.New("has other elements")
		}
		return nil
	}
	for i := range w {
		same := w[i] == g[i] || (math.IsNaN(w[i]) && math.IsNaN(g[i]))
		if !same && !(math.Abs(w[i]-g[i]) <= absolute+relative*math.Abs(w[i])) {
			return fmt.Errorf("has %v at %d, want %v", g[i], i, w[i])
		}
	}
	return nil
}

// floatsOf are the elements of a tensor of floats; nil for others.
func floatsOf(t serving.Tensor) []float64 {
	var out []float64
	switch data := t.Data.(type) {
	case []float32:
		out = make([]float64, 0, len(data))
		for _, v := range data {
			out = append(out, float64(v))
		}
	case []float64:
		return data
	case []uint16:
		switch t.Datatype {
		case serving.FP16:
			out = make([]float64, 0, len(data))
			for _, v := range data {
				out = append(out, half(v))
			}
		case serving.BF16:
			out = make([]float64, 0, len(data))
			for _, v := range data {
				out = append(out, float64(math.Float32frombits(uint32(v)<<16)))
			}
		default:
		}
	}
	return out
}

// half is the number that an IEEE 754 binary16 stands for.
func half(b uint16) float64 {
	sign, exponent, fraction := 1-2*float64(b>>15), int(b>>10&0x1f), float64(b&0x3ff)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 0x1f:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// TestReader: the reader of the tests' tensors reads each way to write one.
func TestReader(t *testing.T) {
	dims := part(1, []byte{2})
	for name, b := range map[string][]byte{
		"raw":    slices.Concat(dims, count(2, 10), part(9, []byte{0, 0x3c, 0, 0xc0})),
		"packed": slices.Concat(dims, count(2, 10), part(5, protowire.AppendVarint(protowire.AppendVarint(nil, 0x3c00), 0xc000))),
		"single": slices.Concat(count(1, 2), count(2, 10), count(5, 0x3c00), count(5, 0xc000)),
	} {
		got, err := tensorOf(b)
		if err != nil || got.Datatype != serving.FP16 || !slices.Equal(got.Shape, []int64{2}) || !slices.Equal(floatsOf(got), []float64{1, -2}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if half(0x0001) != math.Ldexp(1, -24) || !math.IsInf(half(0xfc00), -1) || !math.IsNaN(half(0x7e00)) {
		t.Error("halves")
	}
}
