package offline

import (
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// vector is a feature column in timeline order, owned by an index. Lists are in text,
// each as a packed row has it.
type vector struct {
	typ     value.Type
	valid   []byte // bitmap; nil when there is no NULL
	words   []uint64
	bools   []bool
	offsets []int64
	text    []byte
}

// collect gathers feature f of the kept rows.
func collect(parts []part, f int, t value.Type, kept []entry) vector {
	v := vector{typ: t}
	for i := range kept {
		c := &parts[kept[i].part].features[f]
		if c.valid == nil || !c.null(int(kept[i].row)) {
			continue
		}
		if v.valid == nil {
			v.valid = make([]byte, bitutil.BytesForBits(int64(len(kept))))
			memory.Set(v.valid, 0xff)
		}
		bitutil.ClearBit(v.valid, i)
	}
	switch t {
	case value.Float64:
		v.words = make([]uint64, len(kept))
		for i := range kept {
			v.words[i] = math.Float64bits(parts[kept[i].part].features[f].floats[kept[i].row])
		}
	case value.Float32:
		v.words = make([]uint64, len(kept))
		for i := range kept {
			v.words[i] = uint64(math.Float32bits(parts[kept[i].part].features[f].single[kept[i].row]))
		}
	case value.Bool:
		v.bools = make([]bool, len(kept))
		for i := range kept {
			v.bools[i] = parts[kept[i].part].features[f].bools[kept[i].row]
		}
	case value.String:
		v.offsets = make([]int64, len(kept)+1)
		for i := range kept {
			c := &parts[kept[i].part].features[f]
			if !c.null(int(kept[i].row)) {
				v.text = append(v.text, c.texts.Value(int(kept[i].row))...)
			}
			v.offsets[i+1] = int64(len(v.text))
		}
	case value.Int64, value.Int32, value.Timestamp:
		v.words = make([]uint64, len(kept))
		for i := range kept {
			v.words[i] = uint64(parts[kept[i].part].features[f].ints[kept[i].row]) //nolint:gosec // the bits are meant
		}
	default:
		v.offsets = make([]int64, len(kept)+1)
		for i := range kept {
			if x := parts[kept[i].part].features[f].value(int(kept[i].row)); !x.IsNull() {
				v.text = x.AppendPacked(v.text)
			}
			v.offsets[i+1] = int64(len(v.text))
		}
	}
	return v
}

// take makes the output column for the positions; none is NULL.
func (v *vector) take(mem memory.Allocator, at []int32) (arrow.Array, error) {
	if v.typ == value.String {
		return v.takeText(mem, at)
	}
	if !v.typ.Scalar() {
		return v.takeLists(mem, at)
	}
	n := len(at)
	valid := memory.NewResizableBuffer(mem)
	valid.Resize(int(bitutil.BytesForBits(int64(n))))
	memory.Set(valid.Bytes(), 0)
	nulls := v.takeValid(valid.Bytes(), at)

	data := memory.NewResizableBuffer(mem)
	switch v.typ {
	case value.Bool:
		data.Resize(int(bitutil.BytesForBits(int64(n))))
		memory.Set(data.Bytes(), 0)
		for i, p := range at {
			if p >= 0 && v.bools[p] {
				bitutil.SetBit(data.Bytes(), i)
			}
		}
	case value.Int32, value.Float32:
		data.Resize(n * 4)
		out := arrow.Uint32Traits.CastFromBytes(data.Bytes())
		for i, p := range at {
			if out[i] = 0; p >= 0 {
				out[i] = uint32(v.words[p]) //nolint:gosec // the bits are meant
			}
		}
	default:
		data.Resize(n * 8)
		out := arrow.Uint64Traits.CastFromBytes(data.Bytes())
		for i, p := range at {
			if p >= 0 {
				out[i] = v.words[p]
			} else {
				out[i] = 0
			}
		}
	}
	return newArray(ArrowType(v.typ), n, nulls, valid, data), nil
}

// takeValid sets the bits of the positions that hold a value and counts the
// others.
func (v *vector) takeValid(valid []byte, at []int32) (nulls int) {
	for i, p := range at {
		if p < 0 || (v.valid != nil && !bitutil.BitIsSet(v.valid, int(p))) {
			nulls++
			continue
		}
		valid[i>>3] |= 1 << (i & 7)
	}
	return nulls
}

// maxText is the most text one output column of a batch holds: offsets are 32
// bits.
const maxText = 1<<31 - 1

func (v *vector) takeText(mem memory.Allocator, at []int32) (arrow.Array, error) {
	total := int64(0)
	for _, p := range at {
		if p >= 0 {
			total += v.offsets[p+1] - v.offsets[p]
		}
	}
	if total > maxText {
		return nil, fault.New(fault.TooLarge, "the strings of one batch take %d bytes, over the limit of %d", total, maxText)
	}
	n := len(at)
	valid := memory.NewResizableBuffer(mem)
	valid.Resize(int(bitutil.BytesForBits(int64(n))))
	memory.Set(valid.Bytes(), 0)
	nulls := v.takeValid(valid.Bytes(), at)

	offsets := memory.NewResizableBuffer(mem)
	offsets.Resize((n + 1) * 4)
	ends := arrow.Int32Traits.CastFromBytes(offsets.Bytes())
	text := memory.NewResizableBuffer(mem)
	text.Resize(int(total))
	to, pos := text.Bytes(), 0
	ends[0] = 0
	for i, p := range at {
		if p >= 0 {
			pos += copy(to[pos:], v.text[v.offsets[p]:v.offsets[p+1]])
		}
		ends[i+1] = int32(pos)
	}
	return newArray(ArrowType(v.typ), n, nulls, valid, offsets, text), nil
}

func (v *vector) takeLists(mem memory.Allocator, at []int32) (arrow.Array, error) {
	b := array.NewBuilder(mem, ArrowType(v.typ))
	defer b.Release()
	b.Reserve(len(at))
	for _, p := range at {
		x := value.Null(v.typ)
		if p >= 0 && (v.valid == nil || bitutil.BitIsSet(v.valid, int(p))) {
			var err error
			if x, err = value.Packed(v.typ, v.text[v.offsets[p]:v.offsets[p+1]]); err != nil {
				return nil, err
			}
		}
		if err := Append(b, x); err != nil {
			return nil, err
		}
	}
	return b.NewArray(), nil
}

// newArray makes an array that owns the buffers.
func newArray(t arrow.DataType, n, nulls int, buffers ...*memory.Buffer) arrow.Array {
	data := array.NewData(t, n, buffers, nil, nulls, 0)
	a := array.MakeFromData(data)
	data.Release()
	for _, b := range buffers {
		b.Release()
	}
	return a
}

// view is b as a string without a copy; b must not change while it is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // only to look a key up before b is used again
