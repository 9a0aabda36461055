package onnx

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// external is a TensorProto whose data are the bytes of a file.
func external(name, location string) []byte {
	return slices.Concat(
		count(1, 4), count(2, 2), word(tensorName, name), // uint8 [4]
		part(tensorExternalData, word(1, "location"), word(2, location)),
		part(tensorExternalData, word(1, "offset"), word(2, "0")),
		part(tensorExternalData, word(1, "length"), word(2, "4")),
		count(tensorDataLocation, 1),
	)
}

// thief answers with a file of the server's working directory.
func thief(location string) []byte {
	return modelOf(
		part(1, op("Identity", []string{"w"}, []string{"y"})),
		part(1, op("Identity", []string{"x"}, []string{"z"})),
		part(graphInitializer, external("w", location)),
		part(graphInput, port("x", float32s, 1)),
		part(graphOutput, port("y", 2, 4)), part(graphOutput, port("z", float32s, 1)),
	)
}

// plain is a model of nothing but what every model has, and what is given.
func plain(graph ...[]byte) []byte {
	return modelOf(append([][]byte{
		part(1, op("Identity", []string{"x"}, []string{"y"})), part(graphInput, port("x", float32s, 1)), part(graphOutput, port("y", float32s, 1)),
	}, graph...)...)
}

// inDirectoryOfKeys makes the working directory one with a file that no model
// should read; it gives the library's path.
func inDirectoryOfKeys(t *testing.T) string {
	t.Helper()
	lib := library(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("master.key", []byte("KEYS"), 0o600); err != nil {
		t.Fatal(err)
	}
	return lib
}

// TestTooNew: a model that is newer than the library is refused with what to do.
func TestTooNew(t *testing.T) {
	for text, hint := range map[string]bool{
		"Unsupported model IR version: 99, max supported IR version: 13": true,
		"ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 28 is under development and support for this is limited.": true,
		"Fatal error: Own(1) is not a registered function/op": false,
	} {
		err := unrunnable("1.32.0", errors.New(text))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), text) || (fault.HintOf(err) != "") != hint {
			t.Errorf("%s: %v, %q", text, err, fault.HintOf(err))
		}
	}
	// By the library that is there: a model of a version that no library has.
	newer := slices.Concat(plain(), count(1, 99)) // of a field that is there twice, the last
	s, err := New(library(t)).Load(t.Context(), newer, serving.Options{})
	if err == nil {
		_ = s.Close()
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "opset_version") {
		t.Errorf("%v, %q", err, fault.HintOf(err))
	}
	err = unrunnable("1.32.0", errors.New("Exception during initialization: Failed to construct locale with name:en_US.UTF-8:locale::facet::_S_create_c_locale name not valid"))
	if !strings.Contains(fault.HintOf(err), "localedef") {
		t.Errorf("a locale that is missing: %s", fault.HintOf(err))
	}
}

