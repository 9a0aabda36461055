package batching

import (
	"fmt"
	"slices"

	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// array is what is asked of a tensor's data.
type array interface {
	len() int
	bytes() int64
	join(parts []any, n int) any // the arrays one after the other, n elements
	cut(from, to int) any
}

type slice[T any] []T

func (s slice[T]) len() int { return len(s) }

func (s slice[T]) bytes() int64 {
	var zero T
	switch any(zero).(type) {
	case bool, uint8, int8:
		return int64(len(s))
	case uint16, int16:
		return 2 * int64(len(s))
	case uint32, int32, float32:
		return 4 * int64(len(s))
	case string:
		n := 16 * int64(len(s))
		for i := range s {
			n += int64(len(any(s[i]).(string)))
		}
		return n
	}
	return 8 * int64(len(s))
}

func (s slice[T]) join(parts []any, n int) any {
	all := make([]T, 0, n)
	for _, p := range parts {
		all = append(all, p.([]T)...)
	}
	return all
}

func (s slice[T]) cut(from, to int) any { return []T(s[from:to:to]) }

// arrayOf is a tensor's data; nil when it is no array that tensors have.
func arrayOf(data any) array {
	switch d := data.(type) {
	case []float32:
		return slice[float32](d)
	case []float64:
		return slice[float64](d)
	case []int64:
		return slice[int64](d)
	case []int32:
		return slice[int32](d)
	case []int16:
		return slice[int16](d)
	case []int8:
		return slice[int8](d)
	case []uint64:
		return slice[uint64](d)
	case []uint32:
		return slice[uint32](d)
	case []uint16:
		return slice[uint16](d)
	case []uint8:
		return slice[uint8](d)
	case []bool:
		return slice[bool](d)
	case []string:
		return slice[string](d)
	}
	return nil
}

// inOrder are the inputs as the model lists them, so that those of requests that
// are alike stand at the same places.
func inOrder(in []runtime.Tensor, m runtime.Metadata) []runtime.Tensor {
	ordered := len(in) == len(m.Inputs)
	for i := 0; ordered && i < len(in); i++ {
		ordered = in[i].Name == m.Inputs[i].Name
	}
	if ordered {
		return in
	}
	out := make([]runtime.Tensor, 0, len(in))
	for _, specs := range [...][]runtime.Spec{m.Inputs, m.Optional} {
		for _, s := range specs {
			if i := slices.IndexFunc(in, func(t runtime.Tensor) bool { return t.Name == s.Name }); i >= 0 {
				out = append(out, in[i])
			}
		}
	}
	return out
}

// measure is how many rows a request has, and how many bytes. Of one that must not
// run with others there are no rows: its inputs have different numbers of them, or
// none, or not as many elements as their shapes say, which is the model's to refuse.
func measure(in []runtime.Tensor) (rows int, bytes int64) {
	joins := len(in) > 0 && len(in[0].Shape) > 0
	for _, t := range in {
		d := arrayOf(t.Data)
		if d == nil {
			joins = false
			continue
		}
		bytes += d.bytes()
		n, err := runtime.Elements(t.Shape)
		if err != nil || n != d.len() || !joins || len(t.Shape) == 0 || t.Shape[0] < 1 || t.Shape[0] != in[0].Shape[0] {
			joins = false
		}
	}
	if !joins {
		return 0, bytes
	}
	return int(in[0].Shape[0]), bytes
}

// Bytes is what the elements of tensors take in memory.
func Bytes(in []runtime.Tensor) int64 {
	_, n := measure(in)
	return n
}

// shapeOf numbers what requests must agree in to be alike (FNV-1a); alike looks
// again.
func shapeOf(in []runtime.Tensor, outputs []string) uint64 {
	h := uint64(14695981039346656037)
	for _, t := range in {
		h = (h ^ uint64(len(t.Shape))) * 1099511628211
		for _, d := range t.Shape[1:] {
			h = (h ^ uint64(d)) * 1099511628211 //nolint:gosec // any number will do
		}
	}
	for _, o := range outputs {
		for i := range len(o) {
			h = (h ^ uint64(o[i])) * 1099511628211
		}
		h *= 1099511628211
	}
	return h
}

// alike reports whether two requests may run together: their inputs agree in all
// but the number of rows, and they want the same.
func (w *request) alike(o *request) bool {
	if w.shape != o.shape || len(w.Inputs) != len(o.Inputs) || !slices.Equal(w.Outputs, o.Outputs) {
		return false
	}
	for i := range w.Inputs {
		a, b := &w.Inputs[i], &o.Inputs[i]
		if a.Name != b.Name || a.Datatype != b.Datatype || len(a.Shape) != len(b.Shape) || !slices.Equal(a.Shape[1:], b.Shape[1:]) {
			return false
		}
	}
	return true
}

// gather puts the members' rows one below the other.
func gather(members []*request, rows int) []runtime.Tensor {
	first := members[0].Inputs
	out := make([]runtime.Tensor, len(first))
	parts := make([]any, len(members))
	for i, t := range first {
		n := 0
		for j, w := range members {
			parts[j] = w.Inputs[i].Data
			n += arrayOf(parts[j]).len()
		}
		t.Shape = slices.Clone(t.Shape)
		t.Shape[0] = int64(rows)
		t.Data = arrayOf(parts[0]).join(parts, n)
		out[i] = t
	}
	return out
}

// split gives each member its rows of the answer, or says why that cannot be done.
func split(out []runtime.Tensor, members []*request, rows int) (parts [][]runtime.Tensor, why string) {
	parts = make([][]runtime.Tensor, len(members))
	all := make([]runtime.Tensor, len(out)*len(members))
	for j := range parts {
		parts[j] = all[j*len(out) : (j+1)*len(out) : (j+1)*len(out)]
	}
	for i, t := range out {
		d := arrayOf(t.Data)
		if len(t.Shape) == 0 || t.Shape[0] != int64(rows) || d == nil || d.len()%rows != 0 {
			return nil, fmt.Sprintf("output %q of %d rows has shape %v", t.Name, rows, t.Shape)
		}
		width, from := d.len()/rows, 0
		for j, w := range members {
			to := from + w.rows*width
			shape := slices.Clone(t.Shape)
			shape[0] = int64(w.rows)
			parts[j][i] = runtime.Tensor{Name: t.Name, Datatype: t.Datatype, Shape: shape, Data: d.cut(from, to)}
			from = to
		}
	}
	return parts, ""
}
