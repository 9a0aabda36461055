package onnxfile

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// demand is what an operator demands of a node.
type demand func(*call) error

// large bounds attributes that sizes are computed from, so that no product of two overflows.
const large = math.MaxInt32

// demands checks a node by its operator. Functions of the model that have the name of a
// standard operator are checked as that operator, too: runtimes differ in which they take.
func (c *call) demands() error {
	domain := standard(c.node.domain)
	switch domain {
	case "com.microsoft.nchwc", "com.ms.internal.nhwc":
		return invalid("its operator is internal to ONNX Runtime").WithHint("Export the model again without ONNX Runtime's processor-specific optimisations.")
	case "", "ai.onnx.ml", "com.microsoft":
	default:
		return nil
	}
	if domain == "com.microsoft" && contrib[c.node.op] == nil {
		if _, shared := operators[c.node.op]; shared && !slices.Contains(extended, c.node.op) {
			return nil
		}
	}
	table := operators
	switch {
	case domain == "ai.onnx.ml":
		table = learned
	case domain == "com.microsoft" && contrib[c.node.op] != nil:
		table = contrib
	}
	for _, d := range table[c.node.op] {
		if err := d(c); err != nil {
			return err
		}
	}
	return nil
}

// extended are operators of com.microsoft that are like the standard ones of their names.
var extended = strings.Fields("Pad Range Unique GridSample Trilu DequantizeLinear QuantizeLinear")

// given finds an attribute that a rule is about. It must be of the rule's type. nil: it is not
// there, or unknown.
func (c *call) given(name string, kind int) (*attribute, error) {
	a := c.attribute(name)
	if a == nil {
		return nil, nil //nolint:nilnil // optional
	}
	if a.kind != 0 && a.kind != uint64(kind) || a.has&^(1<<kind) != 0 { //nolint:gosec // a small constant
		return nil, invalid("attribute %s is not %s", name, kinds[kind])
	}
	return a, nil
}

// required demands attributes.
func required(names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			if c.attribute(name) == nil && !c.unknown(name) {
				return invalid("attribute %s is missing", name)
			}
		}
		return nil
	}
}

// one demands integers that are single, if they are there, within a range.
func one(least, most int64, names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			a, err := c.given(name, typeInt)
			switch {
			case err != nil:
				return err
			case a == nil:
			case a.i < least && most == large:
				return invalid("attribute %s is %d; it must be %d or more", name, a.i, least)
			case a.i < least || a.i > most:
				return invalid("attribute %s is %d; it must be %d to %d", name, a.i, least, most)
			}
		}
		return nil
	}
}

// each demands lists of integers, if they are there, within a range.
func each(least, most int64, names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			a, err := c.given(name, typeInts)
			if err != nil {
				return err
			}
			if a == nil {
				continue
			}
			for i := range a.ints.len() {
				switch v := a.ints.at(i); {
				case v < least && most == large:
					return invalid("attribute %s has %d at %d; it must be %d or more", name, v, i, least)
				case v < least || v > most:
					return invalid("attribute %s has %d at %d; it must be %d to %d", name, v, i, least, most)
				}
			}
		}
		return nil
	}
}

// short demands lists of integers, if they are there, that are no longer than tensors have
// dimensions, twice for pads.
func short(names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			if a, err := c.given(name, typeInts); err != nil {
				return err
			} else if a != nil && a.ints.len() > 2*maxRank {
				return invalid("attribute %s has %d numbers; it may have %d", name, a.ints.len(), 2*maxRank)
			}
		}
		return nil
	}
}

// between demands numbers, if they are there, that are finite and within a range.
func between(least, most float64, names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			a, err := c.given(name, typeFloat)
			if err != nil {
				return err
			}
			if a != nil && !(a.f >= least && a.f <= most) {
				return invalid("attribute %s is %v; it must be %v to %v", name, a.f, least, most)
			}
		}
		return nil
	}
}

const (
	tiny = 1e-30
	vast = 1e30
)

// text demands one of some texts, if there is one.
func text(name string, of ...string) demand {
	return func(c *call) error {
		a, err := c.given(name, typeString)
		if err == nil && a != nil && !slices.Contains(of, a.s) {
			err = invalid("attribute %s is %q; it must be one of %s", name, clip(a.s), strings.Join(of, ", "))
		}
		return err
	}
}

// inputs demands a number of inputs that are there.
func inputs(n int) demand {
	return func(c *call) error {
		for i := range n {
			if !c.has(i) {
				return invalid("input %d is missing", i)
			}
		}
		return nil
	}
}

// constant demands values of an input of integers, where they are known.
func constant(input int, what string, least, most int64) demand {
	return func(c *call) error {
		for _, v := range c.in(input).ints {
			if v < least || v > most {
				return invalid("%s is %d; it must be %d or more", what, v, least)
			}
		}
		return nil
	}
}

// axis demands that an attribute is an axis of an input, or one behind its last.
func axis() demand {
	const name, input = "axis", 0
	return func(c *call) error {
		a, err := c.given(name, typeInt)
		if err != nil || a == nil {
			return err
		}
		rank := int64(c.in(input).rank())
		if rank < 0 {
			rank = maxRank
		}
		if a.i < -max(rank, 1) || a.i > rank {
			return invalid("attribute %s is %d; the input has %d dimensions", name, a.i, rank)
		}
		return nil
	}
}

