package oip

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// MaxTensors bounds the inputs and outputs of one request.
const MaxTensors = 256

type request struct {
	ID         string         `json:"id"`
	Parameters map[string]any `json:"parameters"`
	Inputs     []input        `json:"inputs"`
	Outputs    []output       `json:"outputs"`
}

type input struct {
	Name       string           `json:"name"`
	Shape      []int64          `json:"shape"`
	Datatype   runtime.Datatype `json:"datatype"`
	Parameters map[string]any   `json:"parameters"`
	Data       json.RawMessage  `json:"data"`
}

type output struct {
	Name       string         `json:"name"`
	Parameters map[string]any `json:"parameters"`
}

// decode reads an inference request. Errors are fault.Invalid or TooLarge.
func decode(body []byte) (serving.Request, error) {
	var out serving.Request
	if !utf8.Valid(body) {
		return out, fault.New(fault.Invalid, "the request is not UTF-8")
	}
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return out, fault.New(fault.Invalid, "the request is not an inference request in JSON: %v", err)
	}
	out.ID = r.ID
	switch {
	case len(r.Inputs) == 0:
		return out, fault.New(fault.Invalid, "the request has no inputs")
	case len(r.Inputs) > MaxTensors || len(r.Outputs) > MaxTensors:
		return out, fault.New(fault.TooLarge, "a request may have %d inputs and %d outputs", MaxTensors, MaxTensors)
	}
	if err := r.parameters(&out); err != nil {
		return out, err
	}
	out.Inputs = make([]runtime.Tensor, len(r.Inputs))
	for i, in := range r.Inputs {
		var err error
		if out.Inputs[i], err = in.tensor(); err != nil {
			return out, err
		}
	}
	for _, o := range r.Outputs {
		if slices.Contains(out.Outputs, o.Name) {
			return out, fault.New(fault.Invalid, "output %q is asked for twice", o.Name)
		}
		out.Outputs = append(out.Outputs, o.Name)
	}
	return out, nil
}

// parameters reads those of ours; the protocol lets clients send others.
func (r request) parameters(out *serving.Request) error {
	if v, ok := r.Parameters["as_of"]; ok && v != nil {
		text, _ := v.(string)
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || at.IsZero() {
			return fault.New(fault.Invalid, "parameters.as_of is no time: %.40v", v).WithHint("Write it as 2013-07-04T12:00:00Z.")
		}
		out.AsOf = at.UTC()
	}
	if v, ok := r.Parameters["route_key"]; ok && v != nil {
		text, isText := v.(string)
		if !isText {
			return fault.New(fault.Invalid, "parameters.route_key is not text: %.40v", v)
		}
		out.RouteKey = text
	}
	return nil
}

func (in input) tensor() (runtime.Tensor, error) {
	t := runtime.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape}
	if !slices.Contains(runtime.Datatypes, in.Datatype) {
		if in.Datatype == "FP16" || in.Datatype == "BF16" {
			return t, fault.New(fault.Invalid, "input %q: %s has no JSON form", in.Name, in.Datatype).WithHint("Send FP32.")
		}
		return t, fault.New(fault.Invalid, "input %q: datatype %q does not exist", in.Name, in.Datatype).WithHint("Datatypes: %v.", runtime.Datatypes)
	}
	n, err := runtime.Elements(in.Shape)
	if err != nil {
		return t, fault.Wrap(err, "input %q", in.Name)
	}
	if len(in.Data) == 0 {
		return t, fault.New(fault.Invalid, "input %q has no data", in.Name)
	}
	// Each element is at least one byte and, but for the last, a comma: a shape
	// that promises more than the body holds is refused before memory is taken.
	if n > len(in.Data)/2+1 {
		return t, fault.New(fault.Invalid, "input %q: shape %v wants %d elements, data has fewer", in.Name, in.Shape, n)
	}
	p := scanner{buf: in.Data, name: in.Name, shape: in.Shape, want: n}
	switch in.Datatype {
	case runtime.Bool:
		t.Data, err = elements(&p, boolean)
	case runtime.Uint8:
		t.Data, err = elements(&p, unsigned[uint8](8))
	case runtime.Uint16:
		t.Data, err = elements(&p, unsigned[uint16](16))
	case runtime.Uint32:
		t.Data, err = elements(&p, unsigned[uint32](32))
	case runtime.Uint64:
		t.Data, err = elements(&p, unsigned[uint64](64))
	case runtime.Int8:
		t.Data, err = elements(&p, signed[int8](8))
	case runtime.Int16:
		t.Data, err = elements(&p, signed[int16](16))
	case runtime.Int32:
		t.Data, err = elements(&p, signed[int32](32))
	case runtime.Int64:
		t.Data, err = elements(&p, signed[int64](64))
	case runtime.FP32:
		t.Data, err = elements(&p, float[float32](32))
	case runtime.FP64:
		t.Data, err = elements(&p, float[float64](64))
	case runtime.Bytes:
		t.Data, err = elements(&p, text)
	}
	return t, err
}

