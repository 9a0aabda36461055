package onnx

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// This file reads model files before ONNX Runtime does. A tensor of a model can
// say that its data is in another file, and the library would open that file
// relative to our working directory: a model could make the server answer with
// its own keys. All of a model is in the bytes that were signed, so such a
// tensor is refused wherever it may be.
//
// Where the C++ protobuf that the library uses and the wire format's
// specification may disagree (field numbers beyond the limit, groups, a known
// field of another wire type), the file is refused: no tensor can hide in it.
//
// Source of the numbers: onnx/onnx.proto3 of github.com/onnx/onnx, IR version 14.

// Limits of a model file.
const (
	maxDepth = 100 // of messages in messages, as in C++ protobuf
	maxPorts = serving.MaxPorts
)

// message is a type of the format that can hold a tensor at some depth.
type message uint8

const (
	modelMessage message = iota
	graphMessage
	nodeMessage
	attributeMessage
	tensorMessage
	sparseMessage
	functionMessage
	trainingMessage
)

// holds says which fields of a message are messages to look into.
var holds = [...]map[int]message{
	modelMessage:     {modelGraph: graphMessage, 20: trainingMessage, 25: functionMessage},
	graphMessage:     {1: nodeMessage, graphInitializer: tensorMessage, graphSparseInitializer: sparseMessage},
	nodeMessage:      {5: attributeMessage},
	attributeMessage: {5: tensorMessage, 6: graphMessage, 10: tensorMessage, 11: graphMessage, 22: sparseMessage, 23: sparseMessage},
	tensorMessage:    {},
	sparseMessage:    {sparseValues: tensorMessage, 2: tensorMessage},
	functionMessage:  {7: nodeMessage, 11: attributeMessage},
	trainingMessage:  {1: graphMessage, 2: graphMessage},
}

// Fields that are read for themselves.
const (
	modelGraph             = 7
	graphInitializer       = 5
	graphInput             = 11
	graphOutput            = 12
	graphValue             = 13
	graphSparseInitializer = 15
	sparseValues           = 1
	tensorName             = 8
	tensorExternalData     = 13
	tensorDataLocation     = 14
)

var errMalformed = fault.New(fault.Invalid, "not an ONNX model: the file is not a well-formed ModelProto")

// field is one field of a message: number has its value in varint or in bytes.
type field struct {
	number int
	wire   protowire.Type
	varint uint64
	bytes  []byte
}

