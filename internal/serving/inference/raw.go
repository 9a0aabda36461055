package inference

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Raw bytes of tensors are little-endian and in row-major order, without gaps, as
// this machine has them in memory: Falaj is built for amd64 and arm64.

// Sizes of an element; BYTES have their own.
var Sizes = map[runtime.Datatype]int{
	runtime.Bool: 1, runtime.Uint8: 1, runtime.Uint16: 2, runtime.Uint32: 4, runtime.Uint64: 8,
	runtime.Int8: 1, runtime.Int16: 2, runtime.Int32: 4, runtime.Int64: 8,
	runtime.FP16: 2, runtime.BF16: 2, runtime.FP32: 4, runtime.FP64: 8,
}

// FromRaw makes a tensor of bytes, which must be exactly those that its shape
// wants. Its Data is the same memory where that is aligned: who calls gives it away.
func FromRaw(t *runtime.Tensor, raw []byte) error {
	n, err := Check(*t)
	if err != nil {
		return err
	}
	if size := Sizes[t.Datatype]; size > 0 && len(raw) != n*size {
		return fault.New(fault.Invalid, "input %q: shape %v of %s needs %d bytes, not %d", t.Name, t.Shape, t.Datatype, n*size, len(raw))
	}
	switch t.Datatype {
	case runtime.Bool:
		t.Data = booleans(raw)
	case runtime.Uint8:
		t.Data = raw
	case runtime.Uint16, runtime.FP16, runtime.BF16:
		t.Data = elements[uint16](raw)
	case runtime.Uint32:
		t.Data = elements[uint32](raw)
	case runtime.Uint64:
		t.Data = elements[uint64](raw)
	case runtime.Int8:
		t.Data = elements[int8](raw)
	case runtime.Int16:
		t.Data = elements[int16](raw)
	case runtime.Int32:
		t.Data = elements[int32](raw)
	case runtime.Int64:
		t.Data = elements[int64](raw)
	case runtime.FP32:
		t.Data = elements[float32](raw)
	case runtime.FP64:
		t.Data = elements[float64](raw)
	case runtime.Bytes:
		t.Data, err = texts(t, n, raw)
	}
	return err
}

// fixed are the elements that bytes can stand for as they are.
type fixed interface {
	int8 | uint16 | uint32 | uint64 | int16 | int32 | int64 | float32 | float64
}

// elements reads bytes as numbers: in place where they are aligned, else copied.
func elements[T fixed](raw []byte) []T {
	var one T
	n := len(raw) / int(unsafe.Sizeof(one))
	if n == 0 {
		return []T{}
	}
	if p := unsafe.Pointer(unsafe.SliceData(raw)); uintptr(p)%unsafe.Alignof(one) == 0 { //nolint:gosec // aligned, and as long as it says
		return unsafe.Slice((*T)(p), n) //nolint:gosec // aligned, and as long as it says
	}
	out := make([]T, n)
	copy(octets(out), raw)
	return out
}

// octets are the bytes of numbers, in place.
func octets[T fixed | bool | uint8](data []T) []byte {
	if len(data) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(data[0]))) //nolint:gosec // aligned, and as long as it says
}

// booleans reads bytes as bools. Go knows 0 and 1 only, so what is neither is made 1.
func booleans(raw []byte) []bool {
	if len(raw) == 0 {
		return []bool{}
	}
	for i, b := range raw {
		if b > 1 {
			raw[i] = 1
		}
	}
	return unsafe.Slice((*bool)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)) //nolint:gosec // aligned, and as long as it says
}

// texts reads BYTES: before each element its length, in four bytes. The elements
// are the same memory.
func texts(t *runtime.Tensor, n int, raw []byte) ([]string, error) {
	if n > len(raw)/4 {
		return nil, fault.New(fault.Invalid, "input %q: shape %v needs %d elements, its %d bytes contain fewer", t.Name, t.Shape, n, len(raw))
	}
	out := make([]string, n)
	for i := range out {
		if len(raw) < 4 {
			return nil, fault.New(fault.Invalid, "input %q: element %d of BYTES has no length", t.Name, i)
		}
		size := binary.LittleEndian.Uint32(raw)
		if raw = raw[4:]; uint64(size) > uint64(len(raw)) {
			return nil, fault.New(fault.Invalid, "input %q: element %d of BYTES declares %d bytes, %d are left", t.Name, i, size, len(raw))
		}
		out[i] = words(raw[:size])
		raw = raw[size:]
	}
	if len(raw) > 0 {
		return nil, fault.New(fault.Invalid, "input %q: %d bytes follow the last element of BYTES", t.Name, len(raw))
	}
	return out, nil
}

// ToRaw is a tensor as bytes, in place but for BYTES. Nobody may change them.
func ToRaw(t runtime.Tensor) ([]byte, error) {
	switch data := t.Data.(type) {
	case []bool:
		return octets(data), nil
	case []uint8:
		return data, nil
	case []uint16:
		return octets(data), nil
	case []uint32:
		return octets(data), nil
	case []uint64:
		return octets(data), nil
	case []int8:
		return octets(data), nil
	case []int16:
		return octets(data), nil
	case []int32:
		return octets(data), nil
	case []int64:
		return octets(data), nil
	case []float32:
		return octets(data), nil
	case []float64:
		return octets(data), nil
	case []string:
		size := 4 * len(data)
		for _, s := range data {
			if len(s) > math.MaxUint32 {
				return nil, fault.New(fault.TooLarge, "output %q has an element of %d bytes", t.Name, len(s))
			}
			size += len(s)
		}
		out := make([]byte, 0, size)
		for _, s := range data {
			out = binary.LittleEndian.AppendUint32(out, uint32(len(s))) //nolint:gosec // just looked at
			out = append(out, s...)
		}
		return out, nil
	}
	return nil, fault.New(fault.Internal, "output %q holds %T", t.Name, t.Data)
}

// words is bytes as text, in place.
func words(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // only read
