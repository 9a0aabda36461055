// Package expectation checks the rules that the rows of a dataset's version must satisfy.
//
// # Map
//
//   - expectation.go: Rule, its checks and what a manifest may say.
//   - checker.go: Checker. Sift decides which rows go to the quarantine, Add checks the rows
//     that stay, Results says which expectations the version passes.
//   - contextual.go: expectations that need more than the rows: References another dataset,
//     Comparisons an earlier version, fresh the time.
//   - values.go compares values with bounds and sets; result.go: Result.
package expectation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Limits of a rule.
const (
	Max          = 256 // expectations of a dataset
	maxSetValues = 10_000
	maxPattern   = 4 << 10
)

// Check is what an expectation demands.
type Check string

// The checks. Nulls satisfy between, in_set, matches, length and refers, and unique skips rows
// with a null in the key; use not_null for these.
const (
	NotNull   Check = "not_null"
	Unique    Check = "unique"
	Between   Check = "between" // bounds included unless strict; NaN is outside
	InSet     Check = "in_set"
	Matches   Check = "matches" // somewhere in the text, unless the pattern says ^ and $
	Length    Check = "length"  // of text, in characters
	HasColumn Check = "has_column"
	RowCount  Check = "row_count"
	Refers    Check = "refers" // to a value in a column of another dataset
	Fresh     Check = "fresh"  // the newest time that has come is not long ago
	Drift     Check = "drift"  // from the newest accepted version
)

// Rule is an expectation for the rows of a version.
type Rule struct {
	Check     Check    `json:"check" doc:"Rule" enum:"not_null,unique,between,in_set,matches,length,has_column,row_count,refers,fresh,drift"`
	Column    string   `json:"column,omitempty" doc:"Column"`
	Columns   []string `json:"columns,omitempty" doc:"For unique: the columns that together are the key"`
	Min       any      `json:"min,omitempty" doc:"For between, length and row_count: minimum; a number, or a date or timestamp as text. For drift by a test: minimum p-value"`
	Max       any      `json:"max,omitempty" doc:"For between, length and row_count: maximum. For drift by a distance: maximum distance; default 0.25"`
	StrictMin bool     `json:"strict_min,omitempty" doc:"For between: exclude min itself"`
	StrictMax bool     `json:"strict_max,omitempty" doc:"For between: exclude max itself"`
	Values    []any    `json:"values,omitempty" doc:"For in_set: the allowed values"`
	Pattern   string   `json:"pattern,omitempty" doc:"For matches: a regular expression (RE2) that matches a part of the text"`
	In        *Target  `json:"in,omitempty" doc:"For refers: column that must contain the value"`
	Within    string   `json:"within,omitempty" doc:"For fresh: maximum age of the newest time, such as 24h or 7d"`
	Method    string   `json:"method,omitempty" doc:"For drift: test or distance, as in monitors; default psi"`
	Mostly    float64  `json:"mostly,omitempty" doc:"Minimum share of rows that satisfy it; default 1" minimum:"0" maximum:"1"`

	Otherwise Otherwise `json:"otherwise,omitempty" doc:"Action on rows that fail: reject (the default) rejects the version; quarantine moves the rows, with the reasons, to the version's quarantine" enum:"reject,quarantine"`
	AtMost    *float64  `json:"at_most,omitempty" doc:"For otherwise: quarantine: maximum share of quarantined rows; with more, the version is rejected. Default: no limit" minimum:"0" maximum:"1"`
}

// Rules are several. In JSON their numbers are read as they are written: a
// float64 does not hold every int64.
type Rules []Rule

// UnmarshalJSON implements json.Unmarshaler.
func (es *Rules) UnmarshalJSON(b []byte) error {
	err := exactly(b, (*[]Rule)(es))
	for i := range *es {
		if err == nil {
			(*es)[i], err = (*es)[i].settled()
		}
	}
	return err
}

// exactly reads JSON with numbers as json.Number.
func exactly(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(into)
}

// settled has numbers as int64 or, where they are none, float64.
func (e Rule) settled() (Rule, error) {
	all := []*any{&e.Min, &e.Max}
	for i := range e.Values {
		all = append(all, &e.Values[i])
	}
	for _, v := range all {
		n, is := (*v).(json.Number)
		if !is {
			continue
		}
		if i, whole := intOf(table.Int64, n); whole {
			*v = i
			continue
		}
		f, err := n.Float64()
		if err != nil {
			return e, fault.New(fault.Invalid, "%s: %s is not a valid number", e.Check, n)
		}
		*v = f
	}
	return e, nil
}

