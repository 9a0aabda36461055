package window

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

const (
	maxTop  = 4096 // different values
	maxText = 200  // bytes of a string; of a longer one its beginning and a digest stand for it
)

// top counts each value. With more than maxTop different ones it gives up: no
// bounded summary of more is the same for every order of the rows.
type top struct {
	full    bool
	entries []entry // by value; none once full
	spare   []entry // memory for the next merge
}

type entry struct {
	value value.Value
	n     int64
}

func byValue(e entry, v value.Value) int { return compare(e.value, v) }

func (a *top) add(v value.Value, _, _ int64) {
	if v.Type() == value.String && len(v.Str()) > maxText {
		v = value.OfString(clip(v.Str()))
	}
	a.insert(v, 1)
}

func (a *top) insert(v value.Value, n int64) {
	if a.full {
		return
	}
	at, there := slices.BinarySearchFunc(a.entries, v, byValue)
	if there {
		a.entries[at].n += n
		return
	}
	a.entries = slices.Insert(a.entries, at, entry{own(v), n})
	a.bound()
}

func (a *top) bound() {
	if len(a.entries) > maxTop {
		a.full, a.entries = true, nil
	}
}

func (a *top) merge(o accumulator) {
	other := o.(*top)
	switch {
	case a.full:
		return
	case other.full:
		a.full, a.entries = true, nil
		return
	case len(other.entries) <= 4: // few into many
		for _, e := range other.entries {
			a.insert(e.value, e.n)
		}
		return
	}
	both := union(a.spare, a.entries, other.entries, func(x, y *entry) int { return compare(x.value, y.value) },
		func(x, y *entry) { x.n += y.n })
	a.entries, a.spare = both, a.entries
	a.bound()
}

// union merges two ascending lists into the memory of out, or more.
func union[T any](out, a, b []T, order func(x, y *T) int, add func(x, y *T)) []T {
	out = slices.Grow(out[:0], len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch c := order(&a[0], &b[0]); {
		case c < 0:
			out, a = append(out, a[0]), a[1:]
		case c > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			out = append(out, a[0])
			add(&out[len(out)-1], &b[0])
			a, b = a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

func (a *top) reset() {
	clear(a.entries)
	a.full, a.entries = false, a.entries[:0]
	clear(a.spare[:cap(a.spare)]) // strings of others
}

// list is the k values that come most often, as JSON; ok is false when there is
// no value, or too many different ones.
func (a *top) list(k int) (text string, ok bool) {
	if a.full || len(a.entries) == 0 {
		return "", false
	}
	order := func(x, y entry) int { return cmp.Or(cmp.Compare(y.n, x.n), compare(x.value, y.value)) }
	// The few best of many: a list that stays sorted.
	best := make([]entry, 0, k+1)
	for _, e := range a.entries {
		if len(best) == k && order(best[k-1], e) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, e, order)
		if best = slices.Insert(best, at, e); len(best) > k {
			best = best[:k]
		}
	}
	var b strings.Builder
	b.WriteByte('[')
	for i, e := range best {
		if i > 0 {
			b.WriteByte(',')
		}
		j, err := json.Marshal(e.value)
		if err != nil {
			return "", false // a timestamp after the year 9999
		}
		b.Write(j)
	}
	b.WriteByte(']')
	return b.String(), true
}

// clip makes a string that fits.
func clip(text string) string {
	sum := sha256.Sum256([]byte(text))
	digest := "…#" + hex.EncodeToString(sum[:12])
	return strings.ToValidUTF8(text[:maxText-len(digest)], "") + digest
}

const (
	maxExact = 1024 // different numbers kept as they are
	coarsest = 46   // bits of a float64 that may be left out: 6 of 52 stay
)

// buckets counts numbers for quantiles, each by the first bits of its float64:
// all of them, or as many as keep the number of buckets at maxExact, but at least
// 6 of the mantissa. How many depends on the set only.
type buckets struct {
	n     int64
	shift uint
	list  []bucket // ascending
	spare []bucket // memory for the next merge
}

type bucket struct {
	key uint64 // the ordered bits, shifted
	n   int64
}

// ordered is the bits of a float64 such that they sort as the numbers do.
func ordered(f float64) uint64 {
	b := math.Float64bits(f)
	if b>>63 == 1 {
		return ^b
	}
	return b | 1<<63
}

func unordered(k uint64) float64 {
	if k>>63 == 0 {
		return math.Float64frombits(^k)
	}
	return math.Float64frombits(k &^ (1 << 63))
}

func (a *buckets) add(v value.Value, _, _ int64) {
	f := v.Float()
	if v.Type() == value.Int64 {
		f = float64(v.Int())
	}
	a.n++
	key := ordered(f) >> a.shift
	at, there := slices.BinarySearchFunc(a.list, key, func(b bucket, k uint64) int { return cmp.Compare(b.key, k) })
	if there {
		a.list[at].n++
		return
	}
	a.list = slices.Insert(a.list, at, bucket{key, 1})
	a.bound()
}

// bound leaves out as few bits as make few enough buckets. Two neighbours become
// one when the highest bit in which they differ is left out.
func (a *buckets) bound() {
	if len(a.list) <= maxExact || a.shift == coarsest {
		return
	}
	var differ [65]int // neighbours by that bit, from 1
	for i := range a.list[1:] {
		differ[bits.Len64(a.list[i].key^a.list[i+1].key)]++
	}
	shift, left := a.shift, len(a.list)
	for left > maxExact && shift < coarsest {
		shift++
		left -= differ[shift-a.shift]
	}
	a.coarsen(shift)
}

func (a *buckets) coarsen(shift uint) {
	by := shift - a.shift
	a.shift = shift
	out := a.list[:0]
	for _, b := range a.list {
		b.key >>= by
		if n := len(out); n > 0 && out[n-1].key == b.key {
			out[n-1].n += b.n
			continue
		}
		out = append(out, b)
	}
	a.list = out
}

func (a *buckets) merge(o accumulator) {
	other := o.(*buckets)
	if other.n == 0 {
		return
	}
	a.n += other.n
	if a.shift < other.shift {
		a.coarsen(other.shift)
	}
	theirs := other.list
	if by := a.shift - other.shift; by > 0 {
		c := buckets{shift: other.shift, list: slices.Clone(theirs)}
		c.coarsen(a.shift)
		theirs = c.list
	}
	both := union(a.spare, a.list, theirs, func(x, y *bucket) int { return cmp.Compare(x.key, y.key) },
		func(x, y *bucket) { x.n += y.n })
	a.list, a.spare = both, a.list
	a.bound()
}

func (a *buckets) reset() { *a = buckets{list: a.list[:0], spare: a.spare} }

// quantile is the number of rank ⌈q·n⌉, at least 1; there are numbers.
func (a *buckets) quantile(q float64) float64 {
	rank := max(int64(math.Ceil(q*float64(a.n))), 1)
	for _, b := range a.list {
		if rank -= b.n; rank <= 0 {
			return a.middle(b.key)
		}
	}
	return a.middle(a.list[len(a.list)-1].key)
}

// middle stands for the numbers of a bucket.
func (a *buckets) middle(key uint64) float64 {
	least := key << a.shift
	if a.shift == 0 {
		return unordered(least)
	}
	inner, zero := least, ordered(0)
	if least < zero { // of a negative number the end nearer to 0 is the greatest
		inner = least | (1<<a.shift - 1)
	}
	f := unordered(inner)
	if math.IsInf(f, 0) || math.IsNaN(f) || inner == zero || inner == zero-1 {
		return f + 0 // −0 is 0
	}
	return unordered(least | 1<<(a.shift-1))
}
