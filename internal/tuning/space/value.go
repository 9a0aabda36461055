package space

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Params are the values of the active parameters of a trial: a float64 of a float,
// an int64 of an int, one of its choices of a categorical.
type Params map[string]any

// UnmarshalJSON keeps whole numbers whole.
func (p *Params) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return err
	}
	for k, v := range values {
		if n, ok := v.(json.Number); ok {
			var err error
			if values[k], err = number(n); err != nil {
				return err
			}
		}
	}
	*p = values
	return nil
}

// Encode is a value as samplers see it and Optuna stores it: the number of a float or
// int, the index of a choice. Any Go number will do for one.
func (p Parameter) Encode(value any) (float64, error) {
	if p.Type == Categorical {
		for i, c := range p.Choices {
			if equal(c, value) {
				return float64(i), nil
			}
		}
		return 0, p.wrong("%v is not one of its choices", value)
	}
	x, ok := asNumber(value)
	switch {
	case !ok || !finite(x):
		return 0, p.wrong("%v is not a finite number", value)
	case x < p.Low-slack(p) || x > p.High+slack(p):
		return 0, p.wrong("%v is not from %v to %v", x, p.Low, p.High)
	}
	// A step of 0.1 has no exact multiples.
	if step := p.Stride(); step > 0 && math.Abs(x-p.snap(x)) > 1e-8*max(step, math.Abs(x)) {
		return 0, p.wrong("%v is not a multiple of %v from %v", x, step, p.Low)
	}
	return clamp(x, p.Low, p.High), nil
}

// Decode is the value of a number, moved to the nearest that the parameter can have.
func (p Parameter) Decode(x float64) any {
	switch p.Type {
	case Categorical:
		return p.Choices[int(clamp(math.Round(x), 0, float64(len(p.Choices)-1)))]
	case Int:
		return int64(p.snap(clamp(x, p.Low, p.High)))
	default:
		return p.snap(clamp(x, p.Low, p.High))
	}
}

// Stride is the distance of neighbours; 0 where there are none.
func (p Parameter) Stride() float64 {
	if p.Type == Int {
		return max(p.Step, 1)
	}
	return p.Step
}

// snap moves a number in the range to the grid, of which high may not be a point.
func (p Parameter) snap(x float64) float64 {
	step := p.Stride()
	if step == 0 {
		return x
	}
	k := min(math.Round((x-p.Low)/step), p.steps())
	return min(p.Low+k*step, p.High)
}

// slack is for 0.1 + 0.2, which is above 0.3.
func slack(p Parameter) float64 { return 1e-9 * p.Step }

// steps is how many there are from low to the last value.
func (p Parameter) steps() float64 { return math.Floor((p.High-p.Low)/p.Stride() + 1e-9) }

// Last is the highest value: high, or the last that step reaches.
func (p Parameter) Last() float64 {
	if p.Stride() == 0 {
		return p.High
	}
	return p.snap(p.High)
}

// Count is how many values there are; ok is false where it is continuous.
func (p Parameter) Count() (n float64, ok bool) {
	switch {
	case p.Type == Categorical:
		return float64(len(p.Choices)), true
	case p.Stride() == 0:
		return 0, p.Low == p.High
	}
	return p.steps() + 1, true
}

// Single says that there is one value only.
func (p Parameter) Single() bool {
	n, ok := p.Count()
	return ok && n <= 1
}

// Bounds are what is uniform when nothing is known: the range, half a step wider at
// both ends where there are steps, in logarithms where they count; of a categorical
// the indices, half of one wider.
func (p Parameter) Bounds() (low, high float64) {
	if p.Type == Categorical {
		return -0.5, float64(len(p.Choices)) - 0.5
	}
	half := p.Stride() / 2
	low, high = p.Low-half, p.Last()+half
	if p.Log {
		return math.Log(low), math.Log(high)
	}
	return low, high
}

// At is the value at a share u of the bounds, which is in [0, 1).
func (p Parameter) At(u float64) any {
	low, high := p.Bounds()
	x := low + u*(high-low)
	if p.Log {
		x = math.Exp(x)
	}
	return p.Decode(x)
}

// Check gives params in the types of the space. They must be exactly those that are
// active, each with a value that it can have.
func (s Space) Check(params Params) (Params, error) {
	out := make(Params, len(params))
	for _, p := range s.Parameters {
		v, given := params[p.Name]
		switch active := s.active(p, out); {
		case active && !given:
			return nil, p.wrong("it has no value").WithHint("Set a value for every active parameter.")
		case !active && given:
			return nil, p.wrong("it has a value but is inactive under the values of the other parameters").WithHint("Omit it.")
		case !active:
			continue
		}
		x, err := p.Encode(v)
		if err != nil {
			return nil, err
		}
		out[p.Name] = p.Decode(x)
	}
	for _, name := range sortedKeys(params) {
		if _, ok := s.Find(name); !ok {
			return nil, fault.New(fault.Invalid, "%q is not a parameter of the search space", name).WithHint("Omit it.")
		}
	}
	return out, nil
}

func sortedKeys(params Params) []string {
	var out []string
	for k := range params {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func clamp(x, low, high float64) float64 { return min(max(x, low), high) }

// equal compares as Python does, for which 1, 1.0 and True are one key; a bool here
// is a choice of its own, as it is to a reader.
func equal(a, b any) bool {
	x, isNumber := asNumber(a)
	y, both := asNumber(b)
	if isNumber && both {
		return x == y
	}
	if isNumber || both {
		return false
	}
	switch a.(type) {
	case nil, bool, string:
		switch b.(type) {
		case nil, bool, string:
			return a == b
		}
	}
	return false
}

func asNumber(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case float32:
		return float64(n), true
	case int64:
		return float64(n), true
	case int:
		return float64(n), true
	case int32:
		return float64(n), true
	case uint64:
		return float64(n), true
	case json.Number:
		x, err := n.Float64()
		return x, err == nil
	}
	return 0, false
}

// Key names params whatever the types of their numbers: two that are the same trial
// have the same.
func (s Space) Key(params Params) string {
	var b []byte
	for _, p := range s.Parameters {
		if v, ok := params[p.Name]; ok {
			if x, err := p.Encode(v); err == nil {
				b = strconv.AppendFloat(b, x, 'g', -1, 64)
			}
		}
		b = append(b, ' ')
	}
	return string(b)
}