// axes demands axes, as an attribute or a constant input; more is how many dimensions the
// operator adds for each.
func axes(input int, adds bool) demand {
	return func(c *call) error {
		if _, err := c.given("axes", typeInts); err != nil {
			return err
		}
		list, rank := c.of("axes", input), int64(c.in(0).rank())
		if len(list) > maxRank {
			return invalid("axes has %d numbers; a tensor has at most %d dimensions", len(list), maxRank)
		}
		if rank < 0 {
			rank = maxRank
		} else if adds {
			rank += int64(len(list))
		}
		for i, a := range list {
			if a < -rank || a >= rank {
				return invalid("axes has %d, which is not an axis of %d dimensions", a, rank)
			}
			if slices.Contains(list[:i], a) || slices.Contains(list[:i], a-rank) || slices.Contains(list[:i], a+rank) {
				return invalid("axes has the duplicate %d", a)
			}
		}
		return nil
	}
}

// dimensions demands a shape, as an attribute or a constant input, that has not too many
// elements.
func dimensions(input int) demand {
	const name = "shape"
	return func(c *call) error {
		if _, err := c.given(name, typeInts); err != nil {
			return err
		}
		shape := c.of(name, input)
		if n, ok := product(shape); !ok || n > MaxUnpacked {
			return invalid("%s is %s, which is negative or has more than %d elements", name, brief(shape), MaxUnpacked)
		}
		return nil
	}
}

// brief is a list in few words.
func brief(list []int64) string {
	if len(list) > 8 {
		return strings.TrimSuffix(fmt.Sprint(list[:8]), "]") + " …]"
	}
	return fmt.Sprint(list)
}

