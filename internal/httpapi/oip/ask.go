package oip

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Limits of a request, beside the size of its body.
const (
	MaxTensors    = runtime.MaxPorts
	maxParameters = 64      // of a request or a tensor
	maxName       = 256     // bytes of a text that is neither a value nor a tensor's name
	maxClasses    = 10_000  // of a row
	maxClassified = 1 << 20 // of an output
)

// ask is a request as both protocols send it, and the form of its answer.
type ask struct {
	serving.Request
	binary  bool     // outputs that do not say otherwise are answered raw
	outputs []wanted // those of Outputs, in order
}

// wanted is how an output is to be answered.
type wanted struct {
	binary  *bool // nil: as the request says
	base64  bool  // of JSON: BYTES are base64, also where they are text
	classes int   // the best of each row, instead of the tensor; 0: the tensor
}

// parameter takes one of the request. The protocol lets clients send others than
// those that we know.
func (a *ask) parameter(name string, v any) error {
	var ok bool
	switch name {
	case "as_of":
		text, _ := v.(string)
		at, err := time.Parse(time.RFC3339Nano, text)
		if v == nil {
			return nil
		}
		if err != nil || at.IsZero() {
			return fault.New(fault.Invalid, "parameters.as_of is not a timestamp: %s", brief(v)).WithHint("Write it as 2013-07-04T12:00:00Z.")
		}
		a.AsOf = at.UTC()
	case "route_key":
		if a.RouteKey, ok = v.(string); !ok && v != nil {
			return fault.New(fault.Invalid, "parameters.route_key is not text: %s", brief(v))
		}
	case "priority":
		if a.Priority, ok = whole(v); !ok {
			return fault.New(fault.Invalid, "parameters.priority is %s: not a whole number from 0", brief(v))
		}
	case "timeout":
		micros, ok := whole(v)
		if !ok {
			return fault.New(fault.Invalid, "parameters.timeout is %s: not a whole number of microseconds from 0", brief(v))
		}
		a.Timeout = time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond
	case "binary_data_output":
		if a.binary, ok = v.(bool); !ok {
			return fault.New(fault.Invalid, "parameters.binary_data_output is %s: not true or false", brief(v))
		}
	}
	return nil
}

// brief is a value in an error.
func brief(v any) string { return fmt.Sprintf("%.40s", fmt.Sprint(v)) }

// whole is a number from 0.
func whole(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, n >= 0
	case uint64:
		return int64(min(n, math.MaxInt64)), true
	}
	return 0, false
}

// noSharedMemory refuses what would have the server read or write memory of others.
func noSharedMemory(tensor, parameter string) error {
	switch parameter {
	case "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size":
		return fault.New(fault.Unsupported, "%q: tensors in shared memory are not supported", tensor).
			WithHint("Send the tensor with the request, as binary data.")
	}
	return nil
}

// contentType is the parameter of a tensor by which MLServer's and KServe's clients say how
// its values are written; of its values base64Type has a meaning for BYTES.
const (
	contentType = "content_type"
	base64Type  = "base64"
)

// inputParameter takes one of an input. encoded: its BYTES are base64.
func inputParameter(t *runtime.Tensor, name string, v any, encoded *bool) error {
	if name == contentType {
		kind, ok := v.(string)
		if !ok && v != nil {
			return fault.New(fault.Invalid, "input %q: content_type is not text: %s", t.Name, brief(v))
		}
		*encoded = kind == base64Type
	}
	return noSharedMemory(t.Name, name)
}

// fromBase64 makes bytes of an input whose elements are base64.
func fromBase64(t *runtime.Tensor) error {
	texts, ok := t.Data.([]string)
	if !ok {
		return fault.New(fault.Invalid, "input %q: content_type base64 requires BYTES, but the input is %s", t.Name, t.Datatype)
	}
	for i, text := range texts {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return fault.New(fault.Invalid, "input %q: element %d is not valid base64", t.Name, i).
				WithHint("Use the standard alphabet with padding (base64.b64encode in Python), or remove content_type if it is text.")
		}
		texts[i] = words(b)
	}
	return nil
}

// inBase64 is a tensor of JSON whose elements are base64: where they were asked for so, or
// are no text, for which JSON has no other form.
func inBase64(t runtime.Tensor, asked bool) (runtime.Tensor, bool) {
	texts, ok := t.Data.([]string)
	if !ok || !asked && !slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) }) {
		return t, false
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	t.Data = out
	return t, true
}

// output asks for one.
func (a *ask) output(name string) error {
	if len(a.Outputs) == MaxTensors {
		return fault.New(fault.TooLarge, "a request may have %d inputs and %d outputs", MaxTensors, MaxTensors)
	}
	if name == "" {
		return fault.New(fault.Invalid, "an output has no name")
	}
	if err := checkName("an output", name); err != nil {
		return err
	}
	if slices.Contains(a.Outputs, name) {
		return fault.New(fault.Invalid, "duplicate output %q", name)
	}
	a.Outputs, a.outputs = append(a.Outputs, name), append(a.outputs, wanted{})
	return nil
}

// checkName refuses a name that no error has room for.
func checkName(of, name string) error {
	if len(name) > runtime.MaxName {
		return fault.New(fault.Invalid, "the name of %s has %d bytes; it may have %d: %.80q…", of, len(name), runtime.MaxName, name)
	}
	return nil
}

