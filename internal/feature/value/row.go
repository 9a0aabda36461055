package value

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Limits of a packed row.
const (
	MaxFeatures = 4096     // features of one row
	MaxString   = 64 << 10 // bytes of one string
	MaxRow      = 1 << 20  // bytes of one row
)

// The first byte of a packed row: rowFormat for rows of the types that there were at
// first, typedFormat for rows with a feature of a later type. Each row has one form.
//
// The row, format 1 (2 has the types below the line, too):
//
//	byte      1 or 2
//	uvarint   n, the number of features
//	bytes     ⌈n/8⌉ of flags, bit i%8 of byte i/8 set when feature i is NULL;
//	          the unused bits are 0
//	then each feature that is not NULL, in the order of the view's definition:
//	int64, timestamp   8 bytes, little endian (timestamp: microseconds since 1970)
//	float64            8 bytes, little endian IEEE 754
//	bool               1 byte, 0 or 1
//	string             uvarint length, bytes
//	―――
//	int32              4 bytes, little endian
//	float32            4 bytes, little endian IEEE 754
//	list               uvarint number of elements, uvarint length of the rest,
//	                   the elements, none of them NULL, as above
//	vector             as many float32 as its type says
//
// Nothing follows. Types are not in the row: the view version that the row
// belongs to has them and never changes.
const (
	rowFormat   = 1
	typedFormat = 2
)

// AppendRow appends the packed row of values. Errors: fault.TooLarge for more
// than MaxFeatures features or MaxString bytes in a string or MaxRow in all; fault.Invalid
// for a timestamp outside the years 1 to 9999.
func AppendRow(dst []byte, values []Value) ([]byte, error) {
	if len(values) > MaxFeatures {
		return dst, fault.New(fault.TooLarge, "a row of %d features exceeds the limit of %d", len(values), MaxFeatures)
	}
	start := len(dst)
	format := byte(rowFormat)
	for i := range values {
		if values[i].typ > Timestamp {
			format = typedFormat
		}
	}
	dst = append(dst, format)
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	flags := len(dst)
	for range (len(values) + 7) / 8 {
		dst = append(dst, 0)
	}
	for i, v := range values {
		if v.IsNull() {
			dst[flags+i/8] |= 1 << (i % 8)
			continue
		}
		if _, ok := inYears(v); v.typ == Timestamp && !ok {
			return dst, fault.New(fault.Invalid, "feature %d is a timestamp with a year outside 1 to 9999", i+1)
		}
		if len(v.str) > MaxString {
			return dst, fault.New(fault.TooLarge, "feature %d is a %s of %d bytes, over the limit of %d", i+1, v.typ, len(v.str), MaxString)
		}
		dst = v.append(dst)
	}
	if len(dst)-start > MaxRow {
		return dst, fault.New(fault.TooLarge, "a row of %d bytes exceeds the limit of %d", len(dst)-start, MaxRow)
	}
	return dst, nil
}

// DecodeRow reads a packed row of the types into out, which must be as long.
// Strings are views into row: row must not change while they are used. It
// refuses every byte string that AppendRow would not have written for the
// types. Error: fault.Internal, because only a defect or damage makes one.
func DecodeRow(row []byte, types []Type, out []Value) error {
	if len(row) == 0 || row[0] != rowFormat && row[0] != typedFormat {
		return errRow("unknown format")
	}
	format := byte(rowFormat)
	for _, t := range types {
		if t > Timestamp {
			format = typedFormat
		}
	}
	if row[0] != format {
		return errRow("the format of other types")
	}
	n, size := uvarint(row[1:])
	if size <= 0 || n != uint64(len(types)) || len(out) != len(types) {
		return errRow("wrong number of features")
	}
	row = row[1+size:]
	width := (len(types) + 7) / 8
	if len(row) < width {
		return errRow("cut short")
	}
	flags := row[:width]
	if rest := len(types) % 8; rest != 0 && flags[width-1]>>rest != 0 {
		return errRow("unused flags set")
	}
	row = row[width:]
	for i, t := range types {
		if flags[i/8]>>(i%8)&1 == 1 {
			out[i] = Null(t)
			continue
		}
		var ok bool
		if out[i], row, ok = decode(t, row); !ok {
			return errRow("bad value")
		}
	}
	if len(row) != 0 {
		return errRow("trailing bytes")
	}
	return nil
}

// append appends a value that is not NULL, as a row has it.
func (v Value) append(dst []byte) []byte {
	switch v.typ {
	case String:
		dst = binary.AppendUvarint(dst, uint64(len(v.str)))
		return append(dst, v.str...)
	case Bool:
		return append(dst, byte(v.bits)) //nolint:gosec // 0 or 1
	case Int32, Float32:
		return binary.LittleEndian.AppendUint32(dst, uint32(v.bits)) //nolint:gosec // the bits are meant
	case Int64, Float64, Timestamp:
		return binary.LittleEndian.AppendUint64(dst, v.bits)
	}
	if v.typ.IsList() {
		dst = binary.AppendUvarint(dst, v.bits)
		dst = binary.AppendUvarint(dst, uint64(len(v.str)))
	}
	return append(dst, v.str...)
}

func decode(t Type, row []byte) (Value, []byte, bool) {
	switch t {
	case String:
		n, size := uvarint(row)
		if size <= 0 || n > MaxString || n > uint64(len(row)-size) { //nolint:gosec // size is at most len(row)
			return Value{}, nil, false
		}
		text := row[size : size+int(n)]
		return Value{typ: String, str: unsafe.String(unsafe.SliceData(text), len(text))}, row[size+int(n):], true //nolint:gosec // the caller promises that row does not change
	case Bool:
		if len(row) < 1 || row[0] > 1 {
			return Value{}, nil, false
		}
		return Value{typ: Bool, bits: uint64(row[0])}, row[1:], true
	case Int64, Float64, Timestamp:
		if len(row) < 8 {
			return Value{}, nil, false
		}
		v := Value{typ: t, bits: binary.LittleEndian.Uint64(row)}
		if _, ok := inYears(v); t == Timestamp && !ok {
			return Value{}, nil, false
		}
		return v, row[8:], true
	case Int32, Float32:
		if len(row) < 4 {
			return Value{}, nil, false
		}
		bits := uint64(binary.LittleEndian.Uint32(row))
		if t == Int32 {
			bits = uint64(int64(int32(bits))) //nolint:gosec // with its sign
		}
		return Value{typ: t, bits: bits}, row[4:], true
	}
	return decodeList(t, row)
}

// uvarint is binary.Uvarint that takes the shortest form only.
func uvarint(b []byte) (uint64, int) {
	n, size := binary.Uvarint(b)
	if size > 1 && b[size-1] == 0 {
		return 0, 0
	}
	return n, size
}

func errRow(what string) error {
	return fault.New(fault.Internal, "a packed feature row is corrupt: %s", what)
}

// Types is the types of a list of values; for tests and tools.
func Types(values []Value) []Type {
	types := make([]Type, 0, len(values))
	for _, v := range values {
		types = append(types, v.typ)
	}
	return slices.Clip(types)
}