// scanner walks the data array of a tensor, flat or nested as its shape says.
// The bytes are valid JSON: encoding/json has seen them.
type scanner struct {
	buf   []byte
	pos   int
	name  string
	shape []int64
	want  int
}

func (p *scanner) space() {
	for p.pos < len(p.buf) && (p.buf[p.pos] == ' ' || p.buf[p.pos] == '\n' || p.buf[p.pos] == '\t' || p.buf[p.pos] == '\r') {
		p.pos++
	}
}

func (p *scanner) next() byte {
	p.space()
	if p.pos >= len(p.buf) {
		return 0
	}
	return p.buf[p.pos]
}

// token cuts the scalar at the position.
func (p *scanner) token() []byte {
	start := p.pos
	if p.next() == '"' {
		for p.pos++; p.buf[p.pos] != '"'; p.pos++ {
			if p.buf[p.pos] == '\\' {
				p.pos++
			}
		}
		p.pos++
		return p.buf[start:p.pos]
	}
	for p.pos < len(p.buf) && bytes.IndexByte([]byte(",] \n\t\r"), p.buf[p.pos]) < 0 {
		p.pos++
	}
	return p.buf[start:p.pos]
}

// elements reads the whole array. A nested array must have exactly the shape.
func elements[T any](p *scanner, parse func([]byte) (T, error)) ([]T, error) {
	out := make([]T, 0, p.want)
	nested := false
	if p.next() == '[' {
		at := p.pos
		p.pos++
		nested = p.next() == '['
		p.pos = at
	}
	dims := []int64{int64(p.want)}
	if nested {
		dims = p.shape
	}
	out, err := fill(p, dims, out, parse)
	if err != nil {
		return nil, err
	}
	if p.next() != 0 {
		return nil, fault.New(fault.Invalid, "input %q: data is not one array", p.name)
	}
	return out, nil
}

func fill[T any](p *scanner, dims []int64, out []T, parse func([]byte) (T, error)) ([]T, error) {
	if len(dims) == 0 {
		switch c := p.next(); c {
		case '[', '{', ']', 0:
			return nil, p.misshapen()
		}
		p.space()
		tok := p.token()
		v, err := parse(tok)
		if err != nil {
			if len(tok) > 40 {
				tok = tok[:40]
			}
			return nil, fault.New(fault.Invalid, "input %q: element %d is %s: %v", p.name, len(out), tok, err)
		}
		return append(out, v), nil
	}
	if p.next() != '[' {
		return nil, p.misshapen()
	}
	p.pos++
	for i := range dims[0] {
		if i > 0 {
			if p.next() != ',' {
				return nil, p.misshapen()
			}
			p.pos++
		}
		var err error
		if out, err = fill(p, dims[1:], out, parse); err != nil {
			return nil, err
		}
	}
	if p.next() != ']' {
		return nil, p.misshapen()
	}
	p.pos++
	return out, nil
}

func (p *scanner) misshapen() error {
	return fault.New(fault.Invalid, "input %q: data does not have shape %v (%d elements)", p.name, p.shape, p.want).
		WithHint("data is a flat array of all elements in row-major order, or nested exactly as the shape.")
}

type refusal string

func (r refusal) Error() string { return string(r) }

func boolean(tok []byte) (bool, error) {
	switch string(tok) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, refusal("not true or false")
}

func text(tok []byte) (string, error) {
	if len(tok) < 2 || tok[0] != '"' {
		return "", refusal("not a string")
	}
	var s string
	err := json.Unmarshal(tok, &s)
	return s, err
}

