package training

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of hyper-parameters. Behind paramPrefix a name is one of MLflow's parameters,
// which has 250 characters at most.
const (
	maxParams     = 128
	maxParamName  = 200
	maxParamValue = 1000
	paramPrefix   = "falaj.param."
)

// Params are hyper-parameters by name: each a text, a json.Number, a bool or nil, so
// that numbers are told to the program as they were written.
type Params map[string]any

// UnmarshalJSON keeps numbers as they are written.
func (p *Params) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var values map[string]any
	if err := d.Decode(&values); err != nil {
		return err
	}
	*p = values
	return nil
}

var (
	paramRE = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./: -]*$`)
	usedRE  = regexp.MustCompile(`\$\{params\.([^}]*)\}`)
)

// words are the values as text: 0.1, adam, true, null.
func (p Params) words() map[string]string {
	out := make(map[string]string, len(p))
	for name, v := range p {
		switch v := v.(type) {
		case string:
			out[name] = v
		default:
			b, err := json.Marshal(v)
			if err != nil {
				panic(err) // it was JSON
			}
			out[name] = string(b)
		}
	}
	return out
}

// fill puts the values where a command has ${params.NAME}.
func (p Params) fill(command []string) []string {
	if len(p) == 0 {
		return command
	}
	words := p.words()
	out := make([]string, len(command))
	for i, arg := range command {
		out[i] = usedRE.ReplaceAllStringFunc(arg, func(use string) string { return words[usedRE.FindStringSubmatch(use)[1]] })
	}
	return out
}

// filled is the specification with the values in its commands.
func (s Spec) filled() Spec {
	s.Command = s.Params.fill(s.Command)
	s.Roles = slices.Clone(s.Roles)
	for i := range s.Roles {
		s.Roles[i].Command = s.Params.fill(s.Roles[i].Command)
	}
	return s
}

func (s Spec) validParams() error {
	if len(s.Params) > maxParams {
		return fault.New(fault.Invalid, "spec.params: a job has at most %d parameters, not %d", maxParams, len(s.Params))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Params)) {
		if len(name) > maxParamName || !paramRE.MatchString(name) {
			return fault.New(fault.Invalid, "spec.params: %.80q is not a valid parameter name", name).
				WithHint("Use up to %d letters, digits, _ - . / : and spaces.", maxParamName)
		}
		switch v := s.Params[name].(type) {
		case nil, bool, json.Number, float64, int64:
		case string:
			if len(v) > maxParamValue || strings.ContainsRune(v, 0) {
				return fault.New(fault.Invalid, "spec.params.%s: the value has %d bytes or contains a zero byte; the limit is %d bytes", name, len(v), maxParamValue)
			}
		default:
			return fault.New(fault.Invalid, "spec.params.%s: the value is not text, a number, true, false or null", name).
				WithHint("Pass the name of a larger value, and let the program load it.")
		}
	}
	if b, err := json.Marshal(s.Params); err != nil || len(b) > maxEnvBytes {
		return fault.New(fault.Invalid, "spec.params: the parameters exceed %d bytes together, or are not JSON", maxEnvBytes)
	}
	commands := [][]string{s.Command}
	for _, r := range s.Roles {
		commands = append(commands, r.Command)
	}
	for _, arg := range slices.Concat(commands...) {
		for _, use := range usedRE.FindAllStringSubmatch(arg, -1) {
			if _, ok := s.Params[use[1]]; !ok && len(s.Params) > 0 {
				return fault.New(fault.Invalid, "spec.command: %s refers to an unknown parameter", use[0]).
					WithHint("Known parameters: %s.", strings.Join(slices.Sorted(maps.Keys(s.Params)), ", "))
			}
		}
	}
	return nil
}
