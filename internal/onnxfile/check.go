package onnxfile

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Check refuses a model whose structure is wrong: names that nothing defines, cycles,
// functions without end, tensors whose data are not what they say, attributes that an
// operator would divide by or that do not fit its weights. Error: fault.Invalid.
func (m *Model) Check() error {
	w := &walk{defaults: m.Defaults(), functions: map[identifier]*Function{}, sizes: map[*Function]*extent{}}
	for domain, version := range m.opsets {
		if version < 1 {
			return invalid("the model imports version %d of the operators of domain %q, and versions start at 1", version, domain)
		}
	}
	for _, f := range m.Functions {
		id := identifier{standard(f.domain), f.name, f.overload}
		if w.functions[id] != nil {
			return invalid("the model has a duplicate function %s", id)
		}
		w.functions[id] = f
	}
	total, err := w.graphExtent(&m.Graph, 0)
	if err != nil {
		return err
	}
	for _, f := range m.Functions {
		if _, err := w.functionExtent(f, 0); err != nil {
			return err
		}
	}
	switch {
	case total.nodes > MaxNodes:
		return invalid("the model has more than %d nodes when its functions are expanded", MaxNodes).
			WithHint("Call functions less often, or from fewer other functions.")
	case total.bytes > MaxExpanded:
		return invalid("the nodes of the model have more than %d MiB when its functions are expanded", MaxExpanded>>20).
			WithHint("Keep weights in initializers, outside of functions.")
	}
	if err := w.graph(&m.Graph, &scope{}); err != nil {
		return err
	}
	for _, f := range m.Functions {
		if w.sizes[f].called {
			continue
		}
		// Nothing calls it: its attributes and shapes are unknown.
		if err := w.body(f, &scope{function: f}); err != nil {
			return err
		}
	}
	return nil
}

func invalid(format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, format, args...)
}

// identifier is what a node names its operator by.
type identifier struct{ domain, name, overload string }

func (i identifier) String() string {
	s := clip(i.name)
	if i.domain != "" {
		s = clip(i.domain) + "." + s
	}
	if i.overload != "" {
		s += ":" + clip(i.overload)
	}
	return s
}

// clip keeps a name of the file short and printable in a message.
func clip(s string) string {
	q := strconv.Quote(fault.Clip(s, 100))
	return q[1 : len(q)-1]
}

// walk goes through a model once, with every function expanded.
type walk struct {
	defaults  map[string]int64 // see Model.Defaults
	functions map[identifier]*Function
	sizes     map[*Function]*extent
}

// extent is what something becomes with every function expanded. Numbers stop at their
// limits.
type extent struct {
	nodes, bytes int64
	open, called bool
}

func (e *extent) add(o extent) {
	e.nodes = min(e.nodes+o.nodes, MaxNodes+1)
	e.bytes = min(e.bytes+o.bytes, MaxExpanded+1)
}

func (w *walk) functionOf(n *node) *Function {
	return w.functions[identifier{standard(n.domain), n.op, n.overload}]
}

func (w *walk) functionExtent(f *Function, calls int) (extent, error) {
	e := w.sizes[f]
	switch {
	case e != nil && e.open:
		return extent{}, invalid("function %s calls itself", identifier{f.domain, f.name, f.overload}).WithHint("ONNX functions cannot be recursive. Use a Loop.")
	case e != nil:
		return *e, nil
	case calls > MaxCalls:
		return extent{}, invalid("the model has function calls nested more than %d deep", MaxCalls)
	}
	e = &extent{open: true}
	w.sizes[f] = e
	sum, err := w.nodesExtent(f.nodes, calls)
	if err != nil {
		return extent{}, err
	}
	sum.add(extent{bytes: f.bytes})
	e.nodes, e.bytes, e.open = sum.nodes, sum.bytes, false
	return *e, nil
}

func (w *walk) graphExtent(g *Graph, calls int) (extent, error) {
	e, err := w.nodesExtent(g.nodes, calls)
	e.add(extent{bytes: g.bytes})
	return e, err
}

func (w *walk) nodesExtent(nodes []*node, calls int) (e extent, err error) {
	for _, n := range nodes {
		e.add(extent{nodes: 1})
		if f := w.functionOf(n); f != nil {
			x, err := w.functionExtent(f, calls+1)
			if err != nil {
				return e, err
			}
			w.sizes[f].called = true
			e.add(extent{nodes: x.nodes, bytes: x.bytes})
		}
		for _, a := range n.attributes {
			for _, g := range a.bodies() {
				x, err := w.graphExtent(g, calls)
				if err != nil {
					return e, err
				}
				e.add(x)
			}
		}
	}
	return e, nil
}

