// Package spacetest draws search spaces for property tests.
package spacetest

import (
	"strconv"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/tuning/space"
)

// Space draws a valid space with conditions.
func Space(t *rapid.T) space.Space {
	var s space.Space
	for i := range rapid.IntRange(1, 6).Draw(t, "parameters") {
		p := Parameter(t)
		p.Name = "p" + strconv.Itoa(i)
		if len(s.Parameters) > 0 && rapid.Bool().Draw(t, "conditional") {
			parent := rapid.SampledFrom(s.Parameters).Draw(t, "parent")
			switch parent.Type {
			case space.Categorical:
				p.When = &space.Condition{Parameter: parent.Name, In: parent.Choices[:1]}
			case space.Int:
				p.When = &space.Condition{Parameter: parent.Name, In: space.Choices{parent.Decode(parent.Low), parent.Decode(parent.High)}}
			case space.Float:
			}
		}
		s.Parameters = append(s.Parameters, p)
	}
	return s
}

// Parameter draws a valid parameter without a name.
func Parameter(t *rapid.T) space.Parameter {
	low := float64(rapid.IntRange(-50, 50).Draw(t, "low"))
	high := low + float64(rapid.IntRange(0, 100).Draw(t, "width"))
	switch rapid.IntRange(0, 5).Draw(t, "type") {
	case 0:
		return space.Parameter{Type: space.Float, Low: low, High: high}
	case 1:
		return space.Parameter{Type: space.Float, Low: 1e-6, High: 2e-6 + high - low, Log: true}
	case 2:
		return space.Parameter{Type: space.Float, Low: low / 7, High: high / 7, Step: rapid.Float64Range(0.01, 3).Draw(t, "step")}
	case 3:
		return space.Parameter{Type: space.Int, Low: low, High: high, Step: float64(rapid.IntRange(0, 7).Draw(t, "step"))}
	case 4:
		return space.Parameter{Type: space.Int, Low: 1, High: 1 + high - low, Log: true}
	}
	all := space.Choices{"a", int64(1), 2.5, nil, true, "b"}
	return space.Parameter{Type: space.Categorical, Choices: all[:rapid.IntRange(1, len(all)).Draw(t, "choices")]}
}
