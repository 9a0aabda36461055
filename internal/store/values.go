package store

import (
	"database/sql/driver"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Time is an instant as the databases keep it: microseconds since 1970, UTC, in
// a BIGINT column. The zero Time is "never" and is stored as 0.
type Time int64

// At converts t, cutting below the microsecond.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMicro())
}

// Time converts back; the zero Time becomes the zero time.Time.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}

// Float is a float64 for a DOUBLE PRECISION column that keeps NaN and the
// infinities on both databases. NaN sorts after every number on both.
type Float float64

// Value stores what SQLite has no literal for as text, which PostgreSQL casts.
func (f Float) Value() (driver.Value, error) {
	v := float64(f)
	switch {
	case math.IsNaN(v):
		return "NaN", nil
	case math.IsInf(v, 1):
		return "Infinity", nil
	case math.IsInf(v, -1):
		return "-Infinity", nil
	}
	return v, nil
}

// Scan reads a number or the text that Value wrote.
func (f *Float) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*f = Float(math.NaN())
	case float64:
		*f = Float(v)
	case int64:
		*f = Float(v)
	case string:
		x, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return fmt.Errorf("scan %q as a float: %w", v, err)
		}
		*f = Float(x)
	case []byte:
		return f.Scan(string(v))
	default:
		return fmt.Errorf("scan %T as a float", src)
	}
	return nil
}
