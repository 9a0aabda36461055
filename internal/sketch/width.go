package sketch

import "math"

// Alike are two numeric columns as they are compared: where all that is kept of one are
// numbers of 32 bits, as a model's FP32 inputs are, the other is rounded to them. Else the
// same value, written with more and with less precision, would be two values, and each tie a
// difference. Columns of 64 bits, such as seconds since 1970, stay as they are, and so do
// columns of another kind. Neither argument changes.
func Alike(a, b *Column) (x, y *Column) {
	if a == nil || b == nil || a.kind != Numeric || b.kind != Numeric {
		return a, b
	}
	switch na, nb := a.numbers.narrow(), b.numbers.narrow(); {
	case na && !nb:
		return a, b.rounded()
	case nb && !na:
		return a.rounded(), b
	}
	return a, b
}

// narrow reports whether all numbers that are kept are of 32 bits.
func (n *numeric) narrow() bool {
	for v := range n.values {
		if single(v) != v {
			return false
		}
	}
	for _, v := range n.sample {
		if single(v) != v {
			return false
		}
	}
	for _, level := range n.kll.levels {
		for _, v := range level {
			if single(v) != v {
				return false
			}
		}
	}
	return true
}

// rounded is the column with its numbers rounded to 32 bits. Rounding keeps their order, so
// what is kept of them is what would have been kept of rounded ones; mean and deviation stay.
func (c *Column) rounded() *Column {
	from := c.numbers
	to := &numeric{mean: from.mean, m2: from.m2, dice: from.dice, sample: make([]float64, len(from.sample))}
	for i, v := range from.sample {
		to.sample[i] = single(v)
	}
	if from.values != nil {
		to.values = make(map[float64]uint64, len(from.values))
		for v, count := range from.values {
			to.values[single(v)] += count
		}
	}
	kll := *from.kll
	kll.lo, kll.hi = single(kll.lo), single(kll.hi)
	kll.levels = make([][]float64, len(from.kll.levels))
	for h, level := range from.kll.levels {
		kll.levels[h] = make([]float64, len(level))
		for i, v := range level {
			kll.levels[h][i] = single(v)
		}
	}
	to.kll = &kll
	out := *c
	out.numbers = to
	return &out
}

// single rounds to 32 bits what has a number of 32 bits.
func single(v float64) float64 {
	if s := float64(float32(v)); !math.IsInf(s, 0) {
		return s
	}
	return v
}
