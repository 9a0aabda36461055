package onnxfile

import "slices"

// value is what is known of a tensor before the model runs.
type value struct {
	shape   []int64 // nil: unknown; -1: a size that is unknown
	ints    []int64 // of a small constant of integers; nil: unknown
	floats  []float64
	element uint64 // 0: unknown
}

// rank is how many dimensions a value has; -1: unknown.
func (v value) rank() int {
	if v.shape == nil {
		return -1
	}
	return len(v.shape)
}

// size is a dimension of a value; -1: unknown.
func (v value) size(d int) int64 {
	if d >= len(v.shape) {
		return -1
	}
	return v.shape[d]
}

// elements is how many elements a value has; -1: unknown.
func (v value) elements() int64 {
	if v.shape == nil {
		return -1
	}
	if n, ok := product(v.shape); ok {
		return n
	}
	return -1
}

// named is the value of a name; nothing is known of a missing one.
func (c *call) named(name string) value {
	if name == "" {
		return value{}
	}
	v, _ := c.scope.find(name)
	return v
}

// has is whether a node has an input.
func (c *call) has(i int) bool { return i >= 0 && i < len(c.node.inputs) && c.node.inputs[i] != "" }

// in is an input of a node.
func (c *call) in(i int) value {
	if !c.has(i) {
		return value{}
	}
	return c.named(c.node.inputs[i])
}

// attribute finds an attribute, where the call of a function sets it as well. nil: there is
// none, or it is unknown.
func (c *call) attribute(name string) *attribute {
	for _, a := range c.node.attributes {
		if a.name != name {
			continue
		}
		if a.ref == "" {
			return a
		}
		return c.scope.bound[a.ref]
	}
	return nil
}

// unknown is whether an attribute is one of a function's that no call set.
func (c *call) unknown(name string) bool {
	return c.scope.function != nil && c.scope.bound == nil && slices.ContainsFunc(c.node.attributes, func(a *attribute) bool { return a.name == name && a.ref != "" })
}

// integer is an attribute that is one, or its default.
func (c *call) integer(name string, otherwise int64) int64 {
	if a := c.attribute(name); a != nil {
		return a.i
	}
	return otherwise
}

// list is an attribute that is a list of integers.
func (c *call) list(name string) []int64 {
	if a := c.attribute(name); a != nil {
		return a.ints.all()
	}
	return nil
}

// of gives an attribute's integers, or those of an input that newer versions of the operator
// have in its place.
func (c *call) of(name string, input int) []int64 {
	if a := c.attribute(name); a != nil {
		return a.ints.all()
	}
	return c.in(input).ints
}

