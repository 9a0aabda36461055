package store

import (
	"database/sql/driver"
	"encoding/hex"
	"strconv"
	"strings"
)

// bun writes values into the text of a statement, so that no two texts are alike
// and SQLite parses and plans each of them anew: a third of what a small
// transaction costs. lift takes the values out again. What is left is the same for
// every call of a line of code, and the driver keeps it prepared.

// Bounds of what is lifted: statements with many values contain lists, and their lengths
// differ each time. Texts is one value, however long.
const (
	maxLifted   = 64 << 10
	maxLiterals = 64
)

// keptStatements is how many a connection keeps prepared.
const keptStatements = 128

// lifted is a statement and its values as the driver is to have them.
func lifted(query string, args []driver.NamedValue) (string, []driver.NamedValue) {
	if len(args) > 0 {
		return query, args
	}
	if text, values, ok := lift(query); ok {
		return text, values
	}
	return query, nil
}

// lift replaces the strings, blobs and whole numbers of a statement that reads or
// changes rows by parameters, and gives their values. ok is false where it leaves
// the statement as it is, because it has parameters or anything that it does not
// know.
func lift(query string) (text string, values []driver.NamedValue, ok bool) {
	if len(query) > maxLifted || !liftable(query) {
		return "", nil, false
	}
	out := make([]byte, 0, len(query))
	values = make([]driver.NamedValue, 0, 16)
	from := 0 // what is before is in out
	add := func(i, n int, v driver.Value) {
		out = append(append(out, query[from:i]...), '?')
		from = i + n
		values = append(values, driver.NamedValue{Ordinal: len(values) + 1, Value: v})
	}
	places := false // a number may be the place of a column: ORDER BY 1
	var n int
	for i := 0; i < len(query); i += n {
		if len(values) > maxLiterals {
			return "", nil, false
		}
		n = 1
		switch c := query[i]; {
		case isDigit(c):
			n = numberLength(query[i:])
			number, err := strconv.ParseInt(query[i:i+n], 10, 64)
			if err == nil && !places && (i == 0 || query[i-1] != '.') {
				add(i, n, number)
			}
		case isWord(c):
			n = wordLength(query[i:])
			word := query[i : i+n]
			places = places || strings.EqualFold(word, "BY")
			if i+n == len(query) || query[i+n] != '\'' || word != "X" && word != "x" {
				continue
			}
			s, length := quoted(query[i+n:])
			blob, err := hex.DecodeString(s)
			if err != nil || length == 0 {
				return "", nil, false
			}
			n += length
			add(i, n, blob)
		case c == '\'' || c == '"':
			var s string
			if s, n = quoted(query[i:]); n == 0 {
				return "", nil, false
			}
			if c == '\'' {
				add(i, n, strings.ReplaceAll(s, `''`, `'`))
			}
		case strings.IndexByte("?@:$`[;\x00", c) >= 0, c == '-' && strings.HasPrefix(query[i:], "--"), c == '/' && strings.HasPrefix(query[i:], "/*"):
			return "", nil, false
		}
	}
	return string(append(out, query[from:]...)), values, true
}

// liftable reports whether a statement reads or changes rows.
func liftable(query string) bool {
	for _, verb := range []string{"SELECT ", "INSERT ", "UPDATE ", "DELETE "} {
		if strings.HasPrefix(query, verb) {
			return true
		}
	}
	return false
}

// quoted is what stands between the quotes at the beginning of s, where a doubled
// quote is one of the content, and the length with them; 0 without an end.
func quoted(s string) (content string, length int) {
	for i := 1; ; i += 2 {
		n := strings.IndexByte(s[i:], s[0])
		if n < 0 {
			return "", 0
		}
		if i += n; i+1 == len(s) || s[i+1] != s[0] {
			return s[1:i], i + 1
		}
	}
}

func wordLength(s string) int {
	i := 1
	for i < len(s) && isWord(s[i]) {
		i++
	}
	return i
}

// numberLength is that of a number with all its parts: 1.5e-7.
func numberLength(s string) int {
	i := 1
	for i < len(s) && (isWord(s[i]) || s[i] == '.' || (s[i] == '-' || s[i] == '+') && (s[i-1] == 'e' || s[i-1] == 'E')) {
		i++
	}
	return i
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= 0x80
}