// bodies are the graphs of an attribute.
func (a *attribute) bodies() []*Graph {
	if a.graph != nil {
		return append(slices.Clip(a.graphs), a.graph)
	}
	return a.graphs
}

// scope is what names mean in a graph or function.
type scope struct {
	outer    *scope // of the node that has the graph
	values   map[string]value
	function *Function             // whose body this is, nested graphs included
	bound    map[string]*attribute // attributes of the function's call; nil: unknown
	in       string                // words for messages, such as "function F, "
}

// find is what a name means here or outside.
func (s *scope) find(name string) (value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.values[name]; ok {
			return v, true
		}
	}
	return value{}, false
}

// graph checks a graph whose inputs are in no scope yet.
func (w *walk) graph(g *Graph, s *scope) error {
	s.values = make(map[string]value, len(g.nodes)+len(g.initializers))
	for _, p := range g.Inputs {
		if _, twice := s.values[p.Name]; twice && p.Name != "" {
			return invalid("%sinput %q is defined twice", s.in, clip(p.Name))
		}
		v := value{element: p.Element}
		if s.outer == nil && p.Kind == Dense { // those of a body are what its node makes them
			v.shape = p.Shape
		}
		s.values[p.Name] = v
	}
	for _, t := range g.initializers {
		if err := t.check(); err != nil {
			return s.wrong(fmt.Sprintf("tensor %q", clip(t.name)), err)
		}
		if _, is := w.defaults[t.name]; is && s.outer == nil && s.function == nil {
			continue // a request may give another value: the input says what is known of it
		}
		s.values[t.name] = t.value()
	}
	for _, x := range g.sparse {
		if err := x.check(); err != nil {
			return s.wrong(fmt.Sprintf("sparse tensor %q", clip(x.values.name)), err)
		}
		s.values[x.values.name] = value{shape: x.dims, element: x.values.element}
	}
	if err := w.nodes(g.nodes, s); err != nil {
		return err
	}
	for _, p := range g.Outputs {
		if _, ok := s.find(p.Name); !ok {
			return invalid("%soutput %q is produced by no node", s.in, clip(p.Name))
		}
	}
	return nil
}

// body checks the nodes of a function; the values of its inputs are in s.
func (w *walk) body(f *Function, s *scope) error {
	if s.values == nil {
		s.values = map[string]value{}
	}
	for _, in := range f.inputs {
		if _, ok := s.values[in]; !ok {
			s.values[in] = value{}
		}
	}
	s.in = "function " + identifier{standard(f.domain), f.name, f.overload}.String() + ", "
	if err := w.nodes(f.nodes, s); err != nil {
		return err
	}
	for _, out := range f.outputs {
		if _, ok := s.values[out]; !ok {
			return invalid("%soutput %q is produced by no node", s.in, clip(out))
		}
	}
	return nil
}

func (s *scope) wrong(what string, err error) error {
	return fault.Wrap(err, "%s%s", s.in, what)
}

// label names a node for a message.
func (s *scope) label(n *node) string {
	op := identifier{standard(n.domain), n.op, n.overload}
	if n.name != "" {
		return fmt.Sprintf("node %q (%s)", clip(n.name), op)
	}
	return fmt.Sprintf("node %d (%s)", n.at, op)
}

// nodes checks nodes in an order in which each comes after what it takes.
func (w *walk) nodes(nodes []*node, s *scope) error {
	maker := make(map[string]int, len(nodes))
	for i, n := range nodes {
		if n.op == "" {
			return s.wrong(s.label(n), invalid("it has no operator"))
		}
		for _, out := range n.outputs {
			if out == "" {
				continue
			}
			_, known := s.values[out]
			if by, twice := maker[out]; twice {
				return s.wrong(s.label(n), invalid("it produces %q, which %s also produces", clip(out), s.label(nodes[by])))
			} else if known {
				return s.wrong(s.label(n), invalid("it produces %q, which is also an input or initializer", clip(out)))
			}
			maker[out] = i
		}
	}
	order, err := w.order(nodes, maker, s)
	if err != nil {
		return err
	}
	for _, i := range order {
		n := nodes[i]
		c := &call{walk: w, node: n, scope: s}
		if err := c.check(); err != nil {
			return s.wrong(s.label(n), err)
		}
		for k, v := range c.infer() {
			if k < len(n.outputs) && n.outputs[k] != "" {
				s.values[n.outputs[k]] = v
			}
		}
		for _, out := range n.outputs {
			if _, ok := s.values[out]; !ok && out != "" {
				s.values[out] = value{}
			}
		}
	}
	return nil
}

