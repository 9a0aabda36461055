package diagnosis

import (
	"bufio"
	"bytes"
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
	var text redrawn
	for n := 1; ; {
		part, err := b.ReadSlice('\n')
		text.write(bytes.TrimSuffix(part, []byte("\n")))
		switch {
		case err == nil || errors.Is(err, io.EOF) && len(text.last) > 0:
			l.add(n, string(text.last), gang)
			text = redrawn{last: text.last[:0]}
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

// redrawn is a line that a program may draw anew, as progress bars do: it goes back by
// a carriage return, and what it writes then replaces what was there.
type redrawn struct {
	last []byte // what stands there now, as far as it is kept
	back bool   // the next byte replaces it
}

func (d *redrawn) write(part []byte) {
	if text := bytes.TrimRight(part, "\r"); len(text) > 0 {
		if i := bytes.LastIndexByte(text, '\r'); i >= 0 {
			text, d.back = text[i+1:], true
		}
		if d.back {
			d.last, d.back = d.last[:0], false
		}
		d.last = append(d.last, text[:min(len(text), max(keptText-len(d.last), 0))]...)
	}
	d.back = d.back || bytes.HasSuffix(part, []byte("\r"))
}

// escapeRE is a terminal's colours and movements.
var escapeRE = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

func (l Log) add(number int, text string, gang bool) {
	worker := 0
	if gang {
		index, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "] ")
		i, err := strconv.Atoi(index)
		if ok && err == nil && i >= 0 && i < maxGang && strings.HasPrefix(text, "[") {
			worker, text = i, rest
		}
	}
	text = escapeRE.ReplaceAllLiteralString(strings.ToValidUTF8(text, "\uFFFD"), "")
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

// traceback of Python: the place in the user's own code, if there is one, and the
// exception. The lines are without the label that a launcher puts before them.
type traceback struct {
	begin     int    // the index of its first line
	label     string // before each of its lines, such as "[rank1]: "
	frame     []Line // the file's line and the code's
	exception Line
	relayed   bool // of a process, whose launcher says only that it failed
}

var (
	frameRE = regexp.MustCompile(`^\s*File "([^"]+)", line \d+`)
	// What Python prints of an exception: the name of its class, with the module if it
	// is not the script's, and the message.
	exceptionRE = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_]*(?:\.(?:[\p{L}_][\p{L}\p{N}_]*|<locals>))*(?:: |:?$)`)
	// Names that are an exception's wherever they stand in the lines after a traceback.
	customaryRE = regexp.MustCompile(`^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failed|Timeout|Iteration)|[a-z_]\w*(?:\.\w+)*\.[A-Z]\w*)(?::|$)`)
	attemptRE   = regexp.MustCompile(`File "[^"]*/att_[^/"]+/(?:work|m\d+)/`) // where an attempt's source lies
	libraryRE   = regexp.MustCompile(`/(site-packages|dist-packages)/|/lib/python3|^<frozen|^<string>`)
	// What launchers raise when a process that they started has failed, which said why
	// itself: torchrun, and accelerate, whose words other programs use as well.
	childRE   = regexp.MustCompile(`^(?:[\w.]+\.)?ChildFailedError\b`)
	loaderRE  = regexp.MustCompile(`^RuntimeError: DataLoader worker \(pid`)
	commandRE = regexp.MustCompile(`^(?:subprocess\.)?CalledProcessError: `)
)

const (
	tracebackMark = "Traceback (most recent call last)"
	groupMark     = "Exception Group "
	causeMark     = "The above exception was the direct cause of the following exception"
)

// syntaxRE is what Python prints of a script that it cannot compile, without a traceback;
// what stands before it is a label.
var syntaxRE = regexp.MustCompile(`^(.*?)((?:Syntax|Indentation|Tab)Error: .*)$`)

// syntaxError is the last error of a script that Python could not compile: its place, the
// code with a mark below it, and the error.
func syntaxError(lines []Line) (t traceback, found bool) {
	for i, line := range slices.Backward(lines) {
		m := syntaxRE.FindStringSubmatch(line.Text)
		if m == nil {
			continue
		}
		for at := i - 1; at >= 0 && at >= i-6; at-- {
			text, ok := strings.CutPrefix(lines[at].Text, m[1])
			if !ok || !frameRE.MatchString(text) {
				continue
			}
			t = traceback{begin: at, label: m[1], exception: line}
			t.exception.Text = m[2]
			place := lines[at]
			place.Text = text
			t.frame = []Line{place}
			if code, ok := next(lines[:i], at, m[1]); ok {
				t.frame = append(t.frame, code)
			}
			return t, true
		}
	}
	return t, false
}

