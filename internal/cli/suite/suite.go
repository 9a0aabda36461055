// Package suite reads the expectation suites of Great Expectations, in the JSON
// of its releases 0.x and 1.x, and says them in the expectations of a Dataset.
//
// Only what means the same is taken (docs/guides/expectations.md says where data
// may still tell the two apart). Everything else is named in Left, with the reason.
// It decides purely: nothing is read but the bytes, nothing is reached.
package suite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// MaxBytes and maxEntries bound a suite.
const (
	MaxBytes   = 8 << 20
	maxEntries = 10_000
)

// Expectation is one entry of a Dataset's spec.expectations.
type Expectation struct {
	Check     string   `json:"check"`
	Column    string   `json:"column,omitempty"`
	Columns   []string `json:"columns,omitempty"`
	Min       any      `json:"min,omitempty"`
	Max       any      `json:"max,omitempty"`
	StrictMin bool     `json:"strict_min,omitempty"`
	StrictMax bool     `json:"strict_max,omitempty"`
	Values    []any    `json:"values,omitempty"`
	Pattern   string   `json:"pattern,omitempty"`
	Mostly    any      `json:"mostly,omitempty"`
}

// Left is an entry of the suite that was not taken.
type Left struct {
	Index  int // from 0
	Type   string
	Column string
	Why    string
}

// String says which and why: `expectations[3] expect_x(temp): why`.
func (l Left) String() string {
	name := l.Type
	if l.Column != "" {
		name += "(" + l.Column + ")"
	}
	return fmt.Sprintf("expectations[%d] %s: %s", l.Index, name, l.Why)
}

type entry struct {
	Type     string         `json:"type"`
	OldType  string         `json:"expectation_type"` // 0.x
	Kwargs   map[string]any `json:"kwargs"`
	Severity string         `json:"severity"`
	Windows  []any          `json:"windows"`
}

