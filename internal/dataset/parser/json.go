package parser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
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

// parseJSONLines reads an object a line. Blank lines count for nothing.
func parseJSONLines(body io.Reader, req Request, sink Sink) (int64, error) {
	r := newJSONReader(req, sink)
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, min(64<<10, req.Limits.Record)), req.Limits.Record)
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
		return 0, fault.New(fault.TooLarge, "line %d is over the limit of %d bytes", line+1, req.Limits.Record)
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return r.rows, r.end()
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
	if !json.Valid(b) {
		return 0, "", fault.New(fault.Invalid, "the document is not JSON")
	}
	list, ok := pick(b, req.Records)
	var objects []json.RawMessage
	if !ok || json.Unmarshal(list, &objects) != nil {
		return 0, "", fault.New(fault.Invalid, "the document has no list at %q", req.Records).WithHint("Write where the rows are as names apart by dots, such as data.items.")
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

// add reads an object.
func (r *jsonReader) add(object []byte, line int64) error {
	r.rows++
	if r.rows > r.req.Limits.Rows {
		return fault.New(fault.TooLarge, "there are more than %d rows", r.req.Limits.Rows)
	}
	cells := make([]string, len(r.names), max(len(r.names), 8))
	for i := range cells {
		cells[i] = null
	}
	seen := map[string]bool{}
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Invalid, "row %d (line %d) "+format, append([]any{r.rows, line}, args...)...)
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return bad("is not a JSON object").WithData("%.80q", object)
	}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		var value json.RawMessage
		if err == nil {
			err = d.Decode(&value)
		}
		if err != nil {
			return bad("is not JSON: %v", err)
		}
		if seen[name] {
			return bad("has %q twice", name)
		}
		seen[name] = true
		i, known := r.at[name]
		switch {
		case known:
		case r.req.Only:
			continue
		case r.out != nil:
			return fault.New(fault.Invalid, "row %d (line %d) has a field %q that no row of the beginning has", r.rows, line, name).
				WithHint("Declare the column in the dataset's spec.")
		default:
			if len(r.names) >= table.MaxColumns {
				return bad("is one field over the limit of %d columns", table.MaxColumns)
			}
			i = r.column(name)
		}
		for len(cells) <= i {
			cells = append(cells, null)
		}
		cell, text, err := cellOf(value)
		if err != nil {
			return bad("has in %q %v", name, err)
		}
		if len(cell) > r.req.Limits.Field {
			return fault.New(fault.TooLarge, "row %d (line %d), column %q: %d bytes are over the limit of %d", r.rows, line, name, len(cell), r.req.Limits.Field)
		}
		cells[i] = cell
		r.text[i] = r.text[i] || text
	}
	if _, err := d.Token(); err != nil {
		return bad("is not JSON: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("has something after the object")
	}
	if r.out != nil {
		return r.out.add(cells, r.rows, line)
	}
	r.sample = append(r.sample, sampled{cells, r.rows, line})
	r.size += len(object) + 16*len(cells)
	if r.req.Only || len(r.sample) >= sampleRows || r.size >= sampleBytes {
		return r.plan()
	}
	return nil
}

// cellOf is a value as a cell, and whether it is text (or nested, kept as text).
func cellOf(v json.RawMessage) (cell string, text bool, err error) {
	switch v = bytes.TrimSpace(v); v[0] {
	case 'n':
		return null, false, nil
	case 't', 'f':
		return string(v), false, nil
	case '"':
		if err := json.Unmarshal(v, &cell); err != nil {
			return "", true, err
		}
		if strings.IndexByte(cell, 0) >= 0 {
			return "", true, errors.New("a NUL byte")
		}
		return cell, true, nil
	case '{', '[':
		var b bytes.Buffer
		err := json.Compact(&b, v)
		return b.String(), true, err
	}
	return string(v), false, nil
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
			if t = infer(r.sample, i, nulls); r.text[i] && t != table.Date && t != table.Timestamp {
				t = table.String // "007" and "true" in quotes are text
			}
		}
		columns[i] = newColumn(t, !ok, nulls)
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
			return fault.New(fault.Invalid, "there are no rows, and no columns are declared").WithHint("Declare the columns in the dataset's spec.")
		}
		if err := r.plan(); err != nil {
			return err
		}
	}
	defer r.out.release()
	return r.out.flush()
}
