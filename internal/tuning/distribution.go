package tuning

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Distribution is what a parameter may be, in Optuna's JSON:
// {"name": "FloatDistribution", "attributes": {"low": 0, "high": 1, "log": false, "step": null}}.
type Distribution string

type distribution struct {
	Name       string `json:"name"`
	Attributes struct {
		Log     bool  `json:"log"`
		Choices []any `json:"choices"`
	} `json:"attributes"`
}

const categorical = "CategoricalDistribution"

func (d Distribution) parse() (distribution, error) {
	var out distribution
	if len(d) > maxDistribution {
		return out, fault.New(fault.TooLarge, "a distribution has %d bytes, over the limit of %d", len(d), maxDistribution).
			WithHint("Use short names as choices, and look up their contents in the objective.")
	}
	if err := json.Unmarshal(plain(string(d)), &out); err != nil {
		return out, fault.New(fault.Invalid, "the distribution is not valid Optuna JSON: %w", err).
			WithHint("Choices are null, true, false, numbers or text.")
	}
	switch out.Name {
	case "FloatDistribution", "IntDistribution":
		return out, nil
	case categorical:
		if len(out.Attributes.Choices) == 0 {
			return out, fault.New(fault.Invalid, "a categorical distribution has no choices").WithHint("Add at least one choice.")
		}
		return out, nil
	}
	return out, fault.New(fault.Unsupported, "unknown distribution %q", out.Name).
		WithHint("Use FloatDistribution, IntDistribution or CategoricalDistribution; Optuna 3.0 deprecated the others.")
}

// plain makes JSON of Python's JSON: its words for what is no finite number become
// texts that no choice is.
func plain(d string) []byte {
	out := make([]byte, 0, len(d)+32)
	for quoted := false; d != ""; {
		n := 1
		switch {
		case quoted && d[0] == '\\':
			n = min(2, len(d))
		case d[0] == '"':
			quoted = !quoted
		case !quoted:
			for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
				if strings.HasPrefix(d, word) {
					out = append(out, `"\u0000`+word+`"`...)
					d, n = d[len(word):], 0
					break
				}
			}
		}
		out, d = append(out, d[:n]...), d[n:]
	}
	return out
}

// compatible refuses a distribution that the parameter's earlier one does not go
// with: bounds may move, the kind, the scale and the choices may not.
func compatible(before, now Distribution) error {
	a, err := before.parse()
	if err != nil {
		return err
	}
	b, err := now.parse()
	if err != nil {
		return err
	}
	refuse := func(text string) error {
		return fault.New(fault.Invalid, "%s", text).WithHint("Rename the parameter, or create another study.")
	}
	switch {
	case a.Name != b.Name:
		return refuse("Cannot set different distribution kind to the same parameter name.")
	case a.Name == categorical && !slices.EqualFunc(a.Attributes.Choices, b.Attributes.Choices, sameChoice):
		return refuse("CategoricalDistribution does not support dynamic value space.")
	case a.Name != categorical && a.Attributes.Log != b.Attributes.Log:
		return refuse("Cannot set different log configuration to the same parameter name.")
	}
	return nil
}

// sameChoice is Python's ==, to which true is 1.
func sameChoice(a, b any) bool { return number(a) == number(b) }

func number(v any) any {
	switch v {
	case true:
		return 1.0
	case false:
		return 0.0
	}
	switch v.(type) {
	case nil, string, float64:
		return v
	}
	text, err := json.Marshal(v) // a list or an object, which == cannot compare
	if err != nil {
		panic(err) // it was JSON
	}
	return "\x00" + string(text)
}

// External is the parameter as the objective has it: a number, a whole number, or the
// choice itself; what JSON has no form for is Python's word. A distribution that is
// not known leaves the number.
func (p Param) External() any {
	d, err := p.Distribution.parse()
	switch {
	case err != nil:
	case d.Name == categorical:
		if i := int(p.Value); i >= 0 && i < len(d.Attributes.Choices) {
			if word, ok := d.Attributes.Choices[i].(string); ok {
				return strings.TrimPrefix(word, "\x00")
			}
			return d.Attributes.Choices[i]
		}
	case d.Name == "IntDistribution" && math.Abs(p.Value) < 1<<53:
		return int64(p.Value)
	}
	return p.Value
}
