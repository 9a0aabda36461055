// Package onnxfile reads ONNX model files and checks their structure before any other
// program parses them. It is pure Go and runs nothing.
//
// # Map
//
//   - onnxfile.go: Model and its parts, limits, Parse, Read, Check.
//   - wire.go: the protobuf wire format. decode.go: the messages of ONNX.
//   - check.go: the structure of graphs and functions: names, cycles, expansion.
//   - shapes.go: which shapes and values are known without running the model.
//   - divide.go: which models may divide integers.
//   - embed.go: puts tensors into the file that have their data in others.
//   - operators.go: what operators demand of their attributes and weights; recurrent.go and
//     learned.go: those of recurrent networks and of classical models.
//
// # Guarantees
//
// Time and memory are linear in the size of the file, within Limits: functions are counted
// before they are expanded, weights are skipped and not copied. An error is fault.Invalid
// and names the node or tensor.
//
// # What it does not promise
//
// A model that passes may still fail or crash in a runtime: shapes and values that only a
// request brings are unknown here. An unknown shape or operator is accepted.
//
// Source of field numbers: onnx/onnx.proto3 of github.com/onnx/onnx, IR version 14.
package onnxfile

import (
	"io"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a model file.
const (
	MaxDepth    = 100       // messages in messages, as in C++ protobuf
	MaxGraphs   = 16        // graphs in graphs
	MaxCalls    = 64        // functions in functions
	MaxNodes    = 500_000   // with every function expanded at each call
	MaxExpanded = 1 << 30   // bytes of nodes and their attributes, with every function expanded at each call
	MaxPorts    = 4096      // inputs of a model, and outputs
	MaxMemory   = 512 << 20 // bytes that this package takes for a file
	MaxElements = 1 << 31   // of a tensor
	MaxUnpacked = 1 << 28   // elements of a tensor that is not written out: sparse, or made by an operator
	MaxSparse   = 4 << 20   // values of a sparse tensor
	maxRank     = 32        // dimensions of a tensor
	maxKept     = 1024      // elements of a tensor whose values are read
)

// memory is what a file of a size may take here: much more than its size only when it is small.
func memory(size int64) int64 { return min(MaxMemory, 64<<20+8*min(size, MaxMemory)) }

// Model is a parsed file. Weights are not in it.
type Model struct {
	Graph     Graph
	Functions []*Function

	version   int64
	opsets    map[string]int64
	training  []*Graph
	outside   []string // tensors with data in other files
	locations []string // those files
}

// Graph is a main graph, or the body of an If, Loop or Scan.
type Graph struct {
	Inputs, Outputs []Port
	nodes           []*node
	initializers    []*tensor
	sparse          []*sparse
	between         []Port // what is said of other values, of a main graph
	bytes           int64
}

// Weights are the names that have an initial value.
func (g *Graph) Weights() map[string]bool {
	names := make(map[string]bool, len(g.initializers)+len(g.sparse))
	for _, t := range g.initializers {
		names[t.name] = true
	}
	for _, s := range g.sparse {
		names[s.values.name] = true
	}
	return names
}

// overridable is the version of the format from which on an input that has an initial value
// may be given another one. Before, each weight had to be listed as an input, and was constant.
const overridable = 4

// Defaults are the inputs that have an initial value in place of which another may be given,
// with the number of elements of that value.
func (m *Model) Defaults() map[string]int64 {
	if m.version < overridable {
		return nil
	}
	dense := make(map[string]bool, len(m.Graph.Inputs))
	for _, p := range m.Graph.Inputs {
		dense[p.Name] = p.Kind == Dense
	}
	elements := map[string]int64{}
	for _, t := range m.Graph.initializers {
		if dense[t.name] {
			n, ok := product(t.dims)
			if !ok {
				n = MaxElements // Check refuses it
			}
			elements[t.name] = n
		}
	}
	return elements
}

// Port is an input or output of a graph.
type Port struct {
	Name    string
	Kind    Kind
	Element uint64  // of a tensor: TensorProto.DataType
	Shape   []int64 // nil: any number of dimensions; -1: any size
}

// Kind of a value.
type Kind uint8

// The kinds.
const (
	Untyped Kind = iota
	Dense        // a tensor
	Other        // a sequence, map, optional or sparse tensor
)

// Function is an operator that the model defines.
type Function struct {
	domain, name, overload string
	inputs, outputs        []string
	attributes             []string     // without a default
	defaults               []*attribute // with one
	nodes                  []*node
	bytes                  int64
}

type node struct {
	name, op, domain, overload string
	inputs, outputs            []string
	attributes                 []*attribute
	at                         int // in its graph
}

type attribute struct {
	name, ref string
	kind      uint64
	i         int64
	f         float64
	s         string
	ints      *numbers
	floats    []float64 // the first of them
	nfloats   int
	strings   *words
	tensor    *tensor
	tensors   int
	graph     *Graph
	graphs    []*Graph
	sparse    *sparse
	sparses   []*sparse
	has       uint32 // bits of the fields that are present
}

type tensor struct {
	name     string
	element  uint64
	dims     []int64
	size     int64   // bytes of raw data
	raw      bool    // the data are raw
	counts   [5]int  // numbers in float, int32, int64, double and uint64 data
	strings  int     // texts
	ints     []int64 // values of a small tensor of integers; nil: unknown
	floats   []float64
	data     []byte  // raw data of a small tensor
	words    []int64 // integers of a small tensor that is not raw
	reals    []float64
	external bool
}

// sparse is a SparseTensorProto.
type sparse struct {
	values, indices tensor
	dims            []int64
}

// Parse reads a file in memory. It refuses what is malformed, what is beyond the limits, and
// tensors whose data are in other files.
func Parse(file []byte) (*Model, error) {
	d := &decoder{buf: file, size: int64(len(file))}
	m, err := d.model()
	if err == nil && len(m.outside) > 0 {
		err = fault.New(fault.Invalid, "tensor %q stores its data in another file, and a model must be complete in its signed files", m.outside[0]).
			WithHint("Register that file with the model, or save the model as one file: onnx.save(onnx.load(PATH), \"model.onnx\"), or save_as_external_data=False in mlflow.onnx.log_model.")
	}
	return m, err
}

// Read reads a file of a known size as a stream. Tensors may have their data in other files:
// see Locations. Errors of r are returned as they are.
func Read(r io.Reader, size int64) (*Model, error) {
	d := &decoder{r: r, buf: make([]byte, 0, 64<<10), size: size}
	return d.model()
}

// Defined is whether the file has anything of a graph: other protobuf files may parse as well.
func (m *Model) Defined() bool {
	return m != nil && len(m.Graph.nodes)+len(m.Graph.Inputs)+len(m.Graph.Outputs)+len(m.Graph.initializers)+len(m.Graph.sparse) > 0
}

// Locations are the other files in which tensors have their data.
func (m *Model) Locations() []string { return m.locations }

// Check parses a file in memory and checks its structure. Error: fault.Invalid.
func Check(file []byte) error {
	m, err := Parse(file)
	if err != nil {
		return err
	}
	return m.Check()
}
