package profiler

import (
	"path"
	"strings"
)

// compact shortens the command lines in py-spy's stacks, which are whole, again
// on each line, and may have lines themselves: `process 7:"python -c …";thread`.
// Two words are left of each, so that a stack is one line.
func compact(text string) string {
	var out strings.Builder
	for text != "" {
		after, is := strings.CutPrefix(text, "process ")
		number, quoted, ok := strings.Cut(after, `:"`)
		end := ending(quoted)
		if !is || !ok || len(number) > 20 || strings.Trim(number, "0123456789") != "" || end < 0 {
			line, rest, _ := strings.Cut(text, "\n")
			out.WriteString(line)
			out.WriteByte('\n')
			text = rest
			continue
		}
		out.WriteString("process " + number + `:"` + command(quoted[:end]) + `";`)
		text = quoted[end+2:]
	}
	return out.String()
}

// ending is where a command line ends: before the next process, or the thread.
func ending(s string) int {
	end := -1
	for _, next := range []string{`";process `, `";thread (`} {
		if i := strings.Index(s, next); i >= 0 && (end < 0 || i < end) {
			end = i
		}
	}
	return end
}

func command(s string) string {
	words := strings.Fields(strings.Map(func(r rune) rune {
		if r == '"' || r == ';' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 1<<10)], "")))
	for i := range words {
		words[i] = path.Base(words[i])
	}
	return strings.Join(words[:min(len(words), 2)], " ")
}
