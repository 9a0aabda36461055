package naming

import (
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// Latest is the alias of the newest version.
const Latest = "latest"

// Ref names a version of a definition: by number, or by alias.
type Ref struct {
	Name    string
	Version int    // 0: Alias decides
	Alias   string // set when Version is 0
}

// ParseRef reads "weather", "weather@3" or "weather@prod". Error: fault.Invalid.
func ParseRef(s string) (Ref, error) {
	name, at, given := strings.Cut(s, "@")
	if err := id.CheckName("name", name); err != nil {
		return Ref{}, err
	}
	if !given {
		return Ref{Name: name, Alias: Latest}, nil
	}
	if n, err := strconv.Atoi(at); err == nil && n > 0 && strconv.Itoa(n) == at {
		return Ref{Name: name, Version: n}, nil
	}
	if CheckAlias(at) != nil {
		return Ref{}, fault.New(fault.Invalid, "%q names no version", fault.Clip(s, 80)).
			WithHint("Write %s for the newest version, %s@3 for a version, or %s@ALIAS.", name, name, name)
	}
	return Ref{Name: name, Alias: at}, nil
}

// CheckAlias refuses what is no alias: a name that is not a number.
func CheckAlias(a string) error {
	if strings.Trim(a, "0123456789") == "" {
		return fault.New(fault.Invalid, "alias %q looks like a version", fault.Clip(a, 80)).WithHint("Use a name such as prod.")
	}
	return id.CheckName("alias", a)
}

// FeatureRef names a feature of a view, or with an empty feature all of them.
type FeatureRef struct {
	View    string // a ref
	Feature string
}

// ParseFeature reads "weather:temp", "weather@2:temp", "weather:*" or "weather".
// Error: fault.Invalid.
func ParseFeature(s string) (FeatureRef, error) {
	view, name, given := strings.Cut(s, ":")
	if _, err := ParseRef(view); err != nil {
		return FeatureRef{}, fault.New(fault.Invalid, "%q is not a feature: %s", fault.Clip(s, 80), err).
			WithHint("Write VIEW:FEATURE, such as weather:temp, or VIEW for all features of a view.")
	}
	if given && name == "" {
		return FeatureRef{}, fault.New(fault.Invalid, "%q has no feature after the colon", fault.Clip(s, 80))
	}
	if name == "*" {
		name = ""
	}
	return FeatureRef{View: view, Feature: name}, nil
}

// SplitRef takes an exact ref such as "weather@3" apart. Error: fault.Invalid.
func SplitRef(s string) (name string, version int, err error) {
	r, err := ParseRef(s)
	if err == nil && r.Version == 0 {
		err = fault.New(fault.Invalid, "%q is not an exact version", fault.Clip(s, 80))
	}
	return r.Name, r.Version, err
}
