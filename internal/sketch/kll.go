package sketch

import (
	"cmp"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// DefaultK is the size parameter of KLL that Column uses: 1.33 % rank error.
const DefaultK = 200

const (
	minK     = 8
	maxK     = 4096
	minWidth = 8  // capacity of the lowest levels
	maxLevel = 48 // 2⁴⁸ values are more than anyone will add
)

// KLL answers ranks and quantiles of a stream of numbers in bounded memory
// (Karnin, Lang, Liberty: Optimal Quantile Approximation in Streams, 2016).
//
// A value at level h stands for 2^h values. A level that is full is sorted and
// every second value of it, from a random start, moves one level up. With k =
// 200 a rank is off by at most 1.33 % of the count, and the share between two
// points by at most 1.65 %, each with 99 % probability; see RankError. Up to k
// values are kept as they are, so ranks are exact.
type KLL struct {
	k      int
	count  uint64
	lo, hi float64
	levels [][]float64 // level 0 in order of arrival, the others sorted
	size   int         // values kept
	limit  int         // sum of the levels' capacities
	coin   random
}

// NewKLL returns an empty sketch. k is brought into [8, 4096]; a larger k is
// more exact and takes more memory, about 3·k values.
func NewKLL(k int, seed uint64) *KLL {
	s := &KLL{k: min(max(k, minK), maxK), coin: newRandom(seed)}
	s.grow()
	return s
}

// Update adds a value. A value that is not finite is not added.
func (s *KLL) Update(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	if s.count == 0 {
		s.lo, s.hi = v, v
	}
	s.lo, s.hi = min(s.lo, v), max(s.hi, v)
	s.count++
	s.levels[0] = append(s.levels[0], v)
	s.size++
	if s.size >= s.limit {
		s.compress()
	}
}

// Merge adds all that other has seen. other stays as it is; its k may differ,
// and the error is then that of the smaller one.
func (s *KLL) Merge(other *KLL) {
	if other == nil || other.count == 0 {
		return
	}
	if s.count == 0 {
		s.lo, s.hi = other.lo, other.hi
	}
	s.lo, s.hi = min(s.lo, other.lo), max(s.hi, other.hi)
	s.count += other.count
	s.k = min(s.k, other.k)
	for len(s.levels) < len(other.levels) {
		s.levels = append(s.levels, nil)
	}
	s.measure()
	for h, values := range other.levels {
		if h == 0 {
			s.levels[0] = append(s.levels[0], values...)
		} else {
			s.levels[h] = mergeSorted(s.levels[h], values)
		}
		s.size += len(values)
	}
	for s.size >= s.limit {
		if !s.compress() {
			return
		}
	}
}

// Count is how many values were added.
func (s *KLL) Count() uint64 { return s.count }

// K is the size parameter.
func (s *KLL) K() int { return s.k }

// Min is the smallest value, exactly; NaN when there is none.
func (s *KLL) Min() float64 { return s.orNaN(s.lo) }

// Max is the largest value, exactly; NaN when there is none.
func (s *KLL) Max() float64 { return s.orNaN(s.hi) }

// RankError is the error of a rank, as a share of the count, that is kept with
// 99 % probability; with pair set, the error of the difference of two ranks.
// The constants are measured ones of the Apache DataSketches project. It is 0
// as long as every value is kept.
func (s *KLL) RankError(pair bool) float64 {
	if len(s.levels) == 1 {
		return 0
	}
	if pair {
		return 2.446 / math.Pow(float64(s.k), 0.9433)
	}
	return 2.296 / math.Pow(float64(s.k), 0.9723)
}

// Rank is the share of values ≤ v, in [0, 1]; NaN when there are none.
func (s *KLL) Rank(v float64) float64 {
	if s.count == 0 {
		return math.NaN()
	}
	var below uint64
	for h, values := range s.levels {
		n := 0
		if h == 0 {
			for _, x := range values {
				if x <= v {
					n++
				}
			}
		} else {
			n, _ = slices.BinarySearchFunc(values, v, func(x, v float64) int {
				if x <= v {
					return -1
				}
				return 1
			})
		}
		below += uint64(n) << h
	}
	return float64(below) / float64(s.count)
}

// CDF is Rank at each point.
func (s *KLL) CDF(points []float64) []float64 {
	out := make([]float64, len(points))
	for i, p := range points {
		out[i] = s.Rank(p)
	}
	return out
}

// Quantile is the smallest kept value whose rank is at least q; the exact
// minimum at q ≤ 0 and maximum at q ≥ 1; NaN when there are no values.
func (s *KLL) Quantile(q float64) float64 {
	return s.Quantiles([]float64{q})[0]
}

// Quantiles is Quantile of each q, and sorts the values only once.
func (s *KLL) Quantiles(qs []float64) []float64 {
	out := make([]float64, len(qs))
	w := s.Weighted()
	cum := make([]float64, len(w.Values))
	total := 0.0
	for i, x := range w.Weights {
		total += x
		cum[i] = total
	}
	for i, q := range qs {
		switch {
		case s.count == 0 || math.IsNaN(q):
			out[i] = math.NaN()
		case q <= 0:
			out[i] = s.lo
		case q >= 1:
			out[i] = s.hi
		default:
			at, _ := slices.BinarySearch(cum, q*total)
			out[i] = w.Values[min(at, len(w.Values)-1)]
		}
	}
	return out
}

// Weighted is a sample in which each value stands for Weight values.
type Weighted struct {
	Values  []float64 // sorted
	Weights []float64 // whole numbers > 0
}

// Weighted is what is kept of the values, sorted; the weights add up to Count.
func (s *KLL) Weighted() Weighted {
	type item struct{ value, weight float64 }
	items := make([]item, 0, s.size)
	for h, values := range s.levels {
		weight := math.Ldexp(1, h)
		for _, v := range values {
			items = append(items, item{v, weight})
		}
	}
	slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.value, b.value) })
	w := Weighted{Values: make([]float64, len(items)), Weights: make([]float64, len(items))}
	for i, x := range items {
		w.Values[i], w.Weights[i] = x.value, x.weight
	}
	return w
}