// Target is a column of another dataset, whose newest accepted version is meant.
type Target struct {
	Dataset string `json:"dataset" doc:"Dataset; its newest accepted version is used"`
	Column  string `json:"column" doc:"Column of the same type, or of another integer or float type"`
}

// Otherwise is what rows that break an expectation do.
type Otherwise string

// The ways: the version is rejected, or goes without them.
const (
	Reject     Otherwise = "reject" // the default
	Quarantine Otherwise = "quarantine"
)

// ofRows reports whether single rows break the check, and can be set aside.
func (c Check) ofRows() bool {
	switch c {
	case NotNull, Unique, Between, InSet, Matches, Length, Refers:
		return true
	case HasColumn, RowCount, Fresh, Drift:
	}
	return false
}

// String formats the expectation, such as "between(temp, -20, 50)".
func (e Rule) String() string {
	var b strings.Builder
	b.WriteString(string(e.Check) + "(" + strings.Join(e.key(), ", "))
	switch e.Check {
	case NotNull, Unique, HasColumn:
	case Refers:
		fmt.Fprintf(&b, ", %s.%s", e.In.Dataset, e.In.Column)
	case Fresh:
		b.WriteString(", " + e.Within)
	case Drift:
		b.WriteString(", " + string(e.driftMethod()))
	case Between, Length:
		fmt.Fprintf(&b, ", %s%s, %s%s", strictText(e.StrictMin, ">"), boundText(e.Min), strictText(e.StrictMax, "<"), boundText(e.Max))
	case Matches:
		fmt.Fprintf(&b, ", %q", e.Pattern)
	case RowCount:
		fmt.Fprintf(&b, "%s, %s", boundText(e.Min), boundText(e.Max))
	case InSet:
		for i, v := range e.Values {
			if i == 10 {
				fmt.Fprintf(&b, ", … %d more", len(e.Values)-i)
				break
			}
			b.WriteString(", " + scalarText(v))
		}
	}
	b.WriteString(")")
	if e.Mostly != 0 && e.Mostly != 1 {
		fmt.Fprintf(&b, " for %g of the rows", e.Mostly)
	}
	return b.String()
}

func strictText(strict bool, sign string) string {
	if strict {
		return sign
	}
	return ""
}

func boundText(v any) string {
	if v == nil {
		return "…"
	}
	return scalarText(v)
}

// key is the columns that the expectation is about.
func (e Rule) key() []string {
	if e.Column != "" {
		return []string{e.Column}
	}
	return e.Columns
}

// Validate refuses an expectation that says nothing. Error: fault.Invalid.
func (e Rule) Validate() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "%s: %s", e.Check, fmt.Sprintf(format, args...))
	}
	if e.Column != "" && len(e.Columns) > 0 {
		return bad("set either column or columns, not both")
	}
	if e.Mostly < 0 || e.Mostly > 1 || math.IsNaN(e.Mostly) {
		return bad("mostly is %g, and must be between 0 and 1", e.Mostly)
	}
	switch e.Check {
	case NotNull, Between, InSet, Matches, Length, HasColumn, Refers, Fresh, Drift:
		if e.Column == "" {
			return bad("column is required")
		}
	case Unique:
		if len(e.key()) == 0 || len(e.key()) > 16 {
			return bad("it names %d columns, and must name 1 to 16", len(e.key()))
		}
		if k := slices.Sorted(slices.Values(e.key())); len(slices.Compact(k)) != len(e.key()) {
			return bad("it names a duplicate column")
		}
	case RowCount:
		if len(e.key()) > 0 {
			return bad("it checks the table and takes no column")
		}
	default:
		return fault.New(fault.Invalid, "there is no check %q", string(e.Check)).WithHint("The checks are not_null, unique, between, in_set, matches, length, has_column, row_count, refers, fresh and drift.")
	}
	if err := e.validateOtherwise(bad); err != nil {
		return err
	}
	if err := e.validateContextual(bad); err != nil {
		return err
	}
	if hasBounds := e.Check != Drift && (e.Min != nil || e.Max != nil); hasBounds != (e.Check == Between || e.Check == Length || e.Check == RowCount) {
		if hasBounds {
			return bad("it takes no min or max")
		}
		return bad("min or max is required")
	}
	for _, v := range []any{e.Min, e.Max} {
		switch v.(type) {
		case nil, float64, int, int64, uint64, json.Number:
		case string:
			if e.Check != Between {
				return bad("%q is not a number", v)
			}
		default:
			return bad("%v is not a number, date or timestamp", v)
		}
	}
	if (e.StrictMin || e.StrictMax) && e.Check != Between {
		return bad("strict_min and strict_max are valid only with the check between")
	}
	if e.StrictMin && e.Min == nil || e.StrictMax && e.Max == nil {
		return bad("strict_min needs min, and strict_max needs max")
	}
	if (e.Pattern != "") != (e.Check == Matches) {
		return bad("the check matches requires a pattern, and other checks take none")
	}
	if len(e.Pattern) > maxPattern {
		return bad("a pattern of %d bytes is over the limit of %d", len(e.Pattern), maxPattern)
	}
	if _, err := regexp.Compile(e.Pattern); err != nil {
		return bad("the pattern is not a valid RE2 expression: %v", err)
	}
	if (len(e.Values) > 0) != (e.Check == InSet) {
		return bad("the check in_set requires values, and other checks take none")
	}
	if len(e.Values) > maxSetValues {
		return bad("%d values are over the limit of %d", len(e.Values), maxSetValues)
	}
	for _, v := range e.Values {
		switch v.(type) {
		case string, float64, int, int64, uint64, bool, json.Number:
		default:
			return bad("%v is not a string, number or bool", v)
		}
	}
	return nil
}

