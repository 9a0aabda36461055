package onnxfile

import (
	"encoding/binary"
	"errors"
	"io"
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
)

// ErrMalformed is the error of a file that is not protobuf, or not of ONNX's messages. Where the C++
// protobuf that runtimes use and the specification of the wire format may disagree (field
// numbers beyond the limit, groups, a known field of another wire type), a file is
// malformed: nothing can hide there.
var ErrMalformed = fault.New(fault.Invalid, "not an ONNX model: the file is not a well-formed ModelProto")

// The wire types of protobuf that ONNX has.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

// decoder reads a file from front to back: from buf alone when r is nil.
type decoder struct {
	r    io.Reader
	buf  []byte
	at   int   // in buf
	off  int64 // in the file
	size int64 // of the file

	nodes  int
	memory int64
	out    *Model
}

// charge counts what is kept of the file, in bytes.
func (d *decoder) charge(n int64) error {
	if d.memory += n; d.memory > memory(d.size) {
		return fault.New(fault.Invalid, "the names, nodes and attributes of the model take more than %d MiB", memory(d.size)>>20).
			WithHint("Keep weights in initializers.")
	}
	return nil
}

// fill reads more into the empty buffer.
func (d *decoder) fill() error {
	if d.r == nil {
		return ErrMalformed
	}
	d.at, d.buf = 0, d.buf[:cap(d.buf)]
	n, err := io.ReadAtLeast(d.r, d.buf, 1)
	d.buf = d.buf[:n]
	if errors.Is(err, io.EOF) {
		return ErrMalformed
	}
	return err
}

func (d *decoder) byte() (byte, error) {
	if d.at == len(d.buf) {
		if err := d.fill(); err != nil {
			return 0, err
		}
	}
	b := d.buf[d.at]
	d.at++
	d.off++
	return b, nil
}

// take gives the next n bytes, which stay valid until the next read.
func (d *decoder) take(n int64) ([]byte, error) {
	if int64(len(d.buf)-d.at) >= n {
		b := d.buf[d.at : d.at+int(n)]
		d.at += int(n)
		d.off += n
		return b, nil
	}
	if d.r == nil {
		return nil, ErrMalformed
	}
	b := make([]byte, n)
	had := copy(b, d.buf[d.at:])
	d.at = len(d.buf)
	if _, err := io.ReadFull(d.r, b[had:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, ErrMalformed
		}
		return nil, err
	}
	d.off += n
	return b, nil
}

func (d *decoder) skip(n int64) error {
	for n > 0 {
		if d.at == len(d.buf) {
			if err := d.fill(); err != nil {
				return err
			}
		}
		step := min(n, int64(len(d.buf)-d.at))
		d.at += int(step)
		d.off += step
		n -= step
	}
	return nil
}

