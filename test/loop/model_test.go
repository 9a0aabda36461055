package loop

import (
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The models are written field by field (onnx.proto3).

func part(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func word(number protowire.Number, s string) []byte { return part(number, []byte(s)) }

func count(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func op(kind, output string, inputs ...string) []byte {
	var b []byte
	for _, in := range inputs {
		b = append(b, word(1, in)...)
	}
	return part(1, b, word(2, output), word(4, kind))
}

// port is an input (11) or output (12) of n rows.
func port(number protowire.Number, name string, element uint64, width ...uint64) []byte {
	shape := part(1, word(2, "N"))
	for _, w := range width {
		shape = append(shape, part(1, count(1, w))...)
	}
	return part(number, word(1, name), part(2, part(1, count(1, element), part(2, shape))))
}

// constant is an initializer of 32-bit floats.
func constant(name string, dims []uint64, values ...float32) []byte {
	var b, raw []byte
	for _, d := range dims {
		b = append(b, count(1, d)...)
	}
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return part(5, b, count(2, 1), word(8, name), part(9, raw))
}

// linear is a model of X [N, 2] whose score [N, 1] is b + w·X.
func linear(b float32, w ...float32) []byte {
	return model(
		op("MatMul", "product", "X", "w"), op("Add", "score", "product", "b"),
		constant("w", []uint64{uint64(len(w)), 1}, w...), constant("b", []uint64{1}, b),
		port(11, "X", 1, uint64(len(w))), port(12, "score", 1, 1),
	)
}

// failing is a model of X [N, 2] that loads, and fails for all rows but three and
// a half.
func failing() []byte {
	shape := slices.Concat(count(1, 1), count(2, 7), word(8, "seven"), part(9, binary.LittleEndian.AppendUint64(nil, 7)))
	return model(
		op("Reshape", "flat", "X", "seven"), op("ReduceSum", "sum", "flat"), op("Add", "score", "sum", "b"),
		part(5, shape), constant("b", []uint64{1, 1}, 0),
		port(11, "X", 1, 2), port(12, "score", 1, 1),
	)
}

// reader is a model of text, which it repeats, and of a number, which is the
// score.
func reader() []byte {
	return model(
		op("Identity", "same", "word"), op("Identity", "score", "x"),
		port(11, "word", 8), port(11, "x", 1), port(12, "same", 8), port(12, "score", 1),
	)
}

// model is a ModelProto of IR version 8, operator set 17.
func model(graph ...[]byte) []byte {
	return slices.Concat(count(1, 8), part(7, slices.Concat(graph...), word(2, "g")), part(8, count(2, 17)))
}
