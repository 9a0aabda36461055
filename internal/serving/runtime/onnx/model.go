package onnx

import (
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/onnxfile"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// This file reads model files before ONNX Runtime does, by package onnxfile. A tensor of a
// model can say that its data is in another file, and the library would open that file
// relative to our working directory: a model could make the server answer with its own keys.
// All of a model is in the bytes that were signed, so such a tensor is refused wherever it
// may be.

// Signature reads what a model takes and gives, without the library, after its structure was
// checked. It refuses what is no model: fault.Invalid, fault.Unsupported.
func Signature(model []byte) (serving.Metadata, error) {
	m, meta, err := read(model)
	if err != nil {
		return meta, err
	}
	return meta, m.Check()
}

// inspect refuses a file that is no ONNX model or not all of one, and reads what the model
// takes and gives. It does not check the model's structure.
func inspect(model []byte) (serving.Metadata, error) {
	_, meta, err := read(model)
	return meta, err
}

func read(model []byte) (*onnxfile.Model, serving.Metadata, error) {
	meta := serving.Metadata{Platform: "onnxruntime_onnx"}
	if len(model) >= 8 && string(model[4:8]) == "ORTM" {
		return nil, meta, fault.New(fault.Unsupported, "the model is in ONNX Runtime's own format").WithHint("Deploy the .onnx file that it was made from.")
	}
	m, err := onnxfile.Parse(model)
	if err != nil {
		return nil, meta, err
	}
	var optional []serving.Spec
	var largest int64
	weights, defaults := m.Graph.Weights(), m.Defaults()
	for _, in := range m.Graph.Inputs {
		s, err := spec("input", in)
		if weights[in.Name] {
			if n, is := defaults[in.Name]; is {
				largest = max(largest, n)
				if err == nil {
					optional = append(optional, s)
				}
			}
			continue
		}
		if err != nil {
			return nil, meta, err
		}
		meta.Inputs = append(meta.Inputs, s)
	}
	for _, out := range m.Graph.Outputs {
		s, err := spec("output", out)
		if err != nil {
			return nil, meta, err
		}
		meta.Outputs = append(meta.Outputs, s)
	}
	meta.Optional = meta.Offer(optional, largest)
	return m, meta, meta.Validate()
}

// spec is a port in the words of the Open Inference Protocol.
func spec(role string, p onnxfile.Port) (serving.Spec, error) {
	s := serving.Spec{Name: p.Name, Shape: p.Shape, Datatype: datatypeOf(p.Element)}
	switch {
	case s.Name == "" || strings.ContainsRune(s.Name, 0):
		return s, fault.New(fault.Invalid, "an %s of the model has no name, or one with a NUL in it", role)
	case p.Kind == onnxfile.Untyped:
		return s, fault.New(fault.Invalid, "%s %q of the model has no type", role, s.Name).
			WithHint("Run onnx.shape_inference.infer_shapes over the model and save it again.")
	case p.Kind != onnxfile.Dense:
		return s, fault.New(fault.Unsupported, "%s %q is not a tensor but a map, a sequence or the like, which the Open Inference Protocol has no form for", role, s.Name).
			WithHint("Convert classifiers without ZipMap: options={'zipmap': False} of skl2onnx, zipmap=False of onnxmltools for LightGBM; CatBoost has no such option: remove the last node, ZipMap, and make its input the output.")
	case s.Datatype == "":
		return s, fault.New(fault.Unsupported, "%s %q is a tensor of element type %d, which the Open Inference Protocol has no form for", role, s.Name, p.Element).
			WithHint("Cast it to float32 or to an integer in the model.")
	}
	return s, nil
}
