package search

import (
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// maxGrid is how many points a grid has at most, and continuousPoints how many of a
// continuous parameter where nobody says.
const (
	maxGrid          = 1_000_000
	continuousPoints = 5
)

// axis is a parameter of a grid. A condition names one parent, so that the axes are
// a forest, and the points below a value are the product of its children's.
type axis struct {
	p        space.Parameter
	values   []any
	children [][]*axis // for each value
	below    []int     // points for each value
	points   int       // of all of them
}

// grid is the forest of a space, by its roots.
func (c Config) grid(s space.Space) ([]*axis, error) {
	byName := map[string]*axis{}
	var all, roots []*axis
	for _, p := range s.Parameters {
		values, err := c.gridValues(p)
		if err != nil {
			return nil, err
		}
		a := &axis{p: p, values: values, children: make([][]*axis, len(values)), below: make([]int, len(values))}
		byName[p.Name], all = a, append(all, a)
		if p.When == nil {
			roots = append(roots, a)
			continue
		}
		parent := byName[p.When.Parameter]
		for i, v := range parent.values {
			if s.Active(p.Name, space.Params{parent.p.Name: v}) {
				parent.children[i] = append(parent.children[i], a)
			}
		}
	}
	for _, a := range slices.Backward(all) { // children first
		for v := range a.values {
			a.below[v] = product(a.children[v])
			a.points = min(a.points+a.below[v], maxGrid+1)
		}
	}
	if product(roots) > maxGrid {
		return nil, fault.New(fault.TooLarge, "the grid has more than %d points", maxGrid).WithHint("Use fewer grid_points, steps or parameters, or sobol, which covers a space with any number of trials.")
	}
	return roots, nil
}

// product stops counting above maxGrid.
func product(axes []*axis) int {
	n := 1
	for _, a := range axes {
		n = min(n*a.points, maxGrid+1)
	}
	return n
}

func (c Config) gridValues(p space.Parameter) ([]any, error) {
	if p.Type == space.Categorical {
		return p.Choices, nil
	}
	n, countable := p.Count()
	switch {
	case !countable && c.GridPoints == 0:
		n = continuousPoints
	case !countable || c.GridPoints > 0 && float64(c.GridPoints) < n:
		n = float64(c.GridPoints)
	}
	if n > maxGrid {
		return nil, fault.New(fault.TooLarge, "parameter %q has more than %d values", p.Name, maxGrid).WithHint("Give it a step, or use grid_points.")
	}
	if n == 1 {
		return []any{p.Decode(p.Low)}, nil
	}
	low, high := p.Low, p.Last()
	if p.Log {
		low, high = math.Log(low), math.Log(high)
	}
	var out []any
	for i := range int(n) {
		x := low + (high-low)*float64(i)/(n-1)
		if p.Log && i > 0 && i < int(n)-1 {
			x = math.Exp(x)
		} else if p.Log {
			x = []float64{p.Low, p.Last()}[min(i, 1)]
		}
		if v := p.Decode(x); len(out) == 0 || v != out[len(out)-1] {
			out = append(out, v)
		}
	}
	return out, nil
}

// fill puts point n of axes into params.
func fill(axes []*axis, n int, params space.Params) {
	for _, a := range axes {
		r := n % a.points
		n /= a.points
		v := 0
		for r >= a.below[v] {
			r -= a.below[v]
			v++
		}
		params[a.p.Name] = a.values[v]
		fill(a.children[v], r, params)
	}
}

// nextOfGrid is the first point that no trial has, failed ones included.
func (c Config) nextOfGrid(s space.Space, history []trial.Trial) (space.Params, error) {
	roots, err := c.grid(s)
	if err != nil {
		return nil, err
	}
	tried := map[string]bool{}
	for _, t := range history {
		tried[s.Key(t.Params)] = true
	}
	for n := range product(roots) {
		params := space.Params{}
		fill(roots, n, params)
		if !tried[s.Key(params)] {
			return params, nil
		}
	}
	return nil, ErrDone
}