// parameter takes one of an output.
func (w *wanted) parameter(name string, v any) error {
	switch name {
	case "binary_data":
		b, ok := v.(bool)
		if !ok {
			return fault.New(fault.Invalid, "binary_data of an output is %s: not true or false", brief(v))
		}
		w.binary = &b
	case contentType:
		kind, ok := v.(string)
		if !ok && v != nil {
			return fault.New(fault.Invalid, "content_type of an output is not text: %s", brief(v))
		}
		w.base64 = kind == base64Type
	case "classification":
		n, ok := whole(v)
		if !ok || n < 1 || n > maxClasses {
			return fault.New(fault.Invalid, "classification of an output is %s: not a whole number from 1 to %d", brief(v), maxClasses)
		}
		w.classes = int(n)
	}
	return noSharedMemory("an output", name)
}

// shaped are the outputs of an answer as they were asked for.
func (a *ask) shaped(ctx context.Context, outputs []runtime.Tensor) ([]runtime.Tensor, error) {
	if !slices.ContainsFunc(a.outputs, func(w wanted) bool { return w.classes > 0 }) {
		return outputs, nil
	}
	out := slices.Clone(outputs)
	for i := range out {
		if n := a.outputs[i].classes; n > 0 {
			var err error
			if out[i], err = classified(ctx, out[i], n); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// raw reports whether output i of the answer is bytes.
func (a *ask) raw(i int) bool {
	if i < len(a.outputs) && a.outputs[i].binary != nil {
		return *a.outputs[i].binary
	}
	return a.binary
}

// classified is the best n of each row as "value:index", the best first. A tensor
// of one dimension is one row.
func classified(ctx context.Context, t runtime.Tensor, n int) (runtime.Tensor, error) {
	values, text, err := ranked(t)
	if err != nil {
		return t, err
	}
	rows := 1
	if len(t.Shape) > 1 {
		rows = int(t.Shape[0])
	}
	columns := values
	if rows > 0 {
		columns = values / rows
	}
	if n = min(n, columns); n > 0 && rows > maxClassified/n {
		return t, fault.New(fault.TooLarge, "output %q: %d classes of %d rows are more than %d", t.Name, n, rows, maxClassified).WithHint("Request fewer classes or fewer rows.")
	}
	out := make([]string, 0, rows*n)
	best := ranks{text, make([]int, n)}
	for row := range rows {
		if ctx.Err() != nil {
			return t, fault.New(fault.Timeout, "the request timed out before output %q was classified", t.Name)
		}
		best.find(row*columns, columns)
		for _, i := range best.at {
			out = append(out, fmt.Sprintf("%s:%d", text.value(i), i-row*columns))
		}
	}
	shape := []int64{int64(n)}
	if len(t.Shape) > 1 {
		shape = []int64{int64(rows), int64(n)}
	}
	return runtime.Tensor{Name: t.Name, Datatype: runtime.Bytes, Shape: shape, Data: out}, nil
}

// ranks are the places of the best elements: a heap with the worst of them on top, and
// once they are found in order.
type ranks struct {
	ranking
	at []int
}

// find looks through count elements, at least as many as are wanted.
func (r *ranks) find(from, count int) {
	if len(r.at) == 0 {
		return
	}
	for i := range r.at {
		r.at[i] = from + i
	}
	heap.Init(r)
	for i := from + len(r.at); i < from+count; i++ {
		if r.order(i, r.at[0]) < 0 {
			r.at[0] = i
			heap.Fix(r, 0)
		}
	}
	slices.SortFunc(r.at, r.order)
}

func (r *ranks) order(i, j int) int { return cmp.Or(r.compare(i, j), cmp.Compare(i, j)) }

func (r *ranks) Len() int           { return len(r.at) }
func (r *ranks) Less(i, j int) bool { return r.order(r.at[i], r.at[j]) > 0 }
func (r *ranks) Swap(i, j int)      { r.at[i], r.at[j] = r.at[j], r.at[i] }
func (r *ranks) Push(any)           { panic("never") }
func (r *ranks) Pop() any           { panic("never") }

// ranking compares elements, the higher before the lower and NaN last, and writes
// them as Triton does.
type ranking struct {
	compare func(i, j int) int
	value   func(i int) string
}

func ranked(t runtime.Tensor) (int, ranking, error) {
	switch data := t.Data.(type) {
	case []uint8:
		return rank(data)
	case []int8:
		return rank(data)
	case []uint16:
		switch t.Datatype { //nolint:exhaustive // the others are numbers
		case runtime.FP16:
			return rank(widened(data, half))
		case runtime.BF16:
			return rank(widened(data, bfloat))
		}
		return rank(data)
	case []int16:
		return rank(data)
	case []uint32:
		return rank(data)
	case []int32:
		return rank(data)
	case []uint64:
		return rank(data)
	case []int64:
		return rank(data)
	case []float32:
		return rank(data)
	case []float64:
		return rank(data)
	}
	return 0, ranking{}, fault.New(fault.Invalid, "output %q is %s, which does not support classification", t.Name, t.Datatype).WithHint("Request it without classification.")
}

func rank[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64](data []T) (int, ranking, error) {
	return len(data), ranking{
		compare: func(i, j int) int { return cmp.Compare(data[j], data[i]) }, // to which NaN is the least
		value: func(i int) string {
			switch v := any(data[i]).(type) {
			case float32:
				return decimal(float64(v))
			case float64:
				return decimal(v)
			default:
				return fmt.Sprint(v)
			}
		},
	}, nil
}

// decimal writes a number as C++ does.
func decimal(v float64) string {
	return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(v, 'f', 6, 64), "+"))
}

func widened(in []uint16, one func(uint16) float32) []float32 {
	out := make([]float32, len(in))
	for i, b := range in {
		out[i] = one(b)
	}
	return out
}

// bfloat is a number of 16 bits with the exponent of single precision.
func bfloat(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// half is an IEEE 754 binary16.
func half(b uint16) float32 {
	sign := uint32(b>>15) << 31
	exponent, fraction := uint32(b>>10&31), uint32(b&0x3ff)
	switch exponent {
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	case 0:
		f := float32(fraction) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
