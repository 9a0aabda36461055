package onnxfile

import (
	"slices"
	"strconv"
	"strings"
)

// recurrent checks RNN, GRU and LSTM, which have 1, 3 and 4 gates: the weights W and R, the
// bias B, initial states and peepholes P against attribute hidden_size. Runtimes read as much
// of them as hidden_size says.
func recurrent(gates int64) []demand {
	return []demand{
		required("hidden_size"), one(1, 1<<24, "hidden_size"), one(0, 1, "layout", "input_forget", "linear_before_reset"),
		text("direction", "forward", "reverse", "bidirectional"), inputs(3),
		func(c *call) error {
			if c.unknown("hidden_size") || c.unknown("direction") {
				return nil
			}
			hidden, directions := c.integer("hidden_size", 1), int64(1)
			if a := c.attribute("direction"); a != nil && a.s == "bidirectional" {
				directions = 2
			}
			quantized := c.node.op == "DynamicQuantizeLSTM"
			x := c.in(0)
			if x.shape != nil && len(x.shape) != 3 {
				return invalid("its input X has shape %v; it must have 3 dimensions", x.shape)
			}
			if slices.Contains(x.shape, 0) {
				return invalid("its input X has shape %v, with a dimension of 0", x.shape)
			}
			wide, batch, steps := x.size(2), x.size(1), x.size(0)
			if c.integer("layout", 0) == 1 {
				batch, steps = steps, batch
			}
			demand := func(i int, what string, shape ...int64) error {
				v := c.in(i)
				if !c.has(i) || v.shape == nil || fits(shape, v.shape) {
					return nil
				}
				return invalid("its %s has shape %v; with hidden_size %d and %d directions it must be %s", what, v.shape, hidden, directions, pattern(shape))
			}
			// The quantized ones are transposed.
			w, r := []int64{directions, gates * hidden, wide}, []int64{directions, gates * hidden, hidden}
			if quantized {
				w, r = []int64{directions, wide, gates * hidden}, []int64{directions, hidden, gates * hidden}
			}
			state := []int64{directions, batch, hidden}
			if c.integer("layout", 0) == 1 {
				state = []int64{batch, directions, hidden}
			}
			for _, err := range []error{
				demand(1, "input W", w...), demand(2, "input R", r...), demand(3, "input B", directions, 2*gates*hidden),
				demand(4, "input sequence_lens", batch), demand(5, "input initial_h", state...),
			} {
				if err != nil {
					return err
				}
			}
			if gates == 4 {
				for _, err := range []error{demand(6, "input initial_c", state...), demand(7, "input P", directions, 3*hidden)} {
					if err != nil {
						return err
					}
				}
			}
			for _, n := range c.in(4).ints {
				if n < 0 || steps >= 0 && n > steps {
					return invalid("its input sequence_lens has %d, and X has %s steps", n, pattern([]int64{steps}))
				}
			}
			return c.activations(gates, directions)
		},
	}
}

// activations checks that there are not fewer activations than gates need, and that their
// parameters are not more than they.
func (c *call) activations(gates, directions int64) error {
	need := map[int64]int64{1: 1, 3: 2, 4: 3}[gates] * directions
	a, err := c.given("activations", typeStrings)
	if err != nil {
		return err
	}
	have := need
	if a != nil && a.strings != nil && a.strings.n > 0 {
		if have = int64(a.strings.n); have != need {
			return invalid("attribute activations has %d texts; it takes %d", have, need)
		}
	}
	for _, name := range []string{"activation_alpha", "activation_beta"} {
		if p, err := c.given(name, typeFloats); err != nil {
			return err
		} else if p != nil && int64(p.nfloats) > have {
			return invalid("attribute %s has %d numbers for %d activations", name, p.nfloats, have)
		}
	}
	return nil
}

// pattern is a shape in which any size is a question mark.
func pattern(shape []int64) string {
	if i := slices.Index(shape, -1); i < 0 {
		return brief(shape)
	}
	var s strings.Builder
	s.WriteString("[")
	for i, d := range shape {
		if i > 0 {
			s.WriteString(" ")
		}
		if d < 0 {
			s.WriteString("?")
		} else {
			s.WriteString(strconv.FormatInt(d, 10))
		}
	}
	s.WriteString("]")
	return s.String()
}
