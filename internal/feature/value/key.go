package value

import (
	"encoding/binary"

	"github.com/falaj-ml/falaj/internal/fault"
)

// ParseKey is the inverse of AppendKey, for all parts of a key. Error: fault.Internal
// for bytes that are no key.
func ParseKey(b []byte) ([]Value, error) {
	bad := func() ([]Value, error) { return nil, fault.New(fault.Internal, "the bytes are not an entity key") }
	var out []Value
	for len(b) > 0 {
		t := Type(b[0])
		b = b[1:]
		if t == String {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) { //nolint:gosec // not below 0
				return bad()
			}
			out = append(out, OfString(string(b[size:size+int(n)]))) //nolint:gosec // at most len(b)
			b = b[size+int(n):]                                      //nolint:gosec // the same
			continue
		}
		if !t.Valid() || len(b) < 8 {
			return bad()
		}
		out = append(out, Value{typ: t, bits: binary.BigEndian.Uint64(b)})
		b = b[8:]
	}
	return out, nil
}
