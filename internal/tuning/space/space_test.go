package space_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/space/spacetest"
)

func TestBadSpaces(t *testing.T) {
	float := func(low, high float64) space.Parameter {
		return space.Parameter{Name: "x", Type: space.Float, Low: low, High: high}
	}
	with := func(p space.Parameter, change func(*space.Parameter)) space.Parameter {
		change(&p)
		return p
	}
	integer := space.Parameter{Name: "n", Type: space.Int, Low: 1, High: 4}
	choice := space.Parameter{Name: "c", Type: space.Categorical, Choices: space.Choices{"a", int64(1)}}
	when := func(parent string, in ...any) func(*space.Parameter) {
		return func(p *space.Parameter) { p.When = &space.Condition{Parameter: parent, In: in} }
	}
	for name, c := range map[string]struct {
		parameters []space.Parameter
		says       string
	}{
		"nothing":             {nil, "has no parameter"},
		"no name":             {[]space.Parameter{with(float(0, 1), func(p *space.Parameter) { p.Name = "" })}, "not a valid parameter name"},
		"control character":   {[]space.Parameter{with(float(0, 1), func(p *space.Parameter) { p.Name = "a\n" })}, "not a valid parameter name"},
		"twice":               {[]space.Parameter{float(0, 1), float(0, 1)}, "duplicate parameter"},
		"no type":             {[]space.Parameter{{Name: "x"}}, `its type is ""`},
		"turned round":        {[]space.Parameter{float(1, 0)}, "low 1 is above high 0"},
		"infinite":            {[]space.Parameter{float(0, math.Inf(1))}, "must be finite"},
		"NaN":                 {[]space.Parameter{float(math.NaN(), 1)}, "must be finite"},
		"width overflows":     {[]space.Parameter{float(-math.MaxFloat64, math.MaxFloat64)}, "must be finite"},
		"log of 0":            {[]space.Parameter{with(float(0, 1), func(p *space.Parameter) { p.Log = true })}, "has no logarithm"},
		"log and step":        {[]space.Parameter{with(float(1, 2), func(p *space.Parameter) { p.Log, p.Step = true, 0.5 })}, "either log or step"},
		"negative step":       {[]space.Parameter{with(float(1, 2), func(p *space.Parameter) { p.Step = -1 })}, "is negative"},
		"tiny step":           {[]space.Parameter{with(float(0, 1), func(p *space.Parameter) { p.Step = 1e-300 })}, "too small"},
		"half an int":         {[]space.Parameter{with(integer, func(p *space.Parameter) { p.High = 4.5 })}, "not a whole number"},
		"range with choices":  {[]space.Parameter{with(float(0, 1), func(p *space.Parameter) { p.Choices = space.Choices{"a"} })}, "has choices"},
		"choices with range":  {[]space.Parameter{with(choice, func(p *space.Parameter) { p.High = 1 })}, "has a range"},
		"no choice":           {[]space.Parameter{with(choice, func(p *space.Parameter) { p.Choices = nil })}, "has no choices"},
		"choice twice":        {[]space.Parameter{with(choice, func(p *space.Parameter) { p.Choices = append(p.Choices, 1.0) })}, "duplicate choice"},
		"list as choice":      {[]space.Parameter{with(choice, func(p *space.Parameter) { p.Choices = space.Choices{[]any{}} })}, "is not a text"},
		"long choice":         {[]space.Parameter{with(choice, func(p *space.Parameter) { p.Choices = space.Choices{strings.Repeat("x", 1001)} })}, "too long"},
		"parent later":        {[]space.Parameter{with(integer, when("c", "a")), choice}, "not an earlier parameter"},
		"own parent":          {[]space.Parameter{with(choice, when("c", "a"))}, "not an earlier parameter"},
		"parent is a float":   {[]space.Parameter{float(0, 1), with(integer, when("x", 1.0))}, "a float"},
		"parent's no value":   {[]space.Parameter{choice, with(integer, when("c", "b"))}, "not one of its choices"},
		"parent out of range": {[]space.Parameter{integer, with(choice, when("n", int64(5)))}, "not from 1 to 4"},
		"no condition":        {[]space.Parameter{integer, with(choice, when("n"))}, "names 0 values"},
	} {
		err := space.Space{Parameters: c.parameters}.Validate()
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, not %q", name, err, c.says)
		}
		if fault.HintOf(err) == "" {
			t.Errorf("%s: no hint with %v", name, err)
		}
	}
	many := make([]space.Parameter, space.MaxParameters+1)
	if err := (space.Space{Parameters: many}).Validate(); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("%d parameters: %v", len(many), err)
	}
	long := with(choice, func(p *space.Parameter) { p.Choices = make(space.Choices, space.MaxChoices+1) })
	if err := long.Validate(); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("%d choices: %v", len(long.Choices), err)
	}
}

