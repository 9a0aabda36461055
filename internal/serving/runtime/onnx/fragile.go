package onnx

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fragile reports whether a request could end the process that runs the model:
// ONNX Runtime 1.27 looks for divisors that are zero, and lets the processor
// divide the smallest integer by -1, which ends a program. A division is taken for
// one of integers unless the file shows that it is not. Names are followed within
// the model's own graph: a body of If, Loop or a function, where they may mean
// something else, has a division of integers when it has one. It is no list of all
// that can crash.
func Fragile(model []byte) bool {
	f := &divisions{floats: map[string]bool{}}
	f.look(model, modelMessage, 0)
	return f.found
}

type divisions struct {
	floats map[string]bool // tensors that are known to be of floats
	found  bool
}

// keeping are operators whose first output is of the element type of their first
// input.
var keeping = strings.Fields(`Abs Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Dropout Erf Exp Expand
	Flatten Floor Gather Gemm GlobalAveragePool Identity LayerNormalization LeakyRelu Log MatMul Max MaxPool Min Mul Neg Pad Pow
	ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze`)

// look goes through a message, its nodes in their order, after what it says of
// the types of its tensors.
func (d *divisions) look(b []byte, m message, depth int) {
	if depth > maxDepth { // inspect refuses the file
		d.found = true
		return
	}
	own := m == graphMessage && depth == 1
	if own {
		_ = fields(b, func(f field) error {
			switch f.number {
			case graphInitializer:
				if isFloat(integer(f.bytes, 2)) {
					d.floats[text(f.bytes, tensorName)] = true
				}
			case graphInput, graphOutput, graphValue:
				if isFloat(integer(bytesOf(bytesOf(f.bytes, 2), 1), 1)) {
					d.floats[text(f.bytes, 1)] = true
				}
			}
			return nil
		})
	}
	_ = fields(b, func(f field) error {
		if inner, ok := holds[m][f.number]; ok && f.wire == protowire.BytesType {
			if inner == nodeMessage {
				d.node(f.bytes, own)
			}
			d.look(f.bytes, inner, depth+1)
		}
		return nil
	})
}

// node looks at a node: input 1, output 2, op_type 4, attribute 5, domain 7. own is
// one of the model's own graph.
func (d *divisions) node(b []byte, own bool) {
	var inputs, outputs []string
	float := false
	_ = fields(b, func(f field) error {
		switch f.number {
		case 1:
			inputs = append(inputs, string(f.bytes))
		case 2:
			outputs = append(outputs, string(f.bytes))
		case 5: // AttributeProto: name 1, i 3, t 5
			switch text(f.bytes, 1) {
			case "to":
				float = float || isFloat(integer(f.bytes, 3))
			case "value":
				float = float || isFloat(integer(bytesOf(f.bytes, 5), 2))
			}
		}
		return nil
	})
	known := func(name string) bool { return own && d.floats[name] }
	domain := text(b, 7)
	switch kind := text(b, 4); {
	case domain != "" && domain != "ai.onnx": // a function of that name, or an operator of another set
		float = false
		d.found = d.found || kind == "Div" || kind == "Mod"
	case kind == "Div" || kind == "Mod":
		d.found = d.found || !slices.ContainsFunc(inputs, known)
		float = slices.ContainsFunc(inputs, known)
	case kind == "Cast" || kind == "Constant":
	case slices.Contains(keeping, kind):
		float = len(inputs) > 0 && known(inputs[0])
	default:
		float = false
	}
	if float && own && len(outputs) > 0 {
		d.floats[outputs[0]] = true
	}
}

func isFloat(element uint64) bool {
	return element == 1 || element == 10 || element == 11 || element == 16
}

// integer is a numeric field of a message, 0 when there is none.
func integer(b []byte, at int) (v uint64) {
	_ = fields(b, func(f field) error {
		if f.number == at && f.wire == protowire.VarintType {
			v = f.varint
		}
		return nil
	})
	return v
}

// bytesOf is a field of bytes of a message; the last one counts.
func bytesOf(b []byte, at int) (v []byte) {
	_ = fields(b, func(f field) error {
		if f.number == at && f.wire == protowire.BytesType {
			v = f.bytes
		}
		return nil
	})
	return v
}
