package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"
)

// What is printed holds text of others: names, logs, errors, reasons. A terminal obeys
// control characters in it, and shows bidirectional text in another order than it has. So
// all that commands print goes through visible, which shows these characters as escapes;
// Run wraps the two streams, and no command has another way but raw, for copies that stay
// byte for byte when they go to a file or a pipe, and screen, on which progress is drawn.

// visible shows control characters as escapes: \x1b for those that JSON escapes as well, and
// bytes that are not UTF-8; \u202e for those that it leaves as they are, so that JSON and
// quoted YAML stay what they are. Newlines and tabs pass. Safe for concurrent use.
type visible struct {
	w    io.Writer
	mu   sync.Mutex
	rest []byte // the beginning of a character, or of the end of a line
}

// obeyed reports whether terminals obey a character instead of showing it.
func obeyed(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < ' ', r >= 0x7f && r < 0xa0: // C0, DEL, C1
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // directions
		return true
	}
	return false
}

// appendShown appends a text as visible shows it. What at its end may be half of something
// is left over, unless it is the last.
func appendShown(out, text []byte, last bool) (_, rest []byte) {
	for len(text) > 0 {
		if !last && !utf8.FullRune(text) || !last && len(text) == 1 && text[0] == '\r' {
			return out, text
		}
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, text[0])
		case r == '\r' && len(text) > 1 && text[1] == '\n': // the end of a line elsewhere
		case r == '\r': // a progress bar in a log: each of its states is a line
			out = append(out, "\\x0d\n"...)
		case !obeyed(r):
			out = append(out, text[:n]...)
		case r < ' ':
			out = fmt.Appendf(out, `\x%02x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[n:]
	}
	return out, nil
}

// harmless reports whether a text is shown as it is.
func harmless(text []byte) bool { return utf8.Valid(text) && !bytes.ContainsFunc(text, obeyed) }

func (v *visible) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.rest) == 0 && harmless(p) {
		return v.w.Write(p)
	}
	out, rest := appendShown(nil, append(v.rest, p...), false)
	v.rest = bytes.Clone(rest)
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// end writes what was left over.
func (v *visible) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if out, _ := appendShown(nil, v.rest, true); len(out) > 0 {
		_, _ = v.w.Write(out) // as of the other writes of people's text, nobody to tell
	}
	v.rest = nil
}

// plain is text of others for one line, such as a cell of a table.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
	if harmless([]byte(s)) {
		return s
	}
	out, _ := appendShown(nil, []byte(s), true)
	return string(out)
}

// raw is standard output for what is copied byte for byte: logs, pages, exports. On a
// terminal it is visible all the same.
func (a *app) raw() io.Writer {
	if a.out == nil || isTerminal(a.out) {
		return a.Stdout
	}
	return a.out
}

// isTerminal reports whether a person looks at what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
