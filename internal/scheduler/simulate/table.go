package simulate

import (
	"encoding/csv"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/falaj-ml/falaj/internal/fault"
)

// What a file may have. A workload of a million jobs has 50 MB.
const (
	maxBytes = 256 << 20
	maxRows  = 1_000_000
	maxCount = 1 << 20          // replicas, nodes, samples of a batch per replica
	maxTime  = 10 * 365 * 86400 // seconds
	minTime  = 1e-9             // of a step
	// Sums, quotients and powers of what is between stay finite.
	maxNumber   = 1e100
	minGradient = 1e-100
)

// row is one row of a table, read by the names of its columns. The first thing
// that is wrong is kept in err.
type row struct {
	file   string
	line   int
	column map[string]int
	fields []string
	err    error
}

// readTable calls each for every row of a CSV file with a header that has the
// columns, and perhaps others. It stops at the first wrong row.
func readTable(file string, in io.Reader, columns []string, each func(r *row)) error {
	limited := &io.LimitedReader{R: in, N: maxBytes + 1}
	c := csv.NewReader(limited)
	c.ReuseRecord = true
	header, err := c.Read()
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "%s is empty", file).WithHint("Its first line names the columns %q.", columns)
	}
	if err != nil {
		return broken(file, err)
	}
	r := row{file: file, column: map[string]int{}}
	for i, name := range header {
		if i == 0 {
			name = trimMark(name)
		}
		if _, twice := r.column[name]; twice {
			return fault.New(fault.Invalid, "%s has the column %q twice", file, clip(name))
		}
		r.column[name] = i
	}
	for _, name := range columns {
		if _, ok := r.column[name]; !ok {
			return fault.New(fault.Invalid, "%s has no column %q", file, name).WithHint("Its first line names the columns %q.", columns)
		}
	}
	for rows := 0; ; rows++ {
		fields, err := c.Read()
		switch {
		case errors.Is(err, io.EOF) && limited.N <= 0, rows == maxRows && err == nil:
			return fault.New(fault.TooLarge, "%s has more than %d rows or %d MiB", file, maxRows, maxBytes>>20)
		case errors.Is(err, io.EOF) && rows == 0:
			return fault.New(fault.Invalid, "%s has no rows", file)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return broken(file, err)
		}
		r.fields = fields
		r.line, _ = c.FieldPos(0)
		if each(&r); r.err != nil {
			return r.err
		}
	}
}

func broken(file string, err error) error {
	if p, ok := errors.AsType[*csv.ParseError](err); ok {
		return fault.New(fault.Invalid, "%s line %d: %w", file, p.Line, p.Err)
	}
	return fault.Wrap(err, "reading %s", file)
}

// wrong keeps the first error.
func (r *row) wrong(column, format string, args ...any) {
	if r.err == nil {
		cause := fault.New(fault.Invalid, format, args...)
		r.err = fault.New(fault.Invalid, "%s line %d, column %s: %s", r.file, r.line, column, cause.Message)
	}
}

func (r *row) text(column string) string { return r.fields[r.column[column]] }

// has says whether there is a column that may be missing.
func (r *row) has(column string) bool { _, ok := r.column[column]; return ok }

// count is a whole number from least to most.
func (r *row) count(column string, least, most int) int {
	n, err := strconv.Atoi(r.text(column))
	if err != nil {
		f, ferr := strconv.ParseFloat(r.text(column), 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > maxTime {
			r.wrong(column, "%q is not a whole number", clip(r.text(column)))
			return least
		}
		n = int(f)
	}
	if n < least || n > most {
		r.wrong(column, "%d is not from %d to %d", n, least, most)
		return least
	}
	return n
}

// number is a number that is not negative, and not so large that sums are none.
func (r *row) number(column string) float64 {
	f, err := strconv.ParseFloat(r.text(column), 64)
	switch {
	case err != nil:
		r.wrong(column, "%q is not a number", clip(r.text(column)))
	case math.IsNaN(f) || math.IsInf(f, 0):
		r.wrong(column, "%v is not a finite number", f)
	case f < 0:
		r.wrong(column, "%v is less than 0", f)
	case f > maxNumber:
		r.wrong(column, "%v is more than %v", f, maxNumber)
	default:
		return f
	}
	return 0
}

func clip(s string) string { return fault.Clip(s, 60) }

// trimMark removes the byte order mark that spreadsheets write.
func trimMark(s string) string {
	const mark = "\ufeff"
	if len(s) >= len(mark) && s[:len(mark)] == mark {
		return s[len(mark):]
	}
	return s
}
