package space

import (
	"fmt"
	"slices"
)

// Active says whether a parameter is there beside the values of those before it.
func (s Space) Active(name string, params Params) bool {
	p, ok := s.Find(name)
	return ok && s.active(p, params)
}

func (s Space) active(p Parameter, params Params) bool {
	if p.When == nil {
		return true
	}
	v, ok := params[p.When.Parameter]
	return ok && slices.ContainsFunc(p.When.In, func(c any) bool { return equal(c, v) })
}

// Group is parameters that are always active together, so that how they interact can
// be learnt from each trial that has one of them.
type Group struct {
	When       *Condition // of all of them
	Parameters []Parameter
}

// Groups are the parameters by their condition, parents before children.
func (s Space) Groups() []Group {
	var out []Group
	at := map[string]int{}
	for _, p := range s.Parameters {
		key := ""
		if p.When != nil {
			key = fmt.Sprintf("%q %v", p.When.Parameter, s.indices(*p.When))
		}
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			out = append(out, Group{When: p.When})
		}
		out[i].Parameters = append(out[i].Parameters, p)
	}
	return out
}

// indices name the values of a condition whatever their order.
func (s Space) indices(c Condition) []float64 {
	parent, _ := s.Find(c.Parameter)
	var out []float64
	for _, v := range c.In {
		if x, err := parent.Encode(v); err == nil {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Fill draws the values of a trial in the order of the space: value is asked for each
// parameter that is active beside what was drawn.
func (s Space) Fill(value func(i int, p Parameter) any) Params {
	out := Params{}
	for i, p := range s.Parameters {
		if s.active(p, out) {
			out[p.Name] = value(i, p)
		}
	}
	return out
}
