package onnx

import (
	"slices"
	"testing"
)

// TestFragile: what may divide integers is told from what does not.
func TestFragile(t *testing.T) {
	div := func(kind, x, y string) []byte { return part(1, op(kind, []string{x, y}, []string{"q"})) }
	cast := func(to uint64) []byte { return part(1, op("Cast", []string{"i"}, []string{"c"}, number("to", to))) }
	constant := func(element uint64) []byte {
		value := slices.Concat(word(1, "value"), part(5, tensorFile("", element, make([]byte, 8), 1)), count(20, 4))
		return part(1, op("Constant", nil, []string{"k"}, value))
	}
	in := func(name string, element uint64) []byte { return part(graphInput, port(name, element, 1)) }
	inner := func(nodes ...[]byte) []byte {
		return part(1, op("If", []string{"b"}, []string{"r"}, slices.Concat(word(1, "then_branch"), part(6, nodes...))))
	}
	for name, c := range map[string]struct {
		model   []byte
		fragile bool
	}{
		"no division":               {plain(), false},
		"floats":                    {plain(div("Div", "x", "x")), false},
		"one float":                 {plain(div("Div", "unknown", "x")), false},
		"integers":                  {plain(in("i", int64s), div("Div", "i", "i")), true},
		"division of integers":      {divide, true},
		"unknown":                   {plain(div("Div", "unknown", "other")), true},
		"float weights":             {plain(part(graphInitializer, tensorFile("w", 11, make([]byte, 8), 1)), div("Div", "u", "w")), false},
		"integer weights":           {plain(part(graphInitializer, tensorFile("w", int64s, make([]byte, 8), 1)), div("Div", "u", "w")), true},
		"cast to floats":            {plain(in("i", int64s), cast(float32s), div("Div", "c", "c")), false},
		"cast to integers":          {plain(cast(int64s), div("Div", "c", "c")), true},
		"float constant":            {plain(constant(11), div("Div", "u", "k")), false},
		"integer constant":          {plain(constant(int64s), div("Div", "u", "k")), true},
		"through operators":         {plain(part(1, op("Sub", []string{"x", "x"}, []string{"d"})), part(1, op("Sqrt", []string{"d"}, []string{"s"})), div("Div", "u", "s")), false},
		"the shape of floats":       {plain(part(1, op("Shape", []string{"x"}, []string{"d"})), div("Div", "d", "d")), true},
		"said of a middle value":    {plain(part(graphValue, port("v", float32s, 1)), div("Div", "u", "v")), false},
		"in a subgraph":             {plain(in("i", int64s), inner(div("Div", "i", "i"))), true},
		"floats in a subgraph":      {plain(inner(div("Div", "x", "x"))), true}, // names may mean something else there
		"no division in a subgraph": {plain(inner(div("Mul", "x", "x"))), false},
		"a name of another branch":  {plain(in("i", int64s), inner(cast(float32s)), inner(div("Div", "c", "c"))), true},
		"a function's own names":    {append(plain(), part(25, word(1, "f"), part(7, op("Div", []string{"x", "x"}, []string{"c"})))...), true},
		"another set's Floor":       {plain(part(1, append(op("Floor", []string{"x"}, []string{"l"}), word(7, "my")...)), div("Div", "l", "l")), true},
		"another set's Div":         {plain(part(1, append(op("Div", []string{"x", "x"}, []string{"l"}), word(7, "my")...))), true},
		"in a function":             {append(plain(), part(25, word(1, "f"), part(7, op("Mod", []string{"a", "b"}, []string{"c"})))...), true},
		"not an operator of ours":   {plain(div("Divide", "i", "i")), false},
		"an operator that makes no": {plain(part(1, op("ArgMax", []string{"x"}, []string{"a"})), div("Div", "a", "a")), true},
	} {
		if got := Fragile(c.model); got != c.fragile {
			t.Errorf("%s: %v", name, got)
		}
	}
	deep := []byte{}
	for range 2 * maxDepth {
		deep = part(1, op("If", []string{"b"}, []string{"r"}, slices.Concat(word(1, "then_branch"), part(6, deep))))
	}
	if !Fragile(plain(deep)) {
		t.Error("what is too deep to look into is not fragile")
	}
	if Fragile(model(t, "logistic.onnx")) {
		t.Error("the logistic regression is fragile")
	}
}
