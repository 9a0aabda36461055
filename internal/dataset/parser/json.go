package parser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// maxDocument bounds a JSON document, which is held in memory.
const maxDocument = 256 << 20

// null is the cell of a value that is null or absent; no text may be it, because
// text with a NUL byte is refused.
const null = "\x00"

// jsonReader makes rows of JSON objects: the keys are columns; what is nested is
// kept as JSON text.
type jsonReader struct {
	req    Request
	sink   Sink
	names  []string
	at     map[string]int
	text   []bool // of the sample: the column has strings or what is nested
	sample []sampled
	size   int
	rows   int64
	out    *batcher
}

func newJSONReader(req Request, sink Sink) *jsonReader {
	r := &jsonReader{req: req, sink: sink, at: map[string]int{}}
	for _, c := range req.Columns {
		r.column(c.Name)
	}
	return r
}

func (r *jsonReader) column(name string) int {
	i, ok := r.at[name]
	if !ok {
		i = len(r.names)
		r.at[name] = i
		r.names = append(r.names, name)
		r.text = append(r.text, false)
	}
	return i
}

// parseJSONLines reads objects: one a line, over several lines each, or in one array. Blank
// lines count for nothing.
func parseJSONLines(body *bufio.Reader, req Request, sink Sink) (int64, error) {
	r := newJSONReader(req, sink)
	if req.Only {
		return r.messages(body)
	}
	if err := skipBOM(body); err != nil {
		return 0, err
	}
	in := &lineReader{r: body, line: 1, limit: int64(req.Limits.Record)}
	d := jsontext.NewDecoder(in)
	array := d.PeekKind() == jsontext.KindBeginArray
	if array {
		_, _ = d.ReadToken()
	}
	for last := int64(0); ; {
		kind := d.PeekKind()
		if array && kind == jsontext.KindEndArray {
			_, _ = d.ReadToken()
			break
		}
		line := in.at(begins(d))
		switch token, err := d.ReadToken(); {
		case errors.Is(err, io.EOF) && !array:
			return r.rows, r.end()
		case err != nil && jsondoc.Located(err) == nil:
			return 0, r.large(err, line)
		case err == nil && kind == jsontext.KindBeginObject && line == last && !array:
			return 0, fault.New(fault.Invalid, "row %d (line %d) has data after the object", r.rows, line)
		case err != nil || kind != jsontext.KindBeginObject:
			r.rows++
			if err != nil {
				return 0, r.bad(line, "is not JSON: %v", jsondoc.Located(err))
			}
			text := token.String()
			if kind == jsontext.KindBeginArray { // its first element says more than a bracket
				first, _ := d.ReadValue()
				text += string(first)
			}
			return 0, r.bad(line, "is not a JSON object").WithData("%.80q", text)
		}
		if err := r.object(d, line); err != nil {
			return 0, r.large(err, line)
		}
		last = in.at(d.InputOffset())
		in.from = d.InputOffset()
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return 0, fault.New(fault.Invalid, "there is data after the array of JSON objects, after row %d", r.rows)
	}
	return r.rows, r.end()
}

