// Package chain puts steps before and after a model, so that they answer as one: a
// Session of sessions. It does no I/O.
//
// # Map
//
//   - chain.go: Spec, what a manifest says of steps, and what is wrong with it
//     whatever the models are.
//   - compile.go: New checks the steps against the models that they are of, and
//     arranges them: which tensor each makes, and of what.
//   - run.go: Session, the models and what is between them, for a request or a batch
//     of them. columns.go are the steps that are no models.
//
// # What a step is
//
// A step makes tensors of those that are there: what the request brought, and what
// steps before it made. Each has a name of its own, and none is replaced. A step is
// another model; or expressions, one value for a row each (internal/feature/expr has
// the language, its types and its limits); or a tensor that columns are put into.
//
// # Guarantees
//
// A row is computed from itself alone. What a step cannot compute of a row refuses the
// request, and says the step and the row. Only what an answer needs is computed. The
// steps of a request go on one after the other; between two, and every so many rows,
// they end when its time is over. What they make is bounded in bytes.
package chain

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/expr"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Spec is the steps around a model.
type Spec struct {
	Inputs  []InputSpec `json:"inputs,omitempty"`
	Before  []StepSpec  `json:"before,omitempty"`
	After   []StepSpec  `json:"after,omitempty"`
	Outputs []string    `json:"outputs,omitempty"`
}

// InputSpec is a tensor that requests bring and no model says itself.
type InputSpec struct {
	Name     string           `json:"name" doc:"Name of the tensor"`
	Datatype runtime.Datatype `json:"datatype" doc:"Datatype of the Open Inference Protocol: BOOL, INT64, FP32, FP64, BYTES and so on"`
	Shape    []int64          `json:"shape,omitempty" doc:"Shape; -1 is any size; default [-1], one value per row"`
	Columns  []string         `json:"columns,omitempty" doc:"Names of its columns, for the shape [-1, number of columns]"`
}

// StepSpec is a step: one of model, compute and tensor.
type StepSpec struct {
	Model   string            `json:"model,omitempty" doc:"Another registered model"`
	Version string            `json:"version,omitempty" doc:"Version number or alias, resolved when this is applied; default the alias champion"`
	Inputs  map[string]string `json:"inputs,omitempty" doc:"Renames its inputs, such as x: temp_scaled; others keep their names"`
	Outputs map[string]string `json:"outputs,omitempty" doc:"Selects and renames its outputs, such as variable: scaled; default all, with their names"`
	Compute map[string]string `json:"compute,omitempty" doc:"Columns computed row by row by CEL expressions from the columns and tensors before this step: late: probabilities[1] > 0.4"`
	Tensor  *TensorSpec       `json:"tensor,omitempty" doc:"Combines columns into a tensor"`
}

// TensorSpec puts columns side by side.
type TensorSpec struct {
	Name     string           `json:"name" doc:"Name of the tensor"`
	Datatype runtime.Datatype `json:"datatype" doc:"FP32, FP64, INT64, INT32 or BYTES; numbers are converted"`
	From     []string         `json:"from" doc:"Columns, and tensors whose columns are all used, in order: the tensor has the shape [rows, columns]"`
	Flat     bool             `json:"flat,omitempty" doc:"Shape [rows] instead of [rows, 1], for a single column"`
}

// Limits of a chain.
const (
	MaxSteps   = 32
	MaxModels  = 8    // that are steps
	maxExprs   = 256  // of all steps
	maxInputs  = 1024 // that are declared
	maxColumns = 4096 // of a tensor
	maxName    = 256  // bytes
	maxCost    = 1 << 20
)

// Steps are all of them, with what they are called in errors, in order.
func (s Spec) Steps() (steps []StepSpec, names []string) {
	for i, x := range s.Before {
		steps, names = append(steps, x), append(names, fmt.Sprintf("before[%d]", i))
	}
	for i, x := range s.After {
		steps, names = append(steps, x), append(names, fmt.Sprintf("after[%d]", i))
	}
	return steps, names
}

// None reports whether there are no steps.
func (s Spec) None() bool { return len(s.Before)+len(s.After) == 0 }

func invalid(where, format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "spec.%s: %s", where, fmt.Sprintf(format, args...))
}