// order sorts nodes by what they take from each other, the bodies they have included.
func (w *walk) order(nodes []*node, maker map[string]int, s *scope) ([]int, error) {
	waits := make([]int, len(nodes))
	next := make([][]int, len(nodes))
	for i, n := range nodes {
		takes := func(name string, body bool) error {
			if name == "" {
				return nil
			}
			if by, ok := maker[name]; ok {
				next[by] = append(next[by], i)
				waits[i]++
				return nil
			}
			if _, ok := s.find(name); ok {
				return nil
			}
			if body {
				return invalid("a graph of it reads %q, which no node produces", clip(name))
			}
			return invalid("it reads %q, which no node produces", clip(name))
		}
		for _, in := range n.inputs {
			if err := takes(in, false); err != nil {
				return nil, s.wrong(s.label(n), err)
			}
		}
		for name := range free(n) {
			if err := takes(name, true); err != nil {
				return nil, s.wrong(s.label(n), err)
			}
		}
	}
	order := make([]int, 0, len(nodes))
	for i := range nodes {
		if waits[i] == 0 {
			order = append(order, i)
		}
	}
	for at := 0; at < len(order); at++ {
		for _, i := range next[order[at]] {
			if waits[i]--; waits[i] == 0 {
				order = append(order, i)
			}
		}
	}
	if len(order) < len(nodes) {
		i := slices.IndexFunc(waits, func(n int) bool { return n > 0 })
		return nil, s.wrong(s.label(nodes[i]), invalid("it depends on its own output through other nodes"))
	}
	return order, nil
}

// free are the names that the bodies of a node take from outside.
func free(n *node) map[string]bool {
	var out map[string]bool
	for _, a := range n.attributes {
		for _, g := range a.bodies() {
			own := map[string]bool{}
			for _, p := range g.Inputs {
				own[p.Name] = true
			}
			for _, t := range g.initializers {
				own[t.name] = true
			}
			for _, x := range g.sparse {
				own[x.values.name] = true
			}
			for _, m := range g.nodes {
				for _, o := range m.outputs {
					own[o] = true
				}
			}
			use := func(name string) {
				if name == "" || own[name] {
					return
				}
				if out == nil {
					out = map[string]bool{}
				}
				out[name] = true
			}
			for _, m := range g.nodes {
				for _, in := range m.inputs {
					use(in)
				}
				for name := range free(m) {
					use(name)
				}
			}
			for _, p := range g.Outputs {
				use(p.Name)
			}
		}
	}
	return out
}

// call is a node in its scope.
type call struct {
	*walk
	node  *node
	scope *scope
}

// check checks a node: its attributes, what its operator demands, its bodies, and the function
// that it calls.
func (c *call) check() error {
	n := c.node
	if len(n.attributes) > 1000 {
		return invalid("it has more than 1000 attributes")
	}
	for i, a := range n.attributes {
		if a.name == "" {
			return invalid("one of its attributes has no name")
		}
		if slices.ContainsFunc(n.attributes[:i], func(b *attribute) bool { return a.name == b.name }) {
			return invalid("attribute %s is set twice", clip(a.name))
		}
		if err := a.check(); err != nil {
			return err
		}
	}
	if err := c.demands(); err != nil {
		return err
	}
	for _, a := range n.attributes {
		for _, g := range a.bodies() {
			inner := &scope{outer: c.scope, function: c.scope.function, bound: c.scope.bound}
			inner.in = clip(a.name) + ": "
			if err := c.graph(g, inner); err != nil {
				return err
			}
		}
	}
	f := c.functionOf(n)
	if f == nil {
		return nil
	}
	inner := &scope{function: f, bound: map[string]*attribute{}, values: map[string]value{}}
	if len(n.inputs) > len(f.inputs) {
		return invalid("it gives %d inputs to a function of %d", len(n.inputs), len(f.inputs))
	}
	for i, name := range n.inputs {
		inner.values[f.inputs[i]] = c.named(name)
	}
	for _, a := range f.defaults {
		inner.bound[a.name] = a
	}
	for _, a := range n.attributes {
		if b := c.attribute(a.name); b != nil {
			inner.bound[a.name] = b
		}
	}
	return c.body(f, inner)
}

// check checks the tensors of an attribute, and that it is of the type that it says.
func (a *attribute) check() error {
	if a.ref != "" {
		return nil
	}
	if a.kind >= uint64(len(kinds)) && a.kind != typeProto && a.kind != typeProtos {
		return invalid("attribute %s is of type %d, which does not exist", clip(a.name), a.kind)
	}
	if a.tensor != nil {
		if err := a.tensor.check(); err != nil {
			return fault.Wrap(err, "attribute %s", clip(a.name))
		}
	}
	for _, s := range append(slices.Clip(a.sparses), a.sparse) {
		if s == nil {
			continue
		}
		if err := s.check(); err != nil {
			return fault.Wrap(err, "attribute %s", clip(a.name))
		}
	}
	return nil
}

