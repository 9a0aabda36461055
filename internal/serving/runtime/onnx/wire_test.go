package onnx

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/onnxfile"
	"github.com/falaj-ml/falaj/internal/onnxfile/onnxfiletest"
)

// The tests write the models they need field by field.
var (
	part       = onnxfiletest.Part
	word       = onnxfiletest.Word
	count      = onnxfiletest.Count
	port       = onnxfiletest.Port
	op         = onnxfiletest.Op
	number     = onnxfiletest.Number
	modelOf    = onnxfiletest.Model
	tensorFile = onnxfiletest.Tensor
)

const (
	maxDepth               = onnxfile.MaxDepth
	maxPorts               = onnxfile.MaxPorts
	modelGraph             = onnxfiletest.ModelGraph
	graphInitializer       = onnxfiletest.GraphInitializer
	graphInput             = onnxfiletest.GraphInput
	graphOutput            = onnxfiletest.GraphOutput
	graphValue             = onnxfiletest.GraphValue
	graphSparseInitializer = onnxfiletest.GraphSparseInitializer
	tensorName             = onnxfiletest.TensorName
	tensorExternalData     = onnxfiletest.TensorExternalData
	tensorDataLocation     = onnxfiletest.TensorDataLocation
)

// shapeless is a ValueInfoProto that does not say how many dimensions there are.
func shapeless(name string, element uint64) []byte {
	return slices.Concat(word(1, name), part(2, part(1, count(1, element))))
}

// field is one field of a message: number has its value in varint or in bytes.
type field struct {
	number int
	wire   protowire.Type
	varint uint64
	bytes  []byte
}

// fields calls f for each field of a message of ONNX's tests, which are trusted.
func fields(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		v := field{number: int(number), wire: wire}
		switch wire {
		case protowire.VarintType:
			v.varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, wire, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
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

// divide divides integers: the smallest by -1 ends the process.
var divide = modelOf(
	part(1, op("Div", []string{"x", "y"}, []string{"z"})),
	part(11, port("x", int64s, -1)), part(11, port("y", int64s, -1)), part(12, port("z", int64s, -1)),
)

// optional is runtimetest's; w is an initializer and no input.
var optional = modelOf(optionalGraph...)

var optionalGraph = [][]byte{
	part(1, op("Mul", []string{"x", "scale"}, []string{"scaled"})),
	part(1, op("Mul", []string{"scaled", "w"}, []string{"same"})),
	part(1, op("Add", []string{"same", "shift"}, []string{"y"})),
	part(1, op("Identity", []string{"tag"}, []string{"is"})),
	part(graphInput, port("scale", float32s)), part(graphInput, port("x", float32s, -1)),
	part(graphInput, port("shift", float32s, 1)), part(graphInput, port("tag", stringsT, 1)),
	part(graphInitializer, tensorFile("scale", float32s, []byte{0, 0, 0, 64})),
	part(graphInitializer, tensorFile("shift", float32s, []byte{0, 0, 128, 63}, 1)),
	part(graphInitializer, tensorFile("w", float32s, []byte{0, 0, 128, 63}, 1)),
	part(graphInitializer, count(1, 1), count(2, stringsT), word(tensorName, "tag"), word(6, "none")),
	part(graphOutput, port("y", float32s, -1)), part(graphOutput, port("is", stringsT, -1)),
}