func (d *decoder) varint() (v uint64, err error) {
	for shift := 0; shift < 70; shift += 7 {
		b, err := d.byte()
		if err != nil {
			return 0, err
		}
		if shift == 63 && b > 1 {
			return 0, ErrMalformed
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, ErrMalformed
}

// field is one field of a message. Bytes that its handler leaves are skipped.
type field struct {
	d      *decoder
	number int
	wire   byte
	value  uint64 // of a number
	size   int64  // of bytes
	depth  int    // of the message that it is in
}

// fields calls f for each field of a message of n bytes.
func (d *decoder) fields(n int64, depth int, f func(*field) error) error {
	if depth > MaxDepth {
		return fault.New(fault.Invalid, "the model is nested more than %d messages deep", MaxDepth)
	}
	v := field{d: d, depth: depth}
	for end := d.off + n; d.off < end; {
		tag, err := d.varint()
		if err != nil {
			return err
		}
		v.number, v.wire, v.size = int(tag>>3), byte(tag&7), 0
		if tag > math.MaxUint32 || v.number == 0 {
			return ErrMalformed
		}
		switch v.wire {
		case wireVarint:
			v.value, err = d.varint()
		case wire64, wire32:
			var b []byte
			if v.wire == wire64 {
				if b, err = d.take(8); err == nil {
					v.value = binary.LittleEndian.Uint64(b)
				}
			} else if b, err = d.take(4); err == nil {
				v.value = uint64(binary.LittleEndian.Uint32(b))
			}
		case wireBytes:
			var size uint64
			if size, err = d.varint(); err == nil && size > uint64(max(0, end-d.off)) {
				err = ErrMalformed
			}
			v.size = int64(size) //nolint:gosec // within the message
		default: // a group: ONNX has none
			err = ErrMalformed
		}
		if err != nil {
			return err
		}
		after := d.off + v.size
		if err := f(&v); err != nil {
			return err
		}
		if d.off < after {
			err = d.skip(after - d.off)
		}
		if err != nil {
			return err
		}
		if d.off > end {
			return ErrMalformed
		}
	}
	return nil
}

// message reads a field that is a message.
func (f *field) message(each func(*field) error) error {
	if f.wire != wireBytes {
		return ErrMalformed
	}
	return f.d.fields(f.size, f.depth+1, each)
}

// bytes reads a field of bytes into a copy.
func (f *field) bytes() (string, error) {
	if f.wire != wireBytes {
		return "", ErrMalformed
	}
	if err := f.d.charge(f.size + 16); err != nil {
		return "", err
	}
	b, err := f.d.take(f.size)
	return string(b), err
}

func (f *field) string(to *string) (err error) {
	*to, err = f.bytes()
	return err
}

func (f *field) strings(to *[]string) error {
	s, err := f.bytes()
	*to = append(*to, s)
	return err
}

func (f *field) int(to *int64) error {
	*to = int64(f.value) //nolint:gosec // G115: a negative int64 is written as the large uint64
	return f.is(wireVarint)
}

func (f *field) is(wire byte) error {
	if f.wire != wire {
		return ErrMalformed
	}
	return nil
}

// varints calls each for the numbers of a repeated field, packed or not.
func (f *field) varints(each func(uint64) error) error {
	if f.wire == wireVarint {
		return each(f.value)
	}
	if f.wire != wireBytes {
		return ErrMalformed
	}
	end := f.d.off + f.size
	for f.d.off < end {
		v, err := f.d.varint()
		if err != nil {
			return err
		}
		if err := each(v); err != nil {
			return err
		}
	}
	if f.d.off > end {
		return ErrMalformed
	}
	return nil
}

// fixed calls each for the first of the numbers of 4 or 8 bytes of a repeated field, and
// gives how many they are.
func (f *field) fixed(wide bool, most int, each func(float64)) (int, error) {
	single, size := byte(wire32), int64(4)
	if wide {
		single, size = wire64, 8
	}
	if f.wire == single {
		if most > 0 {
			each(float(f.value, wide))
		}
		return 1, nil
	}
	if f.wire != wireBytes || f.size%size != 0 {
		return 0, ErrMalformed
	}
	n := f.size / size
	for range min(n, int64(most)) {
		b, err := f.d.take(size)
		if err != nil {
			return 0, err
		}
		if wide {
			each(float(binary.LittleEndian.Uint64(b), true))
		} else {
			each(float(uint64(binary.LittleEndian.Uint32(b)), false))
		}
	}
	return int(n), nil
}

func float(bits uint64, wide bool) float64 {
	if wide {
		return math.Float64frombits(bits)
	}
	return float64(math.Float32frombits(uint32(bits))) //nolint:gosec // 32 bits
}

// numbers are the integers of an attribute, in four bytes each where they fit. A nil one is
// empty.
type numbers struct {
	small []int32
	large []int64
}

func (n *numbers) add(v int64) {
	switch {
	case n.large != nil:
		n.large = append(n.large, v)
	case v == int64(int32(v)): //nolint:gosec // that is the question
		n.small = append(n.small, int32(v)) //nolint:gosec // it fits
	default:
		n.large = make([]int64, len(n.small), len(n.small)+1)
		for i, s := range n.small {
			n.large[i] = int64(s)
		}
		n.small, n.large = nil, append(n.large, v)
	}
}

func (n *numbers) len() int {
	if n == nil {
		return 0
	}
	return len(n.small) + len(n.large)
}

func (n *numbers) at(i int) int64 {
	if n.large != nil {
		return n.large[i]
	}
	return int64(n.small[i])
}

// all are the numbers of a short list.
func (n *numbers) all() []int64 {
	out := make([]int64, n.len())
	for i := range out {
		out[i] = n.at(i)
	}
	return out
}

// words are the texts of an attribute, each distinct one kept once. A list of many distinct
// texts, such as a vocabulary, is only counted.
type words struct {
	n        int
	distinct []string
	which    []uint8
	many     bool
}

// add reports whether s takes no memory of its own.
func (w *words) add(s string) bool {
	w.n++
	if w.many {
		return true
	}
	for i, d := range w.distinct {
		if d == s {
			w.which = append(w.which, uint8(i))
			return true
		}
	}
	if len(w.distinct) == 32 {
		w.many, w.distinct, w.which = true, nil, nil
		return true
	}
	w.distinct = append(w.distinct, s)
	w.which = append(w.which, uint8(len(w.distinct)-1)) //nolint:gosec // at most 32
	return false
}

func (w *words) at(i int) string { return w.distinct[w.which[i]] }