func (e Rule) validateOtherwise(bad func(format string, args ...any) error) error {
	switch e.Otherwise {
	case "", Reject:
		if e.AtMost != nil {
			return bad("at_most is valid only with otherwise: quarantine; to tolerate a share of failing rows, set mostly")
		}
	case Quarantine:
		switch {
		case !e.Check.ofRows():
			return bad("it checks the whole version, so it cannot quarantine rows")
		case e.Mostly != 0:
			return bad("mostly has no effect with otherwise: quarantine; to limit the share of quarantined rows, set at_most")
		case e.AtMost != nil && !(*e.AtMost > 0 && *e.AtMost <= 1):
			return bad("at_most is %g, and must be over 0 and at most 1; to reject a version with any failing row, omit otherwise", *e.AtMost)
		}
	default:
		return bad("otherwise is %q, and must be reject or quarantine", string(e.Otherwise))
	}
	return nil
}

// validateContextual refuses what refers, fresh and drift cannot mean.
func (e Rule) validateContextual(bad func(format string, args ...any) error) error {
	switch {
	case (e.In != nil) != (e.Check == Refers):
		return bad("the check refers requires in, such as {dataset: customers, column: id}, and other checks take none")
	case (e.Within != "") != (e.Check == Fresh):
		return bad("the check fresh requires within, such as 24h, and other checks take none")
	case e.Method != "" && e.Check != Drift:
		return bad("method is valid only with the check drift")
	case e.Mostly != 0 && (e.Check == Fresh || e.Check == Drift):
		return bad("it checks the column as a whole, so mostly has no effect")
	}
	switch e.Check {
	case Refers:
		if err := id.CheckName("dataset name", e.In.Dataset); err != nil {
			return bad("%v", err)
		}
		if e.In.Column == "" {
			return bad("in.column is required")
		}
	case Fresh:
		if err := CheckAge(e.Within); err != nil {
			return bad("within: %v", err)
		}
	case Drift:
		m := e.driftMethod()
		if m == drift.Auto || !slices.Contains(drift.Methods(), m) {
			return bad("there is no method %q; they are %v", e.Method, slices.DeleteFunc(drift.Methods(), func(m drift.Method) bool { return m == drift.Auto }))
		}
		least, hasLeast := number(e.Min)
		most, hasMost := number(e.Max)
		switch {
		case m.Distance() && (e.Min != nil || e.Max != nil && !(hasMost && most > 0)):
			return bad("%s is a distance: set only max, the drift threshold, to a number over 0", m)
		case !m.Distance() && (e.Max != nil || !hasLeast || !(least > 0 && least < 1)):
			return bad("%s is a test: set only min, the least p-value, to a number between 0 and 1, such as 0.001", m)
		}
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount:
	}
	return nil
}

// ReadsDataset is the dataset whose rows the expectation reads beside those that it checks;
// own is the one that it is of. Empty is none.
func (e Rule) ReadsDataset(own string) string {
	switch e.Check {
	case Refers:
		return e.In.Dataset
	case Drift:
		return own
	case NotNull, Unique, Between, InSet, Matches, Length, HasColumn, RowCount, Fresh:
	}
	return ""
}

// driftMethod is the method of a drift expectation.
func (e Rule) driftMethod() drift.Method {
	if e.Method == "" {
		return drift.PSI
	}
	return drift.Method(e.Method)
}

// CheckAge reads a time that may pass; empty is none.
func CheckAge(text string) error {
	d, err := resource.ParseDuration(text)
	if err == nil && text != "" && d < time.Minute {
		err = fault.New(fault.Invalid, "%q is less than a minute", text)
	}
	return err
}
