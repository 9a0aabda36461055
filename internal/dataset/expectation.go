package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
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

// Expectation is a rule for the rows of a version.
type Expectation struct {
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

// Expectations are several. In JSON their numbers are read as they are written: a
// float64 does not hold every int64.
type Expectations []Expectation

// UnmarshalJSON implements json.Unmarshaler.
func (es *Expectations) UnmarshalJSON(b []byte) error {
	err := exactly(b, (*[]Expectation)(es))
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
func (e Expectation) settled() (Expectation, error) {
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
func (e Expectation) String() string {
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
func (e Expectation) key() []string {
	if e.Column != "" {
		return []string{e.Column}
	}
	return e.Columns
}

// Validate refuses an expectation that says nothing. Error: fault.Invalid.
func (e Expectation) Validate() error {
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

func (e Expectation) validateOtherwise(bad func(format string, args ...any) error) error {
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

// Verdict is how an expectation fared on a version.
type Verdict struct {
	Expectation Expectation `json:"expectation"`
	Passed      bool        `json:"passed"`
	Checked     int64       `json:"checked"` // rows that it applies to
	Failed      int64       `json:"failed"`  // of them; with otherwise: quarantine they are there
	Problem     string      `json:"problem,omitempty"`
	Against     string      `json:"against,omitempty"`  // the version that it was judged by, "customers@3"
	Note        string      `json:"note,omitempty"`     // what was found, where that is no count of rows
	Examples    []Example   `json:"examples,omitempty"` // the first failures, at most 5
}

// Example is a cell that failed. Value is empty, and Hidden set, for
// confidential and restricted data.
type Example struct {
	Row    int64  `json:"row"` // of what was read, from 1
	Column string `json:"column"`
	Value  string `json:"value,omitempty"`
	Hidden bool   `json:"hidden,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler, with numbers as they are written.
func (r *Verdict) UnmarshalJSON(b []byte) error {
	type plain Verdict
	err := exactly(b, (*plain)(r))
	if err == nil {
		r.Expectation, err = r.Expectation.settled()
	}
	return err
}

const maxExamples = 5

// String describes the failure and its place.
func (r Verdict) String() string { return r.text(true) }

// text is String, with the first value that failed or without.
func (r Verdict) text(value bool) string {
	s := r.Expectation.String()
	switch {
	case r.Passed && r.Expectation.Otherwise == Quarantine && r.Failed > 0:
		return s + fmt.Sprintf(" passes, with %d of %d rows quarantined", r.Failed, r.Checked)
	case r.Passed && r.Note != "":
		return s + " holds: " + r.Note
	case r.Passed:
		return s + " holds"
	case r.Problem != "":
		return s + " fails: " + r.Problem
	}
	s += fmt.Sprintf(" fails for %d of %d rows", r.Failed, r.Checked)
	if m := r.Expectation.AtMost; m != nil {
		s += fmt.Sprintf(", over at_most %g", *m)
	}
	if len(r.Examples) > 0 {
		x := r.Examples[0]
		s += fmt.Sprintf(", first at row %d, column %q", x.Row, x.Column)
		if value && !x.Hidden {
			s += fmt.Sprintf(": %q", x.Value)
		}
	}
	return s
}

// checker judges expectations over the batches of one version.
type checker struct {
	checks []*check
	sifts  bool  // rows go to the quarantine; else every expectation only judges
	read   int64 // rows, those in quarantine too
	rows   int64 // in the version
	budget int   // distinct keys that may still be remembered, over all checks
}

type check struct {
	e        Expectation
	words    string // the reason of rows that it sets aside
	cols     []int
	holds    func(a arrow.Array, i int) bool // of a value that is not null
	seen     map[[2]uint64]struct{}
	checked  int64
	failed   int64
	problem  string
	against  string
	note     string
	examples []Example
	hide     bool

	newest, now int64 // for fresh: in the unit of the column; newest is least when there is none
	newestAt    int64 // its row
	days        bool  // the unit is days
}

// newChecker prepares the expectations for a schema. keys bounds how many
// distinct keys the unique checks remember together; without sifts no row is set
// aside.
func newChecker(es []Expectation, s Schema, now time.Time, hide, sifts bool, keys int) *checker {
	c := &checker{budget: keys, sifts: sifts}
	for _, e := range es {
		k := &check{e: e, hide: hide}
		c.checks = append(c.checks, k)
		for _, name := range e.key() {
			i := slices.IndexFunc(s, func(f Field) bool { return f.Name == name })
			if i < 0 {
				k.problem = fmt.Sprintf("there is no column %q", name)
				break
			}
			k.cols = append(k.cols, i)
		}
		if k.problem != "" {
			continue
		}
		var err error
		switch e.Check {
		case Between:
			k.holds, err = betweenOf(s[k.cols[0]].Type, e)
		case InSet:
			k.holds, err = inSetOf(s[k.cols[0]].Type, e.Values)
		case Unique:
			k.seen = make(map[[2]uint64]struct{})
		case Matches:
			k.holds, err = matchesOf(s[k.cols[0]].Type, e.Pattern)
		case Length:
			k.holds, err = lengthOf(s[k.cols[0]].Type, e.Min, e.Max)
		case Fresh:
			if !sifts { // the version stands for one of another time
				k.note = notJudgedAgain
				break
			}
			k.now, err = columnTime(s[k.cols[0]].Type, now)
			k.newest, k.days = math.MinInt64, s[k.cols[0]].Type == table.Date
		case NotNull, HasColumn, RowCount, Refers, Drift:
		}
		if err != nil {
			k.problem = err.Error()
		}
	}
	return c
}

// broken is the expectations that a row breaks: a bit for each, by its place.
type broken [maxExpectations / 64]uint64

// reasons says why a row goes: the first rules that it breaks, a line each, and how
// many more there are.
func (c *checker) reasons(b broken) string {
	var lines []string
	more := 0
	for n, k := range c.checks {
		switch {
		case b[n/64]&(1<<(n%64)) == 0:
		case len(lines) < maxReasons:
			if k.words == "" {
				k.words = strings.ReplaceAll(clip(k.e.String()), reasonsApart, " ")
			}
			lines = append(lines, k.words)
		default:
			more++
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, reasonsApart)
}

// sift judges the rows of a batch by the expectations that set rows aside, and
// says which go, and why. A row that goes takes no key from a later one.
// Error: fault.TooLarge when unique keys are too many.
func (c *checker) sift(rec arrow.RecordBatch) (aside map[int]broken, err error) {
	first := c.read
	c.read += rec.NumRows()
	if !c.sifts {
		return nil, nil
	}
	goes := func(n, i int) {
		if aside == nil {
			aside = map[int]broken{}
		}
		b := aside[i]
		b[n/64] |= 1 << (n % 64)
		aside[i] = b
		c.checks[n].fail(rec, i, first+int64(i)+1)
	}
	var keys []*check
	var at []int // their places
	for n, k := range c.checks {
		switch {
		case k.e.Otherwise != Quarantine || k.problem != "":
		case k.e.Check == Unique:
			keys, at = append(keys, k), append(at, n)
		default:
			k.each(rec, func(i int) { goes(n, i) })
		}
	}
	if len(keys) == 0 {
		return aside, nil
	}
	fresh, own := make([][2]uint64, len(keys)), make([]bool, len(keys))
	for i := range int(rec.NumRows()) {
		for n, k := range keys {
			if fresh[n], own[n] = k.key(rec, i); !own[n] {
				continue
			}
			k.checked++
			if _, twice := k.seen[fresh[n]]; twice {
				goes(at[n], i)
			}
		}
		if _, gone := aside[i]; gone {
			continue
		}
		for n, k := range keys {
			if own[n] {
				if err := c.remember(k, fresh[n]); err != nil {
					return nil, err
				}
			}
		}
	}
	return aside, nil
}

// add judges rows of the version; row is where each was read. Error:
// fault.TooLarge when unique keys are too many.
func (c *checker) add(rec arrow.RecordBatch, row func(i int) int64) error {
	c.rows += rec.NumRows()
	for _, k := range c.checks {
		switch {
		case k.problem != "" || k.note == notJudgedAgain:
		case k.e.Check == Fresh:
			k.observeFreshness(rec, row)
		case !k.e.Check.ofRows() || c.sifts && k.e.Otherwise == Quarantine:
		case k.e.Check == Unique:
			if err := c.unique(k, rec, row); err != nil {
				return err
			}
		default:
			k.each(rec, func(i int) { k.fail(rec, i, row(i)) })
		}
	}
	return nil
}

func (k *check) fail(rec arrow.RecordBatch, i int, row int64) {
	k.failed++
	if len(k.examples) < maxExamples {
		x := Example{Row: row, Column: strings.Join(k.e.key(), ", "), Hidden: k.hide}
		if !k.hide {
			x.Value = clip(joined{rec, k.cols}.text(i))
		}
		k.examples = append(k.examples, x)
	}
}

func clip(s string) string { return fault.Clip(s, 200) }

// each visits the rows that break a check of one column.
func (k *check) each(rec arrow.RecordBatch, broken func(i int)) {
	a := rec.Column(k.cols[0])
	if k.e.Check == NotNull {
		k.checked += int64(a.Len())
		if a.NullN() == 0 {
			return
		}
	}
	for i := range a.Len() {
		switch null := a.IsNull(i); {
		case k.e.Check == NotNull:
			if null {
				broken(i)
			}
		case null:
		default:
			k.checked++
			if !k.holds(a, i) {
				broken(i)
			}
		}
	}
}

// key is a digest of a row's key; ok is false when a part of it is null.
func (k *check) key(rec arrow.RecordBatch, i int) (key [2]uint64, ok bool) {
	var room [256]byte
	buf := room[:0]
	for _, col := range k.cols {
		a := rec.Column(col)
		if a.IsNull(i) {
			return key, false
		}
		buf = appendCell(buf, a, i)
	}
	h := xxh3.Hash128(buf)
	return [2]uint64{h.Hi, h.Lo}, true
}

func (c *checker) remember(k *check, key [2]uint64) error {
	if c.budget--; c.budget < 0 {
		return fault.New(fault.TooLarge, "%s: there are too many distinct keys for the memory limit", k.e).
			WithHint("Raise dataset.unique_keys (48 bytes of memory per key), or remove the expectation.")
	}
	k.seen[key] = struct{}{}
	return nil
}

func (c *checker) unique(k *check, rec arrow.RecordBatch, row func(i int) int64) error {
	for i := range int(rec.NumRows()) {
		key, ok := k.key(rec, i)
		if !ok {
			continue
		}
		k.checked++
		if _, twice := k.seen[key]; twice {
			k.fail(rec, i, row(i))
		} else if err := c.remember(k, key); err != nil {
			return err
		}
	}
	return nil
}

// joined is several columns read as one key.
type joined struct {
	rec  arrow.RecordBatch
	cols []int
}

func (j joined) text(i int) string {
	parts := make([]string, len(j.cols))
	for n, c := range j.cols {
		parts[n] = cellText(j.rec.Column(c), i)
	}
	return strings.Join(parts, ", ")
}

// results ends the check.
func (c *checker) results() []Verdict {
	out := make([]Verdict, len(c.checks))
	for i, k := range c.checks {
		if k.e.Check == Fresh && k.note != notJudgedAgain {
			k.checkFreshness()
		}
		r := Verdict{Expectation: k.e, Checked: k.checked, Failed: k.failed, Problem: k.problem, Against: k.against, Note: k.note, Examples: k.examples}
		if k.e.Check == RowCount {
			r.Checked = c.rows
			if lo, ok := number(k.e.Min); ok && float64(c.rows) < lo {
				r.Problem = fmt.Sprintf("it has %d rows", c.rows)
			}
			if hi, ok := number(k.e.Max); ok && float64(c.rows) > hi {
				r.Problem = fmt.Sprintf("it has %d rows", c.rows)
			}
			r.Passed = r.Problem == ""
			out[i] = r
			continue
		}
		if k.e.Otherwise == Quarantine {
			r.Passed = k.problem == "" && (k.e.AtMost == nil || float64(k.failed) <= *k.e.AtMost*float64(c.read))
			out[i] = r
			continue
		}
		mostly := k.e.Mostly
		if mostly == 0 {
			mostly = 1
		}
		r.Passed = k.problem == "" && float64(k.checked-k.failed) >= mostly*float64(k.checked)
		out[i] = r
	}
	return out
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case json.Number:
		f, err := n.Float64()
		return f, err == nil
	}
	return 0, false
}

// matchesOf looks for a pattern that Validate has seen.
func matchesOf(t Type, pattern string) (func(arrow.Array, int) bool, error) {
	if t != table.String {
		return nil, fmt.Errorf("a column of %s is not text", t)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return func(a arrow.Array, i int) bool { return re.MatchString(a.(*array.String).Value(i)) }, nil
}

func lengthOf(t Type, lo, hi any) (func(arrow.Array, int) bool, error) {
	if t != table.String {
		return nil, fmt.Errorf("a column of %s is not text", t)
	}
	least, hasLeast := number(lo)
	most, hasMost := number(hi)
	return func(a arrow.Array, i int) bool {
		n := float64(utf8.RuneCountInString(a.(*array.String).Value(i)))
		return (!hasLeast || n >= least) && (!hasMost || n <= most)
	}, nil
}

// betweenOf makes the comparison for a column's type.
func betweenOf(t Type, e Expectation) (func(arrow.Array, int) bool, error) {
	_, list := t.Elem()
	for _, v := range []any{e.Min, e.Max} {
		_, isText := v.(string)
		switch {
		case list || t == table.String || t == table.Bool:
			return nil, fmt.Errorf("a column of %s has no order, so between cannot check it", t)
		case v == nil || t.Numeric() && !isText:
			continue
		}
		if _, ok := timeOf(t, v); !ok {
			return nil, fmt.Errorf("%s is not a valid bound for a column of %s", scalarText(v), t)
		}
	}
	if t == table.Float64 || t == table.Float32 {
		least, most := math.Inf(-1), math.Inf(1)
		if v, ok := number(e.Min); ok {
			least = v
		}
		if v, ok := number(e.Max); ok {
			most = v
		}
		return func(a arrow.Array, i int) bool {
			v := cellNumber(a, i)
			return v >= least && v <= most && (!e.StrictMin || v != least) && (!e.StrictMax || v != most)
		}, nil
	}
	// A float64 does not hold every int64, so what is one is compared as one.
	least, fitsLeast := leastOf(t, e.Min, e.StrictMin)
	most, fitsMost := mostOf(t, e.Max, e.StrictMax)
	return func(a arrow.Array, i int) bool {
		v := cellInt(a, i)
		return fitsLeast && fitsMost && v >= least && v <= most
	}, nil
}

// leastOf is the least int64 that a bound lets through; ok is false when there is none.
func leastOf(t Type, bound any, strict bool) (least int64, ok bool) {
	if n, whole := intOf(t, bound); whole {
		if strict && n == math.MaxInt64 {
			return 0, false
		}
		if strict {
			n++
		}
		return n, true
	}
	switch f, _ := number(bound); {
	case bound == nil || f < math.MinInt64:
		return math.MinInt64, true
	case f >= math.MaxInt64:
		return 0, false
	default:
		return int64(math.Ceil(f)), true
	}
}

// mostOf is the greatest int64 that a bound lets through; ok is false when there is none.
func mostOf(t Type, bound any, strict bool) (most int64, ok bool) {
	if n, whole := intOf(t, bound); whole {
		if strict && n == math.MinInt64 {
			return 0, false
		}
		if strict {
			n--
		}
		return n, true
	}
	switch f, _ := number(bound); {
	case bound == nil || f >= math.MaxInt64:
		return math.MaxInt64, true
	case f < math.MinInt64:
		return 0, false
	default:
		return int64(math.Floor(f)), true
	}
}

// inSetOf looks for the values of a set that are of the column's type: the text "1"
// is not the number.
func inSetOf(t Type, values []any) (func(arrow.Array, int) bool, error) {
	texts, floats, ints, bools := map[string]bool{}, map[float64]bool{}, map[int64]bool{}, map[bool]bool{}
	for _, v := range values {
		text, isText := v.(string)
		yes, isBool := v.(bool)
		float, isNumber := number(v)
		n, isInt := intOf(t, v)
		switch {
		case t == table.String && isText:
			texts[text] = true
		case t == table.Bool && isBool:
			bools[yes] = true
		case t == table.Float64 && isNumber:
			floats[float] = true
		case t == table.Float32 && isNumber:
			floats[float64(float32(float))] = true
		case isInt && (t.Integer() || t == table.Timestamp || t == table.Date):
			ints[n] = true
		}
	}
	if len(texts)+len(floats)+len(ints)+len(bools) == 0 {
		return nil, fmt.Errorf("the column is %s, and no value in the set has that type", t)
	}
	switch t {
	case table.String:
		return func(a arrow.Array, i int) bool { return texts[a.(*array.String).Value(i)] }, nil
	case table.Bool:
		return func(a arrow.Array, i int) bool { return bools[a.(*array.Boolean).Value(i)] }, nil
	case table.Float64, table.Float32:
		return func(a arrow.Array, i int) bool { return floats[cellNumber(a, i)] }, nil
	default:
	}
	return func(a arrow.Array, i int) bool { return ints[cellInt(a, i)] }, nil
}

// intOf is a manifest's scalar as a column that keeps integers keeps it: days for
// dates, microseconds for timestamps.
func intOf(t Type, v any) (int64, bool) {
	if !t.Integer() {
		return timeOf(t, v)
	}
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64 //nolint:gosec // looked at beside
	case json.Number:
		if i, err := n.Int64(); err == nil {
			return i, true
		}
	}
	f, ok := number(v)
	return int64(f), ok && f == math.Trunc(f) && f >= math.MinInt64 && f < math.MaxInt64
}

// timeOf is a date or a timestamp of a manifest in the unit of its column. A time
// without a zone is UTC.
func timeOf(t Type, v any) (int64, bool) {
	text, isText := v.(string)
	if !isText || t != table.Timestamp && t != table.Date {
		return 0, false
	}
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		if t == table.Date {
			return at.Unix() / 86400, true
		}
		return at.UnixMicro(), true
	}
	if t == table.Date {
		return 0, false
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UnixMicro(), true
		}
	}
	return 0, false
}

// scalarText is a manifest's scalar in words.
func scalarText(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case bool:
		return strconv.FormatBool(x)
	case int:
		return strconv.Itoa(x)
	case int64:
		return strconv.FormatInt(x, 10)
	case uint64:
		return strconv.FormatUint(x, 10)
	case json.Number:
		return x.String()
	case float64:
		return floatText(x)
	}
	return fmt.Sprint(v)
}