func signed[T int8 | int16 | int32 | int64](bits int) func([]byte) (T, error) {
	return func(tok []byte) (T, error) {
		v, err := strconv.ParseInt(string(tok), 10, bits)
		if err != nil {
			return 0, refusal("not a whole number of " + strconv.Itoa(bits) + " bits")
		}
		return T(v), nil
	}
}

func unsigned[T uint8 | uint16 | uint32 | uint64](bits int) func([]byte) (T, error) {
	return func(tok []byte) (T, error) {
		v, err := strconv.ParseUint(string(tok), 10, bits)
		if err != nil {
			return 0, refusal("not a whole number from 0 of " + strconv.Itoa(bits) + " bits")
		}
		return T(v), nil
	}
}

func float[T float32 | float64](bits int) func([]byte) (T, error) {
	return func(tok []byte) (T, error) {
		if len(tok) > 0 && (tok[0] == '"' || tok[0] == 'n' || tok[0] == 't' || tok[0] == 'f') {
			if s := string(tok); s == `"NaN"` || s == "null" { // what clients send for a missing value
				return T(math.NaN()), nil
			}
			return 0, refusal("not a number")
		}
		v, err := strconv.ParseFloat(string(tok), bits)
		if err != nil {
			return 0, refusal("not a number of " + strconv.Itoa(bits) + " bits")
		}
		return T(v), nil
	}
}

// encode writes an inference answer. NaN and infinities, for which JSON has no
// form, become null.
func encode(dst []byte, name, version, id string, outputs []runtime.Tensor) ([]byte, error) {
	dst = append(dst, `{"model_name":`...)
	dst = quote(dst, name)
	dst = append(dst, `,"model_version":`...)
	dst = quote(dst, version)
	if id != "" {
		dst = append(dst, `,"id":`...)
		dst = quote(dst, id)
	}
	dst = append(dst, `,"outputs":[`...)
	for i, t := range outputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"name":`...)
		dst = quote(dst, t.Name)
		dst = append(dst, `,"datatype":"`...)
		dst = append(dst, t.Datatype...)
		dst = append(dst, `","shape":[`...)
		for j, d := range t.Shape {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, d, 10)
		}
		dst = append(dst, `],"data":[`...)
		switch data := t.Data.(type) {
		case []bool:
			dst = list(dst, data, strconv.AppendBool)
		case []uint8:
			dst = list(dst, data, func(b []byte, v uint8) []byte { return strconv.AppendUint(b, uint64(v), 10) })
		case []uint16:
			dst = list(dst, data, func(b []byte, v uint16) []byte { return strconv.AppendUint(b, uint64(v), 10) })
		case []uint32:
			dst = list(dst, data, func(b []byte, v uint32) []byte { return strconv.AppendUint(b, uint64(v), 10) })
		case []uint64:
			dst = list(dst, data, func(b []byte, v uint64) []byte { return strconv.AppendUint(b, v, 10) })
		case []int8:
			dst = list(dst, data, func(b []byte, v int8) []byte { return strconv.AppendInt(b, int64(v), 10) })
		case []int16:
			dst = list(dst, data, func(b []byte, v int16) []byte { return strconv.AppendInt(b, int64(v), 10) })
		case []int32:
			dst = list(dst, data, func(b []byte, v int32) []byte { return strconv.AppendInt(b, int64(v), 10) })
		case []int64:
			dst = list(dst, data, func(b []byte, v int64) []byte { return strconv.AppendInt(b, v, 10) })
		case []float32:
			dst = list(dst, data, func(b []byte, v float32) []byte { return number(b, float64(v), 32) })
		case []float64:
			dst = list(dst, data, func(b []byte, v float64) []byte { return number(b, v, 64) })
		case []string:
			dst = list(dst, data, quote)
		default:
			return nil, fault.New(fault.Internal, "output %q holds %T", t.Name, t.Data)
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}"...), nil
}

func list[T any](dst []byte, data []T, one func([]byte, T) []byte) []byte {
	for i, v := range data {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, v)
	}
	return dst
}

func number(dst []byte, v float64, bits int) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, bits)
}

func quote(dst []byte, s string) []byte {
	b, _ := json.Marshal(s) //nolint:errchkjson // a string cannot fail
	return append(dst, b...)
}
