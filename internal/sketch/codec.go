package sketch

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// MaxEncoded is the most bytes that a decoder takes.
const MaxEncoded = 1 << 20

// The binary form is: 'F' 'S', a version, a kind, then the fields in order;
// whole numbers as varints, floats as 8 bytes little-endian, lists after their
// length.
const encodingVersion = 1

const (
	kindKLL byte = iota + 1
	kindLatency
	kindNumeric
	kindCategorical
)

type writer struct{ bytes []byte }

func newWriter(kind byte) *writer {
	return &writer{bytes: []byte{'F', 'S', encodingVersion, kind}}
}

func (w *writer) uint(v uint64) { w.bytes = binary.AppendUvarint(w.bytes, v) }
func (w *writer) int(v int64)   { w.bytes = binary.AppendVarint(w.bytes, v) }
func (w *writer) float(v float64) {
	w.bytes = binary.LittleEndian.AppendUint64(w.bytes, math.Float64bits(v))
}

func (w *writer) floats(vs []float64) {
	w.uint(uint64(len(vs)))
	for _, v := range vs {
		w.float(v)
	}
}

func (w *writer) raw(b []byte) {
	w.uint(uint64(len(b)))
	w.bytes = append(w.bytes, b...)
}

// reader reads fields until the first failure, after which all are zero.
type reader struct {
	rest []byte
	kind byte
	err  error
}

func newReader(b []byte, kinds ...byte) *reader {
	r := &reader{rest: b}
	if len(b) > MaxEncoded {
		r.err = fault.New(fault.TooLarge, "a sketch has %d bytes, over the limit of %d", len(b), MaxEncoded)
		return r
	}
	if len(b) < 4 || b[0] != 'F' || b[1] != 'S' {
		r.fail("these bytes are not a sketch")
		return r
	}
	if b[2] != encodingVersion {
		r.fail("a sketch of version %d; this program reads version %d", b[2], encodingVersion)
		return r
	}
	r.kind, r.rest = b[3], b[4:]
	if !slices.Contains(kinds, r.kind) {
		r.fail("a sketch of another kind (%d)", r.kind)
	}
	return r
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fault.New(fault.Invalid, format, args...)
	}
	r.rest = nil
}

// end reports the first failure, or bytes that are left over.
func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		r.fail("%d bytes follow the sketch", len(r.rest))
	}
	return r.err
}

func (r *reader) uint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("the sketch is truncated")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) uintMax(most uint64) uint64 {
	v := r.uint()
	if v > most {
		r.fail("a sketch has a length of %d, over the limit of %d", v, most)
		return 0
	}
	return v
}

func (r *reader) int() int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail("the sketch is truncated")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) take(n uint64) []byte {
	if r.err != nil {
		return nil
	}
	if n > uint64(len(r.rest)) {
		r.fail("the sketch is truncated")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) float() float64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

func (r *reader) floats(most uint64) []float64 {
	n := r.uintMax(most)
	if n*8 > uint64(len(r.rest)) {
		r.fail("the sketch is truncated")
		return nil
	}
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = r.float()
	}
	return vs
}

func (r *reader) raw(most uint64) []byte { return r.take(r.uintMax(most)) }
