package space

import (
	"encoding/json"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// maxDistribution is how long the JSON of a distribution may be: the most choices,
// each the longest, escaped.
const maxDistribution = MaxChoices * MaxText * 6

// distribution is the JSON of optuna.distributions: {"name": …, "attributes": …}.
type distribution struct {
	Name       string          `json:"name"`
	Attributes json.RawMessage `json:"attributes"`
}

type floatAttributes struct {
	Step *float64 `json:"step"`
	Low  float64  `json:"low"`
	High float64  `json:"high"`
	Log  bool     `json:"log"`
}

type intAttributes struct {
	Log  bool  `json:"log"`
	Step int64 `json:"step"`
	Low  int64 `json:"low"`
	High int64 `json:"high"`
}

type categoricalAttributes struct {
	Choices Choices `json:"choices"`
}

// Optuna is the parameter as optuna.distributions.distribution_to_json writes it; its
// name and condition are not part of that.
func (p Parameter) Optuna() ([]byte, error) {
	d := distribution{}
	var attributes any
	switch p.Type {
	case Float:
		a := floatAttributes{Low: p.Low, High: p.High, Log: p.Log}
		if p.Step > 0 {
			a.Step = &p.Step
		}
		d.Name, attributes = "FloatDistribution", a
	case Int:
		d.Name, attributes = "IntDistribution", intAttributes{Log: p.Log, Step: int64(p.Stride()), Low: int64(p.Low), High: int64(p.High)}
	default:
		d.Name, attributes = "CategoricalDistribution", categoricalAttributes{p.Choices}
	}
	var err error
	if d.Attributes, err = json.Marshal(attributes); err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

// FromOptuna is a parameter of a name from what Optuna stores, those of its releases
// before 3.0 included (UniformDistribution and its siblings).
func FromOptuna(name string, text []byte) (Parameter, error) {
	p, err := fromOptuna(name, text)
	if err != nil {
		return Parameter{}, fault.Wrap(err, "Optuna's distribution of %q", name)
	}
	return p, p.Validate()
}

func fromOptuna(name string, text []byte) (Parameter, error) {
	if len(text) > maxDistribution {
		return Parameter{}, fault.New(fault.TooLarge, "it has %d bytes, over the limit of %d", len(text), maxDistribution)
	}
	var d distribution
	if err := jsondoc.Decode(text, &d); err != nil {
		return Parameter{}, fault.New(fault.Invalid, "it is not JSON: %v", err)
	}
	if d.Attributes == nil {
		return Parameter{}, fault.New(fault.Invalid, "it has no attributes")
	}
	p := Parameter{Name: name}
	if d.Name == "CategoricalDistribution" {
		var a categoricalAttributes
		if err := jsondoc.Decode(d.Attributes, &a); err != nil {
			return p, fault.New(fault.Invalid, "its choices: %v", err).WithHint("Choices must be null, booleans, numbers or texts.")
		}
		p.Type, p.Choices = Categorical, a.Choices
		return p, nil
	}
	var a struct {
		Low  float64  `json:"low"`
		High float64  `json:"high"`
		Log  bool     `json:"log"`
		Step *float64 `json:"step"`
		Q    *float64 `json:"q"` // step, before 3.0
	}
	if err := jsondoc.Decode(d.Attributes, &a); err != nil {
		return p, fault.New(fault.Invalid, "its range: %v", err).WithHint("low, high and step must be finite numbers.")
	}
	p.Low, p.High, p.Log = a.Low, a.High, a.Log
	for _, step := range []*float64{a.Q, a.Step} {
		if step != nil {
			p.Step = *step
		}
	}
	switch d.Name {
	case "FloatDistribution", "UniformDistribution", "DiscreteUniformDistribution":
		p.Type = Float
	case "LogUniformDistribution":
		p.Type, p.Log = Float, true
	case "IntDistribution", "IntUniformDistribution":
		p.Type = Int
	case "IntLogUniformDistribution":
		p.Type, p.Log, p.Step = Int, true, 1
	default:
		return p, fault.New(fault.Unsupported, "there is no distribution %q", d.Name).WithHint("The distributions are FloatDistribution, IntDistribution and CategoricalDistribution.")
	}
	return p, nil
}
