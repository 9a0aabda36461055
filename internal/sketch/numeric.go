package sketch

import (
	"math"
	"slices"
	"strconv"
)

const (
	// MaxSample is how many values of a numeric column are kept as they came:
	// all of them up to here, a uniform random sample beyond.
	MaxSample = 1000
	// MaxValues is up to how many different numbers each is counted.
	MaxValues = 64
)

// numeric is a Column of numbers.
type numeric struct {
	mean, m2 float64 // Welford: mean, and the sum of squared differences from it
	kll      *KLL
	sample   []float64 // reservoir, algorithm R
	dice     random
	values   map[float64]uint64 // nil when there are more than MaxValues
}

func newNumeric(seed uint64) *numeric {
	return &numeric{kll: NewKLL(DefaultK, seed), dice: newRandom(^seed), values: map[float64]uint64{}}
}

func (n *numeric) add(v float64) {
	if v == 0 {
		v = 0 // -0 is the same value, and has to be the same bytes
	}
	n.kll.Update(v)
	count := n.kll.Count()
	d := v - n.mean
	n.mean += d / float64(count)
	n.m2 += d * (v - n.mean)
	if n.values != nil {
		n.values[v]++
		n.bound()
	}
	if len(n.sample) < MaxSample {
		n.sample = append(n.sample, v)
	} else if at := n.dice.below(count); at < MaxSample {
		n.sample[at] = v
	}
}

func (n *numeric) bound() {
	if len(n.values) > MaxValues {
		n.values = nil
	}
}

func (n *numeric) merge(other *numeric) {
	a, b := float64(n.kll.Count()), float64(other.kll.Count())
	if b == 0 {
		return
	}
	n.sample = n.mergeSamples(other)
	d := other.mean - n.mean
	n.mean += d * b / (a + b)
	n.m2 += other.m2 + d*d*a*b/(a+b)
	n.kll.Merge(other.kll)
	if other.values == nil {
		n.values = nil
	}
	if n.values != nil {
		for v, c := range other.values {
			n.values[v] += c
		}
		n.bound()
	}
}

// mergeSamples draws from both samples as one would from both populations:
// without replacement, each with the chance that its population still has.
func (n *numeric) mergeSamples(other *numeric) []float64 {
	left := [2]uint64{n.kll.Count(), other.kll.Count()}
	from := [2][]float64{slices.Clone(n.sample), slices.Clone(other.sample)}
	total := left[0] + left[1]
	if total <= MaxSample {
		return append(from[0], from[1]...)
	}
	out := make([]float64, 0, MaxSample)
	for len(out) < MaxSample {
		which := 0
		if n.dice.below(left[0]+left[1]) >= left[0] {
			which = 1
		}
		s := from[which]
		at := n.dice.below(uint64(len(s)))
		out = append(out, s[at])
		s[at] = s[len(s)-1]
		from[which] = s[:len(s)-1]
		left[which]--
	}
	return out
}

func (n *numeric) weighted() Weighted {
	if n.kll.Count() > uint64(len(n.sample)) {
		return n.kll.Weighted()
	}
	w := Weighted{Values: slices.Sorted(slices.Values(n.sample)), Weights: make([]float64, len(n.sample))}
	for i := range w.Weights {
		w.Weights[i] = 1
	}
	return w
}

func (n *numeric) categories() (known []Category, other uint64, ok bool) {
	if n.values == nil {
		return nil, n.kll.Count(), false
	}
	for _, v := range n.sorted() {
		known = append(known, Category{Text: numberText(v), Count: n.values[v]})
	}
	return known, 0, true
}

func (n *numeric) sorted() []float64 {
	keys := make([]float64, 0, len(n.values))
	for v := range n.values {
		keys = append(keys, v)
	}
	slices.Sort(keys)
	return keys
}

func (n *numeric) append(w *writer) {
	w.float(n.mean)
	w.float(n.m2)
	n.kll.append(w)
	w.uint(uint64(n.dice))
	w.floats(n.sample)
	if n.values == nil {
		w.uint(0)
		return
	}
	w.uint(uint64(len(n.values)) + 1)
	for _, v := range n.sorted() {
		w.float(v)
		w.uint(n.values[v])
	}
}

func readNumeric(r *reader) *numeric {
	n := &numeric{mean: r.float(), m2: r.float(), kll: readKLL(r)}
	n.dice = random(r.uint())
	n.sample = r.floats(MaxSample)
	count := n.kll.Count()
	if count > maxCount {
		r.fail("a column has an impossible number of rows")
	}
	if uint64(len(n.sample)) != min(count, MaxSample) {
		r.fail("a column of %d numbers with a sample of %d", count, len(n.sample))
	}
	for _, v := range n.sample {
		if !(v >= n.kll.lo && v <= n.kll.hi) {
			r.fail("a sample contains a value outside its column's range")
		}
	}
	if max(math.Abs(n.kll.lo), math.Abs(n.kll.hi)) > MaxMagnitude {
		r.fail("a column with numbers beyond %g", float64(MaxMagnitude))
	}
	slack := 1e-6 * (math.Abs(n.kll.lo) + math.Abs(n.kll.hi)) // rounding
	if count > 0 && !(n.mean >= n.kll.lo-slack && n.mean <= n.kll.hi+slack) || !(n.m2 >= 0) || math.IsInf(n.m2, 0) {
		r.fail("a column has a mean or variance that contradicts its values")
	}
	if listed := r.uintMax(MaxValues + 1); listed > 0 {
		n.values = make(map[float64]uint64, listed-1)
		last, sum := math.Inf(-1), uint64(0)
		for range listed - 1 {
			v, c := r.float(), r.uint()
			if !(v > last) || math.IsInf(v, 0) || c == 0 || c > count {
				r.fail("a column has an invalid list of values")
				break
			}
			last = v
			sum += c
			n.values[v] = c
		}
		if sum != count {
			r.fail("a column's values add up to %d rows of %d", sum, count)
		}
	}
	return n
}

func numberText(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
