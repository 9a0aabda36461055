package parser

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset/table"
)

// column reads cells into an Arrow array.
type column struct {
	build  array.Builder
	strict bool // inferred: only what inference would have accepted
	nulls  *nullSet
	layout *Layout // how numbers are written; nil for as usual
	parse  func(cell string) (why string)
}

func newColumn(t table.Type, strict bool, nulls *nullSet) *column {
	return columnOn(array.NewBuilder(memory.DefaultAllocator, t.Arrow()), strict, nulls)
}

func columnOn(build array.Builder, strict bool, nulls *nullSet) *column {
	c := &column{build: build, strict: strict, nulls: nulls}
	switch b := c.build.(type) {
	case *array.ListBuilder:
		c.parse = listOf(b)
	case *array.Int32Builder:
		c.parse = func(cell string) string {
			v, ok := parseInt(cell, strict)
			if !ok || v > math.MaxInt32 || v < math.MinInt32 {
				return "is not an int32"
			}
			b.Append(int32(v))
			return ""
		}
	case *array.Float32Builder:
		c.parse = func(cell string) string {
			v, ok := parseFloat(cell, strict, 32) // at once: a float64 between would round twice
			if !ok {
				return "is not a float32"
			}
			b.Append(float32(v))
			return ""
		}
	case *array.Int64Builder:
		c.parse = func(cell string) string {
			v, ok := parseInt(cell, strict)
			if !ok {
				return "is not an int64"
			}
			b.Append(v)
			return ""
		}
	case *array.Float64Builder:
		c.parse = func(cell string) string {
			v, ok := parseFloat(cell, strict, 64)
			if !ok {
				return "is not a float64"
			}
			b.Append(v)
			return ""
		}
	case *array.BooleanBuilder:
		c.parse = func(cell string) string {
			v, ok := parseBool(cell, strict)
			if !ok {
				return "is not a bool (true or false)"
			}
			b.Append(v)
			return ""
		}
	case *array.TimestampBuilder:
		var last string // neighbouring rows often share the instant
		var lastValue int64
		c.parse = func(cell string) string {
			if cell != last {
				v, ok := parseTimestamp(cell)
				if !ok {
					return "is not a timestamp of the years 1 to 9999 (such as 2013-01-01T10:00:00Z)"
				}
				last, lastValue = strings.Clone(cell), v
			}
			b.Append(arrow.Timestamp(lastValue))
			return ""
		}
	case *array.Date32Builder:
		c.parse = func(cell string) string {
			v, ok := parseDate(cell)
			if !ok {
				return "is not a date of the years 1 to 9999 (such as 2013-01-31)"
			}
			b.Append(arrow.Date32(v))
			return ""
		}
	case *array.StringBuilder:
		c.parse = func(cell string) string {
			if !utf8.ValidString(cell) {
				return "is not UTF-8"
			}
			if strings.IndexByte(cell, 0) >= 0 {
				return "contains a NUL byte"
			}
			b.Append(cell)
			return ""
		}
	}
	return c
}

// listOf reads a JSON list whose elements are cells.
func listOf(b *array.ListBuilder) func(cell string) string {
	element := columnOn(b.ValueBuilder(), false, newNullSet(nil))
	return func(cell string) string {
		var list []json.RawMessage
		if json.Unmarshal([]byte(cell), &list) != nil || list == nil {
			return "is not a list (such as [1, 2])"
		}
		b.Append(true)
		for i, raw := range list {
			text, nested := string(raw), ""
			if raw[0] == '"' && json.Unmarshal(raw, &nested) == nil {
				text = nested
			}
			if why := element.parse(text); text == "null" && nested == "" || why != "" {
				return fmt.Sprintf("has element %d, which %s", i+1, cmp.Or(why, "is null"))
			}
		}
		return ""
	}
}

// add appends a cell; it returns what is wrong with it, or "".
func (c *column) add(cell string) string {
	if c.nulls.has(cell) {
		c.build.AppendNull()
		return ""
	}
	if c.layout != nil {
		cell = c.layout.plain(cell)
	}
	return c.parse(cell)
}

// parseInt reads decimal digits with a sign. Strictly, a number begins with no
// zero and no plus: "007" names something rather than counting it.
func parseInt(s string, strict bool) (int64, bool) {
	digits := strings.TrimPrefix(s, "-")
	if strict && (digits == "" || digits[0] == '+' || digits[0] == '0' && len(s) > 1) {
		return 0, false
	}
	v, err := strconv.ParseInt(s, 10, 64)
	return v, err == nil
}

// parseFloat reads decimal notation with an optional exponent, as the nearest float. Strictly,
// there is no leading zero before another digit, words for NaN and infinity are those that
// programs write, and a whole number written without point and exponent is not beyond 2^53: it names something, and two
// names must not become one number.
func parseFloat(s string, strict bool, bits int) (float64, bool) {
	if strings.ContainsAny(s, "xXpP_") {
		return 0, false
	}
	if strict {
		if notFinite(s) {
			v, err := strconv.ParseFloat(s, bits)
			return v, err == nil
		}
		digits := strings.TrimPrefix(s, "-")
		if digits == "" || (digits[0] < '0' || digits[0] > '9') && digits[0] != '.' {
			return 0, false
		}
		if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
			return 0, false
		}
		if len(digits) > 15 && !strings.ContainsAny(digits, ".eE") {
			if n, err := strconv.ParseUint(digits, 10, 64); err != nil || n > 1<<53 {
				return 0, false
			}
		}
	}
	v, err := strconv.ParseFloat(s, bits)
	return v, err == nil
}

// notFinite reports a word that programs write for a float that is no number, or infinite.
// Among numbers it is one; a column of such words alone is text.
func notFinite(s string) bool {
	switch strings.ToLower(strings.TrimLeft(s, "+-")) {
	case "nan", "inf", "infinity":
		return len(s) <= len("-infinity")
	}
	return false
}

func parseBool(s string, strict bool) (value, ok bool) {
	switch s {
	case "true", "True", "TRUE":
		return true, true
	case "false", "False", "FALSE":
		return false, true
	}
	if !strict {
		switch s {
		case "1", "t", "T":
			return true, true
		case "0", "f", "F":
			return false, true
		}
	}
	return false, false
}

// parseDate reads "2006-01-02" as days since 1970.
func parseDate(s string) (int32, bool) {
	if len(s) != 10 {
		return 0, false
	}
	t, err := time.Parse(time.DateOnly, s)
	if err != nil || t.Year() < 1 {
		return 0, false
	}
	return int32(t.Unix() / 86400), true //nolint:gosec // years 1 to 9999 fit
}

// The forms of a timestamp. A time without a zone is UTC.
var timestampForms = []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04:05Z0700", "2006-01-02 15:04:05Z07", "2006-01-02 15:04", "2006-01-02T15:04"}

// parseTimestamp reads an instant as microseconds since 1970. More than six
// digits of fraction are accepted only as zeros.
func parseTimestamp(s string) (int64, bool) {
	if len(s) < 16 || len(s) > 40 {
		return 0, false
	}
	for _, form := range timestampForms {
		t, err := time.Parse(form, s)
		if err != nil {
			continue
		}
		us := t.UnixMicro()
		return us, t.Nanosecond()%1000 == 0 && us >= table.MinInstant && us <= table.MaxInstant
	}
	return 0, false
}
