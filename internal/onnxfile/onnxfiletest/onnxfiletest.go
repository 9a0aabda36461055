// Package onnxfiletest writes ONNX model files field by field, for tests.
package onnxfiletest

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of fields.
const (
	ModelGraph             = 7
	ModelOpsets            = 8
	ModelFunctions         = 25
	GraphNode              = 1
	GraphInitializer       = 5
	GraphInput             = 11
	GraphOutput            = 12
	GraphValue             = 13
	GraphSparseInitializer = 15
	TensorName             = 8
	TensorExternalData     = 13
	TensorDataLocation     = 14
)

// Element types.
const (
	Floats   = 1
	Integers = 7
	Texts    = 8
	Bools    = 9
)

// Part is a field that is a message of parts.
func Part(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

// Word is a field of text.
func Word(number protowire.Number, s string) []byte { return Part(number, []byte(s)) }

// Count is a field of a number.
func Count(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

// Float is a field of a float.
func Float(number protowire.Number, bits uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), bits)
}

// Port is a ValueInfoProto; -1 is a dimension that varies.
func Port(name string, element uint64, dims ...int64) []byte {
	var shape []byte
	for _, d := range dims {
		if d < 0 {
			shape = append(shape, Part(1, Word(2, "N"))...)
			continue
		}
		shape = append(shape, Part(1, Count(1, uint64(d)))...)
	}
	return slices.Concat(Word(1, name), Part(2, Part(1, Count(1, element), Part(2, shape))))
}

// Op is a NodeProto.
func Op(kind string, inputs, outputs []string, attributes ...[]byte) []byte {
	var b []byte
	for _, in := range inputs {
		b = append(b, Word(1, in)...)
	}
	for _, out := range outputs {
		b = append(b, Word(2, out)...)
	}
	b = append(b, Word(4, kind)...)
	for _, a := range attributes {
		b = append(b, Part(5, a)...)
	}
	return b
}

// Number is an AttributeProto of an integer.
func Number(name string, v uint64) []byte {
	return slices.Concat(Word(1, name), Count(3, v), Count(20, 2))
}

// Model is a ModelProto of IR version 8, operator set 17, around a graph's fields.
func Model(graph ...[]byte) []byte {
	return slices.Concat(Count(1, 8), Part(ModelGraph, append(graph, Word(2, "g"))...), Part(ModelOpsets, Count(2, 17)))
}

// Tensor is a TensorProto of raw data.
func Tensor(name string, element uint64, raw []byte, dims ...uint64) []byte {
	var b []byte
	for _, d := range dims {
		b = append(b, Count(1, d)...)
	}
	return slices.Concat(b, Count(2, element), Word(TensorName, name), Part(9, raw))
}
