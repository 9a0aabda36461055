package expectation

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
)

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
func matchesOf(t table.Type, pattern string) (func(arrow.Array, int) bool, error) {
	if t != table.String {
		return nil, fmt.Errorf("a column of %s is not text", t)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return func(a arrow.Array, i int) bool { return re.MatchString(a.(*array.String).Value(i)) }, nil
}

func lengthOf(t table.Type, lo, hi any) (func(arrow.Array, int) bool, error) {
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
func betweenOf(t table.Type, e Rule) (func(arrow.Array, int) bool, error) {
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
			v := cell.Number(a, i)
			return v >= least && v <= most && (!e.StrictMin || v != least) && (!e.StrictMax || v != most)
		}, nil
	}
	// A float64 does not hold every int64, so what is one is compared as one.
	least, fitsLeast := leastOf(t, e.Min, e.StrictMin)
	most, fitsMost := mostOf(t, e.Max, e.StrictMax)
	return func(a arrow.Array, i int) bool {
		v := cell.Int(a, i)
		return fitsLeast && fitsMost && v >= least && v <= most
	}, nil
}

// leastOf is the least int64 that a bound lets through; ok is false when there is none.
func leastOf(t table.Type, bound any, strict bool) (least int64, ok bool) {
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
func mostOf(t table.Type, bound any, strict bool) (most int64, ok bool) {
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
func inSetOf(t table.Type, values []any) (func(arrow.Array, int) bool, error) {
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
		return func(a arrow.Array, i int) bool { return floats[cell.Number(a, i)] }, nil
	default:
	}
	return func(a arrow.Array, i int) bool { return ints[cell.Int(a, i)] }, nil
}

// intOf is a manifest's scalar as a column that keeps integers keeps it: days for
// dates, microseconds for timestamps.
func intOf(t table.Type, v any) (int64, bool) {
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
func timeOf(t table.Type, v any) (int64, bool) {
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
		return cell.FloatText(x)
	}
	return fmt.Sprint(v)
}
