package onnx

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The tests write the models they need field by field.

func part(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func word(number protowire.Number, s string) []byte { return part(number, []byte(s)) }

func count(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

// port is a ValueInfoProto; -1 is a dimension that varies.
func port(name string, element uint64, dims ...int64) []byte {
	var shape []byte
	for _, d := range dims {
		if d < 0 {
			shape = append(shape, part(1, word(2, "N"))...)
			continue
		}
		shape = append(shape, part(1, count(1, uint64(d)))...)
	}
	return slices.Concat(word(1, name), part(2, part(1, count(1, element), part(2, shape))))
}

// shapeless is a ValueInfoProto that does not say how many dimensions there are.
func shapeless(name string, element uint64) []byte {
	return slices.Concat(word(1, name), part(2, part(1, count(1, element))))
}

func op(kind string, inputs, outputs []string, attributes ...[]byte) []byte {
	var b []byte
	for _, in := range inputs {
		b = append(b, word(1, in)...)
	}
	for _, out := range outputs {
		b = append(b, word(2, out)...)
	}
	b = append(b, word(4, kind)...)
	for _, a := range attributes {
		b = append(b, part(5, a)...)
	}
	return b
}

func number(name string, v uint64) []byte {
	return slices.Concat(word(1, name), count(3, v), count(20, 2))
}

// modelOf is a ModelProto of IR version 8, operator set 17, around a graph's fields.
func modelOf(graph ...[]byte) []byte {
	return slices.Concat(count(1, 8), part(7, append(graph, word(2, "g"))...), part(8, count(2, 17)))
}

const (
	float32s = 1
	int64s   = 7
	stringsT = 8
)

// echo is runtimetest's.
var echo = modelOf(
	part(1, op("Identity", []string{"s"}, []string{"e"})),
	part(11, port("s", stringsT, -1)), part(12, port("e", stringsT, -1)),
)

// total is runtimetest's.
var total = modelOf(
	part(1, op("ReduceSum", []string{"x"}, []string{"sum"}, number("keepdims", 0))),
	part(1, op("Mul", []string{"sum", "scale"}, []string{"total"})),
	part(1, op("Add", []string{"x", "x"}, []string{"twice"})),
	part(11, port("x", float32s, -1)), part(11, port("scale", float32s)),
	part(12, port("total", float32s)), part(12, port("twice", float32s, -1)),
)

// rest divides integers: the smallest by -1 ends the process.
var rest = modelOf(
	part(1, op("Mod", []string{"x", "y"}, []string{"z"})),
	part(11, port("x", int64s, -1)), part(11, port("y", int64s, -1)), part(12, port("z", int64s, -1)),
)
