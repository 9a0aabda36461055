package expectation

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// notCheckedAgain is the note of expectations that need more than the rows, for a version that
// replaces another one: the rows are of another time.
const notCheckedAgain = "not checked again"

const (
	// MaxReasons is how many reasons a row in quarantine has, and then how many more: whoever
	// reads has a batch of them in memory.
	MaxReasons = 10
	// ReasonSeparator is between two reasons.
	ReasonSeparator = "\n"
)

// Checker checks expectations over the batches of one version.
type Checker struct {
	checks []*check
	sifts  bool  // rows go to the quarantine; else every expectation is only checked
	read   int64 // rows, those in quarantine too
	rows   int64 // in the version
	budget int   // distinct keys that may still be remembered, over all checks
}

type check struct {
	e        Rule
	words    string // the reason of rows that it sets aside
	cols     []int
	types    []table.Type                    // of these columns
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

// New prepares the expectations for a schema. keys bounds how many distinct keys the unique
// checks remember together. Without sifts the version replaces another one, and no row is set
// aside.
func New(es []Rule, s table.Schema, now time.Time, hide, sifts bool, keys int) *Checker {
	c := &Checker{budget: keys, sifts: sifts}
	for _, e := range es {
		k := &check{e: e, hide: hide}
		c.checks = append(c.checks, k)
		for _, name := range e.key() {
			i := slices.IndexFunc(s, func(f table.Field) bool { return f.Name == name })
			if i < 0 {
				k.problem = fmt.Sprintf("there is no column %q", name)
				break
			}
			k.cols, k.types = append(k.cols, i), append(k.types, s[i].Type)
		}
		if k.problem != "" {
			continue
		}
		if again := e.Check == Fresh || e.Check == Refers || e.Check == Drift; again && !sifts {
			k.note = notCheckedAgain
			continue
		}
		var err error
		switch e.Check {
		case Between:
			k.holds, err = betweenOf(k.types[0], e)
		case InSet:
			k.holds, err = inSetOf(k.types[0], e.Values)
		case Unique:
			k.seen = make(map[[2]uint64]struct{})
		case Matches:
			k.holds, err = matchesOf(k.types[0], e.Pattern)
		case Length:
			k.holds, err = lengthOf(k.types[0], e.Min, e.Max)
		case Fresh:
			k.now, err = columnTime(k.types[0], now)
			k.newest, k.days = math.MinInt64, k.types[0] == table.Date
		case NotNull, HasColumn, RowCount, Refers, Drift:
		}
		if err != nil {
			k.problem = err.Error()
		}
	}
	return c
}

// RowsRead is how many rows were read, those in quarantine too.
func (c *Checker) RowsRead() int64 { return c.read }

// Broken are the expectations that a row breaks: a bit for each, by its place.
type Broken [Max / 64]uint64

// Reasons says why a row is set aside: the first expectations that it breaks, a line each, and how
// many more there are.
func (c *Checker) Reasons(b Broken) string {
	var lines []string
	more := 0
	for n, k := range c.checks {
		switch {
		case b[n/64]&(1<<(n%64)) == 0:
		case len(lines) < MaxReasons:
			if k.words == "" {
				k.words = strings.ReplaceAll(clip(k.e.String()), ReasonSeparator, " ")
			}
			lines = append(lines, k.words)
		default:
			more++
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, ReasonSeparator)
}

// Sift checks the rows of a batch by the expectations that set rows aside, and
// says which go, and why. A row that goes takes no key from a later one.
// Error: fault.TooLarge when unique keys are too many.
func (c *Checker) Sift(rec arrow.RecordBatch) (aside map[int]Broken, err error) {
	first := c.read
	c.read += rec.NumRows()
	if !c.sifts {
		return nil, nil
	}
	goes := func(n, i int) {
		if aside == nil {
			aside = map[int]Broken{}
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

// Add checks rows of the version; row is where each was read. Error:
// fault.TooLarge when unique keys are too many.
func (c *Checker) Add(rec arrow.RecordBatch, row func(i int) int64) error {
	c.rows += rec.NumRows()
	for _, k := range c.checks {
		switch {
		case k.problem != "" || k.note == notCheckedAgain:
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

// clip bounds a text that is kept.
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
		buf = cell.Append(buf, a, i)
	}
	h := xxh3.Hash128(buf)
	return [2]uint64{h.Hi, h.Lo}, true
}

func (c *Checker) remember(k *check, key [2]uint64) error {
	if c.budget--; c.budget < 0 {
		return fault.New(fault.TooLarge, "%s: there are too many distinct keys for the memory limit", k.e).
			WithHint("Raise dataset.unique_keys (48 bytes of memory per key), or remove the expectation.")
	}
	k.seen[key] = struct{}{}
	return nil
}

func (c *Checker) unique(k *check, rec arrow.RecordBatch, row func(i int) int64) error {
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
		parts[n] = cell.Text(j.rec.Column(c), i)
	}
	return strings.Join(parts, ", ")
}

// Results ends the check, and gives the result of each expectation.
func (c *Checker) Results() []Result {
	out := make([]Result, len(c.checks))
	for i, k := range c.checks {
		if k.e.Check == Fresh && k.note != notCheckedAgain {
			k.checkFreshness()
		}
		r := Result{Expectation: k.e, Checked: k.checked, Failed: k.failed, Problem: k.problem, Against: k.against, Note: k.note, Examples: k.examples}
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
