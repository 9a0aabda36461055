package store

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"
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

// Texts is the list of "column IN (?)". To SQLite it is one value, so that the statement
// is the same for any list, and is kept prepared.
type Texts []string

// AppendQuery implements schema.QueryAppender.
func (t Texts) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	if gen.Dialect().Name() != dialect.SQLite {
		return bun.List([]string(t)).AppendQuery(gen, b)
	}
	list, err := json.Marshal([]string(t))
	b = append(b, "SELECT value FROM json_each('"...)
	b = append(b, bytes.ReplaceAll(list, []byte("'"), []byte("''"))...)
	return append(b, "')"...), err
}

// Float is a float64 for a DOUBLE PRECISION column that keeps every number, NaN
// and the infinities on both databases. They sort in the same order on both:
// NaN after every number. -0 becomes 0, which is all that SQLite can store.
type Float float64 //nolint:recvcheck // a Scanner must be a pointer, and a value must be written without one

// AppendQuery writes the literal: SQLite reads a number too large as infinity
// and has no NaN, which it keeps as text; PostgreSQL casts the text.
func (f Float) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	v := float64(f)
	lite := gen.Dialect().Name() == dialect.SQLite
	switch {
	case math.IsNaN(v):
		return append(b, "'NaN'"...), nil
	case math.IsInf(v, 1) && lite:
		return append(b, "9e999"...), nil
	case math.IsInf(v, -1) && lite:
		return append(b, "-9e999"...), nil
	case math.IsInf(v, 1):
		return append(b, "'Infinity'"...), nil
	case math.IsInf(v, -1):
		return append(b, "'-Infinity'"...), nil
	}
	return strconv.AppendFloat(b, v+0, 'e', -1, 64), nil // + 0 drops the sign of -0
}

// Value is for arguments that do not go through bun.
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