// body demands attributes that are graphs.
func body(names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			a, err := c.given(name, typeGraph)
			if err == nil && a == nil && !c.unknown(name) {
				err = invalid("attribute %s is missing", name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

const autoPad = "NOTSET SAME_UPPER SAME_LOWER VALID"

// window is what convolutions and pools have in common.
var window = []demand{
	short("kernel_shape", "strides", "dilations", "pads"),
	each(1, large, "kernel_shape", "strides", "dilations"),
	each(0, large, "pads"),
	text("auto_pad", strings.Fields(autoPad)...),
	func(c *call) error {
		rank := -1
		for _, name := range []string{"kernel_shape", "strides", "dilations"} {
			a := c.attribute(name)
			if a == nil || a.ints.len() == 0 {
				continue
			}
			if rank >= 0 && a.ints.len() != rank {
				return invalid("attribute %s has %d numbers, and others have %d", name, a.ints.len(), rank)
			}
			rank = a.ints.len()
		}
		if a := c.attribute("pads"); a != nil && a.ints.len() > 0 && rank >= 0 && a.ints.len() != 2*rank {
			return invalid("attribute pads has %d numbers; for %d dimensions it takes %d", a.ints.len(), rank, 2*rank)
		}
		return nil
	},
}

// pool are pools with a kernel.
var pool = append([]demand{required("kernel_shape"), one(0, 1, "ceil_mode", "storage_order", "count_include_pad"), one(1, large, "p"), inside}, window...)

// inside demands pads that are less than the kernel: a window of padding alone has nothing to
// divide by.
func inside(c *call) error {
	pads, kernel, dilations := c.list("pads"), c.list("kernel_shape"), c.list("dilations")
	for i, p := range pads {
		if len(pads) != 2*len(kernel) {
			return nil // window says so
		}
		k := kernel[i%len(kernel)]
		if len(dilations) == len(kernel) && k > 0 && k < large && dilations[i%len(kernel)] < large {
			k = (k-1)*dilations[i%len(kernel)] + 1
		}
		if p >= k {
			return invalid("attribute pads has %d at %d; it must be less than the kernel's %d", p, i, k)
		}
	}
	return nil
}

// convolution checks a convolution whose weights and bias are at some inputs; transposed ones
// have weights by input channel.
func convolution(weights, bias int, transposed bool) []demand {
	return append([]demand{
		one(1, large, "group"), each(0, large, "output_padding"), each(1, large, "output_shape"), short("output_padding", "output_shape"), inputs(weights + 1),
		func(c *call) error {
			x, w, b := c.in(0), c.in(weights), c.in(bias)
			group, kernel := c.integer("group", 1), c.list("kernel_shape")
			if w.shape == nil {
				return nil
			}
			if len(w.shape) < 3 {
				return invalid("its weights have shape %v; they need 3 dimensions or more", w.shape)
			}
			if len(kernel) > 0 && !fits(kernel, w.shape[2:]) {
				return invalid("attribute kernel_shape is %s, and its weights have shape %v", brief(kernel), w.shape)
			}
			if slices.Contains(w.shape, 0) {
				return invalid("its weights have shape %v, with a dimension of 0", w.shape)
			}
			for _, name := range []string{"strides", "dilations", "output_padding"} {
				if n := len(c.list(name)); n > 0 && n != len(w.shape)-2 {
					return invalid("attribute %s has %d numbers, and its weights have shape %v", name, n, w.shape)
				}
			}
			if n := len(c.list("pads")); n > 0 && n != 2*(len(w.shape)-2) {
				return invalid("attribute pads has %d numbers, and its weights have shape %v", n, w.shape)
			}
			if w.shape[0] > 0 && w.shape[0]%group != 0 {
				return invalid("its weights have shape %v, and %d is not a multiple of its group %d", w.shape, w.shape[0], group)
			}
			if x.rank() >= 0 && x.rank() != len(w.shape) {
				return invalid("its input has %d dimensions, and its weights have %d", x.rank(), len(w.shape))
			}
			in, out := w.shape[1]*min(group, MaxElements), w.shape[0]
			if transposed {
				in, out = out, in
			}
			if have := x.size(1); x.shape != nil && have >= 0 && w.shape[0] >= 0 && w.shape[1] >= 0 && have != in {
				return invalid("its input has %d channels, and its weights of shape %v take %d", have, w.shape, in)
			}
			if bias > 0 && c.has(bias) && b.shape != nil && w.shape[0] >= 0 && w.shape[1] >= 0 && !fits([]int64{out}, b.shape) {
				return invalid("its bias has shape %v; it must be [%d]", b.shape, out)
			}
			return nil
		},
	}, window...)
}

// fits is whether two shapes may be the same.
func fits(a, b []int64) bool {
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x < 0 || y < 0 })
}

// channels demands that vectors at some inputs are as long as each other.
func channels(at ...int) demand {
	return func(c *call) error {
		want := int64(-1)
		for _, i := range at {
			v := c.in(i)
			switch {
			case !c.has(i) || v.shape == nil:
			case len(v.shape) != 1:
				return invalid("input %d has shape %v; it must have one dimension", i, v.shape)
			case v.shape[0] < 0:
			case want >= 0 && v.shape[0] != want:
				return invalid("input %d has %d numbers, and others have %d", i, v.shape[0], want)
			default:
				want = v.shape[0]
			}
		}
		if x := c.in(0); want >= 0 && x.shape != nil && x.size(1) >= 0 && x.size(1) != want {
			return invalid("its input has %d channels, and its weights are for %d", x.size(1), want)
		}
		return nil
	}
}

// blocks checks DepthToSpace and SpaceToDepth.
func blocks(c *call) error {
	size, x := c.integer("blocksize", 1), c.in(0)
	if x.rank() >= 0 && x.rank() != 4 {
		return invalid("its input has %d dimensions; it takes 4", x.rank())
	}
	if d := x.size(1); c.node.op == "DepthToSpace" && d >= 0 && size > 0 && d%(size*size) != 0 {
		return invalid("its input has %d channels, which is not a multiple of %d × %d", d, size, size)
	}
	return nil
}

func permutation(c *call) error {
	perm := c.list("perm")
	for i := range perm {
		if !slices.Contains(perm, int64(i)) {
			return invalid("attribute perm is %s, which is not an order of the axes", brief(perm))
		}
	}
	if r := c.in(0).rank(); len(perm) > 0 && r >= 0 && r != len(perm) {
		return invalid("attribute perm is %s, and its input has %d dimensions", brief(perm), r)
	}
	return nil
}

func reshape(c *call) error {
	if _, err := c.given("shape", typeInts); err != nil {
		return err
	}
	shape := c.of("shape", 1)
	if len(shape) > maxRank {
		return invalid("its shape has %d dimensions; a tensor has at most %d", len(shape), maxRank)
	}
	n, free := int64(1), 0
	for _, d := range shape {
		switch {
		case d < -1 || d > MaxElements || d > 0 && n > MaxElements/d:
			return invalid("its shape %s has a dimension below -1, or more than %d elements", brief(shape), int64(MaxElements))
		case d == -1:
			free++
		case d > 0:
			n *= d
		}
	}
	if free > 1 {
		return invalid("its shape %s has -1 more than once", brief(shape))
	}
	return nil
}

func slicing(c *call) error {
	starts, ends, axes, steps := c.of("starts", 1), c.of("ends", 2), c.of("axes", 3), c.in(4).ints
	if slices.Contains(steps, 0) {
		return invalid("its steps are %s; a step must not be 0", brief(steps))
	}
	for what, list := range map[string][]int64{"ends": ends, "axes": axes, "steps": steps} {
		if starts != nil && list != nil && len(list) != len(starts) {
			return invalid("it has %d starts and %d %s", len(starts), len(list), what)
		}
	}
	return nil
}

func split(c *call) error {
	outputs := int64(len(c.node.outputs))
	if a, err := c.given("num_outputs", typeInt); err != nil || a != nil && a.i != outputs {
		if err == nil {
			err = invalid("attribute num_outputs is %d, and it has %d outputs", a.i, outputs)
		}
		return err
	}
	if _, err := c.given("split", typeInts); err != nil {
		return err
	}
	sizes := c.of("split", 1)
	sum := int64(0)
	for _, s := range sizes {
		if s < 0 || s > MaxElements {
			return invalid("its sizes are %s; a size must be 0 or more", brief(sizes))
		}
		sum += s
	}
	if len(sizes) > 0 && int64(len(sizes)) != outputs {
		return invalid("it has %d sizes and %d outputs", len(sizes), outputs)
	}
	return nil
}

func pad(c *call) error {
	pads := c.of("pads", 1)
	if a := c.attribute("paddings"); a != nil {
		pads = a.ints.all()
	}
	for _, p := range pads {
		if p < -MaxElements || p > MaxElements {
			return invalid("its pads are %s; a pad has at most %d elements", brief(pads), int64(MaxElements))
		}
	}
	if len(pads)%2 != 0 {
		return invalid("it has %d pads; each axis takes two", len(pads))
	}
	if r := c.in(0).rank(); r >= 0 && len(pads) > 2*r {
		return invalid("it has %d pads, and its input has %d dimensions", len(pads), r)
	}
	return nil
}

// scaled checks the scales and sizes of Resize and Upsample.
func scaled(scales, sizes int) demand {
	return func(c *call) error {
		factors := c.in(scales).floats
		a, err := c.given("scales", typeFloats)
		if err != nil {
			return err
		}
		if a != nil {
			factors = a.floats
		}
		for _, f := range factors {
			if !(f > 0 && f < large) {
				return invalid("its scales are %v; a scale must be more than 0 and finite", factors)
			}
		}
		if sizes > 0 {
			for _, s := range c.in(sizes).ints {
				if s < 0 || s > large {
					return invalid("its sizes are %s; a size must be 0 to %d", brief(c.in(sizes).ints), large)
				}
			}
		}
		return nil
	}
}

// indexed checks constant indices into an axis of the data of Gather and Scatter.
func indexed(c *call) error {
	data, at := c.in(0), c.in(1)
	axis := c.integer("axis", 0)
	if axis < 0 {
		axis += int64(len(data.shape))
	}
	if data.shape == nil || at.ints == nil || axis < 0 || axis >= int64(len(data.shape)) || data.shape[axis] < 0 {
		return nil
	}
	if data.shape != nil && len(data.shape) == 0 {
		return invalid("its data have no dimensions")
	}
	n := data.shape[axis]
	for _, i := range at.ints {
		if i < -n || i >= n {
			return invalid("its indices have %d, and the axis has %d", i, n)
		}
	}
	return nil
}

// tuples checks the indices of GatherND and ScatterND.
func tuples(c *call) error {
	data, at := c.in(0), c.in(1)
	batch := c.integer("batch_dims", 0)
	if r := at.rank(); r == 0 {
		return invalid("its indices have no dimensions")
	} else if r > 0 && data.rank() >= 0 && at.size(r-1) > int64(data.rank())-batch {
		return invalid("its indices of shape %v have more numbers than its data of shape %v have dimensions", at.shape, data.shape)
	}
	return nil
}

// steps checks Range.
func steps(c *call) error {
	from, to, by := c.in(0), c.in(1), c.in(2)
	if len(by.ints) == 1 && by.ints[0] == 0 || len(by.floats) == 1 && (by.floats[0] == 0 || math.IsNaN(by.floats[0])) {
		return invalid("its step is 0")
	}
	if len(from.ints) == 1 && len(to.ints) == 1 && len(by.ints) == 1 {
		if n := (float64(to.ints[0]) - float64(from.ints[0])) / float64(by.ints[0]); n > MaxUnpacked {
			return invalid("it produces more than %d elements", MaxUnpacked)
		}
	}
	return nil
}

// divisor demands that constant integers that something is divided by are not 0.
func divisor(c *call) error {
	if slices.Contains(c.in(1).ints, 0) {
		return invalid("it divides integers by a constant that has 0")
	}
	return nil
}

// spread demands a range of random numbers.
func spread(c *call) error {
	low, high := 0.0, 1.0
	if a := c.attribute("low"); a != nil {
		low = a.f
	}
	if a := c.attribute("high"); a != nil {
		high = a.f
	}
	if !(low < high) {
		return invalid("attribute low is %v and high is %v; low must be less", low, high)
	}
	return nil
}

// bodied checks how many inputs and outputs the body of a Loop or Scan has.
func bodied(c *call) error {
	a := c.attribute("body")
	if a == nil || a.graph == nil {
		return nil
	}
	in, out := len(a.graph.Inputs), len(a.graph.Outputs)
	if c.node.op == "Loop" {
		carried := max(0, len(c.node.inputs)-2)
		if in != carried+2 {
			return invalid("its body takes %d inputs; for %d carried values it takes %d", in, carried, carried+2)
		}
		if out < carried+1 {
			return invalid("its body makes %d outputs; for %d carried values it makes %d or more", out, carried, carried+1)
		}
		if len(c.node.outputs) > out-1 {
			return invalid("it has %d outputs, and its body makes %d", len(c.node.outputs), out-1)
		}
		return nil
	}
	scans := c.integer("num_scan_inputs", 1)
	if scans < 1 || scans > int64(len(c.node.inputs)) {
		return invalid("attribute num_scan_inputs is %d, and it has %d inputs", scans, len(c.node.inputs))
	}
	if len(c.node.outputs) > out {
		return invalid("it has %d outputs, and its body makes %d", len(c.node.outputs), out)
	}
	if in != len(c.node.inputs) && in != len(c.node.inputs)-1 { // version 8 has the lengths of sequences first
		return invalid("it has %d inputs, and its body takes %d", len(c.node.inputs), in)
	}
	return nil
}

// branches checks that the graphs of an If make what the If makes.
func branches(c *call) error {
	for _, name := range []string{"then_branch", "else_branch"} {
		if a := c.attribute(name); a != nil && a.graph != nil && len(a.graph.Outputs) != len(c.node.outputs) {
			return invalid("%s makes %d outputs, and the node has %d", name, len(a.graph.Outputs), len(c.node.outputs))
		}
	}
	return nil
}

// matrices demands that two matrices can be multiplied, where both shapes are known.
func matrices(b int) demand {
	return func(c *call) error {
		x, w := c.in(0), c.in(b)
		if x.shape == nil || w.shape == nil {
			return nil
		}
		if len(x.shape) == 0 || len(w.shape) == 0 {
			return invalid("it multiplies a number without dimensions")
		}
		k, n := x.shape[len(x.shape)-1], w.shape[max(0, len(w.shape)-2)]
		if k >= 0 && n >= 0 && k != n {
			return invalid("it multiplies shapes %v and %v", x.shape, w.shape)
		}
		return nil
	}
}

func gemm(c *call) error {
	x, w := c.in(0), c.in(1)
	if w.rank() >= 0 && w.rank() != 2 {
		return invalid("its weights have shape %v; they must be a matrix", w.shape)
	}
	if x.rank() != 2 || w.rank() != 2 {
		return nil
	}
	k, n := x.shape[1], w.shape[0]
	if c.integer("transA", 0) != 0 {
		k = x.shape[0]
	}
	if c.integer("transB", 0) != 0 {
		n = w.shape[1]
	}
	if k >= 0 && n >= 0 && k != n {
		return invalid("it multiplies shapes %v and %v", x.shape, w.shape)
	}
	return nil
}

func quantized(axisAttribute string) []demand {
	return []demand{one(-maxRank, maxRank, axisAttribute), one(0, large, "block_size"), func(c *call) error {
		scale, zero := c.in(1), c.in(2)
		if c.has(2) && scale.shape != nil && zero.shape != nil && scale.elements() >= 0 && zero.elements() >= 0 && scale.elements() != zero.elements() {
			return invalid("its scale has shape %v, and its zero point %v", scale.shape, zero.shape)
		}
		x := c.in(0)
		if scale.rank() == 1 && scale.size(0) > 1 && x.shape != nil && c.integer("block_size", 0) == 0 {
			at := c.integer(axisAttribute, 1)
			if at < 0 {
				at += int64(len(x.shape))
			}
			if at < 0 || at >= int64(len(x.shape)) {
				return invalid("attribute axis is %d, and its input has %d dimensions", c.integer(axisAttribute, 1), len(x.shape))
			}
			if d := x.shape[at]; d >= 0 && d != scale.size(0) {
				return invalid("its scale has %d numbers, and axis %d of its input has %d", scale.size(0), at, d)
			}
		}
		return nil
	}}
}

// heads are what operators of attention have in common.
var heads = []demand{
	one(1, large, "num_heads", "kv_num_heads", "q_num_heads"), one(-1, large, "local_window_size"), one(0, large, "rotary_embedding_dim"), one(0, 1, "unidirectional", "do_rotary"),
	func(c *call) error {
		q, kv := c.integer("num_heads", c.integer("q_num_heads", 0)), c.integer("kv_num_heads", 0)
		if q > 0 && kv > 0 && q%kv != 0 {
			return invalid("%d heads are not a multiple of attribute kv_num_heads %d", q, kv)
		}
		return nil
	},
}

// attention checks the weights of Attention and QAttention of com.microsoft: the sizes of
// queries, keys and values side by side.
func attention(c *call) error {
	x, w, b := c.in(0), c.in(1), c.in(2)
	heads, sizes := c.integer("num_heads", 1), c.list("qkv_hidden_sizes")
	if len(sizes) > 0 {
		if len(sizes) != 3 {
			return invalid("attribute qkv_hidden_sizes has %d numbers; it takes 3", len(sizes))
		}
		for _, s := range sizes {
			if s < 1 || s > large || s%heads != 0 {
				return invalid("attribute qkv_hidden_sizes is %s; each must be a multiple of num_heads %d", brief(sizes), heads)
			}
		}
	}
	if w.shape == nil {
		return nil
	}
	if len(w.shape) != 2 {
		return invalid("its weights have shape %v; they must be a matrix", w.shape)
	}
	if w.shape[1] >= 0 {
		want := int64(0)
		for _, s := range sizes {
			want += s
		}
		if len(sizes) > 0 && w.shape[1] != want {
			return invalid("its weights have shape %v; by qkv_hidden_sizes they have %d columns", w.shape, want)
		}
		if len(sizes) == 0 && (w.shape[1]%3 != 0 || w.shape[1]/3%heads != 0) {
			return invalid("its weights have shape %v; their columns must be a multiple of 3 × num_heads %d", w.shape, heads)
		}
	}
	if d := x.size(2); x.shape != nil && d >= 0 && w.shape[0] >= 0 && d != w.shape[0] {
		return invalid("its input has %d features, and its weights of shape %v take %d", d, w.shape, w.shape[0])
	}
	if c.has(2) && b.shape != nil && !fits([]int64{w.shape[1]}, b.shape) {
		return invalid("its bias has shape %v; it must be [%d]", b.shape, w.shape[1])
	}
	return nil
}

// nbits checks weights of few bits in blocks, rows of n × k.
func nbits(c *call) error {
	n, k, size := c.integer("N", 0), c.integer("K", 0), c.integer("block_size", 0)
	wide := c.integer("bits", 4)
	if size < 16 || bits.OnesCount64(uint64(size)) != 1 {
		return invalid("attribute block_size is %d; it must be a power of 2 from 16", size)
	}
	blocks := (k + size - 1) / size
	if have, want := c.in(1).elements(), n*blocks*(size*wide/8); have >= 0 && have != want && c.in(1).element == 2 {
		return invalid("its weights have %d bytes; for N %d, K %d and %d bits in blocks of %d they have %d", have, n, k, wide, size, want)
	}
	if have := c.in(2).elements(); have >= 0 && have != n*blocks {
		return invalid("its scales are %d; for N %d, K %d in blocks of %d they are %d", have, n, k, size, n*blocks)
	}
	return nil
}

// bounded bounds N and K so that their product does not overflow.
var bounded = []demand{required("K", "N", "block_size"), one(1, 1<<24, "K", "N"), one(1, 1<<20, "block_size")}

func all(lists ...[]demand) []demand { return slices.Concat(lists...) }

// operators are the standard ones that have demands.
var operators = map[string][]demand{
	"Conv": convolution(1, 2, false), "ConvInteger": convolution(1, 0, false), "QLinearConv": convolution(3, 8, false),
	"ConvTranspose": convolution(1, 2, true), "DeformConv": all(convolution(1, 3, false), []demand{one(1, large, "offset_group")}),
	"MaxPool": pool, "AveragePool": pool, "LpPool": pool, "MaxUnpool": pool,
	"GlobalLpPool":              {one(1, large, "p")},
	"GlobalAveragePool":         {inputs(1)},
	"GlobalMaxPool":             {inputs(1)},
	"LpNormalization":           {one(1, 2, "p"), axis()},
	"MaxRoiPool":                {required("pooled_shape"), each(1, large, "pooled_shape"), pair("pooled_shape"), between(tiny, vast, "spatial_scale")},
	"RoiAlign":                  {one(1, large, "output_height", "output_width"), one(0, large, "sampling_ratio"), between(tiny, vast, "spatial_scale"), text("mode", "avg", "max")},
	"Col2Im":                    all([]demand{constant(1, "a size of its image", 1, large), constant(2, "a size of its blocks", 1, large)}, window),
	"RNN":                       recurrent(1),
	"GRU":                       recurrent(3),
	"LSTM":                      recurrent(4),
	"BatchNormalization":        {channels(1, 2, 3, 4)},
	"InstanceNormalization":     {channels(1, 2)},
	"GroupNormalization":        {required("num_groups"), one(1, large, "num_groups"), grouped("num_groups"), channels(1, 2)},
	"LayerNormalization":        {axis()},
	"RMSNormalization":          {axis()},
	"LRN":                       {required("size"), one(1, large, "size")},
	"PRelu":                     {inputs(2)},
	"DepthToSpace":              {required("blocksize"), one(1, 1<<15, "blocksize"), text("mode", "DCR", "CRD"), blocks},
	"SpaceToDepth":              {required("blocksize"), one(1, 1<<15, "blocksize"), blocks},
	"Resize":                    {scaled(2, 3), text("mode", "nearest", "linear", "cubic"), short("axes"), resized},
	"Upsample":                  {scaled(1, 0), text("mode", "nearest", "linear", "bilinear", "cubic")},
	"GridSample":                {text("mode", "bilinear", "nearest", "bicubic", "linear", "cubic"), text("padding_mode", "zeros", "border", "reflection")},
	"Slice":                     {slicing},
	"Split":                     {axis(), split},
	"SplitToSequence":           {axis(), constant(1, "a size of its parts", 0, MaxElements)},
	"Concat":                    {inputs(1), axis()},
	"Gather":                    {axis(), indexed},
	"GatherElements":            {axis(), indexed},
	"Scatter":                   {axis(), indexed},
	"ScatterElements":           {axis(), indexed, text("reduction", "none", "add", "mul", "max", "min")},
	"TensorScatter":             {axis()},
	"GatherND":                  {one(0, maxRank, "batch_dims"), tuples},
	"ScatterND":                 {tuples, text("reduction", "none", "add", "mul", "max", "min")},
	"Reshape":                   {reshape},
	"Flatten":                   {axis()},
	"Squeeze":                   {axes(1, false)},
	"Unsqueeze":                 {axes(1, true)},
	"Transpose":                 {short("perm"), permutation},
	"Expand":                    {dimensions(1)},
	"Tile":                      {constant(1, "a number of its repeats", 0, MaxElements)},
	"ConstantOfShape":           {dimensions(0), single("value")},
	"EyeLike":                   {one(-large, large, "k")},
	"Pad":                       {pad, text("mode", "constant", "reflect", "edge", "wrap")},
	"TopK":                      {one(0, MaxElements, "k"), constant(1, "the number that it takes", 0, MaxElements), axis()},
	"ArgMax":                    {axis()},
	"ArgMin":                    {axis()},
	"Softmax":                   {axis()},
	"LogSoftmax":                {axis()},
	"Hardmax":                   {axis()},
	"OneHot":                    {one(-maxRank, maxRank, "axis"), constant(1, "its depth", 0, MaxUnpacked)},
	"CumSum":                    {constant(1, "its axis", -maxRank, maxRank)},
	"ReverseSequence":           {one(0, 1, "batch_axis", "time_axis"), reversed},
	"Compress":                  {axis()},
	"Unique":                    {axis()},
	"Range":                     {steps},
	"Div":                       {divisor},
	"Mod":                       {divisor},
	"Cast":                      {required("to"), one(1, int64(len(widths))-1, "to")},
	"MatMul":                    {inputs(2), matrices(1)},
	"MatMulInteger":             {inputs(2), matrices(1)},
	"QLinearMatMul":             {inputs(8), matrices(3)},
	"Gemm":                      {inputs(2), gemm},
	"Einsum":                    {required("equation"), inputs(1)},
	"QuantizeLinear":            quantized("axis"),
	"DequantizeLinear":          quantized("axis"),
	"Attention":                 heads,
	"RotaryEmbedding":           {one(0, large, "num_heads", "rotary_embedding_dim"), one(0, 1, "interleaved")},
	"RandomUniform":             {required("shape"), dimensions(-1), between(-vast, vast, "low", "high"), spread},
	"RandomUniformLike":         {between(-vast, vast, "low", "high"), spread},
	"RandomNormal":              {required("shape"), dimensions(-1), between(-vast, vast, "mean"), between(0, vast, "scale")},
	"RandomNormalLike":          {between(-vast, vast, "mean"), between(0, vast, "scale")},
	"Multinomial":               {one(1, MaxUnpacked, "sample_size")},
	"Dropout":                   {between(0, 1, "ratio")},
	"HannWindow":                {constant(0, "its size", 0, MaxUnpacked)},
	"HammingWindow":             {constant(0, "its size", 0, MaxUnpacked)},
	"BlackmanWindow":            {constant(0, "its size", 0, MaxUnpacked)},
	"MelWeightMatrix":           {constant(0, "its number of bins", 1, large), constant(1, "its length", 1, large), constant(2, "its rate", 1, large)},
	"DFT":                       {signal, one(-maxRank, maxRank, "axis"), constant(1, "its length", 1, large)},
	"STFT":                      {signal, constant(1, "its step", 1, large), constant(3, "its length", 1, large)},
	"TfIdfVectorizer":           {grams},
	"StringNormalizer":          {text("case_change_action", "LOWER", "UPPER", "NONE")},
	"StringSplit":               {one(0, math.MaxInt64, "maxsplit")},
	"NonMaxSuppression":         {one(0, 1, "center_point_box")},
	"If":                        {body("then_branch", "else_branch"), branches},
	"Loop":                      {body("body"), bodied},
	"Scan":                      {body("body"), required("num_scan_inputs"), one(1, MaxPorts, "num_scan_inputs"), bodied, scanned},
	"SequenceMap":               {body("body")},
	"Shape":                     {one(-large, large, "start"), one(math.MinInt32, math.MaxInt64, "end")},
	"Clip":                      {inputs(1)},
	"BitShift":                  {required("direction"), text("direction", "LEFT", "RIGHT")},
	"Constant":                  {valued},
	"CausalConvWithState":       {one(1, large, "ndim")},
	"LinearAttention":           heads,
	"ImageDecoder":              {text("pixel_format", "RGB", "BGR", "Grayscale")},
	"DynamicQuantizeLinear":     {inputs(1)},
	"MeanVarianceNormalization": {axes(-1, false)},
	"ReduceSum":                 reduction, "ReduceMean": reduction, "ReduceMax": reduction, "ReduceMin": reduction, "ReduceProd": reduction, "ReduceL1": reduction,
	"ReduceL2": reduction, "ReduceLogSum": reduction, "ReduceLogSumExp": reduction, "ReduceSumSquare": reduction,
}

var reduction = []demand{axes(1, false)}

// contrib are operators of com.microsoft, as ONNX Runtime's tools write them.
var contrib = map[string][]demand{
	"FusedConv": convolution(1, 2, false), "NhwcFusedConv": window, "NhwcConv": all([]demand{one(1, large, "group")}, window), "QLinearConvTranspose": convolution(3, 8, true),
	"ConvTransposeWithDynamicPads": convolution(1, 3, true),
	"QLinearConv":                  all([]demand{one(1, large, "group")}, window), // channels may be last
	"NhwcMaxPool":                  pool, "QLinearAveragePool": pool, "MaxpoolWithMask": pool,
	"QLinearGlobalAveragePool":        {one(0, 1, "channels_last")},
	"DynamicQuantizeLSTM":             recurrent(4),
	"AttnLSTM":                        {one(1, large, "hidden_size"), text("direction", "forward", "reverse", "bidirectional")},
	"Attention":                       all(heads, []demand{required("num_heads"), attention}),
	"QAttention":                      all(heads, []demand{required("num_heads"), attention}),
	"PackedAttention":                 all(heads, []demand{required("num_heads")}),
	"MultiHeadAttention":              all(heads, []demand{required("num_heads")}),
	"PackedMultiHeadAttention":        all(heads, []demand{required("num_heads")}),
	"DecoderMaskedMultiHeadAttention": all(heads, []demand{required("num_heads")}), "DecoderMaskedSelfAttention": all(heads, []demand{required("num_heads")}),
	"DecoderAttention":          all(heads, []demand{required("num_heads")}),
	"GroupQueryAttention":       all(heads, []demand{required("num_heads", "kv_num_heads")}),
	"SparseAttention":           all(heads, []demand{required("num_heads", "kv_num_heads", "sparse_block_size"), one(1, large, "sparse_block_size")}),
	"PagedAttention":            all(heads, []demand{required("num_heads", "kv_num_heads")}),
	"LongformerAttention":       all(heads, []demand{required("num_heads", "window"), one(1, large, "window")}),
	"RelativePositionBias":      {one(1, large, "max_distance")},
	"GatedRelativePositionBias": {required("num_heads"), one(1, large, "num_heads")},
	"RotaryEmbedding":           {one(0, large, "num_heads", "rotary_embedding_dim"), one(0, 1, "interleaved")},
	"GemmaRotaryEmbedding":      {},
	"EmbedLayerNormalization":   {inputs(3), embedded},
	"QEmbedLayerNormalization":  {inputs(3)},
	"SkipLayerNormalization":    {inputs(3)},
	"GroupNorm":                 {required("groups"), one(1, large, "groups")},
	"SkipGroupNorm":             {required("groups"), one(1, large, "groups")},
	"MatMulNBits":               all([]demand{one(2, 8, "bits")}, bounded, []demand{nbits}),
	"MatMulNBitsMlp":            all([]demand{one(2, 8, "bits")}, bounded),
	"MatMulBnb4":                all(bounded, []demand{required("quant_type"), one(0, 1, "quant_type")}),
	"MatMulFpQ4":                {one(0, 8, "blk_quant_type")},
	"GatherBlockQuantized":      {one(-maxRank, maxRank, "gather_axis", "quantize_axis"), one(16, large, "block_size"), one(2, 8, "bits")},
	"MoE":                       {one(1, large, "k")},
	"QMoE":                      {one(1, large, "k"), one(2, 8, "expert_weight_bits"), one(0, large, "block_size")},
	"CropAndResize":             {text("mode", "bilinear", "nearest"), constant(3, "a size of its crops", 1, large)},
	"NGramRepeatBlock":          {required("ngram_size"), one(1, large, "ngram_size")},
	"UnfoldTensor":              {required("size"), one(1, large, "size", "step"), one(-maxRank, maxRank, "dim")},
	"Rfft":                      {required("signal_ndim", "normalized", "onesided"), one(1, 3, "signal_ndim")},
	"Irfft":                     {required("signal_ndim", "normalized", "onesided"), one(1, 3, "signal_ndim")},
	"WordConvEmbedding":         {one(1, large, "embedding_size", "conv_window_size", "char_embedding_size")},
	"Tokenizer":                 {required("mark", "mincharnum", "pad_value"), one(1, large, "mincharnum"), one(0, 1, "mark")},
	"ExpandDims":                {constant(1, "its axis", -maxRank, maxRank)},
	"TransposeMatMul":           {inputs(2)},
	"FusedMatMul":               {inputs(2)},
	"FusedGemm":                 {inputs(2), gemm},
	"MatMulInteger16":           {inputs(2), matrices(1)},
	"MatMulIntegerToFloat":      {inputs(4), matrices(1)},
	"DynamicQuantizeMatMul":     {inputs(3), matrices(1)},
	"QGemm":                     {inputs(6), gemm},
	"QLinearConcat":             {required("axis"), one(-maxRank, maxRank, "axis")},
	"QLinearSoftmax":            {one(-maxRank, maxRank, "axis")},
	"QLinearReduceMean":         {axes(-1, false)},
	"BeamSearch":                generation,
	"GreedySearch":              generation,
	"Sampling":                  generation,
	"WhisperBeamSearch":         generation,
	"CDist":                     {inputs(2), text("metric", "euclidean", "sqeuclidean")},
	"CausalConvWithState":       {one(1, large, "ndim")},
	"LinearAttention":           {one(1, large, "q_num_heads", "kv_num_heads"), one(1, large, "chunk_size")},
}

// generation is what operators that generate text have in common.
var generation = []demand{body("decoder"), one(0, large, "vocab_size", "no_repeat_ngram_size", "model_type"), one(-1, large, "eos_token_id", "pad_token_id", "decoder_start_token_id")}

func pair(name string) demand {
	return func(c *call) error {
		if a := c.attribute(name); a != nil && a.ints.len() != 2 {
			return invalid("attribute %s has %d numbers; it takes 2", name, a.ints.len())
		}
		return nil
	}
}

// grouped demands that the channels of the input are a multiple of an attribute.
func grouped(name string) demand {
	return func(c *call) error {
		n, d := c.integer(name, 1), c.in(0).size(1)
		if c.in(0).shape != nil && d >= 0 && d%n != 0 {
			return invalid("its input has %d channels, which is not a multiple of attribute %s %d", d, name, n)
		}
		return nil
	}
}

// single demands that a tensor has one element.
func single(name string) demand {
	return func(c *call) error {
		a, err := c.given(name, typeTensor)
		if err != nil || a == nil {
			return err
		}
		if n, _ := product(a.tensor.dims); n != 1 {
			return invalid("attribute %s has %d elements; it takes 1", name, n)
		}
		return nil
	}
}

// resized checks the axes of Resize.
func resized(c *call) error {
	list, rank := c.list("axes"), int64(c.in(0).rank())
	if rank < 0 {
		rank = maxRank
	}
	for i, a := range list {
		if a < -rank || a >= rank || slices.Contains(list[:i], a) {
			return invalid("attribute axes is %s, which are not different axes of %d dimensions", brief(list), rank)
		}
	}
	if a, err := c.given("cubic_coeff_a", typeFloat); err != nil || a != nil && (math.IsNaN(a.f) || math.IsInf(a.f, 0)) {
		if err == nil {
			err = invalid("attribute cubic_coeff_a is %v", a.f)
		}
		return err
	}
	return nil
}

func reversed(c *call) error {
	if c.integer("batch_axis", 1) == c.integer("time_axis", 0) {
		return invalid("attributes batch_axis and time_axis are the same")
	}
	return nil
}

// signal demands that the input has dimensions.
func signal(c *call) error {
	if r := c.in(0).rank(); r >= 0 && r < 2 {
		return invalid("its input has %d dimensions; it takes 2 or more", r)
	}
	return nil
}

// scanned checks the axes and directions of Scan.
func scanned(c *call) error {
	scans := int(c.integer("num_scan_inputs", 1))
	for name, n := range map[string]int{"scan_input_axes": scans, "scan_input_directions": scans} {
		if a := c.attribute(name); a != nil && a.ints.len() != n {
			return invalid("attribute %s has %d numbers, and it has %d scan inputs", name, a.ints.len(), n)
		}
	}
	if err := each(-maxRank, maxRank, "scan_input_axes", "scan_output_axes")(c); err != nil {
		return err
	}
	return each(0, 1, "scan_input_directions", "scan_output_directions", "directions")(c)
}

// valued demands that a Constant has one value.
func valued(c *call) error {
	n := 0
	for _, a := range c.node.attributes {
		if a.name == "value" || a.name == "sparse_value" || strings.HasPrefix(a.name, "value_") {
			n++
		}
	}
	if n != 1 {
		return invalid("it has %d values; it takes 1", n)
	}
	return nil
}

// embedded checks the tables of EmbedLayerNormalization.
func embedded(c *call) error {
	for i := 2; i <= 4; i++ {
		if v := c.in(i); c.has(i) && v.shape != nil && len(v.shape) != 2 {
			return invalid("input %d has shape %v; it must be a matrix", i, v.shape)
		}
	}
	return nil
}
