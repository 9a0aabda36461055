package oip

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// decode reads an inference request: JSON of head bytes, and after it the tensors
// that the JSON says are binary. Tensors may live in the body, which belongs to the
// request from now on. Errors are fault.Invalid, TooLarge or Unsupported.
func decode(body []byte, head int) (*ask, error) {
	if !utf8.Valid(body[:head]) {
		return nil, fault.New(fault.Invalid, "the request is not UTF-8")
	}
	a, s := decoding(body[:head:head])
	defer func() { s.buf = nil }() // the request may live longer than its JSON
	var raw []rawInput
	var seen uint
	var others map[string]bool
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		switch key := s.key(); string(key) {
		case "id":
			s.first(&seen, 0, "id")
			a.ID = s.maybe()
		case "parameters":
			s.first(&seen, 1, "parameters")
			s.parameters(a.parameter)
		case "inputs":
			s.first(&seen, 2, "inputs")
			raw = s.inputs(a)
		case "outputs":
			s.first(&seen, 3, "outputs")
			s.outputs(a)
		default:
			s.other(&others, key)
		}
	}
	s.end()
	if len(a.Outputs) == 0 {
		a.Outputs, a.outputs = nil, nil
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case len(a.Inputs) == 0:
		return nil, fault.New(fault.Invalid, "the request has no inputs")
	}
	rest := body[head:]
	for _, in := range raw {
		if in.size > int64(len(rest)) {
			return nil, fault.New(fault.Invalid, "input %q: binary_data_size is %d, and %d bytes are left in the request", a.Inputs[in.index].Name, in.size, len(rest))
		}
		if err := inference.FromRaw(&a.Inputs[in.index], rest[:in.size:in.size]); err != nil {
			return nil, err
		}
		if in.encoded {
			if err := fromBase64(&a.Inputs[in.index]); err != nil {
				return nil, err
			}
		}
		rest = rest[in.size:]
	}
	if len(rest) > 0 {
		return nil, fault.New(fault.Invalid, "%d bytes of the request belong to no input", len(rest)).
			WithHint("Set Inference-Header-Content-Length to the length of the JSON, and binary_data_size for each binary input.")
	}
	return a, nil
}

// decoding is a request that is read, with room for what most have.
func decoding(json []byte) (*ask, *scanner) {
	d := &struct {
		ask     ask
		scanner scanner
		inputs  [1]runtime.Tensor
		names   [2]string
		outputs [2]wanted
	}{scanner: scanner{buf: json}}
	d.ask.Inputs, d.ask.Outputs, d.ask.outputs = d.inputs[:0], d.names[:0], d.outputs[:0]
	return &d.ask, &d.scanner
}

// rawInput is an input whose bytes follow the JSON.
type rawInput struct {
	index   int
	size    int64
	encoded bool // in base64
}

// maybe is a string, or nothing.
func (s *scanner) maybe() string {
	if s.literal("null") {
		return ""
	}
	return s.text()
}

func (s *scanner) parameters(take func(name string, v any) error) {
	if s.literal("null") {
		return
	}
	var seen []string
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		key := words(s.key())
		v := s.scalar()
		switch {
		case len(seen) == maxParameters:
			s.fail("there may be %d parameters", maxParameters)
		case slices.Contains(seen, key):
			s.fail("duplicate parameter %.80q", key)
		}
		seen = append(seen, key)
		if s.err == nil {
			s.err = take(key, v)
		}
	}
}

func (s *scanner) inputs(a *ask) (raw []rawInput) {
	if s.literal("null") {
		return nil
	}
	for ok := s.open('[', ']'); ok; ok = s.more(']') {
		if len(a.Inputs) == MaxTensors {
			s.err = fault.New(fault.TooLarge, "a request may have %d inputs and %d outputs", MaxTensors, MaxTensors)
			return nil
		}
		t, size, encoded := s.input()
		if size >= 0 {
			raw = append(raw, rawInput{len(a.Inputs), size, encoded})
		}
		a.Inputs = append(a.Inputs, t)
	}
	return raw
}