// messages reads an object a line; each is by itself.
func (r *jsonReader) messages(body io.Reader) (int64, error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, min(64<<10, r.req.Limits.Record)), r.req.Limits.Record)
	line := int64(0)
	for lines.Scan() {
		line++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := r.add(lines.Bytes(), line); err != nil {
			return 0, err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return 0, fault.New(fault.TooLarge, "line %d is over the limit of %d bytes", line+1, r.req.Limits.Record)
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return r.rows, r.end()
}

// lineReader counts lines and bounds what one row may make the decoder collect.
type lineReader struct {
	r      io.Reader
	limit  int64
	read   int64   // bytes
	from   int64   // where the last row ended
	line   int64   // of what at was asked for last
	breaks []int64 // places of line breaks behind it
}

func (l *lineReader) Read(p []byte) (int, error) {
	if l.read-l.from > l.limit {
		return 0, errRecordTooLarge
	}
	n, err := l.r.Read(p)
	for at := 0; ; at++ {
		i := bytes.IndexByte(p[at:n], '\n')
		if i < 0 {
			break
		}
		at += i
		l.breaks = append(l.breaks, l.read+int64(at))
	}
	l.read += int64(n)
	return n, err
}

// at is the line of a place, which is not before the one that was asked for last.
func (l *lineReader) at(offset int64) int64 {
	passed := 0
	for passed < len(l.breaks) && l.breaks[passed] < offset {
		passed++
	}
	l.line += int64(passed)
	l.breaks = append(l.breaks[:0], l.breaks[passed:]...)
	return l.line
}

// begins is where the next token does, after PeekKind.
func begins(d *jsontext.Decoder) int64 {
	rest := d.UnreadBuffer()
	return d.InputOffset() + int64(len(rest)-len(bytes.TrimLeft(rest, " \t\r\n,")))
}

// parseJSON reads one document that has a list of objects somewhere, and, when
// asked, a value elsewhere that says how to go on.
func parseJSON(body io.Reader, req Request, sink Sink) (rows int64, next string, err error) {
	b, err := io.ReadAll(io.LimitReader(body, maxDocument+1))
	if err != nil {
		return 0, "", err
	}
	if len(b) > maxDocument {
		return 0, "", fault.New(fault.TooLarge, "the document is over the limit of %d bytes", maxDocument)
	}
	if err := jsondoc.Check(b); err != nil {
		return 0, "", fault.New(fault.Invalid, "the document is not valid JSON: %w", err)
	}
	list, ok := pick(b, req.Records)
	var objects []json.RawMessage
	if !ok || json.Unmarshal(list, &objects) != nil {
		return 0, "", fault.New(fault.Invalid, "the document has no list at %q", req.Records).WithHint("Write the path to the list as dot-separated names, such as data.items.")
	}
	if req.Next != "" {
		if v, ok := pick(b, req.Next); ok && json.Unmarshal(v, &next) != nil && string(v) != "null" {
			next = string(v) // a number
		}
	}
	r := newJSONReader(req, sink)
	for i, o := range objects {
		if err := r.add(o, int64(i+1)); err != nil {
			return 0, "", err
		}
	}
	return r.rows, next, r.end()
}

// pick follows names apart by dots.
func pick(doc json.RawMessage, path string) (json.RawMessage, bool) {
	if path == "" {
		return doc, true
	}
	for name := range strings.SplitSeq(path, ".") {
		var o map[string]json.RawMessage
		if json.Unmarshal(doc, &o) != nil {
			return nil, false
		}
		var ok bool
		if doc, ok = o[name]; !ok {
			return nil, false
		}
	}
	return doc, true
}

// bad is a refusal of the row that is read.
func (r *jsonReader) bad(line int64, format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "row %d (line %d) "+format, append([]any{r.rows, line}, args...)...)
}

// large says of which row there is too much.
func (r *jsonReader) large(err error, line int64) error {
	if errors.Is(err, errRecordTooLarge) {
		return fault.New(fault.TooLarge, "row %d (line %d) is over the limit of %d bytes", max(r.rows, 1), line, r.req.Limits.Record).
			WithHint("Check for an unclosed quote or bracket.")
	}
	return err
}

// add reads a text that is an object.
func (r *jsonReader) add(text []byte, line int64) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(text))
	if t, err := d.ReadToken(); err != nil || t.Kind() != jsontext.KindBeginObject {
		r.rows++
		return r.bad(line, "is not a JSON object").WithData("%.80q", text)
	}
	if err := r.object(d, line); err != nil {
		return err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return r.bad(line, "has data after the object")
	}
	return nil
}

// object reads the rest of an object. The decoder refuses what is not UTF-8, half surrogate
// pairs, and names that come twice.
func (r *jsonReader) object(d *jsontext.Decoder, line int64) error {
	r.rows++
	if r.rows > r.req.Limits.Rows {
		return fault.New(fault.TooLarge, "there are more than %d rows", r.req.Limits.Rows)
	}
	cells := make([]string, len(r.names), max(len(r.names), 8))
	for i := range cells {
		cells[i] = null
	}
	start := d.InputOffset()
	for d.PeekKind() != jsontext.KindEndObject {
		t, err := d.ReadToken()
		if err != nil {
			return r.broken(err, line, "")
		}
		name := t.String()
		value, err := d.ReadValue()
		if err != nil {
			return r.broken(err, line, name)
		}
		i, known := r.at[name]
		switch {
		case slices.Contains(r.req.LeaveOut, name):
			continue
		case known:
		case r.req.Only:
			continue
		case r.out != nil:
			return fault.New(fault.Invalid, "row %d (line %d) has a field %q that none of the first rows has", r.rows, line, name).
				WithHint("Declare the column in the dataset's spec.")
		default:
			if len(r.names) >= table.MaxColumns {
				return r.bad(line, "exceeds the limit of %d columns", table.MaxColumns)
			}
			i = r.column(name)
		}
		for len(cells) <= i {
			cells = append(cells, null)
		}
		cell, text, err := cellOf(value)
		if err != nil {
			return r.bad(line, "has an invalid value in %q: %v", name, err)
		}
		if len(cell) > r.req.Limits.Field {
			return fault.New(fault.TooLarge, "row %d (line %d), column %q: %d bytes are over the limit of %d", r.rows, line, name, len(cell), r.req.Limits.Field)
		}
		cells[i] = cell
		r.text[i] = r.text[i] || text
	}
	if _, err := d.ReadToken(); err != nil {
		return r.broken(err, line, "")
	}
	size := d.InputOffset() - start
	if size > int64(r.req.Limits.Record) {
		return errRecordTooLarge
	}
	if r.out != nil {
		return r.out.add(cells, r.rows, line)
	}
	r.sample = append(r.sample, sampled{cells, r.rows, line})
	r.size += int(size) + 16*len(cells)
	if r.req.Only || len(r.sample) >= sampleRows || r.size >= sampleBytes {
		return r.plan()
	}
	return nil
}

