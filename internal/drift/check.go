package drift

import (
	"fmt"
	"math"

	"github.com/falaj-ml/falaj/internal/sketch"
)

// CheckName names a check of a column.
type CheckName string

// The checks.
const (
	CheckType       CheckName = "type"           // values of another type came
	CheckMissing    CheckName = "missing"        // the share of missing values changed
	CheckInfinite   CheckName = "infinite"       // infinite numbers came
	CheckCategories CheckName = "new_categories" // categories came that the baseline does not have
	CheckRange      CheckName = "range"          // numbers came outside of the baseline's range
)

// CheckOptions are when a check fails.
type CheckOptions struct {
	Alpha   float64 // level of the test of missing shares; 0 means 0.01
	Missing float64 // least change of the share of missing values that matters; 0 means 0.01
	New     float64 // share of rows in new categories that is too much; 0 means 0.01
	Outside float64 // share of rows out of range that is too much; 0 means 0.01
	Hide    bool    // say nothing that is a value of the data
}

// Check is the outcome of one check of a column.
type Check struct {
	Name   CheckName `json:"name"`
	Failed bool      `json:"failed"`
	Value  float64   `json:"value"` // a share of the window's rows
	Limit  float64   `json:"limit"` // from which on it fails
	Detail string    `json:"detail"`
}

// Checks are the checks that apply to two columns, in a fixed order.
func Checks(ref, cur *sketch.Column, opts CheckOptions) []Check {
	def := func(v *float64, to float64) {
		if !(*v > 0 && *v < 1) {
			*v = to
		}
	}
	def(&opts.Alpha, 0.01)
	def(&opts.Missing, 0.01)
	def(&opts.New, 0.01)
	def(&opts.Outside, 0.01)
	if cur.Rows() == 0 {
		return nil
	}
	out := []Check{checkType(ref, cur)}
	if ref.Rows() > 0 {
		out = append(out, checkMissing(ref, cur, opts))
	}
	if cur.Kind() == sketch.Numeric {
		out = append(out, checkInfinite(ref, cur))
	}
	if ref.Kind() != cur.Kind() || ref.Count() == 0 || cur.Count() == 0 {
		return out
	}
	if cur.Kind() == sketch.Numeric {
		return append(out, checkRange(ref, cur, opts))
	}
	return append(out, checkCategories(ref, cur, opts))
}

func checkType(ref, cur *sketch.Column) Check {
	c := Check{Name: CheckType, Detail: "every value is " + string(ref.Kind())}
	c.Value = float64(cur.Mistyped()) / float64(cur.Rows())
	switch {
	case ref.Kind() != cur.Kind():
		c.Value, c.Failed = 1, true
		c.Detail = fmt.Sprintf("the baseline is %s and the window %s", ref.Kind(), cur.Kind())
	case cur.Mistyped() > 0:
		c.Failed = true
		c.Detail = fmt.Sprintf("%d of %d rows are text instead of a number", cur.Mistyped(), cur.Rows())
	}
	return c
}

func checkMissing(ref, cur *sketch.Column, opts CheckOptions) Check {
	x, n := float64(ref.Missing()), float64(ref.Rows())
	y, m := float64(cur.Missing()), float64(cur.Rows())
	c := Check{Name: CheckMissing, Value: y / m, Limit: x/n + opts.Missing}
	_, p := twoShares(x, n, y, m)
	if margin := min(x+y, n+m-x-y, n, m); min(x+y, n+m-x-y)*min(n, m)/(n+m) < minExpected && margin <= fisherMost {
		p = fisher(x, n-x, y, m-y)
	}
	c.Failed = p < opts.Alpha && math.Abs(y/m-x/n) >= opts.Missing
	c.Detail = fmt.Sprintf("%.2f %% of the rows are missing, %.2f %% of the baseline's (p = %.3g)", 100*y/m, 100*x/n, p)
	return c
}

func checkInfinite(ref, cur *sketch.Column) Check {
	c := Check{Name: CheckInfinite, Value: float64(cur.Infinite()) / float64(cur.Rows())}
	c.Failed = cur.Infinite() > 0 && ref.Infinite() == 0
	c.Detail = fmt.Sprintf("%d of %d rows are infinite, %d of the baseline's", cur.Infinite(), cur.Rows(), ref.Infinite())
	return c
}

func checkCategories(ref, cur *sketch.Column, opts CheckOptions) Check {
	c := Check{Name: CheckCategories, Limit: opts.New}
	if !ref.Exact() {
		c.Detail = fmt.Sprintf("the baseline has more than %d categories, so new categories cannot be detected", sketch.MaxCategories)
		return c
	}
	known, _, _ := ref.Categories()
	old := make(map[string]bool, len(known))
	for _, k := range known {
		old[k.Text] = true
	}
	got, other, _ := cur.Categories()
	rows, kinds, first := other, 0, ""
	for _, k := range got {
		if !old[k.Text] {
			rows += k.Count
			kinds++
			if first == "" {
				first = k.Text
			}
		}
	}
	c.Value = float64(rows) / float64(cur.Rows())
	c.Failed = c.Value >= c.Limit
	switch {
	case kinds > 0 && opts.Hide:
		c.Detail = fmt.Sprintf("%d categories are new; %.2f %% of the rows", kinds, 100*c.Value)
	case kinds > 0:
		c.Detail = fmt.Sprintf("%d categories are new, the most frequent is %q; %.2f %% of the rows", kinds, first, 100*c.Value)
	case rows > 0:
		c.Detail = fmt.Sprintf("%.2f %% of the rows are in categories too rare to be tracked", 100*c.Value)
	default:
		c.Detail = "no category is new"
	}
	return c
}

// checkRange counts what lies outside of the baseline's range. The extremes of a
// sample of n are passed by a share of about 2/n even without drift; the limit
// is what that share stays under with 99.9 %, and the count's own chance.
func checkRange(ref, cur *sketch.Column, opts CheckOptions) Check {
	low := cur.KLL().Rank(math.Nextafter(ref.Min(), math.Inf(-1)))
	high := 1 - cur.KLL().Rank(ref.Max())
	rows := float64(cur.Count())
	expected := 9.3 / (float64(ref.Count()) + 1)
	c := Check{Name: CheckRange, Value: low + high, Limit: math.Max(opts.Outside, expected+3.1*math.Sqrt(expected/rows)+3/rows)}
	c.Failed = c.Value >= c.Limit
	if opts.Hide {
		c.Detail = fmt.Sprintf("%.2f %% of the values are below and %.2f %% above the baseline's range", 100*low, 100*high)
		return c
	}
	c.Detail = fmt.Sprintf("%.2f %% of the values are below %.4g and %.2f %% above %.4g, the baseline's range",
		100*low, ref.Min(), 100*high, ref.Max())
	return c
}
