package config

import (
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving"
)

// InProcess names models that may run in the server's process. What is empty is
// any.
type InProcess struct {
	Project string `koanf:"project"`
	Model   string `koanf:"model"`
	Signer  string `koanf:"signer"` // key_id of the version: hex SHA-256 of the public key's PEM
}

// checkInProcessKeys refuses unknown keys of serving.in_process: a misspelt key would
// leave its field empty, and the entry would name more models than it says.
func checkInProcessKeys(raw any) error {
	if raw == nil {
		return nil
	}
	list, ok := raw.([]any)
	if !ok {
		return fault.New(fault.Invalid, "configuration key serving.in_process is not a list").
			WithHint("Write a list of entries, each with project, model or signer. Only the configuration file can set it.")
	}
	var known []string
	for f := range reflect.TypeFor[InProcess]().Fields() {
		known = append(known, f.Tag.Get("koanf"))
	}
	for i, e := range list {
		entry, ok := e.(map[string]any)
		if !ok {
			return fault.New(fault.Invalid, "serving.in_process[%d] is not a mapping of project, model or signer", i)
		}
		for _, key := range slices.Sorted(maps.Keys(entry)) {
			if !slices.Contains(known, key) {
				return fault.New(fault.Invalid, "configuration key \"serving.in_process[%d].%s\" does not exist%s", i, key, nearest(key, known)).
					WithHint("An entry has %s.", strings.Join(known, ", "))
			}
			if text, ok := entry[key].(string); !ok || text == "" {
				return fault.New(fault.Invalid, "serving.in_process[%d].%s is empty, or not text", i, key).
					WithHint("Remove the key to permit any.")
			}
		}
	}
	return nil
}

// validateInProcess says what is wrong with the values.
func (c Config) validateInProcess() error {
	for i, e := range c.Serving.InProcess {
		if e == (InProcess{}) {
			return fault.New(fault.Invalid, "serving.in_process[%d] is empty", i).WithHint("Set project, model or signer, or remove the entry.")
		}
		if e.Project != "" {
			if err := project.Name(e.Project).Validate(); err != nil {
				return fault.Wrap(err, "serving.in_process[%d].project", i)
			}
		}
		if key, err := hex.DecodeString(e.Signer); e.Signer != "" && (err != nil || len(key) != 32 || e.Signer != strings.ToLower(e.Signer)) {
			return fault.New(fault.Invalid, "serving.in_process[%d].signer: %.80q is not the id of a key", i, e.Signer).
				WithHint("It is the key_id of the version in the HTTP API: 64 digits of lower-case hex.")
		}
	}
	return nil
}

// InProcess is the policy for serving.
func (c Config) InProcess() serving.InProcessPolicy {
	var policy serving.InProcessPolicy
	for _, e := range c.Serving.InProcess {
		policy = append(policy, serving.InProcessRule(e))
	}
	return policy
}

// inProcessText is the list as it is shown: "(project=nyc model=delay), (signer=…)".
func inProcessText(entries []InProcess) string {
	out := make([]string, len(entries))
	for i, e := range entries {
		var set []string
		for f, v := range reflect.ValueOf(e).Fields() {
			if !v.IsZero() {
				set = append(set, fmt.Sprintf("%s=%s", f.Tag.Get("koanf"), v.String()))
			}
		}
		out[i] = "(" + strings.Join(set, " ") + ")"
	}
	return strings.Join(out, ", ")
}
