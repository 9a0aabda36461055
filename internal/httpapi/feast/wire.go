package feast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/share"
)

// decode reads a request. Unknown fields are refused: what they ask for would not
// be done. Errors are fault.Invalid, or of the body's limit.
func decode(r *http.Request, into any) error {
	defer share.TurnOf(r.Context()).End()
	return decodeFrom(r.Body, into)
}

func decodeFrom(body io.Reader, into any) error {
	return refused(jsondoc.DecodeFrom(body, into, jsondoc.Known))
}

// refused is the error of a body that could not be read.
func refused(err error) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); err == nil || large || fault.Is(err, fault.TooLarge) || fault.Is(err, fault.Exhausted) {
		return err
	}
	return fault.New(fault.Invalid, "the request's body is not what is asked for here: %w", err)
}

// maxValues bounds those of a request: each takes twenty times in memory of what it is
// in the body.
const maxValues = 5_000_000

// maxRead bounds those of a read, which has feature.MaxEntities of each join key.
const maxRead = 100 * feature.MaxEntities

// columns is an object of lists, in its order.
type columns struct {
	reads  bool // of entities: there are so many, and they are counted while they come
	nested int  // values in lists and objects that are values, about
	names  []string
	values map[string][]any
}

// full reports whether a read has no room for another value.
func (c *columns) full(list []any) bool {
	return c.reads && (len(list) == feature.MaxEntities || len(c.names)*c.rows()+len(list)+c.nested >= maxRead)
}

// UnmarshalJSON implements json.Unmarshaler. Numbers stay as they are written.
func (c *columns) UnmarshalJSON(b []byte) error {
	if bytes.Count(b, []byte{','}) > maxValues { // there are as many values, but for commas in texts
		return fault.New(fault.TooLarge, "a request with more than %d values", maxValues).WithHint("Send the rows in several requests.")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is no object of lists: write {\"column\": [value, …], …}")
	}
	c.names, c.values = nil, map[string][]any{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // the decoder lets nothing else stand there
		if _, twice := c.values[name]; twice {
			return fmt.Errorf("duplicate key %.80q", name)
		}
		list, err := c.list(d)
		if fault.Is(err, fault.TooLarge) {
			return err
		}
		if err != nil || list == nil {
			return fmt.Errorf("%.80q is no list: write {\"column\": [value, …], …}, which pandas gives by df.to_dict(orient=\"list\")", name)
		}
		if len(c.names) > 0 && len(list) != len(c.values[c.names[0]]) {
			return fmt.Errorf("%.80q has %d values and %.80q %d", name, len(list), c.names[0], len(c.values[c.names[0]]))
		}
		c.names, c.values[name] = append(c.names, name), list
	}
	return nil
}

// list reads one; nil: it is null.
func (c *columns) list(d *json.Decoder) (list []any, err error) {
	if !c.reads {
		return list, d.Decode(&list)
	}
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, err
	}
	list = []any{}
	for d.More() {
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return nil, err
		}
		if text[0] == '[' || text[0] == '{' {
			c.nested += bytes.Count(text, []byte{','}) + bytes.Count(text, []byte{'['}) + bytes.Count(text, []byte{'{'})
		}
		if c.full(list) {
			return nil, fault.New(fault.TooLarge, "the entities of a read are more than %d, or their join keys have more than %d values", feature.MaxEntities, maxRead).
				WithHint("Split the request.")
		}
		x, err := cellOf(text)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	_, err = d.Token()
	return list, err
}

// cellOf is what a value of JSON says, as a decoder gives it that keeps numbers.
func cellOf(text json.RawMessage) (x any, err error) {
	switch text[0] {
	case '"', 't', 'f', 'n':
		err = json.Unmarshal(text, &x)
	case '[', '{':
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		err = d.Decode(&x)
	default:
		x = json.Number(text)
	}
	return x, err
}

// rows is how many there are.
func (c *columns) rows() int {
	if len(c.names) == 0 {
		return 0
	}
	return len(c.values[c.names[0]])
}