// Validate says what is wrong with the steps, whatever the models are.
func (s Spec) Validate() error {
	if s.None() {
		if len(s.Inputs)+len(s.Outputs) > 0 {
			return invalid("inputs", "inputs and outputs can only be declared with steps before or after the model").
				WithHint("Remove spec.inputs and spec.outputs, or add spec.before or spec.after.")
		}
		return nil
	}
	steps, names := s.Steps()
	if len(steps) > MaxSteps {
		return invalid("before", "%d steps before and after the model exceed the limit of %d", len(steps), MaxSteps)
	}
	if len(s.Inputs) > maxInputs {
		return invalid("inputs", "%d exceed the limit of %d", len(s.Inputs), maxInputs)
	}
	for i, in := range s.Inputs {
		if err := in.validate(fmt.Sprintf("inputs[%d]", i)); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i, o := range s.Outputs {
		if err := checkName(fmt.Sprintf("outputs[%d]", i), o); err != nil {
			return err
		}
		if seen[o] {
			return invalid("outputs", "duplicate name %q", o)
		}
		seen[o] = true
	}
	models, expressions := 0, 0
	for i, x := range steps {
		if err := x.validate(names[i]); err != nil {
			return err
		}
		if x.Model != "" {
			models++
		}
		expressions += len(x.Compute)
	}
	switch {
	case models > MaxModels:
		return invalid("before", "%d model steps exceed the limit of %d", models, MaxModels)
	case expressions > maxExprs:
		return invalid("before", "%d expressions in all steps exceed the limit of %d", expressions, maxExprs)
	}
	return nil
}

func (in InputSpec) validate(where string) error {
	if err := checkName(where+".name", in.Name); err != nil {
		return err
	}
	switch {
	case !slices.Contains(runtime.Datatypes, in.Datatype):
		return invalid(where+".datatype", "unknown datatype %.40q", in.Datatype).WithHint("Use one of %v.", runtime.Datatypes)
	case len(in.Shape) > runtime.MaxRank || slices.ContainsFunc(in.Shape, func(d int64) bool { return d < -1 || d > runtime.MaxElements }):
		return invalid(where+".shape", "%v is not a valid shape", in.Shape).WithHint("Use [-1] for one value per row, [-1, 4] for four.")
	case len(in.Columns) > maxColumns:
		return invalid(where+".columns", "%d exceed the limit of %d", len(in.Columns), maxColumns)
	case len(in.Columns) > 0 && (len(in.Shape) != 2 || in.Shape[1] != int64(len(in.Columns))):
		return invalid(where+".columns", "%d names do not match the shape %v", len(in.Columns), in.Shape).WithHint("Set shape: [-1, %d].", len(in.Columns))
	}
	for _, c := range in.Columns {
		if err := checkName(where+".columns", c); err != nil {
			return err
		}
	}
	return nil
}

func (x StepSpec) validate(where string) error {
	kinds := 0
	for _, has := range []bool{x.Model != "", len(x.Compute) > 0, x.Tensor != nil} {
		if has {
			kinds++
		}
	}
	if kinds != 1 {
		return invalid(where, "a step has exactly one of model, compute and tensor, not %d", kinds)
	}
	if x.Model == "" && (x.Version != "" || len(x.Inputs)+len(x.Outputs) > 0) {
		return invalid(where, "version, inputs and outputs are only allowed in a model step")
	}
	if len(x.Version) > maxName || len(x.Model) > maxName {
		return invalid(where, "the model's name or version exceeds %d bytes", maxName)
	}
	for _, m := range []map[string]string{x.Inputs, x.Outputs} {
		if len(m) > maxInputs {
			return invalid(where, "%d names exceed the limit of %d", len(m), maxInputs)
		}
		for theirs, ours := range m {
			if err := checkName(where, theirs); err != nil {
				return err
			}
			if err := checkName(where, ours); err != nil {
				return err
			}
		}
	}
	for name := range x.Compute {
		if !expr.Nameable(name) || len(name) > maxName {
			return invalid(where+".compute", "%.40q cannot be used in an expression", name).WithHint("Use letters, digits and _; reserved words of CEL are not allowed.")
		}
	}
	if x.Tensor == nil {
		return nil
	}
	t, where := x.Tensor, where+".tensor"
	if err := checkName(where+".name", t.Name); err != nil {
		return err
	}
	switch {
	case !slices.Contains([]runtime.Datatype{runtime.FP32, runtime.FP64, runtime.Int64, runtime.Int32, runtime.Bytes}, t.Datatype):
		return invalid(where+".datatype", "unknown datatype %.40q: use FP32, FP64, INT64, INT32 or BYTES", t.Datatype)
	case len(t.From) == 0 || len(t.From) > maxColumns:
		return invalid(where+".from", "%d columns are outside the range 1 to %d", len(t.From), maxColumns)
	case t.Flat && len(t.From) != 1:
		return invalid(where+".flat", "a flat tensor has one column, not %d", len(t.From))
	}
	for _, name := range t.From {
		if err := checkName(where+".from", name); err != nil {
			return err
		}
	}
	return nil
}

func checkName(where, name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return invalid(where, "%.40q is not a valid name of 1 to %d bytes", name, maxName)
	}
	return nil
}