// broken refuses an object that cannot be read on, in a value of a name or in a name.
func (r *jsonReader) broken(err error, line int64, name string) error {
	e := jsondoc.Located(err)
	switch {
	case e == nil:
		return err // of the reader below
	case e.Twice != "" && name == "":
		return r.bad(line, "has the duplicate field %q", e.Twice)
	case e.Twice != "":
		return r.bad(line, "has the duplicate field %q within %q", e.Twice, name)
	case e.What == jsondoc.NotUTF8, e.What == jsondoc.HalfPair:
		if name == "" {
			return r.bad(line, "has a field name that is %s", e.What).WithHint("Save the file as UTF-8.")
		}
		return fault.New(fault.Invalid, "row %d (line %d), column %q is %s", r.rows, line, name, e.What).WithHint("Save the file as UTF-8.")
	}
	return r.bad(line, "is not JSON: %s", e.What)
}

// cellOf is a value as a cell, and whether it is text (or nested, kept as text).
func cellOf(v jsontext.Value) (cell string, text bool, err error) {
	switch v.Kind() {
	case jsontext.KindNull:
		return null, false, nil
	case jsontext.KindString:
		b, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return "", true, err
		}
		if bytes.IndexByte(b, 0) >= 0 {
			return "", true, errors.New("a NUL byte")
		}
		return string(b), !notFinite(string(b)), nil // "NaN" among numbers is one, as JSON has no other word
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		var b bytes.Buffer
		err := json.Compact(&b, v)
		return b.String(), true, err
	default: // a number, true or false
		return string(v), false, nil
	}
}

// plan finds the columns' types and begins.
func (r *jsonReader) plan() error {
	if err := table.CheckNames(r.names); err != nil {
		return err
	}
	for i := range r.sample {
		for len(r.sample[i].cells) < len(r.names) {
			r.sample[i].cells = append(r.sample[i].cells, null)
		}
	}
	declared := map[string]table.Type{}
	for _, c := range r.req.Columns {
		declared[c.Name] = c.Type
	}
	nulls := newNullSet([]string{null})
	columns := make([]*column, len(r.names))
	schema := make(table.Schema, len(r.names))
	for i, name := range r.names {
		t, ok := declared[name]
		if !ok {
			if t = infer(r.sample, i, nulls, nil); r.text[i] && t != table.Date && t != table.Timestamp {
				t = table.String // "007" and "true" in quotes are text
			}
		}
		columns[i] = newColumn(t, !ok || slices.Contains(r.req.Inferred, name), nulls)
		schema[i] = table.Field{Name: name, Type: t}
	}
	r.out = &batcher{sink: r.sink, schema: schema.Arrow(), columns: columns, names: r.names, most: r.req.Batch}
	if err := r.sink.Begin(r.out.schema); err != nil {
		return err
	}
	for _, s := range r.sample {
		if err := r.out.add(s.cells, s.row, s.line); err != nil {
			return err
		}
	}
	r.sample = nil
	return nil
}

func (r *jsonReader) end() error {
	if r.out == nil {
		if len(r.names) == 0 {
			return fault.New(fault.Invalid, "the JSON has no rows, and the dataset declares no columns").WithHint("Declare the columns in the dataset's spec.")
		}
		if err := r.plan(); err != nil {
			return err
		}
	}
	defer r.out.release()
	return r.out.flush()
}