// TestOptuna: what Optuna 5.0 wrote is read, and written as it was.
func TestOptuna(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want space.Parameter
	}{
		"float": {
			`{"name": "FloatDistribution", "attributes": {"step": null, "low": -3.0, "high": 5.0, "log": false}}`,
			space.Parameter{Name: "p", Type: space.Float, Low: -3, High: 5},
		},
		"log": {
			`{"name": "FloatDistribution", "attributes": {"step": null, "low": 1e-05, "high": 1.0, "log": true}}`,
			space.Parameter{Name: "p", Type: space.Float, Low: 1e-5, High: 1, Log: true},
		},
		"step": {
			`{"name": "FloatDistribution", "attributes": {"step": 0.1, "low": 0.0, "high": 0.9, "log": false}}`,
			space.Parameter{Name: "p", Type: space.Float, High: 0.9, Step: 0.1},
		},
		"int": {
			`{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}`,
			space.Parameter{Name: "p", Type: space.Int, Low: 1, High: 9, Step: 2},
		},
		"log int": {
			`{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 300}}`,
			space.Parameter{Name: "p", Type: space.Int, Low: 1, High: 300, Step: 1, Log: true},
		},
		"categorical": {
			`{"name": "CategoricalDistribution", "attributes": {"choices": ["relu", null, 1.5, 2, true]}}`,
			space.Parameter{Name: "p", Type: space.Categorical, Choices: space.Choices{"relu", nil, 1.5, int64(2), true}},
		},
	} {
		got, err := space.FromOptuna("p", []byte(c.text))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		text, err := got.Optuna()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var wrote, read any
		if json.Unmarshal(text, &wrote) != nil || json.Unmarshal([]byte(c.text), &read) != nil || !reflect.DeepEqual(wrote, read) {
			t.Errorf("%s: %s", name, text)
		}
	}
	for name, c := range map[string]struct {
		text string
		kind fault.Kind
	}{
		"no JSON":        {`{`, fault.Invalid},
		"no attributes":  {`{"name": "IntDistribution"}`, fault.Invalid},
		"unknown":        {`{"name": "Normal", "attributes": {}}`, fault.Unsupported},
		"list of choice": {`{"name": "CategoricalDistribution", "attributes": {"choices": [[1]]}}`, fault.Invalid},
		"big int":        {`{"name": "IntDistribution", "attributes": {"low": 0, "high": 9007199254740994}}`, fault.Invalid},
		"long":           {strings.Repeat(" ", 7_000_000), fault.TooLarge},
	} {
		if _, err := space.FromOptuna("p", []byte(c.text)); fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	old, err := space.FromOptuna("p", []byte(`{"name": "DiscreteUniformDistribution", "attributes": {"low": 0, "high": 1, "q": 0.25}}`))
	if err != nil || old.Step != 0.25 {
		t.Errorf("of before 3.0: %+v, %v", old, err)
	}
}