// check refuses a tensor whose data do not fit its shape.
func (t *tensor) check() error {
	n, ok := product(t.dims)
	switch {
	case !ok && slices.ContainsFunc(t.dims, func(d int64) bool { return d < 0 }):
		return invalid("its shape %v has a negative dimension", t.dims)
	case !ok:
		return invalid("its shape %v has more than %d elements", t.dims, int64(MaxElements))
	case t.external:
		return nil // whoever reads the other file knows how much is there
	case t.element == 0 || t.element >= uint64(len(widths)):
		return invalid("its element type %d does not exist", t.element)
	}
	have := int64(t.counts[floatData] + t.counts[int32Data] + t.counts[int64Data] + t.counts[doubleData] + t.counts[uint64Data] + t.strings)
	if t.raw && t.element != textElement {
		if want := (n*widths[t.element] + 7) / 8; want != t.size {
			return invalid("its shape %v takes %d bytes and it has %d", t.dims, want, t.size)
		}
		if have > 0 {
			return invalid("it has duplicate data, raw and as numbers")
		}
		return nil
	}
	list, each := int32Data, int64(1)
	switch t.element {
	case 1:
		list = floatData
	case 14:
		list, each = floatData, 2
	case 7:
		list = int64Data
	case 11:
		list = doubleData
	case 15:
		list, each = doubleData, 2
	case 12, 13:
		list = uint64Data
	case textElement:
		if t.raw || int64(t.strings) != n {
			return invalid("its shape %v takes %d texts and it has %d", t.dims, n, t.strings)
		}
		return nil
	}
	want, got := n*each, int64(t.counts[list])
	if packed := (n*widths[t.element] + 7) / 8; widths[t.element] < 8 && got == packed {
		return nil // two or four numbers in a byte
	}
	if got != want {
		return invalid("its shape %v takes %d numbers and it has %d", t.dims, want, got)
	}
	return nil
}

// check refuses a sparse tensor with values outside of its shape.
func (s *sparse) check() error {
	n, ok := product(s.dims)
	if !ok || n > MaxUnpacked {
		return invalid("its shape %v is negative or has more than %d elements", s.dims, MaxUnpacked)
	}
	if err := s.values.check(); err != nil {
		return fault.Wrap(err, "its values")
	}
	if err := s.indices.check(); err != nil {
		return fault.Wrap(err, "its indices")
	}
	count, _ := product(s.values.dims)
	places, _ := product(s.indices.dims)
	rank := int64(len(s.dims))
	switch {
	case s.values.external || s.indices.external:
		return nil
	case len(s.values.dims) != 1:
		return invalid("its values have %d dimensions, not one", len(s.values.dims))
	case count > MaxSparse:
		return invalid("it has %d values; a sparse tensor may have %d", count, MaxSparse)
	case count > n:
		return invalid("it has %d values, and its shape %v takes %d", count, s.dims, n)
	case s.indices.element != 7:
		return invalid("its indices are not of type int64")
	case len(s.indices.dims) == 1 && places == count:
		rank = 1
	case len(s.indices.dims) == 2 && s.indices.dims[0] == count && s.indices.dims[1] == rank:
	default:
		return invalid("its indices have shape %v for %d values of rank %d", s.indices.dims, count, rank)
	}
	if int64(len(s.indices.ints)) != places {
		return invalid("it has more than %d indices", MaxSparse)
	}
	for i, at := range s.indices.ints {
		most := n
		if rank > 1 || len(s.indices.dims) == 2 {
			most = s.dims[i%int(rank)]
		}
		if at < 0 || at >= most {
			return invalid("index %d is not within its shape %v", at, s.dims)
		}
	}
	return nil
}

// value is what the tensor is to those who take it.
func (t *tensor) value() value {
	if t.external {
		return value{shape: slices.Clip(t.shape()), element: t.element}
	}
	return value{shape: t.shape(), ints: t.ints, floats: t.floats, element: t.element}
}

func (t *tensor) shape() []int64 {
	if t.dims == nil {
		return []int64{}
	}
	return t.dims
}

// The types of attributes that only metadata have.
const (
	typeProto  = 13
	typeProtos = 14
)

// kinds are the names of attributes' types.
var kinds = [...]string{
	"nothing", "a number", "an integer", "a text", "a tensor", "a graph", "a list of numbers", "a list of integers", "a list of texts",
	"a list of tensors", "a list of graphs", "a sparse tensor", "a list of sparse tensors",
}
