package offline

import (
	"math/bits"
	"slices"
)

// timeSort sorts the entries of a key by (visible, event, created). Its memory is
// used again by the next key.
type timeSort struct {
	a, b    []timed
	entries []entry
}

type timed struct {
	after uint64 // visible, from the earliest of the key on
	at    int32
}

const (
	radixBits  = 11
	radixSize  = 1 << radixBits
	radixSmall = 256 // below this, comparing is faster
)

func (s *timeSort) sort(group []entry) {
	if slices.IsSortedFunc(group, byTime) {
		return
	}
	if len(group) < radixSmall {
		slices.SortFunc(group, byTime)
		return
	}
	s.byVisible(group)
	// What is equal in visible is still to be ordered by the rest.
	for from := 0; from < len(group); {
		to := from + 1
		for to < len(group) && group[to].visible == group[from].visible {
			to++
		}
		if to-from > 1 {
			slices.SortFunc(group[from:to], byTime)
		}
		from = to
	}
}

// byVisible is a radix sort, least significant digit first, of as many digits as
// the times differ in.
func (s *timeSort) byVisible(group []entry) {
	first, last := group[0].visible, group[0].visible
	for i := range group {
		first, last = min(first, group[i].visible), max(last, group[i].visible)
	}
	s.a = slices.Grow(s.a[:0], len(group))[:len(group)]
	s.b = slices.Grow(s.b[:0], len(group))[:len(group)]
	for i := range group {
		s.a[i] = timed{uint64(group[i].visible) - uint64(first), int32(i)} //nolint:gosec // differences wrap rightly; at most maxIndexRows
	}
	digits := bits.Len64(uint64(last) - uint64(first)) //nolint:gosec // the difference wraps rightly
	for shift := 0; shift < digits; shift += radixBits {
		var count [radixSize]int32
		for i := range s.a {
			count[s.a[i].after>>shift%radixSize]++
		}
		place := int32(0)
		for d, n := range count {
			count[d] = place
			place += n
		}
		for _, t := range s.a {
			d := t.after >> shift % radixSize
			s.b[count[d]] = t
			count[d]++
		}
		s.a, s.b = s.b, s.a
	}
	s.entries = slices.Grow(s.entries[:0], len(group))[:len(group)]
	for i, t := range s.a {
		s.entries[i] = group[t.at]
	}
	copy(group, s.entries)
}