// fields calls f for each field of a message.
func fields(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 || number > protowire.MaxValidNumber {
			return errMalformed
		}
		b = b[n:]
		v := field{number: int(number), wire: wire}
		switch wire {
		case protowire.VarintType:
			v.varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		case protowire.Fixed32Type:
			_, n = protowire.ConsumeFixed32(b)
		case protowire.Fixed64Type:
			_, n = protowire.ConsumeFixed64(b)
		default: // a group: ONNX has none
			return errMalformed
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

// selfContained refuses a message in which a tensor's data is in another file.
func selfContained(b []byte, m message, depth int) error {
	if depth > maxDepth {
		return fault.New(fault.Invalid, "the model is nested more than %d messages deep", maxDepth)
	}
	return fields(b, func(f field) error {
		if m == tensorMessage {
			switch f.number {
			case tensorDataLocation:
				if f.wire != protowire.VarintType {
					return errMalformed
				}
				if f.varint == 0 {
					return nil
				}
				return outside(b)
			case tensorExternalData:
				return outside(b)
			}
		}
		inner, ok := holds[m][f.number]
		if !ok {
			return nil
		}
		if f.wire != protowire.BytesType {
			return errMalformed
		}
		return selfContained(f.bytes, inner, depth+1)
	})
}

func outside(tensor []byte) error {
	return fault.New(fault.Invalid, "tensor %q keeps its data in another file; all of a model must be in the file that was signed", text(tensor, tensorName)).
		WithHint("Save the model as one file, without external data: onnx.save(onnx.load(PATH), \"model.onnx\").")
}

// text is a string field of a message, empty when there is none; the last one
// counts, as everywhere in protobuf.
func text(b []byte, number int) (s string) {
	_ = fields(b, func(f field) error {
		if f.number == number && f.wire == protowire.BytesType {
			s = string(f.bytes)
		}
		return nil
	})
	return s
}

// Signature reads what a model takes and gives, without the library. It refuses what
// is no model: fault.Invalid, fault.Unsupported.
func Signature(model []byte) (serving.Metadata, error) { return inspect(model) }

// inspect refuses a file that is no ONNX model or not all of one, and reads what
// the model takes and gives.
func inspect(model []byte) (serving.Metadata, error) {
	meta := serving.Metadata{Platform: "onnxruntime_onnx"}
	if len(model) == 0 {
		return meta, fault.New(fault.Invalid, "the model file is empty")
	}
	if len(model) >= 8 && string(model[4:8]) == "ORTM" {
		return meta, fault.New(fault.Unsupported, "the model is in ONNX Runtime's own format").WithHint("Deploy the .onnx file that it was made from.")
	}
	if err := selfContained(model, modelMessage, 0); err != nil {
		return meta, err
	}
	graph := func(each func(field) error) error {
		return fields(model, func(f field) error {
			if f.number != modelGraph {
				return nil
			}
			return fields(f.bytes, each) // several are read as one, in order
		})
	}
	var inputs, outputs [][]byte
	err := graph(func(f field) error {
		switch f.number {
		case graphInput:
			inputs = append(inputs, f.bytes)
		case graphOutput:
			outputs = append(outputs, f.bytes)
		}
		if len(inputs) > maxPorts || len(outputs) > maxPorts {
			return fault.New(fault.Invalid, "the model has more than %d inputs or outputs", maxPorts)
		}
		return nil
	})
	if err != nil {
		return meta, err
	}
	// An input that has an initial value is a weight, as old exporters wrote them.
	weights := map[string]bool{}
	for _, in := range inputs {
		weights[text(in, 1)] = false
	}
	if err := graph(func(f field) error {
		var name string
		switch f.number {
		case graphInitializer:
			name = text(f.bytes, tensorName)
		case graphSparseInitializer:
			_ = fields(f.bytes, func(v field) error {
				if v.number == sparseValues {
					name = text(v.bytes, tensorName)
				}
				return nil
			})
		default:
			return nil
		}
		if _, ok := weights[name]; ok {
			weights[name] = true
		}
		return nil
	}); err != nil {
		return meta, err
	}
	for _, in := range inputs {
		if weights[text(in, 1)] {
			continue
		}
		s, err := spec("input", in)
		if err != nil {
			return meta, err
		}
		meta.Inputs = append(meta.Inputs, s)
	}
	for _, out := range outputs {
		s, err := spec("output", out)
		if err != nil {
			return meta, err
		}
		meta.Outputs = append(meta.Outputs, s)
	}
	return meta, meta.Validate()
}

// spec reads a ValueInfoProto: name 1, type 2.
func spec(role string, b []byte) (serving.Spec, error) {
	s := serving.Spec{Name: text(b, 1)}
	if s.Name == "" || strings.ContainsRune(s.Name, 0) {
		return s, fault.New(fault.Invalid, "an %s of the model has no name, or one with a NUL in it", role)
	}
	var tensor []byte
	isTensor, known := false, false
	err := fields(b, func(f field) error {
		if f.number != 2 || f.wire != protowire.BytesType {
			return nil
		}
		return fields(f.bytes, func(f field) error { // TypeProto: tensor_type 1, sequence 4, map 5, opaque 7, sparse 8, optional 9
			switch f.number {
			case 1:
				isTensor, known, tensor = f.wire == protowire.BytesType, true, f.bytes
			case 4, 5, 7, 8, 9:
				isTensor, known = false, true
			}
			return nil
		})
	})
	if err != nil {
		return s, err
	}
	if !known {
		return s, fault.New(fault.Invalid, "%s %q of the model has no type", role, s.Name).
			WithHint("Run onnx.shape_inference.infer_shapes over the model and save it again.")
	}
	if !isTensor {
		return s, fault.New(fault.Unsupported, "%s %q is not a tensor but a map, a sequence or the like, which the Open Inference Protocol has no form for", role, s.Name).
			WithHint("For scikit-learn classifiers convert with options={'zipmap': False}.")
	}
	var element uint64
	err = fields(tensor, func(f field) error { // Tensor: elem_type 1, shape 2
		switch {
		case f.number == 1 && f.wire == protowire.VarintType:
			element = f.varint
		case f.number == 2 && f.wire == protowire.BytesType:
			if s.Shape == nil {
				s.Shape = []int64{}
			}
			return fields(f.bytes, func(f field) error { // TensorShapeProto: dim 1
				if f.number != 1 || f.wire != protowire.BytesType {
					return nil
				}
				d, err := dimension(f.bytes)
				s.Shape = append(s.Shape, d)
				return err
			})
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if s.Datatype = datatypeOf(element); s.Datatype == "" {
		return s, fault.New(fault.Unsupported, "%s %q is a tensor of element type %d, which the Open Inference Protocol has no form for", role, s.Name, element).
			WithHint("Cast it to float32 or to an integer in the model.")
	}
	return s, nil
}

// dimension reads a Dimension: dim_value 1, dim_param 2; -1 is one that varies.
func dimension(b []byte) (int64, error) {
	d := int64(-1)
	err := fields(b, func(f field) error {
		switch {
		case f.number == 1 && f.wire == protowire.VarintType:
			d = max(-1, int64(f.varint)) //nolint:gosec // G115: a negative int64 is written as the large uint64
		case f.number == 2:
			d = -1
		}
		return nil
	})
	return d, err
}