// input reads one; size is that of its bytes after the JSON, which may be in base64, or -1.
func (s *scanner) input() (t runtime.Tensor, size int64, encoded bool) {
	size = -1
	data := -1 // where it is
	var seen uint
	var others map[string]bool
	for ok := s.open('{', '}'); ok; ok = s.more('}') {
		switch key := s.key(); string(key) {
		case "name":
			s.first(&seen, 0, "the name of an input")
			if t.Name = s.text(); s.err == nil {
				s.err = checkName("an input", t.Name)
			}
		case "datatype":
			s.first(&seen, 1, "the datatype of an input")
			t.Datatype = datatype(s.quoted())
		case "shape":
			s.first(&seen, 2, "the shape of an input")
			t.Shape = s.shape()
		case "parameters":
			s.first(&seen, 3, "the parameters of an input")
			s.parameters(func(name string, v any) error {
				if name != "binary_data_size" {
					return inputParameter(&t, name, v, &encoded)
				}
				n, ok := whole(v)
				if !ok {
					return fault.New(fault.Invalid, "input %q: binary_data_size is %s: not a whole number from 0", t.Name, brief(v))
				}
				size = n
				return nil
			})
		case "data":
			s.first(&seen, 4, "the data of an input")
			s.next()
			if data = s.pos; seen&6 == 6 { // datatype and shape are known
				s.elements(&t)
			} else {
				s.pass() // it is read once they are
			}
		default:
			s.other(&others, key)
		}
	}
	if s.err != nil {
		return t, size, encoded
	}
	_, err := inference.Check(t)
	switch {
	case seen&1 == 0:
		s.fail("an input has no name")
	case seen&2 == 0:
		s.fail("input %q has no datatype", t.Name)
	case seen&4 == 0:
		s.fail("input %q has no shape", t.Name)
	case err != nil:
		s.err = err
	case data < 0 && size < 0:
		s.fail("input %q has no data", t.Name)
	case data >= 0 && size >= 0:
		s.fail("input %q has data and binary_data_size", t.Name)
	case data >= 0 && t.Data == nil:
		second := scanner{buf: s.buf, pos: data}
		second.elements(&t)
		s.err = second.err
	}
	if encoded && s.err == nil && size < 0 {
		s.err = fromBase64(&t)
	}
	return t, size, encoded
}

// datatype avoids making a string of each that is sent.
func datatype(b []byte) runtime.Datatype {
	for _, d := range runtime.Datatypes {
		if string(d) == string(b) {
			return d
		}
	}
	return runtime.Datatype(b[:min(len(b), 40)])
}

func (s *scanner) outputs(a *ask) {
	if s.literal("null") {
		return
	}
	for ok := s.open('[', ']'); ok; ok = s.more(']') {
		var name string
		var w wanted
		var seen uint
		var others map[string]bool
		for ok := s.open('{', '}'); ok; ok = s.more('}') {
			switch key := s.key(); string(key) {
			case "name":
				s.first(&seen, 0, "the name of an output")
				name = s.text()
			case "parameters":
				s.first(&seen, 1, "the parameters of an output")
				s.parameters(w.parameter)
			default:
				s.other(&others, key)
			}
		}
		if s.err != nil {
			return
		}
		if s.err = a.output(name); s.err == nil {
			a.outputs[len(a.outputs)-1] = w
		}
	}
}

// encode writes an inference answer: JSON, and the bytes of the outputs that follow
// it, which nobody may change. NaN is null, as it may be in requests; an infinity, for which
// JSON has no form, is refused, as it is in requests. Error: fault.Invalid.
func (a *ask) encode(dst []byte, version, id string, outputs []runtime.Tensor) (head []byte, raw [][]byte, err error) {
	dst = append(dst, `{"model_name":`...)
	dst = quote(dst, a.Name)
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
		if a.raw(i) {
			b, err := inference.ToRaw(t)
			if err != nil {
				return nil, nil, err
			}
			raw = append(raw, b)
			dst = append(dst, `],"parameters":{"binary_data_size":`...)
			dst = strconv.AppendInt(dst, int64(len(b)), 10)
			dst = append(dst, "}}"...)
			continue
		}
		t, encoded := inBase64(t, i < len(a.outputs) && a.outputs[i].base64)
		if encoded {
			dst = append(dst, `],"parameters":{"content_type":"base64"},"data":[`...)
		} else {
			dst = append(dst, `],"data":[`...)
		}
		if dst, err = values(dst, t); err != nil {
			return nil, nil, err
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}"...), raw, nil
}