// Decode reads a suite. Error: fault.Invalid for what is not one.
func Decode(data []byte) ([]Expectation, []Left, error) {
	if len(data) > MaxBytes {
		return nil, nil, fault.New(fault.TooLarge, "the suite is over the limit of %d MiB", MaxBytes>>20)
	}
	var doc struct {
		Expectations *[]entry `json:"expectations"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, nil, fault.New(fault.Invalid, "the suite is not JSON of Great Expectations: %v", err)
	}
	if d.More() {
		return nil, nil, fault.New(fault.Invalid, "there is something behind the suite's JSON")
	}
	if doc.Expectations == nil {
		return nil, nil, fault.New(fault.Invalid, `the suite has no "expectations"`).
			WithHint("Give the JSON of the suite itself: a file of gx/expectations, or what suite.to_json_dict() returns.")
	}
	entries := *doc.Expectations
	if len(entries) > maxEntries {
		return nil, nil, fault.New(fault.TooLarge, "%d expectations are over the limit of %d", len(entries), maxEntries)
	}
	var taken []Expectation
	var left []Left
	for i, e := range entries {
		if e.Type == "" {
			e.Type = e.OldType
		}
		x, err := translate(e)
		if err != nil {
			column, _ := e.Kwargs["column"].(string)
			left = append(left, Left{i, e.Type, column, err.Error()})
			continue
		}
		taken = append(taken, x)
	}
	taken, left = wholeKeys(entries, taken, left)
	return taken, left, nil
}

// kinds is what is taken, by its name there.
var kinds = map[string]struct {
	check string
	args  []string // kwargs it may have
}{
	"expect_column_values_to_not_be_null":       {"not_null", []string{"column", "mostly"}},
	"expect_column_values_to_be_unique":         {"unique", []string{"column"}},
	"expect_compound_columns_to_be_unique":      {"unique", []string{"column_list", "ignore_row_if"}},
	"expect_column_values_to_be_between":        {"between", []string{"column", "min_value", "max_value", "strict_min", "strict_max", "mostly"}},
	"expect_column_values_to_be_in_set":         {"in_set", []string{"column", "value_set", "mostly"}},
	"expect_column_values_to_match_regex":       {"matches", []string{"column", "regex", "mostly"}},
	"expect_column_value_lengths_to_be_between": {"length", []string{"column", "min_value", "max_value", "mostly"}},
	"expect_column_value_lengths_to_equal":      {"length", []string{"column", "value", "mostly"}},
	"expect_column_to_exist":                    {"has_column", []string{"column"}},
	"expect_table_row_count_to_be_between":      {"row_count", []string{"min_value", "max_value"}},
	"expect_table_row_count_to_equal":           {"row_count", []string{"value"}},
}

// ofReport are kwargs about how a run is reported, not about what holds.
var ofReport = []string{"batch_id", "result_format", "catch_exceptions", "include_config", "auto", "profiler_config"}

func translate(e entry) (Expectation, error) {
	none := Expectation{}
	kind, ok := kinds[e.Type]
	switch {
	case e.Type == "":
		return none, errors.New("it has no type")
	case !ok:
		return none, errors.New("there is no such check in Falaj")
	case e.Severity != "" && e.Severity != "critical":
		return none, fmt.Errorf("severity is %q, and a version that fails a check of Falaj is always rejected", e.Severity)
	case len(e.Windows) > 0:
		return none, errors.New("windows depend on earlier runs")
	}
	for _, k := range slices.Sorted(maps.Keys(e.Kwargs)) {
		v := e.Kwargs[k]
		if v == nil || v == false || slices.Contains(ofReport, k) || slices.Contains(kind.args, k) {
			continue
		}
		return none, fmt.Errorf("%s cannot be said in Falaj", k)
	}
	a := args{kwargs: e.Kwargs}
	x := Expectation{Check: kind.check, Mostly: a.mostly()}
	for _, k := range kind.args {
		switch k {
		case "column":
			x.Column = a.text(k)
		case "column_list":
			x.Columns = a.columns()
		case "ignore_row_if":
			if v := e.Kwargs[k]; v != nil && v != anyMissing && v != allMissing {
				a.fail("ignore_row_if is %v, not %q or %q", v, anyMissing, allMissing)
			}
		case "min_value":
			x.Min = a.bound(k, kind.check)
		case "max_value":
			x.Max = a.bound(k, kind.check)
		case "value":
			if x.Min = a.bound(k, kind.check); x.Min == nil {
				a.fail("value is missing")
			}
			x.Max = x.Min
		case "strict_min":
			x.StrictMin = a.flag(k)
		case "strict_max":
			x.StrictMax = a.flag(k)
		case "value_set":
			x.Values = a.values()
		case "regex":
			x.Pattern = a.pattern()
		}
	}
	if slices.Contains(kind.args, "min_value") && x.Min == nil && x.Max == nil {
		a.fail("it has neither min_value nor max_value")
	}
	// A bound that is not there cannot be strict: it means nothing there, too.
	x.StrictMin, x.StrictMax = x.StrictMin && x.Min != nil, x.StrictMax && x.Max != nil
	return x, a.err
}

const (
	anyMissing = "any_value_is_missing"
	allMissing = "all_values_are_missing" // when left out
)

// wholeKeys leaves out keys of several columns that count rows with a null in one
// of them. Falaj leaves such rows out of unique, so it means the same only where
// the suite wants no null there.
func wholeKeys(entries []entry, taken []Expectation, left []Left) ([]Expectation, []Left) {
	filled := map[string]bool{}
	for _, x := range taken {
		if x.Check == "not_null" && x.Mostly == nil {
			filled[x.Column] = true
		}
	}
	refused := map[int]bool{}
	for _, l := range left {
		refused[l.Index] = true
	}
	out := taken[:0:0]
	next := 0
	for i, e := range entries {
		if refused[i] {
			continue
		}
		x := taken[next]
		next++
		nulls := slices.ContainsFunc(x.Columns, func(c string) bool { return !filled[c] })
		if nulls && e.Kwargs["ignore_row_if"] != anyMissing {
			name := e.Type
			if name == "" {
				name = e.OldType
			}
			left = append(left, Left{
				i, name, strings.Join(x.Columns, ", "),
				"Falaj leaves rows with a null in the key out: add expect_column_values_to_not_be_null for each column, or ignore_row_if: " + anyMissing,
			})
			continue
		}
		out = append(out, x)
	}
	slices.SortStableFunc(left, func(a, b Left) int { return a.Index - b.Index })
	return out, left
}

// args reads kwargs and keeps the first thing that is wrong.
type args struct {
	kwargs map[string]any
	err    error
}

func (a *args) fail(format string, v ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, v...)
	}
}

func (a *args) text(k string) string {
	s, ok := a.kwargs[k].(string)
	if !ok || s == "" {
		a.fail("%s is not text", k)
	}
	return s
}

func (a *args) flag(k string) bool {
	v, ok := a.kwargs[k].(bool)
	if !ok && a.kwargs[k] != nil {
		a.fail("%s is not true or false", k)
	}
	return v
}

// mostly is nil for 1. Falaj's 0 is 1, so a 0 there, which holds always, is refused.
func (a *args) mostly() any {
	v := a.kwargs["mostly"]
	if v == nil {
		return nil
	}
	n, _ := v.(json.Number)
	f, err := n.Float64()
	switch {
	case err != nil || f <= 0 || f > 1:
		a.fail("mostly is %v, not over 0 and at most 1", v)
	case f == 1:
		return nil
	}
	return n
}

func (a *args) columns() []string {
	list, _ := a.kwargs["column_list"].([]any)
	var out []string
	for _, v := range list {
		s, ok := v.(string)
		if !ok || s == "" || slices.Contains(out, s) {
			a.fail("column_list has %v, which is not the name of another column", v)
			continue
		}
		out = append(out, s)
	}
	if len(out) == 0 || len(out) > 16 {
		a.fail("column_list has %d columns, not 1 to 16", len(out))
	}
	return out
}

// bound is a number, or for between a date or a timestamp; one without a zone is UTC.
func (a *args) bound(k, check string) any {
	switch v := a.kwargs[k].(type) {
	case nil:
		return nil
	case json.Number:
		if _, err := v.Float64(); err == nil {
			return v
		}
	case string:
		if check != "between" {
			break
		}
		if _, err := time.Parse(time.DateOnly, v); err == nil {
			return v
		}
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime} {
			if at, err := time.Parse(layout, v); err == nil {
				return at.UTC().Format(time.RFC3339Nano)
			}
		}
	}
	a.fail("%s is %v, which is no bound of %s", k, a.kwargs[k], check)
	return nil
}

func (a *args) values() []any {
	list, _ := a.kwargs["value_set"].([]any)
	var out []any
	for _, v := range list {
		switch x := v.(type) {
		case nil: // a null always satisfies it
			continue
		case json.Number:
			if _, err := x.Float64(); err != nil {
				a.fail("value_set has %v, which is no number that a column holds", x)
			}
		case string, bool:
		default:
			a.fail("value_set has %v, not text, a number or a bool", v)
		}
		out = append(out, v)
	}
	if len(out) == 0 || len(out) > 10_000 {
		a.fail("value_set has %d values, not 1 to 10000", len(out))
	}
	return out
}

func (a *args) pattern() string {
	s := a.text("regex")
	if _, err := regexp.Compile(s); err != nil {
		a.fail("regex is not RE2, which has no lookaround and no back-references: %v", err)
	}
	if len(s) > 4<<10 {
		a.fail("regex has %d bytes, over the limit of 4096", len(s))
	}
	return s
}
