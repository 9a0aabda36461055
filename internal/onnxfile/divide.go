package onnxfile

import (
	"slices"
	"strings"
)

// DividesIntegers reports whether the model may divide integers: runtimes look for divisors that are
// zero, and let the processor divide the smallest integer by -1, which ends a program. A division is
// taken for one of integers unless the file shows that it is not. Names are followed within
// the model's own graph: a body of If, Loop or a function, where they may mean something
// else, has a division of integers when it has one.
func (m *Model) DividesIntegers() bool {
	floats := map[string]bool{}
	for _, t := range m.Graph.initializers {
		if isFloat(t.element) {
			floats[t.name] = true
		}
	}
	for _, ports := range [][]Port{m.Graph.Inputs, m.Graph.Outputs, m.Graph.between} {
		for _, p := range ports {
			if p.Kind == Dense && isFloat(p.Element) {
				floats[p.Name] = true
			}
		}
	}
	for _, n := range m.Graph.nodes {
		if n.divides(floats) {
			return true
		}
	}
	return slices.ContainsFunc(m.Functions, func(f *Function) bool {
		return slices.ContainsFunc(f.nodes, func(n *node) bool { return n.divides(nil) })
	})
}

// keeping are operators whose first output is of the element type of their first input.
var keeping = strings.Fields(`Abs Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Dropout Erf Exp Expand
	Flatten Floor Gather Gemm GlobalAveragePool Identity LayerNormalization LeakyRelu Log MatMul Max MaxPool Min Mul Neg Pad Pow
	ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze`)

// divides reports whether a node, or one in a graph of it, may divide integers, and adds its
// first output to what are floats. floats is nil where names are not followed.
func (n *node) divides(floats map[string]bool) bool {
	known := func(name string) bool { return floats[name] }
	float, standardOp := false, standard(n.domain) == ""
	for _, a := range n.attributes {
		for _, g := range a.bodies() {
			if slices.ContainsFunc(g.nodes, func(n *node) bool { return n.divides(nil) }) {
				return true
			}
		}
		switch {
		case a.name == "to" && n.op == "Cast":
			float = isFloat(uint64(a.i)) //nolint:gosec // a number of a type
		case a.name == "value" && n.op == "Constant" && a.tensor != nil:
			float = isFloat(a.tensor.element)
		}
	}
	division := n.op == "Div" || n.op == "Mod"
	switch {
	case division && (!standardOp || !slices.ContainsFunc(n.inputs, known)): // another domain's may be a function of ours
		return true
	case division:
		float = true
	case n.op == "Cast" || n.op == "Constant":
	default:
		float = slices.Contains(keeping, n.op) && len(n.inputs) > 0 && known(n.inputs[0])
	}
	if float && standardOp && floats != nil && len(n.outputs) > 0 {
		floats[n.outputs[0]] = true
	}
	return false
}

func isFloat(element uint64) bool {
	return element == 1 || element == 10 || element == 11 || element == 16
}
