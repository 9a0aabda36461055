package main

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// onnxModel is a logistic regression of 13 inputs: X [n, 13] to probability [n, 1].
// It is written by hand because no converter is at hand; the numbers are those of
// onnx.proto. It costs next to nothing to run, so that what surrounds it is seen.
func onnxModel() []byte {
	const float = 1 // TensorProto.FLOAT
	weights := make([]byte, 0, 4*windowColumns)
	for i := range windowColumns {
		weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(i-6)/50))
	}
	w := varint(varint(nil, 1, windowColumns), 1, 1)
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
	graph := message(nil, 1, node("MatMul", "logit", "X", "W"))
	graph = message(graph, 1, node("Sigmoid", "probability", "logit"))
	graph = message(message(graph, 2, []byte("logistic")), 5, w)
	graph = message(message(graph, 11, value("X", windowColumns)), 12, value("probability", 1))
	return message(message(varint(nil, 1, 8), 7, graph), 8, varint(nil, 2, 17))
}

func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func varint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
