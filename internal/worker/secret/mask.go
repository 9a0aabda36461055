package secret

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// Masked is what stands in a log in place of a value.
const Masked = "(secret)"

// least is the length from which a value, or a line of one, is masked: shorter ones
// occur by chance.
const least = 6

// Mask replaces values in streams. The zero Mask, and a nil one, replace nothing.
type Mask struct {
	values  [][]byte // longest first
	longest int
}

// NewMask masks values: each whole, without the white space around it, and each of its
// lines, since programs print keys of several lines line by line. What has fewer than
// six bytes is not masked.
func NewMask(values []string) *Mask {
	m := &Mask{}
	add := func(v string) {
		if len(v) >= least {
			m.values = append(m.values, []byte(v))
		}
	}
	for _, v := range values {
		v = strings.TrimSpace(v)
		add(v)
		for line := range strings.Lines(v) {
			add(strings.TrimSpace(line))
		}
	}
	slices.SortFunc(m.values, func(a, b []byte) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return bytes.Compare(a, b)
	})
	m.values = slices.CompactFunc(m.values, bytes.Equal)
	if len(m.values) > 0 {
		m.longest = len(m.values[0])
	}
	return m
}

// Empty reports a mask that replaces nothing.
func (m *Mask) Empty() bool { return m == nil || len(m.values) == 0 }

// Reader is r with the values replaced. It passes on at once what cannot be the
// beginning of a value.
func (m *Mask) Reader(r io.Reader) io.Reader {
	if m.Empty() {
		return r
	}
	return &masked{mask: m, r: r}
}

type masked struct {
	mask *Mask
	r    io.Reader
	in   []byte // read, not examined yet
	out  []byte // to be handed out
	err  error
}

// Read implements io.Reader.
func (d *masked) Read(p []byte) (int, error) {
	for len(d.out) == 0 {
		if d.err != nil && len(d.in) == 0 {
			return 0, d.err
		}
		if d.err == nil {
			b := make([]byte, 32<<10)
			n, err := d.r.Read(b)
			d.in, d.err = append(d.in, b[:n]...), err
		}
		d.examine()
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	return n, nil
}

// examine moves what is decided from in to out: all of it at the end, else all but a
// tail that may be the beginning of a value.
func (d *masked) examine() {
	for len(d.in) > 0 {
		at, value := d.mask.first(d.in)
		if value == nil {
			keep := 0
			if d.err == nil {
				keep = d.mask.tail(d.in)
			}
			d.out = append(d.out, d.in[:len(d.in)-keep]...)
			d.in = append([]byte(nil), d.in[len(d.in)-keep:]...)
			return
		}
		// A longer value may begin here, or earlier, and not be complete yet.
		if tail := d.mask.tail(d.in); d.err == nil && len(d.in)-tail <= at {
			keep := len(d.in) - tail
			d.out = append(d.out, d.in[:keep]...)
			d.in = append([]byte(nil), d.in[keep:]...)
			return
		}
		d.out = append(d.out, d.in[:at]...)
		d.out = append(d.out, Masked...)
		d.in = d.in[at+len(value):]
	}
}

// first finds the earliest value, the longest of those that begin there.
func (m *Mask) first(b []byte) (at int, value []byte) {
	for _, v := range m.values {
		i := bytes.Index(b, v)
		if i >= 0 && (value == nil || i < at) {
			at, value = i, v
		}
	}
	return at, value
}

// tail is the length of the longest end of b that is the beginning of a value, and not
// the whole of it.
func (m *Mask) tail(b []byte) int {
	for n := min(len(b), m.longest-1); n > 0; n-- {
		end := b[len(b)-n:]
		if slices.ContainsFunc(m.values, func(v []byte) bool { return len(v) > n && bytes.HasPrefix(v, end) }) {
			return n
		}
	}
	return 0
}
