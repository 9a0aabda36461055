package ray

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// options are what a pool may say beside what remote engines share.
type options struct {
	strategy string            // of the placement group
	python   string            // that has ray, for gang.py
	labels   map[string]string // every worker's node must have
	exclude  []string          // nodes that get nothing
}

var (
	strategies = []string{"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
	// A program by name or path, without what a shell would read.
	pythonRE = regexp.MustCompile(`^[A-Za-z0-9_./+-]{1,200}$`)
	labelRE  = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)
)

// known says how each option is read; the table of docs/guides/engines-ray.md
// says what it does.
var known = map[string]func(o *options, v string) error{
	"strategy":        readStrategy,
	"python":          readPython,
	"labels":          readLabels,
	"exclude":         func(o *options, v string) error { o.exclude = list(v); return nil },
	"shared":          readBool,
	"node_dir":        shared,
	"node_cache":      shared,
	"node_cache_size": shared,
}

// readOptions refuses what Ray has not; fault.Invalid.
func readOptions(in map[string]string) (options, error) {
	o := options{strategy: "PACK", python: "python", labels: map[string]string{}}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		read := known[k]
		if read == nil {
			return o, fault.New(fault.Invalid, "Ray has no option %.80q", k).
				WithHint("Its options are %s.", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := read(&o, in[k]); err != nil {
			return o, fault.Wrap(err, "option %s", k)
		}
	}
	return o, nil
}

// shared is an option that package remote reads.
func shared(*options, string) error { return nil }

func list(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
}

func readBool(_ *options, v string) error {
	if _, err := strconv.ParseBool(v); err != nil {
		return fault.New(fault.Invalid, "%.80q is neither true nor false", v)
	}
	return nil
}

func readStrategy(o *options, v string) error {
	if !slices.Contains(strategies, v) {
		return fault.New(fault.Invalid, "%.80q is not one of %s", v, strings.Join(strategies, ", "))
	}
	o.strategy = v
	return nil
}

func readPython(o *options, v string) error {
	if !pythonRE.MatchString(v) {
		return fault.New(fault.Invalid, "%.80q is not a program", v)
	}
	o.python = v
	return nil
}

func readLabels(o *options, v string) error {
	for _, kv := range list(v) {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || !labelRE.MatchString(k) || !labelRE.MatchString(v) {
			return fault.New(fault.Invalid, "%.80q is not label=value", kv)
		}
		o.labels[k] = v
	}
	return nil
}
