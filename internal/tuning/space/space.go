// Package space is what a sweep may try: parameters, their ranges and choices, and
// which of them are there only beside certain values of others.
//
// # Map
//
//   - space.go: a space and its parameters as a manifest writes them, and what is
//     wrong with them.
//   - value.go: a value of a parameter outside (42, "relu") and as samplers see it, a number.
//   - group.go: which parameters are active, and which always are together.
//   - optuna.go: distributions as Optuna stores them.
//
// It is pure. A space is validated once (Validate); the other functions expect one
// that is valid.
package space

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a space. Sobol points have as many dimensions as there are parameters.
const (
	MaxParameters = 128
	MaxChoices    = 1000
	MaxName       = 250  // bytes, as MLflow limits the name of a parameter
	MaxText       = 1000 // bytes of a choice that is a text
)

// maxInt is up to where a float64 holds each whole number.
const maxInt = 1 << 53

// Type is what the values of a parameter are.
type Type string

// The types.
const (
	Float       Type = "float"
	Int         Type = "int"
	Categorical Type = "categorical"
)

// Space is a search space.
type Space struct {
	Parameters []Parameter `json:"parameters" doc:"Parameters of the search space, at most 128; a parameter follows those in its when."`
}

// Parameter is one dimension of a space.
type Parameter struct {
	Name    string     `json:"name" doc:"Name of the parameter."`
	Type    Type       `json:"type" enum:"float,int,categorical" doc:"Type: float, int or categorical."`
	Low     float64    `json:"low,omitempty" doc:"Lowest value of a float or int."`
	High    float64    `json:"high,omitempty" doc:"Highest value of a float or int, inclusive."`
	Log     bool       `json:"log,omitempty" doc:"Logarithmic scale; low must be above 0, and step is not allowed."`
	Step    float64    `json:"step,omitempty" doc:"Distance between values, starting at low. By default 1 for an int; a float is continuous."`
	Choices Choices    `json:"choices,omitempty" doc:"Values of a categorical parameter: texts, numbers, true, false or null, at most 1000."`
	When    *Condition `json:"when,omitempty" doc:"Condition under which the parameter is active; always by default."`
}

// Condition is a parent with one of certain values.
type Condition struct {
	Parameter string  `json:"parameter" doc:"An earlier parameter, an int or a categorical."`
	In        Choices `json:"in" doc:"Values of the earlier parameter for which this parameter is active."`
}

// Choices are values, each nil, a bool, an int64, a float64 or a string. Numbers
// that JSON writes without point and exponent are int64.
type Choices []any

// UnmarshalJSON keeps 1 apart from 1.0, as Python does.
func (c *Choices) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var values []any
	if err := d.Decode(&values); err != nil {
		return err
	}
	for i, v := range values {
		n, ok := v.(json.Number)
		if !ok {
			continue
		}
		var err error
		if values[i], err = number(n); err != nil {
			return err
		}
	}
	*c = values
	return nil
}

// MarshalJSON writes a float64 with a point or an exponent.
func (c Choices) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, v := range c {
		if i > 0 {
			out = append(out, ',')
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		if _, ok := v.(float64); ok && !bytes.ContainsAny(text, ".e") {
			text = append(text, ".0"...)
		}
		out = append(out, text...)
	}
	return append(out, ']'), nil
}

func number(n json.Number) (any, error) {
	if strings.ContainsAny(n.String(), ".eE") {
		return n.Float64()
	}
	return n.Int64()
}

// Validate says what is wrong with a space.
func (s Space) Validate() error {
	if len(s.Parameters) == 0 {
		return fault.New(fault.Invalid, "the search space has no parameter").WithHint("Name at least one parameter with its range or choices.")
	}
	if len(s.Parameters) > MaxParameters {
		return fault.New(fault.TooLarge, "the search space has %d parameters, over the limit of %d", len(s.Parameters), MaxParameters)
	}
	seen := map[string]Parameter{}
	for _, p := range s.Parameters {
		if _, twice := seen[p.Name]; twice {
			return fault.New(fault.Invalid, "duplicate parameter %q", p.Name).WithHint("Give each parameter its own name.")
		}
		if err := p.Validate(); err != nil {
			return err
		}
		if err := p.validCondition(seen); err != nil {
			return err
		}
		seen[p.Name] = p
	}
	return nil
}

// Validate says what is wrong with a parameter, its condition apart.
func (p Parameter) Validate() error {
	if p.Name == "" || len(p.Name) > MaxName || !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fault.New(fault.Invalid, "%q is not a valid parameter name", p.Name).WithHint("A name has 1 to %d bytes of UTF-8 without control characters.", MaxName)
	}
	switch p.Type {
	case Float, Int:
		return p.validRange()
	case Categorical:
		return p.validChoices()
	default:
		return p.wrong("its type is %q, which does not exist", p.Type).WithHint("The types are float, int and categorical.")
	}
}

