package window

import (
	"encoding/binary"
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// The binary form of a state, version 1:
//
//	byte      1
//	varint    the time from which its rows are known
//	uvarint   the number of rows
//	then for each accumulator, in the order of the plan: its kind as a byte, and
//
//	count              uvarint n
//	sum                uvarint n, number
//	squares            number
//	min, max           value
//	first, last        value, and unless it is NULL: varint event, varint created
//	approx_distinct    0, uvarint length, hashes of 8 bytes, ascending; or 1 and
//	                   4,096 registers
//	topk               0, uvarint length, (value, uvarint n), ascending; or 1
//	quantile           byte shift, uvarint length, (uvarint key, from the second on
//	                   less the key before, uvarint n), ascending
//
//	number: uvarints of NaN, +Inf and −Inf; uvarint 2·length+sign; unless the
//	        length is 0: varint base, digits of 4 bytes, little endian
//	value:  byte 0 for NULL; else 1 and 8 bytes, or for a string uvarint length,
//	        bytes
//
// Nothing follows. Equal sets of rows have equal bytes; a decoder takes nothing
// that Append would not write.
const stateVersion = 1

// Append appends the binary form.
func (s *State) Append(dst []byte) []byte {
	dst = append(dst, stateVersion)
	dst = binary.AppendVarint(dst, s.known)
	dst = binary.AppendUvarint(dst, uint64(s.rows)) //nolint:gosec // not negative
	for i, a := range s.parts {
		dst = a.append(append(dst, byte(s.plan.parts[i].kind)))
	}
	return dst
}

// Decode reads the binary form of a state of the plan into s, which keeps nothing
// of b. Error: fault.Internal, because only a defect or damage makes one.
func (s *State) Decode(b []byte) error {
	s.Reset()
	r := &reader{rest: b}
	if r.byte() != stateVersion {
		return fault.New(fault.Internal, "a stored window has an unknown format").WithHint("Materialise the view again.")
	}
	s.known, s.rows = r.varint(), r.count()
	if (s.rows == 0) != (s.known == minTime) {
		r.bad()
	}
	for i, a := range s.parts {
		x := s.plan.parts[i]
		if r.byte() != byte(x.kind) {
			r.bad()
		}
		t := value.Type(0)
		if x.input >= 0 {
			t = s.plan.types[x.input]
		}
		if a.read(r, t); r.failed {
			break
		}
	}
	if r.failed || len(r.rest) > 0 {
		s.Reset()
		return fault.New(fault.Internal, "a stored window is corrupt").WithHint("Materialise the view again.")
	}
	return nil
}

// reader reads fields until the first failure, after which all are zero.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bad() { r.failed, r.rest = true, nil }

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.bad()
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

// uvarint takes the shortest form only.
func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || n > 1 && r.rest[n-1] == 0 {
		r.bad()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	v := int64(u >> 1)
	if u&1 == 1 {
		v = ^v
	}
	return v
}

// count is a number of rows.
func (r *reader) count() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.bad()
		return 0
	}
	return int64(v)
}

// length is that of a list whose items take at least a number of bytes.
func (r *reader) length(most, bytes int) int {
	v := r.uvarint()
	if v > uint64(most) || v*uint64(bytes) > uint64(len(r.rest)) { //nolint:gosec // not negative
		r.bad()
		return 0
	}
	return int(v) //nolint:gosec // bounded above
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// value is one of a type, or NULL.
func (r *reader) value(t value.Type) value.Value {
	switch r.byte() {
	case 0:
		return value.Null(t)
	case 1:
	default:
		r.bad()
	}
	v := value.Null(t)
	switch t {
	case value.Int64:
		v = value.OfInt(int64(r.uint64())) //nolint:gosec // the bits are meant
	case value.Timestamp:
		v = value.OfMicros(int64(r.uint64())) //nolint:gosec // the bits are meant
	case value.Float64:
		b := r.uint64()
		v = value.OfFloat(math.Float64frombits(b))
		if math.Float64bits(normal(v).Float()) != b {
			r.bad()
		}
	case value.Bool:
		b := r.uint64()
		if b > 1 {
			r.bad()
		}
		v = value.OfBool(b == 1)
	case value.String:
		v = value.OfString(string(r.take(r.length(value.MaxString, 1))))
	default:
		r.bad()
	}
	return v
}

func appendValue(dst []byte, v value.Value) []byte {
	if v.IsNull() {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch v.Type() {
	case value.String:
		dst = binary.AppendUvarint(dst, uint64(len(v.Str())))
		return append(dst, v.Str()...)
	case value.Float64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.Float()))
	default:
		return binary.LittleEndian.AppendUint64(dst, uint64(v.Int())) //nolint:gosec // the bits are meant
	}
}

func appendCount(dst []byte, n int64) []byte {
	return binary.AppendUvarint(dst, uint64(n)) //nolint:gosec // not negative
}