// TestRoundTrips: a parameter comes back from Optuna's form, a space from JSON, a value
// from its number, and each share of the bounds is a value.
func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := spacetest.Space(t)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back space.Space
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(s, back) {
			t.Fatalf("%s: %+v, %v", text, back, err)
		}
		params := s.Fill(func(_ int, p space.Parameter) any { return p.At(rapid.Float64Range(0, 1).Draw(t, "u")) })
		checked, err := s.Check(params)
		if err != nil || !reflect.DeepEqual(checked, params) {
			t.Fatalf("%v becomes %v, %v", params, checked, err)
		}
		if text, err = json.Marshal(params); err != nil {
			t.Fatal(err)
		}
		var read space.Params
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if checked, err = s.Check(read); err != nil || !reflect.DeepEqual(checked, params) {
			t.Fatalf("%s becomes %v, %v", text, checked, err)
		}
		for _, p := range s.Parameters {
			p.When = nil
			text, err := p.Optuna()
			if err != nil {
				t.Fatal(err)
			}
			q, err := space.FromOptuna(p.Name, text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if p.Type == space.Int {
				p.Step = p.Stride() // Optuna always writes one
			}
			if !reflect.DeepEqual(p, q) {
				t.Fatalf("%s: %+v, not %+v", text, q, p)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	s := space.Space{Parameters: []space.Parameter{
		{Name: "model", Type: space.Categorical, Choices: space.Choices{"tree", "linear"}},
		{Name: "depth", Type: space.Int, Low: 1, High: 9, When: &space.Condition{Parameter: "model", In: space.Choices{"tree"}}},
		{Name: "rate", Type: space.Float, Low: 0, High: 0.3, Step: 0.1},
	}}
	for name, c := range map[string]struct {
		params space.Params
		says   string // nothing if right
	}{
		"right":           {space.Params{"model": "tree", "depth": 3.0, "rate": 0.1 + 0.2}, ""},
		"inactive":        {space.Params{"model": "linear", "rate": 0.1}, ""},
		"missing":         {space.Params{"model": "tree", "rate": 0.1}, `"depth": it has no value`},
		"inactive given":  {space.Params{"model": "linear", "depth": 3, "rate": 0.1}, "is inactive"},
		"unknown":         {space.Params{"model": "linear", "rate": 0.1, "seed": 1}, `"seed" is not a parameter`},
		"off the step":    {space.Params{"model": "linear", "rate": 0.15}, "not a multiple of 0.1"},
		"out of range":    {space.Params{"model": "tree", "depth": 10, "rate": 0}, "not from 1 to 9"},
		"half":            {space.Params{"model": "tree", "depth": 1.5, "rate": 0}, "not a multiple of 1"},
		"NaN":             {space.Params{"model": "linear", "rate": math.NaN()}, "not a finite number"},
		"text for number": {space.Params{"model": "linear", "rate": "0.1"}, "not a finite number"},
	} {
		got, err := s.Check(c.params)
		switch {
		case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	got, _ := s.Check(space.Params{"model": "tree", "depth": 3.0, "rate": 0.1 + 0.2})
	if want := (space.Params{"model": "tree", "depth": int64(3), "rate": 0.3}); !reflect.DeepEqual(got, want) && got["depth"] != int64(3) {
		t.Errorf("%v, not %v", got, want)
	}
	if groups := s.Groups(); len(groups) != 2 || len(groups[0].Parameters) != 2 || groups[1].Parameters[0].Name != "depth" {
		t.Errorf("%+v", groups)
	}
}

func FuzzFromOptuna(f *testing.F) {
	f.Add([]byte(`{"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 300}}`))
	f.Add([]byte(`{"name": "CategoricalDistribution", "attributes": {"choices": ["relu", null, 1.5, 1e400]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := space.FromOptuna("p", text)
		if err != nil {
			return
		}
		for _, u := range []float64{0, 0.5, 0.999999} {
			if _, err := p.Encode(p.At(u)); err != nil {
				t.Fatalf("%s: at %v: %v", text, u, err)
			}
		}
	})
}