func (p Parameter) wrong(format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "parameter %q: %s", p.Name, fmt.Sprintf(format, args...))
}

func (p Parameter) validRange() error {
	switch {
	case len(p.Choices) > 0:
		return p.wrong("it is of type %s and has choices", p.Type).WithHint("Set low and high, or set type: categorical.")
	case !finite(p.Low) || !finite(p.High) || !finite(p.Step) || !finite(p.High-p.Low):
		return p.wrong("low, high, step and high - low must be finite").WithHint("Use log: true or a smaller range.")
	case p.Low > p.High:
		return p.wrong("low %v is above high %v", p.Low, p.High).WithHint("Swap them.")
	case p.Step < 0:
		return p.wrong("step %v is negative", p.Step).WithHint("Omit it, or set it over 0.")
	case p.Log && p.Low <= 0:
		return p.wrong("low %v has no logarithm", p.Low).WithHint("Set low over 0, or omit log.")
	case p.Log && p.Step != 0 && (p.Type == Float || p.Step != 1):
		return p.wrong("set either log or step, not both").WithHint("Omit one of them.")
	case p.Type == Float && p.Step > 0 && (p.High-p.Low)/p.Step > maxInt:
		return p.wrong("step %v is too small for its range", p.Step).WithHint("Omit it: a float is continuous.")
	case p.Type == Float:
		return nil
	}
	for _, v := range []float64{p.Low, p.High, p.Step} {
		if v != math.Trunc(v) || math.Abs(v) > maxInt {
			return p.wrong("%v is not a whole number of at most ±2^53", v).WithHint("Use whole numbers for low, high and step, or set type: float.")
		}
	}
	if p.High-p.Low > maxInt {
		return p.wrong("its range is wider than 2^53").WithHint("Use a smaller range, or set type: float.")
	}
	return nil
}

func (p Parameter) validChoices() error {
	switch {
	case p.Low != 0 || p.High != 0 || p.Log || p.Step != 0:
		return p.wrong("it is categorical and has a range").WithHint("Set only choices, or set type: float or int.")
	case len(p.Choices) == 0:
		return p.wrong("it has no choices").WithHint("Add at least one choice.")
	case len(p.Choices) > MaxChoices:
		return fault.New(fault.TooLarge, "parameter %q: %d choices are over the limit of %d", p.Name, len(p.Choices), MaxChoices)
	}
	for i, c := range p.Choices {
		switch v := c.(type) {
		case nil, bool, int64:
		case float64:
			if !finite(v) {
				return p.wrong("choice %d is not finite", i+1).WithHint("Write it as a text.")
			}
		case string:
			if len(v) > MaxText || !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
				return p.wrong("choice %d is too long, not UTF-8 or contains a NUL byte", i+1).WithHint("A text has at most %d bytes.", MaxText)
			}
		default:
			return p.wrong("choice %d is not a text, number, true, false or null", i+1).WithHint("Use a name, and look up its contents in the job.")
		}
		if slices.ContainsFunc(p.Choices[:i], func(o any) bool { return equal(o, c) }) {
			return p.wrong("duplicate choice %v", c).WithHint("Remove one of them; 1 and 1.0 are the same.")
		}
	}
	return nil
}

// validCondition wants the parent before the child, so that there are no circles
// and values can be drawn in the order of the space.
func (p Parameter) validCondition(earlier map[string]Parameter) error {
	if p.When == nil {
		return nil
	}
	parent, ok := earlier[p.When.Parameter]
	switch {
	case !ok:
		return p.wrong("its condition names %q, which is not an earlier parameter", p.When.Parameter).WithHint("Move the parent parameter before it.")
	case parent.Type == Float:
		return p.wrong("its condition is on %q, a float", parent.Name).WithHint("A condition requires an int or categorical parent.")
	case len(p.When.In) == 0 || len(p.When.In) > MaxChoices:
		return p.wrong("its condition names %d values", len(p.When.In)).WithHint("Name 1 to %d values of %q.", MaxChoices, parent.Name)
	}
	for _, v := range p.When.In {
		if _, err := parent.Encode(v); err != nil {
			return p.wrong("its condition: %v", err).WithHint("Name values that %q can have.", parent.Name)
		}
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Find is the parameter of a name.
func (s Space) Find(name string) (Parameter, bool) {
	i := slices.IndexFunc(s.Parameters, func(p Parameter) bool { return p.Name == name })
	if i < 0 {
		return Parameter{}, false
	}
	return s.Parameters[i], true
}