// compress makes room in the lowest level that is full. It reports false when
// nothing can be moved.
func (s *KLL) compress() bool {
	h := 0
	for h < len(s.levels) && len(s.levels[h]) < s.capacity(h) {
		h++
	}
	if h == len(s.levels) || h == maxLevel {
		return false
	}
	if h == len(s.levels)-1 {
		s.grow()
	}
	values := s.levels[h]
	if h == 0 {
		slices.Sort(values)
	}
	// Of an odd number one stays, so that the weights still add up.
	stay := len(values) % 2
	half := make([]float64, 0, len(values)/2)
	for i := stay + int(s.coin.next()>>63); i < len(values); i += 2 {
		half = append(half, values[i])
	}
	s.levels[h+1] = mergeSorted(s.levels[h+1], half)
	s.levels[h] = values[:stay]
	s.size -= len(half)
	return true
}

// grow adds a level on top.
func (s *KLL) grow() {
	s.levels = append(s.levels, nil)
	s.measure()
}

func (s *KLL) measure() {
	s.limit = 0
	for h := range s.levels {
		s.limit += s.capacity(h)
	}
}

// capacity is k for the top level and shrinks by a third for each level below.
func (s *KLL) capacity(h int) int {
	depth := len(s.levels) - 1 - h
	return max(minWidth, int(math.Ceil(float64(s.k)*math.Pow(2.0/3.0, float64(depth)))))
}

func (s *KLL) orNaN(v float64) float64 {
	if s.count == 0 {
		return math.NaN()
	}
	return v
}

func (s *KLL) append(w *writer) {
	w.int(int64(s.k))
	w.uint(uint64(s.coin))
	w.uint(s.count)
	w.float(s.lo)
	w.float(s.hi)
	w.uint(uint64(len(s.levels)))
	for _, values := range s.levels {
		w.floats(values)
	}
}

func readKLL(r *reader) *KLL {
	k := r.int()
	if k < minK || k > maxK {
		r.fail("a KLL sketch of k = %d", k)
	}
	s := &KLL{k: int(k), coin: random(r.uint())}
	s.count, s.lo, s.hi = r.uint(), r.float(), r.float()
	n := r.uintMax(maxLevel + 1)
	if n < 1 {
		r.fail("a KLL sketch without levels")
		return s
	}
	var sum uint64
	for h := range n {
		values := r.floats(4 * maxK)
		sum += uint64(len(values)) << h
		s.size += len(values)
		s.levels = append(s.levels, values)
		if h > 0 && !slices.IsSorted(values) {
			r.fail("level %d of a KLL sketch is not sorted", h)
		}
		for _, v := range values {
			if !(v >= s.lo && v <= s.hi) || math.IsInf(v, 0) {
				r.fail("a KLL sketch contains a value outside its range")
			}
		}
	}
	if sum != s.count {
		r.fail("the weights of a KLL sketch add up to %d, not to its count %d", sum, s.count)
	}
	if r.err != nil {
		return s
	}
	s.measure()
	for s.size >= s.limit {
		if !s.compress() {
			break
		}
	}
	return s
}

// MarshalBinary returns the binary form, which UnmarshalBinary reads.
func (s *KLL) MarshalBinary() ([]byte, error) {
	w := newWriter(kindKLL)
	s.append(w)
	return w.bytes, nil
}

// UnmarshalBinary replaces s. It fails with Invalid or TooLarge on bytes that
// MarshalBinary did not write, and leaves s as it was.
func (s *KLL) UnmarshalBinary(b []byte) error {
	r := newReader(b, kindKLL)
	got := readKLL(r)
	if err := r.end(); err != nil {
		return fault.Wrap(err, "reading a KLL sketch")
	}
	*s = *got
	return nil
}

func mergeSorted(a, b []float64) []float64 {
	if len(b) == 0 {
		return a
	}
	out := make([]float64, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0] < a[0] {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}

// random is SplitMix64: small enough to be part of a sketch, and the same on
// every machine. It decides samples, nothing secret.
type random uint64

func newRandom(seed uint64) random { return random(seed ^ 0x5851f42d4c957f2d) }

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below is uniform in [0, n); n must be > 0. The bias, n/2⁶⁴, is nothing here.
func (r *random) below(n uint64) uint64 { return r.next() % n }