// TestDataElsewhere puts a tensor with data in another file wherever a model can
// have a tensor.
func TestDataElsewhere(t *testing.T) {
	lib := inDirectoryOfKeys(t)
	w := external("w", "master.key")
	attribute := func(field protowire.Number, v []byte) []byte { return slices.Concat(word(1, "a"), part(field, v)) }
	node := func(a []byte) []byte { return part(1, op("Constant", nil, []string{"c"}, a)) }
	function := func(fields ...[]byte) []byte {
		return append(plain(), part(25, append(fields, word(1, "f"), word(10, "d"))...)...)
	}
	nested := part(graphInitializer, w)
	for range 5 {
		nested = node(attribute(6, nested))
	}
	for name, model := range map[string][]byte{
		"initializer":              thief("master.key"),
		"sparse values":            plain(part(graphSparseInitializer, part(1, w))),
		"sparse indices":           plain(part(graphSparseInitializer, part(2, w))),
		"attribute":                plain(node(attribute(5, w))),
		"list of tensors":          plain(node(slices.Concat(attribute(10, nil), part(10, w)))),
		"sparse attribute":         plain(node(attribute(22, part(1, w)))),
		"list of sparse":           plain(node(attribute(23, part(2, w)))),
		"subgraph":                 plain(node(attribute(6, part(graphInitializer, w)))),
		"list of subgraphs":        plain(node(attribute(11, part(graphInitializer, w)))),
		"sparse of a subgraph":     plain(node(attribute(6, part(graphSparseInitializer, part(1, w))))),
		"nested":                   plain(nested),
		"function":                 function(part(7, op("Constant", nil, []string{"c"}, attribute(5, w)))),
		"subgraph of a function":   function(part(7, op("If", []string{"c"}, []string{"d"}, attribute(6, part(graphInitializer, w))))),
		"default of a function":    function(part(11, attribute(5, w))),
		"training, initialization": append(plain(), part(20, part(1, part(graphInitializer, w)))...),
		"training, algorithm":      append(plain(), part(20, part(2, part(graphInitializer, w)))...),
		"a second graph":           append(plain(), part(modelGraph, part(graphInitializer, w))...),
		"location alone":           plain(part(graphInitializer, word(tensorName, "w"), part(tensorExternalData, word(1, "location"), word(2, "master.key")))),
		"flag alone":               plain(part(graphInitializer, word(tensorName, "w"), count(tensorDataLocation, 1))),
		// The library reads an enumeration as an int32.
		"flag of 33 bits":     plain(part(graphInitializer, word(tensorName, "w"), count(tensorDataLocation, 1<<32|1))),
		"flag, then none":     plain(part(graphInitializer, word(tensorName, "w"), count(tensorDataLocation, 1), count(tensorDataLocation, 0))),
		"address in memory":   thief("*/_ORT_MEM_ADDR_/*"),
		"absolute":            thief("/etc/hostname"),
		"above the directory": thief("../master.key"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(lib).Load(t.Context(), model, serving.Options{})
			if err == nil {
				_ = s.Close()
			}
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `tensor "w" stores its data in another file`) || fault.HintOf(err) == "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestSecondDefence: a name of a file that inspect let through leads nowhere.
func TestSecondDefence(t *testing.T) {
	rt := New(inDirectoryOfKeys(t))
	if err := rt.open(); err != nil {
		t.Fatal(err)
	}
	meta := serving.Metadata{Inputs: []serving.Spec{{Name: "x"}}, Outputs: []serving.Spec{{Name: "y"}, {Name: "z"}}}
	for _, location := range []string{"master.key", "./master.key", "/etc/hostname", "../master.key", "../../etc/hostname", "../../../etc/hostname"} {
		s, err := rt.session(t.Context(), thief(location), meta, serving.Options{})
		if err == nil {
			_ = s.Close()
		}
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", location, err)
		}
		t.Log(err)
	}
}

func TestMalformed(t *testing.T) {
	deep := part(graphInitializer, word(tensorName, "w"))
	for range 40 {
		deep = part(1, op("If", []string{"c"}, []string{"d"}, part(6, deep)))
	}
	beyond := protowire.AppendVarint(nil, 1<<32|tensorDataLocation<<3) // field 14 to a reader of 32 bits
	for name, c := range map[string]struct {
		model []byte
		kind  fault.Kind
		says  string
	}{
		"group":              {append(plain(), protowire.AppendTag(nil, 99, protowire.StartGroupType)...), fault.Invalid, "well-formed"},
		"graph as a number":  {append(plain(), count(modelGraph, 1)...), fault.Invalid, "well-formed"},
		"tensor as a number": {plain(count(graphInitializer, 1)), fault.Invalid, "well-formed"},
		"flag as bytes":      {plain(part(graphInitializer, part(tensorDataLocation, []byte{1}))), fault.Invalid, "well-formed"},
		"field beyond":       {plain(part(graphInitializer, append(beyond, 1))), fault.Invalid, "well-formed"},
		"length beyond":      {plain(protowire.AppendVarint(protowire.AppendTag(nil, graphInitializer, protowire.BytesType), math.MaxInt64)), fault.Invalid, "well-formed"},
		"too deep":           {plain(deep), fault.Invalid, "deep"},
		"too many inputs":    {plain(bytes.Repeat(part(graphInput), maxPorts)), fault.Invalid, "4096"},
		"no outputs":         {modelOf(part(graphInput, port("x", float32s, 1))), fault.Invalid, "no outputs"},
		"no name":            {plain(part(graphInput, port("", float32s, 1))), fault.Invalid, "no name"},
		"NUL in a name":      {plain(part(graphInput, port("x\x00y", float32s, 1))), fault.Invalid, "NUL"},
		"no type":            {plain(part(graphOutput, word(1, "z"))), fault.Invalid, `output "z" of the model has no type`},
		"complex numbers":    {plain(part(graphOutput, port("z", 14, 1))), fault.Unsupported, "element type 14"},
		"no such type":       {plain(part(graphOutput, port("z", math.MaxUint64, 1))), fault.Unsupported, "element type 18446744073709551615"},
		"a sequence":         {plain(part(graphOutput, word(1, "z"), part(2, part(4)))), fault.Unsupported, "not a tensor"},
		"own format":         {append([]byte("\x20\x00\x00\x00ORTM"), plain()...), fault.Unsupported, "own format"},
	} {
		_, err := inspect(c.model)
		if fault.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInspect reads what models take and give.
func TestInspect(t *testing.T) {
	meta, err := inspect(plain(
		part(graphInitializer, word(tensorName, "weight")), part(graphInput, port("weight", float32s, 3)), // as exporters wrote before IR version 4
		part(graphSparseInitializer, part(1, word(tensorName, "sparse"))), part(graphInput, port("sparse", float32s, 3)),
		part(graphInput, port("ids", int64s, -1, 7)), part(graphInput, shapeless("any", stringsT)), part(graphOutput, port("loss", float32s)),
		part(graphInput, word(1, "negative"), part(2, part(1, count(1, float32s), part(2, part(1, count(1, math.MaxUint64)))))),
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []serving.Spec{
		{Name: "x", Datatype: serving.FP32, Shape: []int64{1}},
		{Name: "ids", Datatype: serving.Int64, Shape: []int64{-1, 7}},
		{Name: "any", Datatype: serving.Bytes},
		{Name: "negative", Datatype: serving.FP32, Shape: []int64{-1}},
		{Name: "y", Datatype: serving.FP32, Shape: []int64{1}},
		{Name: "loss", Datatype: serving.FP32, Shape: []int64{}},
	}
	got := slices.Concat(meta.Inputs, meta.Outputs)
	if !slices.EqualFunc(got, want, func(a, b serving.Spec) bool {
		return a.Name == b.Name && a.Datatype == b.Datatype && slices.Equal(a.Shape, b.Shape) && (a.Shape == nil) == (b.Shape == nil)
	}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestDefaults: which inputs a request may leave out, and that no more are offered than a
// request may have.
func TestDefaults(t *testing.T) {
	names := func(model []byte) string {
		meta, err := Signature(model)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(namesOf(meta.Inputs), namesOf(meta.Optional))
	}
	version := func(n uint64) []byte {
		return slices.Concat(count(1, n), part(modelGraph, optionalGraph...), part(8, count(2, 17)))
	}
	weights := func(n int, dims ...uint64) []byte { // as PyTorch exports with keep_initializers_as_inputs
		graph := [][]byte{part(1, op("Identity", []string{"x"}, []string{"y"})), part(graphInput, port("x", float32s, 1)), part(graphOutput, port("y", float32s, 1))}
		for i := range n {
			w := fmt.Sprintf("w%d", i)
			shape, elements := make([]int64, len(dims)), uint64(1)
			for d := range dims {
				shape[d] = int64(dims[d])
				elements *= dims[d]
			}
			graph = append(graph, part(graphInput, port(w, float32s, shape...)), part(graphInitializer, tensorFile(w, float32s, make([]byte, 4*elements), dims...)))
		}
		return modelOf(graph...)
	}
	for name, c := range map[string]struct {
		model []byte
		want  string
	}{
		"since version 4":   {version(4), "[x] [scale shift tag]"},
		"before":            {version(3), "[x] []"},
		"as many as fit":    {weights(serving.MaxPorts-1, 1), fmt.Sprint("[x] ", namesOf(series(serving.MaxPorts-1)))},
		"one too many":      {weights(serving.MaxPorts, 1), "[x] []"},
		"small":             {weights(2, serving.MaxDefault), "[x] [w0 w1]"},
		"of two dimensions": {weights(1, serving.MaxDefault/2, 2), "[x] [w0]"},
		"a weight":          {weights(1, serving.MaxDefault+1), "[x] []"},
		"a weight of two":   {weights(1, serving.MaxDefault/2, 3), "[x] []"},
		"a weight beside":   {slices.Concat(weights(2, 1), part(modelGraph, part(graphInput, port("w", float32s, serving.MaxDefault+1)), part(graphInitializer, tensorFile("w", float32s, make([]byte, 4*(serving.MaxDefault+1)), serving.MaxDefault+1)))), "[x] []"},
	} {
		if got := names(c.model); got != c.want {
			t.Errorf("%s: %.200s, want %.200s", name, got, c.want)
		}
	}
}

func series(n int) []serving.Spec {
	out := make([]serving.Spec, n)
	for i := range out {
		out[i].Name = fmt.Sprintf("w%d", i)
	}
	return out
}

// FuzzInspect: whatever else a file holds, a tensor with its data elsewhere is
// found behind it and in front of it.
func FuzzInspect(f *testing.F) {
	for _, name := range []string{"logistic.onnx", "zipmap.onnx"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(echo)
	f.Add(total)
	f.Add(thief("master.key"))
	hidden := part(modelGraph, part(graphInitializer, external("w", "master.key")))
	f.Fuzz(func(t *testing.T, model []byte) {
		_, err := inspect(model)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.Unsupported {
				t.Errorf("kind %s: %v", k, err)
			}
			return
		}
		for _, m := range [][]byte{slices.Concat(model, hidden), slices.Concat(hidden, model)} {
			if _, err := inspect(m); err == nil {
				t.Error("data in another file passed")
			}
		}
	})
}
