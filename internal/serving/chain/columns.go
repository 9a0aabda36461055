package chain

import (
	"context"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/expr"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// computeStep is expressions, each of which gives a value for a row.
type computeStep struct {
	row    []cell // what an expression may name, by place
	fields []field
}

type cell struct {
	column
	typ value.Type
}

type field struct {
	name    string
	slot    int
	program *expr.Program
}

func (c *computeStep) needs() []int {
	var out []int
	for _, x := range c.fields {
		for _, at := range x.program.Uses() {
			if slot := c.row[at].slot; !slices.Contains(out, slot) {
				out = append(out, slot)
			}
		}
	}
	return out
}

func (c *computeStep) makes() []int {
	out := make([]int, len(c.fields))
	for i, x := range c.fields {
		out[i] = x.slot
	}
	return out
}

// maxSpent bounds what a step costs for all rows of a run, in units of CEL's model.
const maxSpent = 1_000_000_000

// lookSteps is how much is computed between two looks at whether anybody still waits.
const lookSteps = 1_000_000

func (c *computeStep) run(ctx context.Context, f *frame) error {
	fields, unwanted := c.fields, func(x field) bool { return !f.wanted[x.slot] }
	if slices.ContainsFunc(fields, unwanted) {
		fields = slices.DeleteFunc(slices.Clone(fields), unwanted)
	}
	if err := f.take(8 * f.rows * len(fields)); err != nil {
		return err
	}
	cost := 0
	for _, x := range fields {
		cost += x.program.Cost()
	}
	if f.rows*cost > maxSpent {
		return fault.New(fault.TooLarge, "computing %d rows may cost %d steps, over the limit of %d", f.rows, f.rows*cost, maxSpent).
			WithHint("Send fewer rows at once; each text counts as %d bytes.", expr.MaxText)
	}
	read := make([]func(row int) value.Value, len(c.row))
	var uses []int
	for _, x := range fields {
		for _, at := range x.program.Uses() {
			if read[at] != nil {
				continue
			}
			var err error
			if read[at], err = f.reader(c.row[at]); err != nil {
				return err
			}
			uses = append(uses, at)
		}
	}
	columns := make([]made, len(fields))
	for i, x := range fields {
		columns[i] = newMade(x.program.Result(), f.rows)
	}
	row, look := make([]value.Value, len(c.row)), max(1, lookSteps/max(1, cost))
	for n := range f.rows {
		if n%look == 0 && ctx.Err() != nil {
			return late()
		}
		for _, at := range uses {
			row[at] = read[at](n)
		}
		for i, x := range fields {
			v, outcome := x.program.Eval(row)
			if outcome == expr.Failed {
				return fault.New(fault.Invalid, "%s of row %d cannot be computed", x.name, n).
					WithHint("Possible causes: a division by zero, an integer overflow, a missing key of a map, a text that is not a number or exceeds %d bytes.", expr.MaxText)
			}
			if err := f.take(len(v.Str())); err != nil {
				return err
			}
			if !columns[i].set(n, v, outcome == expr.Null) {
				return fault.New(fault.Invalid, "%s of row %d is null, which %s cannot represent", x.name, n, f.ports[x.slot].Datatype).
					WithHint("Replace nulls: coalesce(x, 0).")
			}
		}
	}
	for i, x := range fields {
		f.tensors[x.slot] = runtime.Tensor{Name: x.name, Datatype: f.ports[x.slot].Datatype, Shape: []int64{int64(f.rows)}, Data: columns[i].data()}
	}
	return nil
}

// made is a column that is computed; one of its slices is.
type made struct {
	floats []float64
	ints   []int64
	bools  []bool
	texts  []string
}

func newMade(t value.Type, rows int) made {
	switch t {
	case value.Float64:
		return made{floats: make([]float64, rows)}
	case value.Int64:
		return made{ints: make([]int64, rows)}
	case value.Bool:
		return made{bools: make([]bool, rows)}
	default:
		return made{texts: make([]string, rows)}
	}
}

// set puts a value into its row; false when it is null and there is no form for that.
func (m *made) set(row int, v value.Value, null bool) bool {
	switch {
	case m.floats != nil && null:
		m.floats[row] = math.NaN()
	case null:
		return false
	case m.floats != nil:
		m.floats[row] = v.Float()
	case m.ints != nil:
		m.ints[row] = v.Int()
	case m.bools != nil:
		m.bools[row] = v.Bool()
	default:
		m.texts[row] = v.Str()
	}
	return true
}

func (m *made) data() any {
	switch {
	case m.floats != nil:
		return m.floats
	case m.ints != nil:
		return m.ints
	case m.bools != nil:
		return m.bools
	}
	return m.texts
}

// reader reads a column, or the columns of a tensor as a list, row by row.
func (f *frame) reader(c cell) (func(row int) value.Value, error) {
	width, err := f.columns(c.column)
	if err != nil {
		return nil, err
	}
	one := valuesOf(f.tensors[c.slot].Data)
	if c.typ.Scalar() {
		at := max(0, c.at)
		return func(row int) value.Value { return one(row*width + at) }, nil
	}
	elements := make([]value.Value, width)
	return func(row int) value.Value {
		for i := range elements {
			elements[i] = one(row*width + i)
		}
		v, err := value.OfList(c.typ, elements)
		if err != nil {
			return value.Null(c.typ)
		}
		return v
	}, nil
}

// columns is how many columns the tensor of one has, when it has a row for each and is
// what it was said to be.
func (f *frame) columns(c column) (int, error) {
	t, p := f.tensors[c.slot], f.ports[c.slot]
	width := p.width()
	switch {
	case t.Datatype != p.Datatype || len(t.Shape) != len(p.Shape) || len(t.Shape) == 2 && t.Shape[1] != int64(width):
		return 0, fault.New(fault.Invalid, "%q is %s %v instead of %s %v", p.Name, t.Datatype, t.Shape, p.Datatype, p.Shape)
	case t.Shape[0] != int64(f.rows):
		return 0, fault.New(fault.Invalid, "%q has %d rows, other inputs have %d", p.Name, t.Shape[0], f.rows).WithHint("Every input has one row for each row of the request.")
	case lengthOf(t.Data) != f.rows*width:
		return 0, fault.New(fault.Invalid, "%q has %d elements, which do not match the shape %v", p.Name, lengthOf(t.Data), t.Shape)
	}
	return width, nil
}

// valuesOf reads elements as expressions see them.
func valuesOf(data any) func(i int) value.Value {
	switch d := data.(type) {
	case []float32:
		return func(i int) value.Value { return value.OfFloat32(d[i]) }
	case []float64:
		return func(i int) value.Value { return value.OfFloat(d[i]) }
	case []bool:
		return func(i int) value.Value { return value.OfBool(d[i]) }
	case []string:
		return func(i int) value.Value { return value.OfString(d[i]) }
	}
	whole := intsOf(data)
	return func(i int) value.Value { return value.OfInt(whole(i)) }
}

// intsOf reads elements that are whole numbers, or bools; nil when they are not.
func intsOf(data any) func(i int) int64 {
	switch d := data.(type) {
	case []int64:
		return func(i int) int64 { return d[i] }
	case []int32:
		return func(i int) int64 { return int64(d[i]) }
	case []int16:
		return func(i int) int64 { return int64(d[i]) }
	case []int8:
		return func(i int) int64 { return int64(d[i]) }
	case []uint32:
		return func(i int) int64 { return int64(d[i]) }
	case []uint16:
		return func(i int) int64 { return int64(d[i]) }
	case []uint8:
		return func(i int) int64 { return int64(d[i]) }
	case []bool:
		return func(i int) int64 {
			if d[i] {
				return 1
			}
			return 0
		}
	}
	return nil
}

// convertible reports whether a tensor is made of columns of a datatype.
func convertible(d runtime.Datatype) bool {
	switch d { //nolint:exhaustive // the others are not
	case runtime.Uint64, runtime.FP16, runtime.BF16:
		return false
	}
	return true
}

func lengthOf(data any) int {
	switch d := data.(type) {
	case []float32:
		return len(d)
	case []float64:
		return len(d)
	case []int64:
		return len(d)
	case []int32:
		return len(d)
	case []int16:
		return len(d)
	case []int8:
		return len(d)
	case []uint32:
		return len(d)
	case []uint16:
		return len(d)
	case []uint8:
		return len(d)
	case []bool:
		return len(d)
	case []string:
		return len(d)
	}
	return -1
}

// tensorStep puts columns side by side.
type tensorStep struct {
	slot     int
	datatype runtime.Datatype
	flat     bool
	from     []column
}

func (t *tensorStep) needs() []int {
	var out []int
	for _, c := range t.from {
		if !slices.Contains(out, c.slot) {
			out = append(out, c.slot)
		}
	}
	return out
}

func (t *tensorStep) makes() []int { return []int{t.slot} }

func (t *tensorStep) run(ctx context.Context, f *frame) error {
	width := len(t.from)
	if err := f.take(8 * f.rows * width); err != nil {
		return err
	}
	out := runtime.Tensor{Name: f.ports[t.slot].Name, Datatype: t.datatype, Shape: []int64{int64(f.rows), int64(width)}}
	if t.flat {
		out.Shape = out.Shape[:1]
	}
	out.Data = runtime.Zeros(t.datatype, f.rows*width)
	for i, c := range t.from {
		if ctx.Err() != nil {
			return late()
		}
		step, err := f.columns(c)
		if err != nil {
			return err
		}
		if row := fill(out.Data, i, width, f.tensors[c.slot].Data, c.at, step, f.rows); row >= 0 {
			wrong := fault.New(fault.Invalid, "%s: column %q of row %d is not a valid %s", out.Name, f.ports[t.slot].columns[i], row, t.datatype)
			if t.datatype == runtime.FP32 {
				return wrong.WithHint("The value exceeds the range of FP32: scale it in a step `compute`.")
			}
			return wrong.WithHint("Round the value in a step `compute`: int(math.round(x)).")
		}
	}
	f.tensors[t.slot] = out
	return nil
}

// fill converts a column of one tensor into a column of another. The answer is the row
// that does not fit; -1 when all do.
func fill(into any, at, width int, from any, start, step, rows int) int {
	switch to := into.(type) {
	case []string:
		for row, d := 0, from.([]string); row < rows; row++ {
			to[row*width+at] = d[row*step+start]
		}
	case []float32:
		switch d := from.(type) {
		case []float32:
			for row := range rows {
				to[row*width+at] = d[row*step+start]
			}
		default:
			get := floatsOf(from)
			for row := range rows {
				v := get(row*step + start)
				to[row*width+at] = float32(v)
				if math.IsInf(float64(float32(v)), 0) && !math.IsInf(v, 0) {
					return row
				}
			}
		}
	case []float64:
		get := floatsOf(from)
		for row := range rows {
			to[row*width+at] = get(row*step + start)
		}
	case []int64:
		get := wholeOf(from)
		for row := range rows {
			v, ok := get(row*step + start)
			if !ok {
				return row
			}
			to[row*width+at] = v
		}
	case []int32:
		get := wholeOf(from)
		for row := range rows {
			v, ok := get(row*step + start)
			if !ok || v != int64(int32(v)) { //nolint:gosec // that is what is asked
				return row
			}
			to[row*width+at] = int32(v) //nolint:gosec // it fits
		}
	}
	return -1
}

func floatsOf(data any) func(i int) float64 {
	switch d := data.(type) {
	case []float32:
		return func(i int) float64 { return float64(d[i]) }
	case []float64:
		return func(i int) float64 { return d[i] }
	}
	get := intsOf(data)
	return func(i int) float64 { return float64(get(i)) }
}

// wholeOf reads whole numbers; false for what is none, or over 64 bits.
func wholeOf(data any) func(i int) (int64, bool) {
	whole := func(f float64) (int64, bool) {
		if f != math.Trunc(f) || f < -(1<<63) || f >= 1<<63 { // NaN is not itself
			return 0, false
		}
		return int64(f), true
	}
	switch d := data.(type) {
	case []float32:
		return func(i int) (int64, bool) { return whole(float64(d[i])) }
	case []float64:
		return func(i int) (int64, bool) { return whole(d[i]) }
	}
	get := intsOf(data)
	return func(i int) (int64, bool) { return get(i), true }
}
