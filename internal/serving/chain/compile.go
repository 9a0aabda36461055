package chain

import (
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/expr"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// port is a tensor of the chain.
type port struct {
	runtime.Spec
	columns []string // what its columns are called; nil: they are not
	asked   bool     // the request brings it
}

// width is how many columns it has; 0 when that is not known, or it has none.
func (p port) width() int {
	switch {
	case len(p.Shape) == 1:
		return 1
	case len(p.Shape) == 2 && p.Shape[1] > 0 && p.Shape[1] <= maxColumns:
		return int(p.Shape[1])
	}
	return 0
}

// column is a tensor, or one column of it.
type column struct{ slot, at int } // at -1: all of it

// arrangement is a chain as far as it was read.
type arrangement struct {
	ports  []port
	slots  map[string]int    // by what expressions call it
	parts  map[string]column // columns that have names, by them
	models []runtime.Session // in the order of steps, the deployment's own among them
	single bool              // a model runs with a number of rows that it says
	cost   int
}

// New arranges steps around a model. models are those of the steps that are some, in
// order. The session closes all of them; when there is an error nobody does. Error:
// fault.Invalid.
func New(s Spec, model runtime.Session, models []runtime.Session) (*Session, error) {
	a := &arrangement{slots: map[string]int{}, parts: map[string]column{}}
	for i, in := range s.Inputs {
		p := port{Spec: runtime.Spec{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Columns: in.Columns}, columns: in.Columns, asked: true}
		if p.Shape == nil {
			p.Shape = []int64{-1}
		}
		if _, err := a.add(p); err != nil {
			return nil, fault.Wrap(err, "spec.inputs[%d]", i)
		}
	}
	out := &Session{}
	specs, names := s.Steps()
	for i := 0; i <= len(specs); i++ {
		if i == len(s.Before) {
			main, err := a.model("the model", model, StepSpec{})
			if err != nil {
				return nil, fault.Wrap(err, "spec.model")
			}
			out.main = len(out.steps)
			out.steps = append(out.steps, placed{step: main, reads: main.needs(), writes: main.makes()})
		}
		if i == len(specs) {
			break
		}
		made, err := a.step(specs[i], &models)
		if err != nil {
			return nil, fault.Wrap(err, "spec.%s", names[i])
		}
		out.steps = append(out.steps, placed{step: made, name: names[i], before: i < len(s.Before), reads: made.needs(), writes: made.makes()})
	}
	out.counts = make([]counter, len(out.steps))
	if a.cost > maxCost {
		return nil, fault.New(fault.Invalid, "the expressions of all steps may cost %d CEL steps per row, over the limit of %d", a.cost, maxCost)
	}
	out.models, out.ports, out.single, out.slots = a.models, a.ports, a.single, make(map[string]int, len(a.ports))
	for slot, p := range a.ports {
		out.slots[p.Name] = slot
	}
	if err := out.describe(s, model.Metadata()); err != nil {
		return nil, err
	}
	return out, nil
}

func (a *arrangement) step(s StepSpec, models *[]runtime.Session) (step, error) {
	switch {
	case s.Model != "":
		if len(*models) == 0 {
			return nil, fault.New(fault.Internal, "the model of a step is missing")
		}
		next := (*models)[0]
		*models = (*models)[1:]
		return a.model("model "+s.Model, next, s)
	case s.Tensor != nil:
		return a.tensor(*s.Tensor)
	}
	return a.compute(s.Compute)
}

// add makes place for a tensor, whose name is new.
func (a *arrangement) add(p port) (slot int, err error) {
	for _, name := range append([]string{p.Name}, p.columns...) {
		if _, there := a.find(name); there {
			return 0, fault.New(fault.Invalid, "%q already exists", name).WithHint("Tensors and columns need unique names; rename this one.")
		}
	}
	slot = len(a.ports)
	a.ports = append(a.ports, p)
	a.slots[variable(p.Name)] = slot
	for i, name := range p.columns {
		if _, twice := a.find(name); twice {
			return 0, fault.New(fault.Invalid, "duplicate column %q", name)
		}
		a.parts[variable(name)] = column{slot, i}
	}
	return slot, nil
}

func (a *arrangement) find(name string) (column, bool) {
	if slot, ok := a.slots[variable(name)]; ok {
		return column{slot, -1}, true
	}
	c, ok := a.parts[variable(name)]
	return c, ok
}

// unknown is the error of a name that nothing has, with those that there are.
func (a *arrangement) unknown(name string) error {
	names := make([]string, 0, len(a.ports))
	for _, p := range a.ports {
		names = append(names, p.Name)
	}
	names = append(names, slices.Sorted(maps.Keys(a.parts))...)
	if len(names) > 40 {
		names = append(names[:40], "…")
	}
	return fault.New(fault.Invalid, "no tensor or column %q exists before this step", name).
		WithHint("Available: %s. Declare request inputs in spec.inputs.", strings.Join(names, ", "))
}

// model arranges a step that is a model. An input of it that nothing is called, the
// request brings.
func (a *arrangement) model(what string, session runtime.Session, s StepSpec) (*modelStep, error) {
	meta := session.Metadata()
	m := &modelStep{session: session}
	for theirs := range s.Inputs {
		if meta.Input(theirs) == nil {
			return nil, fault.New(fault.Invalid, "%s has no input %q", what, theirs).WithHint("Its inputs: %s.", listed(append(slices.Clip(meta.Inputs), meta.Optional...)))
		}
	}
	for i, in := range append(slices.Clip(meta.Inputs), meta.Optional...) {
		name := in.Name
		given, called := s.Inputs[in.Name]
		if called {
			name = given
		}
		c, there := a.find(name)
		if i >= len(meta.Inputs) && !there && !called {
			continue // it has its default: nothing before the model makes another
		}
		switch {
		case there && c.at >= 0:
			return nil, fault.New(fault.Invalid, "%q is a column, but input %q of %s is a tensor", name, in.Name, what).WithHint("Combine it into a tensor in a step `tensor`.")
		case there:
			if err := fits(a.ports[c.slot].Spec, in); err != nil {
				return nil, fault.Wrap(err, "%s", what)
			}
		case name != in.Name:
			return nil, fault.Wrap(a.unknown(name), "input %q of %s", in.Name, what)
		default:
			slot, err := a.add(port{Spec: in, asked: true})
			if err != nil {
				return nil, err
			}
			c.slot = slot
		}
		// Where rows vary in the chain and not in the model, a batch of it is none of theirs.
		a.single = a.single || in.Shape != nil && (len(in.Shape) == 0 || in.Shape[0] >= 0)
		m.in = append(m.in, wire{c.slot, in})
	}
	for theirs := range s.Outputs {
		if !slices.ContainsFunc(meta.Outputs, func(o runtime.Spec) bool { return o.Name == theirs }) {
			return nil, fault.New(fault.Invalid, "%s has no output %q", what, theirs).WithHint("Its outputs: %s.", listed(meta.Outputs))
		}
	}
	for _, o := range meta.Outputs {
		p := port{Spec: o}
		if s.Outputs != nil {
			given, ok := s.Outputs[o.Name]
			if !ok {
				continue
			}
			p.Name = given
		}
		slot, err := a.add(p)
		if err != nil {
			return nil, fault.Wrap(err, "output %q of %s", o.Name, what)
		}
		m.out = append(m.out, wire{slot, o})
	}
	a.models = append(a.models, session)
	return m, nil
}

// fits refuses a tensor that a model never takes.
func fits(have, want runtime.Spec) error {
	ok := have.Datatype == want.Datatype && (have.Shape == nil || want.Shape == nil || len(have.Shape) == len(want.Shape))
	for i := 0; ok && i < len(want.Shape) && i < len(have.Shape); i++ {
		ok = have.Shape[i] < 0 || want.Shape[i] < 0 || have.Shape[i] == want.Shape[i]
	}
	if ok {
		return nil
	}
	return fault.New(fault.Invalid, "%q is %s %v, but input %q needs %s %v", have.Name, have.Datatype, have.Shape, want.Name, want.Datatype, want.Shape).
		WithHint("A step `tensor` converts datatypes and concatenates columns; with `flat: true` the tensor has one dimension.")
}

func listed(specs []runtime.Spec) string {
	words := make([]string, len(specs))
	for i, s := range specs {
		words[i] = s.Name
	}
	return strings.Join(words, ", ")
}

// typeOf is the type that an expression sees of a column, or of all columns of a
// tensor as a list; false when it sees none.
func (p port) typeOf(c column) (value.Type, bool) {
	var t value.Type
	switch p.Datatype {
	case runtime.Bool:
		t = value.Bool
	case runtime.Int8, runtime.Int16, runtime.Int32, runtime.Int64, runtime.Uint8, runtime.Uint16, runtime.Uint32:
		t = value.Int64
	case runtime.FP32:
		t = value.Float32
	case runtime.FP64:
		t = value.Float64
	case runtime.Bytes:
		t = value.String
	default:
		return 0, false
	}
	switch w := p.width(); {
	case w == 0:
		return 0, false
	case c.at < 0 && len(p.Shape) == 2:
		return value.ListOf(t, w), true
	}
	return t, true
}

// variable is what an expression calls a column: weather__temp for weather:temp.
func variable(name string) string { return strings.ReplaceAll(name, ":", "__") }

// compute arranges a step of expressions.
func (a *arrangement) compute(s map[string]string) (*computeStep, error) {
	var variables []expr.Variable
	var cells []cell
	see := func(name string, at column) {
		p := a.ports[at.slot]
		if t, ok := p.typeOf(at); ok {
			variables = append(variables, expr.Variable{Name: variable(name), Type: t, Place: len(cells)})
			cells = append(cells, cell{at, t})
		}
	}
	for slot, p := range a.ports {
		see(p.Name, column{slot, -1})
	}
	for _, name := range slices.Sorted(maps.Keys(a.parts)) {
		see(name, a.parts[name])
	}
	// A row has what is used alone, which is known once all was looked at.
	c, names := &computeStep{}, slices.Sorted(maps.Keys(s))
	var used []expr.Variable
	for _, name := range names {
		program, err := expr.Infer(s[name], variables)
		if err != nil {
			return nil, fault.Wrap(err, "compute.%s", name)
		}
		for _, at := range program.Uses() {
			if v := variables[at]; !slices.ContainsFunc(used, func(u expr.Variable) bool { return u.Name == v.Name }) {
				used = append(used, expr.Variable{Name: v.Name, Type: v.Type, Place: len(c.row)})
				c.row = append(c.row, cells[at])
			}
		}
	}
	made := make([]port, 0, len(s))
	for _, name := range names {
		program, err := expr.Infer(s[name], used)
		if err != nil {
			return nil, fault.Wrap(err, "compute.%s", name)
		}
		a.cost += program.Cost()
		c.fields = append(c.fields, field{name: name, program: program})
		made = append(made, port{Spec: runtime.Spec{Name: name, Datatype: datatypes[program.Result()], Shape: []int64{-1}}})
	}
	for i, p := range made {
		slot, err := a.add(p)
		if err != nil {
			return nil, fault.Wrap(err, "compute")
		}
		c.fields[i].slot = slot
	}
	return c, nil
}

// datatypes are those of what expressions compute.
var datatypes = map[value.Type]runtime.Datatype{
	value.Float64: runtime.FP64, value.Int64: runtime.Int64, value.Bool: runtime.Bool, value.String: runtime.Bytes,
}

// tensor arranges a step that puts columns side by side.
func (a *arrangement) tensor(s TensorSpec) (*tensorStep, error) {
	t := &tensorStep{datatype: s.Datatype, flat: s.Flat}
	p := port{Spec: runtime.Spec{Name: s.Name, Datatype: s.Datatype}}
	for _, name := range s.From {
		c, there := a.find(name)
		if !there {
			return nil, fault.Wrap(a.unknown(name), "tensor.from")
		}
		from := a.ports[c.slot]
		if from.width() == 0 {
			return nil, fault.New(fault.Invalid, "tensor.from: %q has the shape %v; supported are [-1], and [-1, n] with n columns", name, from.Shape)
		}
		if text := from.Datatype == runtime.Bytes; text != (s.Datatype == runtime.Bytes) || !convertible(from.Datatype) {
			return nil, fault.New(fault.Invalid, "tensor.from: %q is %s, which cannot be converted to %s", name, from.Datatype, s.Datatype).
				WithHint("Convert it to a number in a step `compute`: carrier == 'AA' ? 1.0 : 0.0, or {'AA': 1.0, 'UA': 2.0}[carrier].")
		}
		switch {
		case c.at >= 0 || len(from.Shape) == 1:
			c.at = max(0, c.at)
			t.from = append(t.from, c)
			p.columns = append(p.columns, name)
		default:
			for i := range from.width() {
				t.from = append(t.from, column{c.slot, i})
			}
			if from.columns != nil {
				p.columns = append(p.columns, from.columns...)
			} else {
				p.columns = append(p.columns, numbered(name, from.width())...)
			}
		}
	}
	if len(t.from) > maxColumns {
		return nil, fault.New(fault.Invalid, "tensor.from: %d columns exceed the limit of %d", len(t.from), maxColumns)
	}
	p.Shape = []int64{-1, int64(len(t.from))}
	if s.Flat {
		if len(t.from) != 1 {
			return nil, fault.New(fault.Invalid, "tensor.flat: %q has %d columns", s.From[0], len(t.from))
		}
		p.Shape = p.Shape[:1]
	}
	called := p.columns
	p.columns = nil // they are called so where they come from
	slot, err := a.add(p)
	if err != nil {
		return nil, fault.Wrap(err, "tensor")
	}
	a.ports[slot].columns = called
	t.slot = slot
	return t, nil
}

// describe says what the chain takes and gives, and refuses what nobody uses.
func (s *Session) describe(spec Spec, model runtime.Metadata) error {
	used := make([]bool, len(s.ports))
	for _, x := range s.steps {
		for _, slot := range x.reads {
			used[slot] = true
		}
	}
	for _, name := range spec.Outputs {
		if slot, there := s.slots[name]; there {
			used[slot] = true
		}
	}
	s.meta.Platform, s.visible.Platform = model.Platform, model.Platform
	made := 0
	for slot, p := range s.ports {
		if !p.asked {
			s.meta.Outputs = append(s.meta.Outputs, p.Spec)
			made++
			continue
		}
		if !used[slot] {
			return fault.New(fault.Invalid, "spec.inputs: %q is unused", p.Name)
		}
		s.meta.Inputs = append(s.meta.Inputs, p.Spec)
	}
	s.visible.Inputs = s.meta.Inputs
	if spec.Outputs == nil {
		for _, x := range s.steps[s.main:] {
			for _, slot := range x.writes {
				s.visible.Outputs = append(s.visible.Outputs, s.ports[slot].Spec)
			}
		}
	}
	for _, name := range spec.Outputs {
		slot, there := s.slots[name]
		if !there {
			return fault.New(fault.Invalid, "spec.outputs: tensor %q does not exist", name).WithHint("Available: %s.", listed(append(slices.Clone(s.meta.Inputs), s.meta.Outputs...)))
		}
		p := s.ports[slot]
		s.visible.Outputs = append(s.visible.Outputs, p.Spec)
		if p.asked {
			s.meta.Outputs = append(s.meta.Outputs, p.Spec)
		}
	}
	for _, w := range s.steps[s.main].step.(*modelStep).in {
		if p := s.ports[w.slot]; !p.asked {
			s.seen = append(s.seen, p.Name)
		}
	}
	return s.meta.Validate()
}

// numbered are the names of a tensor's columns that have none.
func numbered(name string, width int) []string {
	out := make([]string, width)
	for i := range out {
		out[i] = name + "." + itoa(i)
	}
	return out
}
