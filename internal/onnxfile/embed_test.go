package onnxfile_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
	. "github.com/falaj-ml/falaj/internal/onnxfile"
	to "github.com/falaj-ml/falaj/internal/onnxfile/onnxfiletest"
)

// outside is a tensor of two floats whose data are elsewhere, by pairs of a key and a value.
func outside(name string, entries ...string) []byte {
	b := slices.Concat(to.Count(1, 2), to.Count(2, to.Floats), to.Word(to.TensorName, name))
	for i := 0; i < len(entries); i += 2 {
		b = append(b, to.Part(to.TensorExternalData, to.Word(1, entries[i]), to.Word(2, entries[i+1]))...)
	}
	return append(b, to.Count(to.TensorDataLocation, 1)...)
}

// inside is the same with its data.
func inside(name string, data []byte) []byte {
	return slices.Concat(to.Count(1, 2), to.Count(2, to.Floats), to.Word(to.TensorName, name), to.Part(9, data))
}

// modelOf is a model with a tensor wherever one can be.
func modelOf(initializer, constant, nested, function []byte) []byte {
	const tensorKind, graphKind = 4, 5
	branch := to.Part(to.GraphNode, to.Op("Constant", nil, []string{"b"}, slices.Concat(to.Word(1, "value"), to.Part(5, nested), to.Count(20, tensorKind))))
	branch = slices.Concat(branch, to.Part(to.GraphOutput, to.Port("b", to.Floats, 2)))
	return slices.Concat(
		to.Count(1, 8), to.Part(to.ModelOpsets, to.Count(2, 17)), to.Part(to.ModelOpsets, to.Word(1, "own"), to.Count(2, 1)),
		to.Part(
			to.ModelGraph,
			to.Part(to.GraphInitializer, initializer),
			to.Part(to.GraphNode, to.Op("Constant", nil, []string{"c"}, slices.Concat(to.Word(1, "value"), to.Part(5, constant), to.Count(20, tensorKind)))),
			to.Part(to.GraphNode, to.Op("If", []string{"x"}, []string{"i"},
				slices.Concat(to.Word(1, "then_branch"), to.Part(6, branch), to.Count(20, graphKind)), slices.Concat(to.Word(1, "else_branch"), to.Part(6, branch), to.Count(20, graphKind)))),
			to.Part(to.GraphNode, slices.Concat(to.Op("Add", []string{"w", "c"}, []string{"y"}))),
			to.Part(to.GraphInput, to.Port("x", to.Bools)),
			to.Part(to.GraphOutput, to.Port("y", to.Floats, 2)),
		),
		to.Part(to.ModelFunctions, to.Word(1, "F"), to.Word(10, "own"), to.Word(5, "f"), to.Part(9, to.Count(2, 17)),
			to.Part(7, to.Op("Constant", nil, []string{"f"}, slices.Concat(to.Word(1, "value"), to.Part(5, function), to.Count(20, tensorKind))))),
	)
}

func floatsOf(values ...float32) (b []byte) {
	for _, v := range values {
		b = protowire.AppendFixed32(b, math.Float32bits(v))
	}
	return b
}

// TestEmbed: wherever a tensor is, its data are put in, by offset and length, and each file
// is read once.
func TestEmbed(t *testing.T) {
	file := floatsOf(1, 2, 3, 4, 5, 6, 7, 8)
	reads := 0
	read := func(location string) ([]byte, error) {
		if reads++; location != "model.onnx.data" {
			return nil, errors.New("no such file")
		}
		return file, nil
	}
	at := func(name string, offset int) []byte {
		return outside(name, "location", "model.onnx.data", "offset", strconv.Itoa(offset), "length", "8", "checksum", "x")
	}
	model := modelOf(at("w", 0), at("c", 8), at("n", 16), outside("f", "offset", "24", "location", "model.onnx.data"))
	want := modelOf(inside("w", file[:8]), inside("c", file[8:16]), inside("n", file[16:24]), inside("f", file[24:]))
	got, err := Embed(model, read, 1<<30)
	if err != nil || !bytes.Equal(got, want) || reads != 1 {
		t.Fatalf("%v, %d reads\n%x\n%x", err, reads, got, want)
	}
	if err := Check(got); err != nil {
		t.Error(err)
	}
	for _, whole := range [][]byte{want, []byte("no model"), nil} {
		if got, err := Embed(whole, read, 1<<30); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%.20q: %v", whole, err)
		}
	}
	if _, err := Embed(model, read, int64(len(model)+31)); !fault.Is(err, fault.TooLarge) || fault.HintOf(err) == "" {
		t.Errorf("too large: %v", err)
	}
	plain := inside("v", file[:8])
	for what, c := range map[string]struct {
		tensor []byte
		says   string
	}{
		"beyond the file":         {outside("w", "location", "model.onnx.data", "offset", "28", "length", "8"), `tensor "w" has its data at 28 to 36 of "model.onnx.data", which has 32 bytes`},
		"behind its end":          {outside("w", "location", "model.onnx.data", "offset", "33"), "which has 32 bytes"},
		"beyond numbers":          {outside("w", "location", "model.onnx.data", "offset", "9223372036854775807", "length", "9223372036854775807"), "which has 32 bytes"},
		"a number that is none":   {outside("w", "location", "model.onnx.data", "offset", "-1"), "is not a number"},
		"another file":            {outside("w", "location", "other"), `the data of tensor "w": no such file`},
		"without a location":      {outside("w"), `tensor "w" stores its data in another file`},
		"a location, no flag":     {slices.Concat(plain, to.Part(to.TensorExternalData, to.Word(1, "location"), to.Word(2, "model.onnx.data"))), "stores its data in another file"},
		"a flag of 33 bits":       {slices.Concat(plain, to.Part(to.TensorExternalData, to.Word(1, "location"), to.Word(2, "x")), to.Count(to.TensorDataLocation, 1<<32|1)), "stores its data in another file"},
		"more than its shape has": {outside("w", "location", "model.onnx.data"), ""},
	} {
		got, err := Embed(modelOf(c.tensor, plain, plain, plain), read, 1<<30)
		if c.says == "" {
			if err = Check(got); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// FuzzEmbed: nothing that is embedded has data elsewhere.
func FuzzEmbed(f *testing.F) {
	at := outside("w", "location", "a", "offset", "8")
	f.Add(modelOf(at, at, at, at), []byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, model, data []byte) {
		got, err := Embed(model, func(string) ([]byte, error) { return data, nil }, 1<<20)
		if err != nil {
			return
		}
		m, err := Parse(got)
		if _, broken := Parse(model); err != nil && broken == nil {
			t.Fatal(err)
		}
		if err == nil && len(m.Locations()) > 0 {
			t.Fatalf("%q", m.Locations())
		}
	})
}
