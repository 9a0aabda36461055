package table

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits on the columns of a table.
const (
	MaxColumns = 4096
	MaxName    = 255 // bytes in a column's name
)

// CheckNames refuses what cannot be the columns of a table: none or too many,
// names that are empty, long, not UTF-8 or hold control characters, and names
// that are equal without regard to case, which SQL could not tell apart.
func CheckNames(names []string) error {
	if len(names) == 0 {
		return fault.New(fault.Invalid, "a table needs at least one column")
	}
	if len(names) > MaxColumns {
		return fault.New(fault.Invalid, "%d columns are over the limit of %d", len(names), MaxColumns).
			WithHint("Keep one measurement per row, or import the columns you need.")
	}
	seen := make(map[string]int, len(names))
	for i, name := range names {
		switch {
		case name == "":
			return fault.New(fault.Invalid, "column %d has no name", i+1).WithHint("Give every column a name in the header.")
		case len(name) > MaxName:
			return fault.New(fault.Invalid, "the name of column %d has %d bytes, over the limit of %d", i+1, len(name), MaxName)
		case !utf8.ValidString(name):
			return fault.New(fault.Invalid, "the name of column %d, %s, is not UTF-8", i+1, strconv.QuoteToASCII(name)).
				WithHint("Save the file as UTF-8, or set the encoding of a CSV file: spec.csv.encoding, such as windows-1252.")
		case strings.Contains(name, "\t"):
			return fault.New(fault.Invalid, "the name of column %d, %q, contains a tab", i+1, name).
				WithHint(`If the columns of the file are separated by tabs, set spec.delimiter to "\t".`)
		case strings.ContainsFunc(name, unicode.IsControl):
			return fault.New(fault.Invalid, "the name of column %d, %q, contains a control character", i+1, name)
		}
		lower := strings.ToLower(name)
		if j, ok := seen[lower]; ok {
			return fault.New(fault.Invalid, "columns %d and %d are both named %q", j+1, i+1, name).
				WithHint("Rename one of them: names that differ only in case are not allowed.")
		}
		seen[lower] = i
	}
	return nil
}