// perElement is about how many bytes of JSON an element of a tensor has.
const perElement = 8

// textOf is about how many bytes of JSON the elements of tensors have, and at least those of
// the texts among them.
func textOf(all []runtime.Tensor) int {
	n := 0
	for _, t := range all {
		elements := perElement
		for _, d := range t.Shape {
			elements *= int(d)
		}
		if texts, ok := t.Data.([]string); ok {
			for _, text := range texts {
				elements += len(text)
			}
		}
		n += elements
	}
	return n
}

// wrapped is base64, which version 1 of KServe's and TensorFlow Serving's protocol writes as
// {"b64": "…"}.
type wrapped string

// values writes the elements of a tensor, of which those of BYTES are UTF-8.
func values(dst []byte, t runtime.Tensor) ([]byte, error) {
	if t.Datatype == runtime.FP16 || t.Datatype == runtime.BF16 {
		return nil, fault.New(fault.Invalid, "output %q: %s cannot be sent as JSON", t.Name, t.Datatype).WithHint("Request it as binary data.")
	}
	switch data := t.Data.(type) {
	case []bool:
		return list(dst, data, strconv.AppendBool), nil
	case []uint8:
		return list(dst, data, func(b []byte, v uint8) []byte { return strconv.AppendUint(b, uint64(v), 10) }), nil
	case []uint16:
		return list(dst, data, func(b []byte, v uint16) []byte { return strconv.AppendUint(b, uint64(v), 10) }), nil
	case []uint32:
		return list(dst, data, func(b []byte, v uint32) []byte { return strconv.AppendUint(b, uint64(v), 10) }), nil
	case []uint64:
		return list(dst, data, func(b []byte, v uint64) []byte { return strconv.AppendUint(b, v, 10) }), nil
	case []int8:
		return list(dst, data, func(b []byte, v int8) []byte { return strconv.AppendInt(b, int64(v), 10) }), nil
	case []int16:
		return list(dst, data, func(b []byte, v int16) []byte { return strconv.AppendInt(b, int64(v), 10) }), nil
	case []int32:
		return list(dst, data, func(b []byte, v int32) []byte { return strconv.AppendInt(b, int64(v), 10) }), nil
	case []int64:
		return list(dst, data, func(b []byte, v int64) []byte { return strconv.AppendInt(b, v, 10) }), nil
	case []float32:
		return decimals(dst, t.Name, data, 32)
	case []float64:
		return decimals(dst, t.Name, data, 64)
	case []string:
		return list(dst, data, quote), nil
	case []wrapped:
		return list(dst, data, func(b []byte, v wrapped) []byte { return append(append(append(b, `{"b64":"`...), v...), `"}`...) }), nil
	}
	return nil, fault.New(fault.Internal, "output %q holds %T", t.Name, t.Data)
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

func decimals[T float32 | float64](dst []byte, output string, data []T, bits int) ([]byte, error) {
	for i, x := range data {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch v := float64(x); {
		case math.IsNaN(v):
			dst = append(dst, "null"...)
		case math.IsInf(v, 0):
			return nil, fault.New(fault.Invalid, "output %q: element %d is an infinity and cannot be sent as JSON", output, i).WithHint("Request it as binary data.")
		default:
			dst = strconv.AppendFloat(dst, v, 'g', -1, bits)
		}
	}
	return dst, nil
}

// quote writes a string.
func quote(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			b, _ := json.Marshal(s) //nolint:errchkjson // a string cannot fail
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
