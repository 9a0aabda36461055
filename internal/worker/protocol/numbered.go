package protocol

import (
	"bytes"
	"strconv"
)

// MaxLine bounds a line of a gang's log, in bytes: a longer one is cut into several.
const MaxLine = 64 << 10

// Numbered appends to text the lines of b, what a member of a gang wrote, each with its
// index: "[3] step 40". Taken is how many bytes of b that were: the rest has no end yet,
// which last says that it never gets.
//
// A progress bar goes back by a carriage return and draws itself anew. What it showed is
// a line: it is output at once, and not only when the bar has come to its end.
func Numbered(text []byte, index int, b []byte, last bool) (all []byte, taken int) {
	for taken < len(b) {
		line, n := nextLine(b[taken:], last)
		if n == 0 {
			break
		}
		taken += n
		if len(line) == 0 { // a bar goes back before it is drawn first
			continue
		}
		text = append(text, '[')
		text = strconv.AppendInt(text, int64(index), 10)
		text = append(append(text, "] "...), line...)
		if line[len(line)-1] != '\n' {
			text = append(text, '\n')
		}
	}
	return text, taken
}

// nextLine is the first line of b, with its end of line if it has one, and how many bytes
// are done with it; none while it has no end.
func nextLine(b []byte, last bool) (line []byte, taken int) {
	end := bytes.IndexAny(b[:min(len(b), MaxLine)], "\r\n")
	if end >= 0 && b[end] == '\n' {
		return b[:end+1], end + 1
	}
	if end >= 0 {
		after := end
		for after < len(b) && b[after] == '\r' {
			after++
		}
		switch {
		case after < len(b) && b[after] == '\n' && after < MaxLine:
			return b[:after+1], after + 1
		case after < len(b) || last || len(b) >= MaxLine:
			return b[:end], after
		}
		return nil, 0
	}
	if last || len(b) >= MaxLine {
		n := min(len(b), MaxLine)
		return b[:n], n
	}
	return nil, 0
}
