package parser

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/htmlindex"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Layout is how CSV files depart from UTF-8 text whose first line names the columns, and whose
// numbers are written 1234.5.
type Layout struct {
	Encoding  string   `json:"encoding,omitempty" doc:"Character encoding by its WHATWG name, such as windows-1252, iso-8859-2, utf-16le or shift_jis; default UTF-8. A byte order mark decides before it"`
	SkipLines int      `json:"skip_lines,omitempty" doc:"Lines before the header that are not read"`
	Header    []string `json:"header,omitempty" doc:"Names of all columns, of files without a header"`
	Decimal   string   `json:"decimal,omitempty" doc:"Decimal separator: a point (the default) or a comma"`
	Thousands string   `json:"thousands,omitempty" doc:"Thousands separator: a comma, a point, a space or an apostrophe; default: none"`
}

// maxSkipLines bounds SkipLines.
const maxSkipLines = 10_000

// Validate refuses a layout that cannot be read, naming the field. Error: fault.Invalid.
func (l *Layout) Validate() error {
	if l == nil {
		return nil
	}
	if _, err := l.encoding(); err != nil {
		return err
	}
	switch {
	case l.SkipLines < 0 || l.SkipLines > maxSkipLines:
		return fault.New(fault.Invalid, "skip_lines: %d is not 0 to %d", l.SkipLines, maxSkipLines)
	case l.Decimal != "" && l.Decimal != "." && l.Decimal != ",":
		return fault.New(fault.Invalid, "decimal: %.10q is neither a point nor a comma", l.Decimal)
	case !slices.Contains([]string{"", ",", ".", " ", "'"}, l.Thousands):
		return fault.New(fault.Invalid, "thousands: %.10q is not a comma, point, space or apostrophe", l.Thousands)
	case l.Thousands != "" && l.Thousands == l.point():
		return fault.New(fault.Invalid, "thousands: %q is also the decimal separator", l.Thousands).WithHint("Set decimal to the other character.")
	case len(l.Header) > 0:
		return fault.Wrap(table.CheckNames(l.Header), "header")
	}
	return nil
}

// point is what stands before a fraction.
func (l *Layout) point() string {
	if l == nil || l.Decimal == "" {
		return "."
	}
	return l.Decimal
}

// encoding is that of the text; nil for UTF-8.
func (l *Layout) encoding() (encoding.Encoding, error) {
	if l == nil || l.Encoding == "" {
		return nil, nil //nolint:nilnil // UTF-8 needs none
	}
	e, err := htmlindex.Get(l.Encoding)
	if err != nil || e == encoding.Replacement {
		return nil, fault.New(fault.Invalid, "encoding: %.40q is not known", l.Encoding).WithHint("Write a name such as utf-8, utf-16le, windows-1252, iso-8859-15 or shift_jis.")
	}
	if e == unicode.UTF8 {
		return nil, nil //nolint:nilnil // as above
	}
	return e, nil
}

// decoded is the text as UTF-8. Bytes that the encoding has no character for become U+FFFD, which
// csvReader refuses.
func (l *Layout) decoded(in *bufio.Reader) (*bufio.Reader, error) {
	e, err := l.encoding()
	if err != nil || e == nil {
		return in, err
	}
	return bufio.NewReaderSize(transform.NewReader(in, unicode.BOMOverride(e.NewDecoder())), 256<<10), nil
}

// plain writes a number with a point and without groups; what is no number of the layout
// becomes text that is no number at all.
func (l *Layout) plain(cell string) string {
	if l == nil || l.point() == "." && l.Thousands == "" {
		return cell
	}
	const none = "?"
	whole, fraction, split := strings.Cut(cell, l.point())
	if l.point() == "," && strings.Contains(fraction, ".") || l.Thousands != "" && strings.Contains(fraction, l.Thousands) {
		return none
	}
	if l.Thousands != "" && strings.Contains(whole, l.Thousands) {
		groups := strings.Split(strings.TrimLeft(whole, "+-"), l.Thousands)
		for i, g := range groups {
			if strings.Trim(g, "0123456789") != "" || i > 0 && len(g) != 3 || i == 0 && (g == "" || len(g) > 3) {
				return none
			}
		}
		whole = strings.ReplaceAll(whole, l.Thousands, "")
	}
	if l.point() == "," && strings.Contains(whole, ".") {
		return none
	}
	if split {
		whole += "." + fraction
	}
	return whole
}

// skipLines passes over the lines before the header.
func skipLines(in *bufio.Reader, n int) error {
	for i := range n {
		_, err := in.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return fault.New(fault.Invalid, "the file has %d lines, and skip_lines skips %d", i, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// undecodable reports a cell with bytes that are no characters of the file's encoding.
func (l *Layout) undecodable(cell string) bool {
	return l != nil && l.Encoding != "" && strings.Contains(cell, "\ufffd")
}

// wrongBytes says so.
func (l *Layout) wrongBytes() string { return "contains bytes that are not " + l.Encoding }
