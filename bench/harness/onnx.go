package harness

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
)

// The models here are written by hand because no converter is at hand; the numbers are
// those of onnx.proto. Weights are drawn from a seed, the same each time.

const (
	onnxFloat = 1 // TensorProto.FLOAT
	onnxML    = "ai.onnx.ml"
)

// Logistic is the ONNX file of a logistic regression, of input [n, columns] to output
// [n, 1]. It costs next to nothing to run, so that what surrounds it is seen.
func Logistic(columns uint64, input, output string) []byte {
	weights := make([]float32, columns)
	for i := range weights {
		weights[i] = float32(i-6) / 50
	}
	graph := message(nil, 1, node("MatMul", "", "logit", nil, input, "W"))
	graph = message(graph, 1, node("Sigmoid", "", output, nil, "logit"))
	graph = message(graph, 5, weight("W", weights, columns, 1))
	return onnxModel(graph, input, output, columns, 1)
}

// MLP is the ONNX file of layers of so many units, of input "x" [n, sizes[0]] to output
// "y" [n, last size], with a Relu after each but the last.
func MLP(sizes ...uint64) []byte {
	draw := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // weights, the same each time
	var nodes, weights []byte
	x := "x"
	for i := range sizes[:len(sizes)-1] {
		w := make([]float32, sizes[i]*sizes[i+1])
		for j := range w {
			w[j] = float32(draw.NormFloat64() * math.Sqrt(2/float64(sizes[i])))
		}
		at := string(rune('a' + i))
		weights = message(weights, 5, weight("W"+at, w, sizes[i], sizes[i+1]))
		if i == len(sizes)-2 {
			nodes = message(nodes, 1, node("MatMul", "", "y", nil, x, "W"+at))
			break
		}
		nodes = message(nodes, 1, node("MatMul", "", "h"+at, nil, x, "W"+at))
		nodes = message(nodes, 1, node("Relu", "", "r"+at, nil, "h"+at))
		x = "r" + at
	}
	return onnxModel(append(nodes, weights...), "x", "y", sizes[0], sizes[len(sizes)-1])
}

// Forest is the ONNX file of so many full trees of a depth, of input "x" [n, columns] to
// output "y" [n, 1].
func Forest(trees, depth int, columns uint64) []byte {
	draw := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // thresholds, the same each time
	var tree, id, feature, yes, no, leafTree, leafID, target []int64
	var modes []string
	var value, leaf []float32
	inner := int64(1)<<depth - 1
	for t := range int64(trees) {
		for n := range 2*inner + 1 {
			tree, id = append(tree, t), append(id, n)
			if n < inner {
				modes, feature, value = append(modes, "BRANCH_LEQ"), append(feature, draw.Int64N(int64(columns))), append(value, draw.Float32()) //nolint:gosec // few columns
				yes, no = append(yes, 2*n+1), append(no, 2*n+2)
				continue
			}
			modes, feature, value = append(modes, "LEAF"), append(feature, 0), append(value, 0)
			yes, no = append(yes, 0), append(no, 0)
			leafTree, leafID, target, leaf = append(leafTree, t), append(leafID, n), append(target, 0), append(leaf, draw.Float32()/float32(trees))
		}
	}
	attributes := [][]byte{
		integers("nodes_treeids", tree), integers("nodes_nodeids", id), integers("nodes_featureids", feature),
		integers("nodes_truenodeids", yes), integers("nodes_falsenodeids", no), floats("nodes_values", value), texts("nodes_modes", modes),
		integers("target_treeids", leafTree), integers("target_nodeids", leafID), integers("target_ids", target), floats("target_weights", leaf),
		varint(varint(message(nil, 1, []byte("n_targets")), 3, 1), 20, 2),
	}
	return onnxModel(message(nil, 1, node("TreeEnsembleRegressor", onnxML, "y", attributes, "x")), "x", "y", columns, 1)
}

// Negative is the ONNX file of a model that costs little for many bytes: each number of
// input "x" [n, columns] comes out negated as "y".
func Negative(columns uint64) []byte {
	return onnxModel(message(nil, 1, node("Neg", "", "y", nil, "x")), "x", "y", columns, columns)
}

// onnxModel is a graph with one input [n, in] and one output [n, out].
func onnxModel(graph []byte, input, output string, in, out uint64) []byte {
	value := func(name string, columns uint64) []byte {
		shape := message(nil, 1, message(nil, 2, []byte("n")))
		shape = message(shape, 1, varint(nil, 1, columns))
		return message(message(nil, 1, []byte(name)), 2, message(nil, 1, message(varint(nil, 1, onnxFloat), 2, shape)))
	}
	graph = message(graph, 2, []byte("measured"))
	graph = message(message(graph, 11, value(input, in)), 12, value(output, out))
	b := message(message(varint(nil, 1, 8), 7, graph), 8, varint(nil, 2, 17))
	return message(b, 8, varint(message(nil, 1, []byte(onnxML)), 2, 3))
}

func node(op, domain, output string, attributes [][]byte, inputs ...string) []byte {
	var b []byte
	for _, in := range inputs {
		b = message(b, 1, []byte(in))
	}
	b = message(message(b, 2, []byte(output)), 4, []byte(op))
	for _, a := range attributes {
		b = message(b, 5, a)
	}
	if domain != "" {
		b = message(b, 7, []byte(domain))
	}
	return b
}

func weight(name string, values []float32, shape ...uint64) []byte {
	var b []byte
	for _, d := range shape {
		b = varint(b, 1, d)
	}
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return message(message(varint(b, 2, onnxFloat), 8, []byte(name)), 9, data)
}

func integers(name string, values []int64) []byte {
	b := message(nil, 1, []byte(name))
	for _, v := range values {
		b = varint(b, 8, uint64(v)) //nolint:gosec // not negative
	}
	return varint(b, 20, 7)
}

func floats(name string, values []float32) []byte {
	b := message(nil, 1, []byte(name))
	for _, v := range values {
		b = protowire.AppendFixed32(protowire.AppendTag(b, 7, protowire.Fixed32Type), math.Float32bits(v))
	}
	return varint(b, 20, 6)
}

func texts(name string, values []string) []byte {
	b := message(nil, 1, []byte(name))
	for _, v := range values {
		b = message(b, 9, []byte(v))
	}
	return varint(b, 20, 8)
}

func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func varint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
