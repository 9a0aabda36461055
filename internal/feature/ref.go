package feature

import (
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// latest is the alias of the newest version.
const latest = "latest"

// ref names a version of a definition: by number, or by alias.
type ref struct {
	name    string
	version int    // 0: alias decides
	alias   string // set when version is 0
}

// parseRef reads "weather", "weather@3" or "weather@prod". Error: fault.Invalid.
func parseRef(s string) (ref, error) {
	name, at, given := strings.Cut(s, "@")
	if err := id.CheckName("name", name); err != nil {
		return ref{}, err
	}
	if !given {
		return ref{name: name, alias: latest}, nil
	}
	if n, err := strconv.Atoi(at); err == nil && n > 0 && strconv.Itoa(n) == at {
		return ref{name: name, version: n}, nil
	}
	if checkAlias(at) != nil {
		return ref{}, fault.New(fault.Invalid, "%q names no version", clip(s)).
			WithHint("Write %s for the newest version, %s@3 for a version, or %s@ALIAS.", name, name, name)
	}
	return ref{name: name, alias: at}, nil
}

// checkAlias refuses what is no alias: a name that is not a number.
func checkAlias(a string) error {
	if strings.Trim(a, "0123456789") == "" {
		return fault.New(fault.Invalid, "alias %q looks like a version", clip(a)).WithHint("Use a name such as prod.")
	}
	return id.CheckName("alias", a)
}

// featureRef names a feature of a view, or with an empty feature all of them.
type featureRef struct {
	view    string // a ref
	feature string
}

// parseFeature reads "weather:temp", "weather@2:temp", "weather:*" or "weather".
// Error: fault.Invalid.
func parseFeature(s string) (featureRef, error) {
	view, name, given := strings.Cut(s, ":")
	if _, err := parseRef(view); err != nil {
		return featureRef{}, fault.New(fault.Invalid, "%q is not a feature: %s", clip(s), err).
			WithHint("Write VIEW:FEATURE, such as weather:temp, or VIEW for all features of a view.")
	}
	if given && name == "" {
		return featureRef{}, fault.New(fault.Invalid, "%q has no feature after the colon", clip(s))
	}
	if name == "*" {
		name = ""
	}
	return featureRef{view: view, feature: name}, nil
}

// SplitRef takes an exact ref such as "weather@3" apart. Error: fault.Invalid.
func SplitRef(s string) (name string, version int, err error) {
	r, err := parseRef(s)
	if err == nil && r.version == 0 {
		err = fault.New(fault.Invalid, "%q is not an exact version", clip(s))
	}
	return r.name, r.version, err
}
