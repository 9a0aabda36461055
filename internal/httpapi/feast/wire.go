package feast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// decode reads a request. Unknown fields are refused: what they ask for would not
// be done. Errors are fault.Invalid, or of the body's limit.
func decode(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	d.UseNumber()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more after its end")
		}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); err == nil || large {
		return err
	}
	return fault.New(fault.Invalid, "the request's body is not what is asked for here: %w", err)
}

// columns is an object of lists, in its order.
type columns struct {
	names  []string
	values map[string][]any
}

// UnmarshalJSON implements json.Unmarshaler. Numbers stay as they are written.
func (c *columns) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is no object of lists: write {\"column\": [value, …], …}")
	}
	*c = columns{values: map[string][]any{}}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string) // the decoder lets nothing else stand there
		if _, twice := c.values[name]; twice {
			return fmt.Errorf("%.80q is there twice", name)
		}
		var list []any
		if err := d.Decode(&list); err != nil || list == nil {
			return fmt.Errorf("%.80q is no list: write {\"column\": [value, …], …}, which pandas gives by df.to_dict(orient=\"list\")", name)
		}
		if len(c.names) > 0 && len(list) != len(c.values[c.names[0]]) {
			return fmt.Errorf("%.80q has %d values and %.80q %d", name, len(list), c.names[0], len(c.values[c.names[0]]))
		}
		c.names, c.values[name] = append(c.names, name), list
	}
	return nil
}

// rows is how many there are.
func (c *columns) rows() int {
	if len(c.names) == 0 {
		return 0
	}
	return len(c.values[c.names[0]])
}

// cell is a value in Feast's JSON, where an instant is whole seconds since 1970.
type cell struct{ value.Value }

// MarshalJSON implements json.Marshaler.
func (c cell) MarshalJSON() ([]byte, error) {
	if !c.IsNull() && c.Type() == value.Timestamp {
		return strconv.AppendInt(nil, c.Time().Unix(), 10), nil
	}
	return c.Value.MarshalJSON()
}

// stamp is an event's time; 1970 where there is none.
type stamp struct{ *time.Time }

// MarshalJSON implements json.Marshaler: as protobuf writes it, with a fraction of
// 0, 3 or 6 digits.
func (s stamp) MarshalJSON() ([]byte, error) {
	t := time.Unix(0, 0)
	if s.Time != nil {
		t = *s.Time
	}
	layout := `"2006-01-02T15:04:05.000000Z"`
	switch micros := t.Nanosecond() / 1000; {
	case micros == 0:
		layout = `"2006-01-02T15:04:05Z"`
	case micros%1000 == 0:
		layout = `"2006-01-02T15:04:05.000Z"`
	}
	return []byte(t.UTC().Format(layout)), nil
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