// appendJSON writes the answer in one pass: an answer of a hundred entities has
// thousands of values, and a call of each one's marshaler costs more than reading it.
func (r *readAnswer) appendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"metadata":{"feature_names":`...)
	if r.Metadata.Names == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '[')
		for _, name := range r.Metadata.Names {
			dst = append(value.OfString(name).AppendJSON(dst), ',')
		}
		dst = endList(dst)
	}
	if len(r.Metadata.Views) > 0 {
		views, err := json.Marshal(r.Metadata.Views)
		if err != nil {
			return nil, err
		}
		dst = append(append(dst, `,"feature_view_metadata":`...), views...)
	}
	dst = append(dst, `},"results":[`...)
	var times stamps
	for i, v := range r.Results {
		if i > 0 {
			dst = append(dst, ',')
		}
		if v.column != nil {
			dst = times.appendColumn(dst, v.column)
			continue
		}
		var err error
		if dst, err = appendKeys(dst, v.keys); err != nil {
			return nil, err
		}
	}
	return append(dst, "]}\n"...), nil
}

// appendKeys writes a join key as it was asked for.
func appendKeys(dst []byte, keys []any) ([]byte, error) {
	dst = append(dst, `{"values":[`...)
	for _, k := range keys {
		if n, ok := k.(json.Number); ok {
			dst = append(append(dst, n...), ',')
			continue
		}
		text, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		dst = append(append(dst, text...), ',')
	}
	dst = append(endList(dst), `,"statuses":[`...)
	for _, k := range keys {
		status := online.Present
		if k == nil {
			status = online.NullValue
		}
		dst = append(append(append(dst, '"'), status...), `",`...)
	}
	dst = append(endList(dst), `,"event_timestamps":[`...)
	for range keys {
		dst = append(appendStamp(dst, nil), ',')
	}
	return append(endList(dst), '}'), nil
}

// stamps are the times of entities as they were written last: the features of a view
// share them.
type stamps struct {
	of   []*time.Time
	text []byte
}

func (s *stamps) appendColumn(dst []byte, c *feature.Column) []byte {
	dst = append(dst, `{"values":[`...)
	for _, x := range c.Values {
		dst = append(appendCell(dst, x), ',')
	}
	dst = append(endList(dst), `,"statuses":[`...)
	for _, status := range c.Statuses {
		if status == online.Masked { // which Feast's clients do not know
			status = online.NullValue
		}
		dst = append(append(append(dst, '"'), status...), `",`...)
	}
	dst = append(endList(dst), `,"event_timestamps":`...)
	if s.of == nil || !slices.Equal(s.of, c.EventTimes) {
		s.of, s.text = c.EventTimes, append(s.text[:0], '[')
		for _, at := range c.EventTimes {
			s.text = append(appendStamp(s.text, at), ',')
		}
		s.text = endList(s.text)
	}
	return append(append(dst, s.text...), '}')
}

// endList ends a list each of whose items has a comma behind it.
func endList(dst []byte) []byte {
	if n := len(dst) - 1; dst[n] == ',' {
		dst = dst[:n]
	}
	return append(dst, ']')
}

// appendCell writes a value in Feast's JSON, where an instant is whole seconds
// since 1970.
func appendCell(dst []byte, v value.Value) []byte {
	if v.IsNull() || v.Type().Elem() != value.Timestamp {
		return v.AppendJSON(dst)
	}
	if v.Type().Scalar() {
		return strconv.AppendInt(dst, v.Time().Unix(), 10)
	}
	dst = append(dst, '[')
	for at := range v.Elements() {
		dst = append(appendCell(dst, at), ',')
	}
	return endList(dst)
}

// appendStamp writes an event's time, 1970 where there is none, as protobuf does:
// with a fraction of 0, 3 or 6 digits.
func appendStamp(dst []byte, at *time.Time) []byte {
	t := time.Unix(0, 0)
	if at != nil {
		t = *at
	}
	layout := `"2006-01-02T15:04:05.000000Z"`
	switch micros := t.Nanosecond() / 1000; {
	case micros == 0:
		layout = `"2006-01-02T15:04:05Z"`
	case micros%1000 == 0:
		layout = `"2006-01-02T15:04:05.000Z"`
	}
	return t.UTC().AppendFormat(dst, layout)
}

// instant reads a time as Feast's clients write it: without a zone it is UTC.
func instant(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}