func (e *exact) append(dst []byte) []byte {
	dst = appendCount(appendCount(appendCount(dst, e.nan), e.pos), e.neg)
	digits, base, negative := e.parts()
	dst = binary.AppendUvarint(dst, uint64(2*len(digits)+count(negative))) //nolint:gosec // not negative
	if len(digits) == 0 {
		return dst
	}
	dst = binary.AppendVarint(dst, int64(base))
	for _, d := range digits {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(d)) //nolint:gosec // 32 bits
	}
	return dst
}

func (e *exact) read(r *reader) {
	e.nan, e.pos, e.neg = r.count(), r.count(), r.count()
	head := r.uvarint()
	n, sign := head>>1, int64(1)
	if head&1 == 1 {
		sign = -1
	}
	if n == 0 {
		if sign < 0 {
			r.bad()
		}
		return
	}
	base := r.varint()
	if n > maxPlace-minPlace || base < minPlace || base+int64(n) > maxPlace {
		r.bad()
		return
	}
	b := r.take(4 * int(n))
	if r.failed {
		return
	}
	e.base, e.load = int(base), 1
	for i := range int(n) {
		e.digits = append(e.digits, sign*int64(binary.LittleEndian.Uint32(b[4*i:])))
	}
	if e.digits[0] == 0 || e.digits[n-1] == 0 {
		r.bad()
	}
}

func (c *counter) append(dst []byte) []byte     { return appendCount(dst, c.n) }
func (c *counter) read(r *reader, _ value.Type) { c.n = r.count() }

func (a *sum) append(dst []byte) []byte { return a.total.append(appendCount(dst, a.n)) }

func (a *sum) read(r *reader, _ value.Type) {
	a.n = r.count()
	a.total.read(r)
}

func (a *squares) append(dst []byte) []byte     { return a.total.append(dst) }
func (a *squares) read(r *reader, _ value.Type) { a.total.read(r) }

func (a *extreme) append(dst []byte) []byte { return appendValue(dst, a.value) }

func (a *extreme) read(r *reader, t value.Type) {
	a.value = r.value(t)
	a.set = !a.value.IsNull()
}

func (a *edge) append(dst []byte) []byte {
	dst = appendValue(dst, a.value)
	if a.set {
		dst = binary.AppendVarint(binary.AppendVarint(dst, a.event), a.created)
	}
	return dst
}

func (a *edge) read(r *reader, t value.Type) {
	a.value = r.value(t)
	if a.set = !a.value.IsNull(); a.set {
		a.event, a.created = r.varint(), r.varint()
	}
}

func (d *distinct) append(dst []byte) []byte {
	if d.registers != nil {
		return append(append(dst, 1), d.registers...)
	}
	dst = binary.AppendUvarint(append(dst, 0), uint64(len(d.hashes)))
	for _, h := range d.hashes {
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	return dst
}

func (d *distinct) read(r *reader, _ value.Type) {
	switch r.byte() {
	case 0:
		for i := range r.length(maxHashes, 8) {
			h := r.uint64()
			if i > 0 && h <= d.hashes[i-1] {
				r.bad()
			}
			d.hashes = append(d.hashes, h)
		}
	case 1:
		d.registers = append([]uint8(nil), r.take(registers)...)
		for _, rank := range d.registers {
			if rank > maxRank {
				r.bad()
			}
		}
	default:
		r.bad()
	}
}

func (a *top) append(dst []byte) []byte {
	if a.full {
		return append(dst, 1)
	}
	dst = binary.AppendUvarint(append(dst, 0), uint64(len(a.entries)))
	for _, e := range a.entries {
		dst = appendCount(appendValue(dst, e.value), e.n)
	}
	return dst
}

func (a *top) read(r *reader, t value.Type) {
	switch r.byte() {
	case 0:
		for i := range r.length(maxTop, 3) {
			e := entry{r.value(t), r.count()}
			if e.n == 0 || e.value.IsNull() || len(e.value.Str()) > maxText || i > 0 && compare(e.value, a.entries[i-1].value) <= 0 {
				r.bad()
			}
			if r.failed {
				return
			}
			a.entries = append(a.entries, e)
		}
	case 1:
		a.full = true
	default:
		r.bad()
	}
}

func (a *buckets) append(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(a.shift)), uint64(len(a.list))) //nolint:gosec // at most coarsest
	last := uint64(0)
	for _, b := range a.list {
		dst = appendCount(binary.AppendUvarint(dst, b.key-last), b.n)
		last = b.key
	}
	return dst
}

func (a *buckets) read(r *reader, _ value.Type) {
	a.shift = uint(r.byte())
	if a.shift > coarsest {
		r.bad()
	}
	most := maxExact
	if a.shift == coarsest {
		most = 1 << (64 - coarsest)
	}
	var last uint64
	for i := range r.length(most, 2) {
		b := bucket{last + r.uvarint(), r.count()}
		if b.n == 0 || i > 0 && b.key <= last || b.key > math.MaxUint64>>a.shift || a.n > math.MaxInt64-b.n {
			r.bad()
		}
		if r.failed {
			return
		}
		last = b.key
		a.n += b.n
		a.list = append(a.list, b)
	}
}
