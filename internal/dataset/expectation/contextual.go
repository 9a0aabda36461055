package expectation

import (
	"fmt"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/drift"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// Reference is an expectation that refers to a column of another dataset. Call Begin, and Add
// for its values, before rows are checked.
type Reference struct {
	Rule
	checker *Checker
	check   *check
}

// References are those that need the values of another dataset.
func (c *Checker) References() []Reference {
	var out []Reference
	for _, k := range c.checks {
		if k.e.Check == Refers && k.problem == "" && k.note == "" {
			out = append(out, Reference{k.e, c, k})
		}
	}
	return out
}

// Begin says which version and column the values come from. It is false, and the expectation
// fails, where the types do not fit.
func (r Reference) Begin(version, column string, t table.Type) bool {
	k := r.check
	k.against = version
	if _, ok := table.Wider(k.types[0], t); !ok {
		k.problem = fmt.Sprintf("the column is %s, and %s of %s is %s", k.types[0], column, version, t)
		return false
	}
	k.seen = map[[2]uint64]struct{}{}
	k.holds = func(a arrow.Array, i int) bool {
		_, is := k.seen[valueDigest(a, i)]
		return is
	}
	return true
}

// Add adds values that rows may refer to. Error: fault.TooLarge when there are too many
// different ones.
func (r Reference) Add(values arrow.Array) error {
	k, c := r.check, r.checker
	for i := range values.Len() {
		if values.IsNull(i) {
			continue
		}
		key := valueDigest(values, i)
		if _, is := k.seen[key]; is {
			continue
		}
		if c.budget--; c.budget < 0 {
			return fault.New(fault.TooLarge, "%s has too many distinct values for the memory limit", k.against).
				WithHint("Raise dataset.unique_keys (48 bytes of memory per key), or remove the expectation.")
		}
		k.seen[key] = struct{}{}
	}
	return nil
}

func valueDigest(a arrow.Array, i int) [2]uint64 {
	var room [64]byte
	h := xxh3.Hash128(cell.Append(room[:0], a, i))
	return [2]uint64{h.Hi, h.Lo}
}

// Comparison is an expectation that compares a column with what it was in an earlier version.
type Comparison struct {
	Rule
	check *check
}

// Comparisons are those that need the sketches of an earlier version.
func (c *Checker) Comparisons() []Comparison {
	var out []Comparison
	for _, k := range c.checks {
		if k.e.Check == Drift && k.problem == "" && k.note == "" {
			out = append(out, Comparison{k.e, k})
		}
	}
	return out
}

// Skip says that there is no version to compare with.
func (d Comparison) Skip() { d.check.note = "there is no previous version" }

// defaultDrift is the default drift threshold of a distance: the usual value for a major shift
// by PSI.
const defaultDrift = 0.25

// Compare compares the column with what it was in a version.
func (d Comparison) Compare(version string, was, is *sketch.Column) {
	k := d.check
	k.against = version
	m, opts := k.e.driftMethod(), drift.Options{Threshold: defaultDrift}
	if v, ok := number(k.e.Max); ok {
		opts.Threshold = v
	}
	if v, ok := number(k.e.Min); ok {
		opts.Alpha = v
	}
	switch {
	case was == nil:
		k.note = k.against + " has no such column"
		return
	case was.Kind() != is.Kind():
		k.problem = fmt.Sprintf("its type in %s is %s", k.against, was.Kind())
		return
	case was.Count() > 0 && is.Count() == 0:
		k.problem = "all its values are null"
		return
	}
	r, err := drift.Test(m, was, is, opts)
	if err != nil {
		k.problem = err.Error()
		return // the method does not fit the column: the version fails
	}
	switch {
	case r.Outcome != drift.Compared:
		k.note = r.Note
		return
	case m.Distance():
		k.note = fmt.Sprintf("%s is %.3g, with the drift threshold %.3g", m, r.Statistic, r.Threshold)
	default:
		k.note = fmt.Sprintf("%s has the p-value %.3g, with the drift threshold %.3g", m, r.PValue, r.Threshold)
	}
	if r.Drifted {
		k.problem, k.note = k.note+", against "+k.against, ""
	}
}

// columnTime is a time in the unit of a column.
func columnTime(t table.Type, now time.Time) (int64, error) {
	switch t {
	case table.Timestamp:
		return now.UnixMicro(), nil
	case table.Date:
		return int64(math.Floor(float64(now.Unix()) / 86400)), nil
	default:
	}
	return 0, fmt.Errorf("a column of %s contains no dates or timestamps", t)
}

// observeFreshness looks for the newest time that has come.
func (k *check) observeFreshness(rec arrow.RecordBatch, row func(i int) int64) {
	a := rec.Column(k.cols[0])
	for i := range a.Len() {
		if a.IsNull(i) {
			continue
		}
		k.checked++
		if at := cell.Int(a, i); at > k.newest && at <= k.now {
			k.newest, k.newestAt = at, row(i)
		}
	}
}

// checkFreshness checks the age of the newest time. The reason names no value.
func (k *check) checkFreshness() {
	if k.problem != "" {
		return
	}
	if k.newest == math.MinInt64 {
		k.problem = "all its times are in the future"
		return
	}
	most, _ := resource.ParseDuration(k.e.Within) // validated
	unit, text := time.Microsecond, cell.TimestampText(k.newest)
	if k.days {
		unit, text = 24*time.Hour, cell.DateText(k.newest)
	}
	if age := k.now - k.newest; age > int64(most/unit) {
		k.problem = "the newest time is too old"
		x := Example{Row: k.newestAt, Column: k.e.Column, Hidden: k.hide}
		if !k.hide {
			x.Value = text
		}
		k.examples = []Example{x}
	}
}
