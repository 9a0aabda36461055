package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// entries are settings by a name that the operator gives, such as those below
// "serving.remotes".
type entries struct {
	at      string // the key above them
	example string // settings that an entry has, for the hint
	// known gives the settings that an entry may have, and what such an entry is called.
	known func(at string, settings map[string]any) (keys []string, called string, err error)
}

// check refuses keys that mean nothing, before they are read: raw is what is below e.at.
func (e entries) check(raw map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		at := e.at + "." + name
		settings, ok := raw[name].(map[string]any)
		if !ok {
			return fault.New(fault.Invalid, "configuration key %s must be a mapping", at).WithHint("Write %s and so on below it.", e.example)
		}
		known, called, err := e.known(at, settings)
		if err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			if !slices.Contains(known, key) {
				return fault.New(fault.Invalid, "configuration key %q does not exist%s", at+"."+key, nearest(key, known)).
					WithHint("%s has %s.", called, strings.Join(known, ", "))
			}
		}
	}
	return nil
}

// keysOf are the settings of a type, as known has them.
func keysOf[T any](called string) func(string, map[string]any) ([]string, string, error) {
	var known []string
	for f := range reflect.TypeFor[T]().Fields() {
		known = append(known, f.Tag.Get("koanf"))
	}
	return func(string, map[string]any) ([]string, string, error) { return known, called, nil }
}

// entriesText is entries as they are shown: "triton (url=… zone=DE)". first gives what stands
// before the settings of one, and the key that this has; nil is nothing.
func entriesText[T any](all map[string]T, first func(T) (text, key string)) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := reflect.ValueOf(all[name])
		var set []string
		skip := ""
		if first != nil {
			var text string
			text, skip = first(all[name])
			set = append(set, text)
		}
		for i := range v.NumField() {
			if key := v.Type().Field(i).Tag.Get("koanf"); key != skip && !v.Field(i).IsZero() {
				set = append(set, fmt.Sprintf("%s=%s", key, withoutPassword(fmt.Sprint(v.Field(i).Interface()))))
			}
		}
		out = append(out, fmt.Sprintf("%s (%s)", name, strings.Join(set, " ")))
	}
	return strings.Join(out, ", ")
}
