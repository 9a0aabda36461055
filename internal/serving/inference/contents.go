package inference

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// MaxDims bounds the dimensions of a tensor.
const MaxDims = 32

// Check refuses a tensor whose datatype or shape cannot be, and counts its elements.
func Check(t runtime.Tensor) (int, error) {
	if !slices.Contains(runtime.Datatypes, t.Datatype) {
		return 0, fault.New(fault.Invalid, "input %q: datatype %q does not exist", t.Name, t.Datatype).WithHint("Datatypes: %v.", runtime.Datatypes)
	}
	if len(t.Shape) > MaxDims {
		return 0, fault.New(fault.Invalid, "a tensor has at most %d dimensions", MaxDims)
	}
	n, err := runtime.Elements(t.Shape)
	if err != nil {
		return n, fault.Wrap(err, "input %q", t.Name)
	}
	return n, nil
}

// FromContents reads the elements of a tensor from the list for its datatype.
func FromContents(t *runtime.Tensor, c *InferTensorContents) error {
	n, err := Check(*t)
	if err != nil {
		return err
	}
	var got int
	switch t.Datatype {
	case runtime.Bool:
		t.Data, got = some(c.GetBoolContents())
	case runtime.Int8:
		t.Data, got, err = narrowed[int8](t.Name, c.GetIntContents())
	case runtime.Int16:
		t.Data, got, err = narrowed[int16](t.Name, c.GetIntContents())
	case runtime.Int32:
		t.Data, got = some(c.GetIntContents())
	case runtime.Int64:
		t.Data, got = some(c.GetInt64Contents())
	case runtime.Uint8:
		t.Data, got, err = narrowed[uint8](t.Name, c.GetUintContents())
	case runtime.Uint16:
		t.Data, got, err = narrowed[uint16](t.Name, c.GetUintContents())
	case runtime.Uint32:
		t.Data, got = some(c.GetUintContents())
	case runtime.Uint64:
		t.Data, got = some(c.GetUint64Contents())
	case runtime.FP32:
		t.Data, got = some(c.GetFp32Contents())
	case runtime.FP64:
		t.Data, got = some(c.GetFp64Contents())
	case runtime.Bytes:
		list := make([]string, len(c.GetBytesContents()))
		for i, b := range c.GetBytesContents() {
			list[i] = words(b)
		}
		t.Data, got = some(list)
	default:
		return fault.New(fault.Invalid, "input %q: %s has no contents", t.Name, t.Datatype).WithHint("Send it in raw_input_contents.")
	}
	if err == nil && got != n {
		err = fault.New(fault.Invalid, "input %q: shape %v of %s needs %d elements, its contents have %d", t.Name, t.Shape, t.Datatype, n, got)
	}
	return err
}

func some[T any](list []T) (any, int) {
	if list == nil {
		list = []T{}
	}
	return list, len(list)
}

// narrowed are integers that came in 32 bits.
func narrowed[T int8 | int16 | uint8 | uint16, W int32 | uint32](name string, in []W) (any, int, error) {
	out := make([]T, len(in))
	for i, v := range in {
		if out[i] = T(v); W(out[i]) != v {
			return nil, 0, fault.New(fault.Invalid, "input %q: element %d is %d, outside the range of its datatype", name, i, v)
		}
	}
	return out, len(out), nil
}