// infer is what is known of the outputs of a node. Weights pass through few operators between
// the file and the node that trusts their shape; what is not listed is unknown.
func (c *call) infer() []value {
	if standard(c.node.domain) != "" || len(c.node.outputs) == 0 {
		return nil
	}
	x := c.in(0)
	one := func(v value) []value { return []value{v} }
	shaped := func(shape []int64) []value {
		if len(shape) > maxRank {
			return nil
		}
		return one(value{shape: shape, element: x.element})
	}
	switch c.node.op {
	case "Constant":
		for _, a := range c.node.attributes {
			switch {
			case a.ref != "":
				return nil
			case a.tensor != nil && !a.tensor.external:
				return one(a.tensor.value())
			case a.name == "value_int":
				return one(value{shape: []int64{}, ints: []int64{a.i}, element: 7})
			case a.name == "value_ints" && a.ints.len() <= maxKept:
				return one(value{shape: []int64{int64(a.ints.len())}, ints: a.ints.all(), element: 7})
			case a.name == "value_float":
				return one(value{shape: []int64{}, floats: []float64{a.f}, element: 1})
			case a.name == "value_floats" && a.nfloats == len(a.floats):
				return one(value{shape: []int64{int64(a.nfloats)}, floats: a.floats, element: 1})
			case a.sparse != nil:
				return one(value{shape: a.sparse.dims, element: a.sparse.values.element})
			}
		}
	case "Identity", "Dropout":
		return one(x)
	case "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Floor", "Ceil", "Round", "Erf", "Clip", "LeakyRelu", "Softmax", "CumSum", "Trilu":
		return one(value{shape: x.shape, element: x.element})
	case "Cast":
		v := value{shape: x.shape, element: uint64(c.integer("to", 0))} //nolint:gosec // a number of a type
		if v.element == 6 || v.element == 7 {
			v.ints = x.ints
		}
		return one(v)
	case "QuantizeLinear", "DequantizeLinear":
		return one(value{shape: x.shape})
	case "ConstantOfShape", "RandomNormal", "RandomUniform":
		shape := x.ints
		if c.node.op != "ConstantOfShape" {
			shape = c.list("shape")
		}
		if _, ok := product(shape); ok && shape != nil {
			return shaped(shape)
		}
	case "Shape":
		if x.shape != nil && !slices.Contains(x.shape, -1) && c.attribute("start") == nil && c.attribute("end") == nil {
			return one(value{shape: []int64{int64(len(x.shape))}, ints: x.shape, element: 7})
		}
	case "Reshape":
		if shape := c.reshaped(x, c.of("shape", 1)); shape != nil {
			return one(value{shape: shape, ints: x.ints, floats: x.floats, element: x.element})
		}
	case "Flatten":
		return shaped([]int64{-1, -1})
	case "Unsqueeze":
		if axes := c.of("axes", 1); axes != nil && x.shape != nil {
			rank := int64(len(x.shape) + len(axes))
			if rank > maxRank || slices.ContainsFunc(axes, func(a int64) bool { return a < -rank || a >= rank }) {
				return nil
			}
			shape := make([]int64, rank)
			for _, a := range axes {
				shape[(a+rank)%rank] = 1
			}
			rest := x.shape
			for i := range shape {
				if shape[i] == 0 && len(rest) > 0 {
					shape[i], rest = rest[0], rest[1:]
				}
			}
			return one(value{shape: shape, ints: x.ints, floats: x.floats, element: x.element})
		}
	case "Squeeze":
		if axes := c.of("axes", 1); axes != nil && x.shape != nil {
			rank := int64(len(x.shape))
			shape := []int64{}
			for i, d := range x.shape {
				if !slices.Contains(axes, int64(i)) && !slices.Contains(axes, int64(i)-rank) {
					shape = append(shape, d)
				}
			}
			return one(value{shape: shape, ints: x.ints, floats: x.floats, element: x.element})
		}
	case "Transpose":
		perm := c.list("perm")
		if x.shape == nil || perm != nil && (len(perm) != len(x.shape) || slices.Max(append(perm, 0)) >= int64(len(x.shape)) || slices.Min(append(perm, 0)) < 0) {
			return nil
		}
		shape := make([]int64, len(x.shape))
		for i := range shape {
			from := len(shape) - 1 - i
			if perm != nil {
				from = int(perm[i])
			}
			shape[i] = x.shape[from]
		}
		return shaped(shape)
	case "Expand", "Tile":
		by := c.in(1).ints
		if by == nil || x.shape == nil || len(by) > maxRank {
			return nil
		}
		n := max(len(by), len(x.shape))
		shape := make([]int64, n)
		for i := range shape {
			a, b := int64(1), int64(1)
			if k := i - (n - len(x.shape)); k >= 0 {
				a = x.shape[k]
			}
			if k := i - (n - len(by)); k >= 0 {
				b = by[k]
			}
			switch {
			case a < 0 || b < 0:
				shape[i] = -1
			case c.node.op == "Tile":
				if shape[i] = -1; a <= MaxElements && b <= MaxElements {
					shape[i] = a * b
				}
			case b == 1:
				shape[i] = a
			default:
				shape[i] = b
			}
		}
		return shaped(shape)
	case "Concat":
		return c.joined()
	case "Split":
		return c.parted(x)
	case "Gather":
		at := c.in(1)
		if x.ints != nil && len(x.shape) == 1 && len(at.ints) > 0 && c.integer("axis", 0) == 0 {
			v := value{shape: at.shape, element: x.element}
			for _, i := range at.ints {
				if i < 0 {
					i += int64(len(x.ints))
				}
				if i < 0 || i >= int64(len(x.ints)) {
					return nil
				}
				v.ints = append(v.ints, x.ints[i])
			}
			return one(v)
		}
	}
	return nil
}

// reshaped is the shape that Reshape makes; nil: unknown.
func (c *call) reshaped(x value, by []int64) []int64 {
	if by == nil || len(by) > maxRank {
		return nil
	}
	shape, free, n := slices.Clone(by), -1, int64(1)
	for i, d := range by {
		switch {
		case d == -1:
			free = i
			continue
		case d == 0 && c.integer("allowzero", 0) == 0:
			shape[i] = x.size(i)
		}
		if shape[i] < 0 || shape[i] > MaxElements || shape[i] > 0 && n > MaxElements/shape[i] {
			n = -1
			break
		}
		n *= shape[i]
	}
	if free >= 0 {
		if all := x.elements(); all >= 0 && n > 0 && all%n == 0 {
			shape[free] = all / n
		}
	}
	return shape
}

func (c *call) joined() []value {
	x := c.in(0)
	if len(x.shape) == 0 {
		return nil
	}
	axis := c.integer("axis", 0)
	if axis < 0 {
		axis += int64(len(x.shape))
	}
	if axis < 0 || axis >= int64(len(x.shape)) {
		return nil
	}
	shape, ints := slices.Clone(x.shape), slices.Clone(x.ints)
	for i := 1; i < len(c.node.inputs); i++ {
		v := c.in(i)
		if len(v.shape) != len(shape) {
			return nil
		}
		if shape[axis] < 0 || v.shape[axis] < 0 || shape[axis] > MaxElements {
			shape[axis] = -1
		} else {
			shape[axis] += v.shape[axis]
		}
		if ints == nil || v.ints == nil || len(shape) != 1 || len(ints) > maxKept {
			ints = nil
		} else {
			ints = append(ints, v.ints...)
		}
	}
	return []value{{shape: shape, ints: ints, element: x.element}}
}

func (c *call) parted(x value) []value {
	if x.shape == nil {
		return nil
	}
	axis, parts := c.integer("axis", 0), c.of("split", 1)
	if axis < 0 {
		axis += int64(len(x.shape))
	}
	if axis < 0 || axis >= int64(len(x.shape)) {
		return nil
	}
	out := make([]value, len(c.node.outputs))
	for i := range out {
		shape := slices.Clone(x.shape)
		switch n := int64(len(out)); {
		case i < len(parts):
			shape[axis] = parts[i]
		case parts == nil && !c.has(1) && x.shape[axis] >= 0 && x.shape[axis]%n == 0:
			shape[axis] = x.shape[axis] / n
		default:
			shape[axis] = -1
		}
		out[i] = value{shape: shape, element: x.element}
	}
	return out
}
