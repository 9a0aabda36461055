package harness

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Logistic is the ONNX file of a logistic regression, of input [n, columns] to output
// [n, 1]. It is written by hand because no converter is at hand; the numbers are those
// of onnx.proto. It costs next to nothing to run, so that what surrounds it is seen.
func Logistic(columns uint64, input, output string) []byte {
	const float = 1 // TensorProto.FLOAT
	weights := make([]byte, 0, 4*columns)
	for i := range columns {
		weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(int(i)-6)/50))
	}
	w := varint(varint(nil, 1, columns), 1, 1)
	w = message(message(varint(w, 2, float), 8, []byte("W")), 9, weights)
	value := func(name string, columns uint64) []byte {
		shape := message(nil, 1, message(nil, 2, []byte("n")))
		shape = message(shape, 1, varint(nil, 1, columns))
		return message(message(nil, 1, []byte(name)), 2, message(nil, 1, message(varint(nil, 1, float), 2, shape)))
	}
	node := func(op, output string, inputs ...string) []byte {
		var b []byte
		for _, in := range inputs {
			b = message(b, 1, []byte(in))
		}
		return message(message(b, 2, []byte(output)), 4, []byte(op))
	}
	graph := message(nil, 1, node("MatMul", "logit", input, "W"))
	graph = message(graph, 1, node("Sigmoid", output, "logit"))
	graph = message(message(graph, 2, []byte("logistic")), 5, w)
	graph = message(message(graph, 11, value(input, columns)), 12, value(output, 1))
	return message(message(varint(nil, 1, 8), 7, graph), 8, varint(nil, 2, 17))
}

func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func varint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