// lastTraceback is what ended the program: the last traceback, or the syntax error behind
// it or behind which there is only that of a launcher.
func lastTraceback(lines []Line) (last traceback, found bool) {
	last, found = lastMarked(lines)
	if t, ok := syntaxError(lines); ok && (!found || t.exception.Number > last.exception.Number || !last.relayed && childRE.MatchString(last.exception.Text)) {
		return t, true
	}
	return last, found
}

// lastMarked is the traceback that ended the program: the last of the log. Where a launcher
// only says that a process has failed, it is that of the process; of several processes,
// that of one which did not merely lose the others.
func lastMarked(lines []Line) (last traceback, found bool) {
	relayed, fallback := false, false
	for i, tries := len(lines)-1, 0; i >= 0 && tries < maxTracebacks; i-- {
		if !strings.Contains(lines[i].Text, tracebackMark) {
			continue
		}
		tries++
		t, ok := tracebackAt(lines, i)
		switch {
		case !ok:
		case !found:
			last, found = t, true
			if childRE.MatchString(t.exception.Text) || commandRE.MatchString(t.exception.Text) && follows(lines, t) {
				relayed = true
				continue
			}
			return last, true
		case relayed && !childRE.MatchString(t.exception.Text):
			if t.relayed = true; !lostPeer(t.exception.Text) {
				return t, true
			}
			if !fallback {
				last, fallback = t, true
			}
		}
	}
	return last, found
}

// follows reports that a traceback stands directly behind the end of another.
func follows(lines []Line, t traceback) bool {
	at := t.before(lines)
	for i := at; i >= 0 && i > at-400; i-- {
		if strings.Contains(lines[i].Text, tracebackMark) {
			earlier, ok := tracebackAt(lines, i)
			return ok && earlier.exception.Number == lines[at].Number
		}
	}
	return false
}

// before is the index of the last line before a traceback that is not empty, -1 without one.
func (t traceback) before(lines []Line) int {
	i := t.begin - 1
	for i >= 0 && strings.TrimSpace(strings.TrimPrefix(lines[i].Text, strings.TrimRight(t.label, " "))) == "" {
		i--
	}
	return i
}

// cause is the exception that t was raised from, by Python's own words between the two.
func (t traceback) cause(lines []Line) (traceback, bool) {
	at := t.before(lines)
	if at < 0 || !strings.Contains(lines[at].Text, causeMark) {
		return traceback{}, false
	}
	for i := at - 1; i >= 0 && i > at-400; i-- {
		if strings.Contains(lines[i].Text, tracebackMark) {
			return tracebackAt(lines, i)
		}
	}
	return traceback{}, false
}

// tracebackAt reads the traceback that begins in a line. What stands before its first
// words is the label of each of its lines, or is only there because a progress bar has
// not ended its own.
func tracebackAt(lines []Line, i int) (traceback, bool) {
	label, _, _ := strings.Cut(lines[i].Text, tracebackMark)
	if outer, ok := strings.CutSuffix(label, groupMark); ok { // "  + Exception Group Traceback", then "  | File"
		label = strings.Replace(outer, "+ ", "| ", 1)
	}
	if t, ok := labelled(lines, i, label); ok || label == "" {
		return t, ok
	}
	return labelled(lines, i, "")
}

func labelled(lines []Line, i int, label string) (traceback, bool) {
	t := traceback{begin: i, label: label}
	inside := true // the line before is part of the traceback
	end := min(len(lines), i+400)
	for at := i + 1; at < end; at++ {
		text, ok := strings.CutPrefix(lines[at].Text, label)
		if !ok || text == "" {
			continue
		}
		if strings.Contains(text, tracebackMark) {
			return t, false
		}
		line := lines[at]
		line.Text = text
		if m := frameRE.FindStringSubmatch(text); m != nil {
			if !libraryRE.MatchString(m[1]) {
				t.frame = []Line{line}
				if code, ok := next(lines[:end], at, label); ok {
					t.frame = append(t.frame, code)
				}
			}
			inside = true
			continue
		}
		if strings.HasPrefix(text, " ") {
			inside = true
			continue
		}
		if customaryRE.MatchString(text) {
			t.exception = line
			return t, true
		}
		if inside && exceptionRE.MatchString(text) {
			// Another process may write in between: its line is before a frame.
			if after, ok := next(lines[:end], at, label); !ok || !frameRE.MatchString(after.Text) {
				t.exception = line
				return t, true
			}
		}
		inside = false
	}
	return t, false
}

// next is the line after at that has a label, without it.
func next(lines []Line, at int, label string) (Line, bool) {
	for _, line := range lines[at+1:] {
		if text, ok := strings.CutPrefix(line.Text, label); ok {
			line.Text = text
			return line, true
		}
	}
	return Line{}, false
}

// place is the frame, with the file as it is called in the job's source.
func (t traceback) place() []Line {
	out := slices.Clone(t.frame)
	for i := range out {
		out[i].Text = attemptRE.ReplaceAllLiteralString(out[i].Text, `File "`)
	}
	return out
}
