package environment

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/environment/python"
)

// FromInterpreter is Package.From of what an interpreter brings.
const FromInterpreter = "interpreter"

// chooseSite picks the interpreter whose packages an environment stands on: of
// those of its version the one that brings most of the required packages;
// between equals the machine's own, below /usr, then the order given.
func (s *Service) chooseSite(ctx context.Context, among []Interpreter, required []string) (Interpreter, error) {
	best, most := Interpreter{}, -1
	var last error
	for _, in := range among {
		has, err := s.sites.Packages(ctx, in.Path)
		if err != nil {
			last = err
			continue
		}
		n := 0
		for _, name := range required {
			if _, ok := has[name]; ok {
				n += 2
			}
		}
		if system(in.Prefix) {
			n++
		}
		if n > most {
			best, most = in, n
			best.Site = has
		}
	}
	if most < 0 {
		return best, last
	}
	return best, nil
}

// required are the canonical names in the requirements.
func (s Spec) required() ([]string, error) {
	lines, err := s.lines()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(lines))
	for i, line := range lines {
		names[i] = python.Canonical(python.Name(line))
	}
	return names, nil
}

// inConflictRE finds the packages of an interpreter in uv's derivation of a conflict.
var inConflictRE = regexp.MustCompile(`([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?(?:\{[^}]*\})?==[^\s,]+` + regexp.QuoteMeta(python.SiteMark))

// replace lets an environment have its own version of the packages of the interpreter
// that were in conflict when the requirements were locked, except those that the
// requirements name. It reports whether there were any.
func replace(e *Environment, log string) bool {
	named, err := e.Spec.required()
	if !e.Spec.SitePackages || err != nil {
		return false
	}
	before := len(e.Interpreter.Replaced)
	for _, m := range inConflictRE.FindAllStringSubmatch(log, -1) {
		name := python.Canonical(m[1])
		if _, has := e.Interpreter.Site[name]; has && !slices.Contains(named, name) && !slices.Contains(e.Interpreter.Replaced, name) {
			e.Interpreter.Replaced = append(e.Interpreter.Replaced, name)
		}
	}
	return len(e.Interpreter.Replaced) > before
}

// replacements says which packages of an interpreter have another version in the
// environment; empty if none.
func replacements(e Environment) string {
	var words []string
	for _, p := range e.SBOM {
		if was, has := e.Interpreter.Site[python.Canonical(p.Name)]; has && p.From == "" {
			words = append(words, fmt.Sprintf("%s %s instead of %s", p.Name, p.Version, was))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "The requirements conflict with packages of the interpreter, which are replaced in this environment: " + strings.Join(words, ", ") + "."
}

// onTop drops from a lock what the interpreter brings.
func onTop(lock string, packages map[string]string) string {
	return onlyPackages(lock, func(name, locked string) bool {
		version, ok := python.Pinned(packages[python.Canonical(name)])
		return !ok || version != locked
	})
}

// siteSBOM is the packages of an interpreter as entries of a bill of materials.
func siteSBOM(packages map[string]string) []Package {
	all := make([]Package, 0, len(packages))
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		all = append(all, Package{Name: name, Version: packages[name], Hashes: []string{}, From: FromInterpreter})
	}
	return all
}
