package diagnosis

import (
	"bufio"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Line of a log.
type Line struct {
	Worker int    `json:"worker,omitempty"` // of a gang
	Number int    `json:"number"`           // in the whole log, from 1
	Text   string `json:"text"`
}

// Log is the end of what each worker wrote.
type Log struct {
	workers map[int][]Line
}

// Limits of what is kept of a log.
const (
	keptLines = 600  // of each worker
	keptText  = 1000 // bytes of a line
	maxGang   = 1024

	maxTracebacks = 20 // that are read, from the last one on
)

// Read keeps the end of an attempt's output. Of a gang, each line begins with
// its worker: "[3] text". However long a line or the log, little of it is held.
func Read(r io.Reader, gang bool) (Log, error) {
	l := Log{workers: map[int][]Line{}}
	b := bufio.NewReaderSize(r, 64<<10)
	var text []byte
	for n := 1; ; {
		part, err := b.ReadSlice('\n')
		text = append(text, part[:min(len(part), max(keptText-len(text), 0))]...)
		switch {
		case err == nil || errors.Is(err, io.EOF) && len(text) > 0:
			l.add(n, strings.TrimRight(string(text), "\r\n"), gang)
			text = text[:0]
			n++
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		}
		if errors.Is(err, io.EOF) {
			return l, nil
		}
		if err != nil {
			return l, err
		}
	}
}

func (l Log) add(number int, text string, gang bool) {
	worker := 0
	if gang {
		index, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "] ")
		i, err := strconv.Atoi(index)
		if ok && err == nil && i >= 0 && i < maxGang && strings.HasPrefix(text, "[") {
			worker, text = i, rest
		}
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	lines := l.workers[worker]
	if len(lines) >= 2*keptLines {
		lines = append(lines[:0], lines[len(lines)-keptLines:]...)
	}
	l.workers[worker] = append(lines, Line{Worker: worker, Number: number, Text: text})
}

var nanRE = regexp.MustCompile(`(?i)\bloss\b['"]?\s*[=: ]\s*nan\b`)

// notANumber is the first line kept with a loss that is none.
func (l Log) notANumber() (first Line, found bool) {
	for _, lines := range l.workers {
		for _, line := range lines {
			if nanRE.MatchString(line.Text) && (!found || line.Number < first.Number) {
				first, found = line, true
			}
		}
	}
	return first, found
}

// traceback is the last Python traceback among lines: the place in the user's
// own code, if there is one, and the exception.
type traceback struct {
	frame     []Line // the file's line and the code's
	exception Line
}

var (
	frameRE     = regexp.MustCompile(`^\s*File "([^"]+)", line \d+`)
	exceptionRE = regexp.MustCompile(`^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failed|Timeout|Iteration)|[a-z_]\w*(?:\.\w+)*\.[A-Z]\w*)(?::|$)`)
	attemptRE   = regexp.MustCompile(`File "[^"]*/att_[^/"]+/(?:work|m\d+)/`) // where an attempt's source lies
	libraryRE   = regexp.MustCompile(`/(site-packages|dist-packages)/|/lib/python3|^<frozen|^<string>`)
)

func lastTraceback(lines []Line) (t traceback, found bool) {
	for i, tries := len(lines)-1, 0; i >= 0 && tries < maxTracebacks; i-- {
		if !strings.HasPrefix(strings.TrimSpace(lines[i].Text), "Traceback (most recent call last)") {
			continue
		}
		tries++
		t = traceback{}
		for at, end := i+1, min(len(lines), i+400); at < end; at++ {
			if m := frameRE.FindStringSubmatch(lines[at].Text); m != nil {
				if !libraryRE.MatchString(m[1]) {
					t.frame = lines[at:min(at+2, end)]
				}
				continue
			}
			if exceptionRE.MatchString(lines[at].Text) {
				t.exception = lines[at]
				return t, true
			}
		}
	}
	return t, false
}

// place is the frame, with the file as it is called in the job's source.
func (t traceback) place() []Line {
	out := slices.Clone(t.frame)
	for i := range out {
		out[i].Text = attemptRE.ReplaceAllLiteralString(out[i].Text, `File "`)
	}
	return out
}
