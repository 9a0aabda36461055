// Package naming is the one rule by which features are called, everywhere: in training
// sets, baselines, predictions, monitors and deployments. It is pure.
//
// A feature of a view has a full name, which says its view: "weather:temp" in manifests,
// with or without the view's version ("weather@3:temp"), and "weather__temp" as a column.
// Its short name is "temp". The full name always names it; the short one does where no
// other feature of those at hand has it, too. A column that is no feature has its own
// name only.
package naming

import (
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Column is what a column is called, and the feature that it is, if it is one.
type Column struct {
	Name    string // "temp" or "weather__temp"
	Feature string // "weather@3:temp"; empty when that is not known
}

// name is a name taken apart.
type name struct {
	view, version, short string // view is empty of a short name
	text                 string // the full name as a column, or the text
}

func parse(text string) name {
	view, short, ok := strings.Cut(text, ":")
	if !ok {
		return name{short: text, text: text}
	}
	view, version, _ := strings.Cut(view, "@")
	return name{view: view, version: version, short: short, text: view + "__" + short}
}

// FullColumn is the full name of a feature as a column: "weather__temp" for
// "weather@3:temp"; a name without a view is its own.
func FullColumn(feature string) string { return parse(feature).text }

// Short is the short name of a feature; a name without a view is its own.
func Short(feature string) string { return parse(feature).short }

// Find says which of the names at hand is meant: the very same, else the one with the
// same full name, else the one with the same short name. -1 is none. Error:
// fault.Invalid when it may be several.
func Find(known []string, text string) (int, error) {
	columns := make([]Column, len(known))
	for i, k := range known {
		columns[i] = Column{Name: k}
		if strings.Contains(k, ":") {
			columns[i].Feature = k
		}
	}
	return FindColumn(columns, text)
}

// FindColumn is Find among columns of which is known which feature they are.
func FindColumn(known []Column, text string) (int, error) {
	wanted := parse(text)
	for _, same := range []func(Column) bool{
		func(c Column) bool { return text != "" && (c.Name == text || c.Feature == text) },
		func(c Column) bool { // the full name
			f := parse(c.Feature)
			return c.Feature != "" && f.text == wanted.text && (f.version == "" || wanted.version == "" || f.version == wanted.version) ||
				c.Feature == "" && wanted.view != "" && c.Name == wanted.text
		},
		func(c Column) bool { // the short name
			if c.Feature != "" { // its view is known: a full name of another view is another feature
				return wanted.view == "" && parse(c.Feature).short == wanted.short
			}
			if wanted.view != "" { // a column that may have it
				return c.Name == wanted.short
			}
			return wanted.short != "" && strings.HasSuffix(c.Name, "__"+wanted.short)
		},
	} {
		var at []int
		for i, c := range known {
			if same(c) {
				at = append(at, i)
			}
		}
		switch len(at) {
		case 0:
			continue
		case 1:
			return at[0], nil
		}
		names := make([]string, len(at))
		for i, n := range at {
			if names[i] = known[n].Feature; names[i] == "" {
				names[i] = known[n].Name
			}
		}
		return -1, fault.New(fault.Invalid, "%.100q is ambiguous: %s", text, strings.Join(names, " or ")).WithHint("Write the full name.")
	}
	return -1, nil
}

// Match finds the column of each name. -1 is none, also where two names would be the same
// column because only their short names are there; why says so, by the name.
func Match(known []Column, wanted []string) (at []int, why map[string]string) {
	at, why = make([]int, len(wanted)), map[string]string{}
	by := map[int][]int{}
	for i, text := range wanted {
		var err error
		if at[i], err = FindColumn(known, text); err != nil {
			why[text] = err.Error()
		}
		if at[i] >= 0 {
			by[at[i]] = append(by[at[i]], i)
		}
	}
	for n, all := range by {
		if len(all) < 2 {
			continue
		}
		names := make([]string, len(all))
		for k, i := range all {
			names[k] = wanted[i]
		}
		slices.Sort(names)
		for _, i := range all {
			at[i] = -1
			why[wanted[i]] = "column " + known[n].Name + " may be " + strings.Join(names, " or ")
		}
	}
	return at, why
}
