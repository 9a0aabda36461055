package runtime_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	. "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// TestLimits: a model that no request can ask is refused with the limit, and one at the
// limit is not.
func TestLimits(t *testing.T) {
	ports := func(n int) []Spec {
		specs := make([]Spec, n)
		for i := range specs {
			specs[i] = Spec{Name: "c" + strconv.Itoa(i), Datatype: FP32, Shape: []int64{-1, 1}}
		}
		return specs
	}
	one := func(name string, d Datatype, shape ...int64) []Spec {
		return []Spec{{Name: name, Datatype: d, Shape: shape}}
	}
	y := one("y", FP32, -1)
	for name, c := range map[string]struct {
		m    Metadata
		says string // empty: it may be loaded
	}{
		"a column each":            {Metadata{Inputs: ports(MaxPorts), Outputs: y}, ""},
		"one too many":             {Metadata{Inputs: ports(MaxPorts + 1), Outputs: y}, "the model has 1025 inputs and 1 outputs; models and requests have at most 1024 of each"},
		"too many outputs":         {Metadata{Inputs: y, Outputs: ports(MaxPorts + 1)}, "at most 1024 of each"},
		"no inputs":                {Metadata{Outputs: y}, "the model has no inputs"},
		"no outputs":               {Metadata{Inputs: y}, "the model has no outputs"},
		"a long name":              {Metadata{Inputs: one(strings.Repeat("x", MaxName), FP32), Outputs: y}, ""},
		"too long a name":          {Metadata{Inputs: one(strings.Repeat("x", MaxName+1), FP32), Outputs: y}, "has 1025 bytes; the limit is 1024"},
		"no name":                  {Metadata{Inputs: one("", FP32), Outputs: y}, "an input of the model has no name"},
		"as large as a request":    {Metadata{Inputs: one("x", FP32, MaxRequest/4), Outputs: y}, ""},
		"larger than one":          {Metadata{Inputs: one("x", FP32, MaxRequest/4+1), Outputs: y}, "the limit of a request"},
		"two that are":             {Metadata{Inputs: []Spec{{Name: "a", Datatype: Int8, Shape: []int64{-1, MaxRequest / 2}}, {Name: "b", Datatype: FP64, Shape: []int64{MaxRequest / 8}}}, Outputs: y}, `input "b"`},
		"dimensions that overflow": {Metadata{Inputs: one("x", FP64, 1<<31, 1<<31, 1<<31), Outputs: y}, "64 MiB"},
		"none of large rows":       {Metadata{Inputs: one("x", FP64, 1<<31, 0), Outputs: y}, ""},
		"of any size":              {Metadata{Inputs: []Spec{{Name: "x", Datatype: Bytes}}, Outputs: y}, ""},
	} {
		err := c.m.Validate()
		if c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOptionalStandsIn: a model stands in for one with other optional inputs, such as small
// weights, but not where it demands what the other does not.
func TestOptionalStandsIn(t *testing.T) {
	spec := func(name string, shape ...int64) Spec { return Spec{Name: name, Datatype: FP32, Shape: shape} }
	m := Metadata{Inputs: []Spec{spec("x", -1)}, Optional: []Spec{spec("scale")}, Outputs: []Spec{spec("y", -1)}}
	without := Metadata{Inputs: m.Inputs, Outputs: m.Outputs}
	other := m
	other.Optional = []Spec{spec("scale", 1)}
	needs := Metadata{Inputs: append(slices.Clip(m.Inputs), m.Optional...), Outputs: m.Outputs}
	for name, c := range map[string]struct {
		m, of Metadata
		says  string // empty: it does
	}{
		"the same":                {m, m, ""},
		"more that is optional":   {m, without, ""},
		"less that is optional":   {without, m, ""},
		"another shape":           {other, m, ""},
		"optional there, not now": {needs, m, "it has 2 inputs instead of 1"},
	} {
		if err := c.m.StandsIn(c.of); c.says == "" && err != nil || c.says != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
