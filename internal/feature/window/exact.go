package window

import (
	"math"
	"math/big"
	"math/bits"
)

// exact is a sum of numbers without rounding: digits of 32 bits from the least
// float64 (and its square) to the greatest, as far as they are used. Digits are
// signed and have room above, so that adding does not carry; load says how much
// of the room may be used. NaN and infinities are counted beside.
type exact struct {
	nan, pos, neg int64
	base          int // digits[0] is of 2^(32·base)
	digits        []int64
	load          int // every |digit| ≤ load · 2^32
}

const (
	digitBits = 32
	digitMask = 1<<digitBits - 1
	maxLoad   = 1 << 29
	// The places of digits: from 2^−2148, the square of the least float64, to the
	// square of the greatest, 2^63 times.
	minPlace = -68
	maxPlace = 66
)

func (e *exact) reset() {
	clear(e.digits)
	*e = exact{digits: e.digits[:0]}
}

// special counts what is no finite number.
func (e *exact) special(f float64) bool {
	switch {
	case math.IsNaN(f):
		e.nan++
	case math.IsInf(f, 1):
		e.pos++
	case math.IsInf(f, -1):
		e.neg++
	default:
		return false
	}
	return true
}

// split is a finite f as m·2^exp with an odd m, or 0.
func split(f float64) (m uint64, exp int, negative bool) {
	b := math.Float64bits(f)
	m, exp = b&(1<<52-1), int(b>>52&0x7ff)
	if exp == 0 {
		exp = 1
	} else {
		m |= 1 << 52
	}
	if m == 0 {
		return 0, 0, false
	}
	zeros := bits.TrailingZeros64(m)
	return m >> zeros, exp - 1075 + zeros, b>>63 == 1
}

func (e *exact) addFloat(f float64) {
	if e.special(f) {
		return
	}
	m, exp, negative := split(f)
	e.add(0, m, exp, negative)
}

func (e *exact) addSquare(f float64) {
	if e.special(f) {
		return
	}
	m, exp, _ := split(f)
	hi, lo := bits.Mul64(m, m)
	e.add(hi, lo, 2*exp, false)
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n) //nolint:gosec // the bits are meant
	}
	return uint64(n)
}

func (e *exact) addInt(n int64) { e.add(0, magnitude(n), 0, n < 0) }

func (e *exact) addIntSquare(n int64) {
	m := magnitude(n)
	hi, lo := bits.Mul64(m, m)
	e.add(hi, lo, 0, false)
}

// add adds ±(hi·2^64 + lo)·2^exp.
func (e *exact) add(hi, lo uint64, exp int, negative bool) {
	if hi|lo == 0 {
		return
	}
	place, shift := exp>>5, uint(exp&31)
	w := [5]uint64{
		lo << shift & digitMask,
		lo >> (digitBits - shift) & digitMask,
		(lo>>(64-shift) | hi<<shift) & digitMask,
		hi >> (digitBits - shift) & digitMask,
		hi >> (64 - shift),
	}
	from, to := 0, len(w)
	for w[from] == 0 {
		from++
	}
	for w[to-1] == 0 {
		to--
	}
	e.reserve(place+from, place+to)
	at := e.digits[place+from-e.base:]
	for i, x := range w[from:to] {
		if negative {
			at[i] -= int64(x) //nolint:gosec // 32 bits
		} else {
			at[i] += int64(x) //nolint:gosec // 32 bits
		}
	}
	if e.load++; e.load >= maxLoad {
		e.carry()
	}
}

// reserve makes room for the places from ≤ place < to.
func (e *exact) reserve(from, to int) {
	if len(e.digits) == 0 {
		e.base = from
	}
	if more := e.base - from; more > 0 {
		n := len(e.digits)
		e.digits = append(e.digits, make([]int64, more)...)
		copy(e.digits[more:], e.digits[:n])
		clear(e.digits[:more])
		e.base = from
	}
	if more := to - e.base - len(e.digits); more > 0 {
		e.digits = append(e.digits, make([]int64, more)...)
	}
}

func (e *exact) merge(o *exact) {
	e.nan, e.pos, e.neg = e.nan+o.nan, e.pos+o.pos, e.neg+o.neg
	if len(o.digits) == 0 {
		return
	}
	if e.load+o.load >= maxLoad {
		e.carry()
		if o.load >= maxLoad/2 {
			c := exact{base: o.base, digits: append([]int64(nil), o.digits...), load: o.load}
			c.carry()
			o = &c
		}
	}
	e.reserve(o.base, o.base+len(o.digits))
	at := e.digits[o.base-e.base:]
	for i, d := range o.digits {
		at[i] += d
	}
	e.load += o.load
}

// carry brings the digits into 0 ≤ digit < 2^32; of a negative sum the last is
// −1.
func (e *exact) carry() {
	carry := int64(0)
	for i, d := range e.digits {
		d += carry
		carry = d >> digitBits
		e.digits[i] = d & digitMask
	}
	for carry != 0 && carry != -1 {
		e.digits = append(e.digits, carry&digitMask)
		carry >>= digitBits
	}
	if carry == -1 {
		e.digits = append(e.digits, -1)
	}
	e.load = 1
}

// parts is the sum as ±Σ digits[i]·2^(32·(base+i)) with digits below 2^32, the
// first and the last of which are not 0: the only such form. The digits are valid
// until the next change.
func (e *exact) parts() (digits []int64, base int, negative bool) {
	e.carry()
	digits, base = e.digits, e.base
	if n := len(digits); n > 0 && digits[n-1] < 0 {
		negative = true
		flipped := make([]int64, n)
		carry := int64(0)
		for i, d := range digits {
			d = carry - d
			carry = d >> digitBits
			flipped[i] = d & digitMask
		}
		digits = flipped
	}
	for len(digits) > 0 && digits[len(digits)-1] == 0 {
		digits = digits[:len(digits)-1]
	}
	for len(digits) > 0 && digits[0] == 0 {
		digits = digits[1:]
		base++
	}
	return digits, base, negative
}

// odd is the answer when NaN or infinities are among the numbers.
func (e *exact) odd() (f float64, is bool) {
	switch {
	case e.nan > 0 || e.pos > 0 && e.neg > 0:
		return math.NaN(), true
	case e.pos > 0:
		return math.Inf(1), true
	case e.neg > 0:
		return math.Inf(-1), true
	}
	return 0, false
}

// float is the float64 nearest to the sum; of two the even one.
func (e *exact) float() float64 {
	if f, is := e.odd(); is {
		return f
	}
	digits, base, negative := e.parts()
	n := len(digits)
	if n == 0 {
		return 0
	}
	// The first 64 bits and, in the last of them, whether more follow: enough to
	// round once.
	top := uint64(digits[n-1]) //nolint:gosec // below 2^32
	used, width := 1, bits.Len64(top)
	for used < n && width <= digitBits {
		top = top<<digitBits | uint64(digits[n-1-used]) //nolint:gosec // below 2^32
		width += digitBits
		used++
	}
	exp := digitBits * (base + n - used)
	if used < n && width < 64 {
		more := uint(64 - width)
		next := uint64(digits[n-1-used]) //nolint:gosec // below 2^32
		top = top<<more | next>>(digitBits-more)
		exp -= int(more)
		if next<<(32+more) != 0 {
			top |= 1
		}
		used++
	}
	for i := range n - used {
		if digits[i] != 0 {
			top |= 1
			break
		}
	}
	if exp < -1022 { // perhaps below the normal numbers, where bits are fewer
		f, _ := new(big.Float).SetMantExp(new(big.Float).SetInt(bigOf(digits)), digitBits*base).Float64()
		if negative {
			return -f
		}
		return f
	}
	f := math.Ldexp(float64(top), exp)
	if negative {
		return -f
	}
	return f
}

// int is the sum of whole numbers; ok is false when it is no int64.
func (e *exact) int() (n int64, ok bool) {
	digits, base, negative := e.parts()
	if len(digits) == 0 {
		return 0, true
	}
	if base < 0 || base+len(digits) > 2 {
		return 0, false
	}
	var m uint64
	for i, d := range digits {
		m |= uint64(d) << (digitBits * (base + i)) //nolint:gosec // below 2^32
	}
	switch {
	case negative && m <= 1<<63:
		return int64(-m), true //nolint:gosec // the bits are meant
	case !negative && m <= math.MaxInt64:
		return int64(m), true
	}
	return 0, false
}

func bigOf(digits []int64) *big.Int {
	z := new(big.Int)
	words := make([]big.Word, 0, len(digits))
	if bits.UintSize == 64 {
		for i := 0; i < len(digits); i += 2 {
			w := big.Word(digits[i]) //nolint:gosec // below 2^32
			if i+1 < len(digits) {
				w |= big.Word(digits[i+1]) << (bits.UintSize / 2) //nolint:gosec // below 2^32
			}
			words = append(words, w)
		}
		return z.SetBits(words)
	}
	for _, d := range digits {
		words = append(words, big.Word(d)) //nolint:gosec // below 2^32
	}
	return z.SetBits(words)
}

// mean is the float64 nearest to the sum divided by n ≥ 1: only the result is rounded.
func mean(n int64, sum *exact) float64 {
	if f, is := sum.odd(); is {
		return f
	}
	if f := sum.float(); n < 1<<53 && sum.is(f) {
		return f / float64(n) // both are exact, so the division is all that rounds
	}
	digits, base, negative := sum.parts()
	f := quotient(bigOf(digits), big.NewInt(n), digitBits*base)
	if negative {
		return -f
	}
	return f
}

// is reports whether f, the nearest float64 to the sum, is the sum.
func (e *exact) is(f float64) bool {
	if math.IsInf(f, 0) {
		return false
	}
	m, exp, _ := split(f)
	digits, base, _ := e.parts()
	low := 0 // the place of the lowest bit of the sum
	if len(digits) > 0 {
		low = digitBits*base + bits.TrailingZeros64(uint64(digits[0])) //nolint:gosec // below 2^32
	}
	// A rounded sum has lost its lowest bit.
	return m == 0 && len(digits) == 0 || m != 0 && low == exp
}

// spread is the variance of a sample of n ≥ 2 numbers with a sum and a sum of squares,
// (n·Σx² − (Σx)²) / (n·(n−1)), as a fraction: dividend·2^exp / divisor.
func spread(n int64, sum, squares *exact) (dividend, divisor *big.Int, exp int) {
	s, sBase, _ := sum.parts()
	q, qBase, _ := squares.parts()
	square := bigOf(s)
	square.Mul(square, square)
	total := bigOf(q)
	total.Mul(total, big.NewInt(n))
	at := min(2*sBase, qBase)
	if len(s) == 0 {
		at = qBase
	} else {
		square.Lsh(square, uint(digitBits*(2*sBase-at)))
	}
	total.Lsh(total, uint(digitBits*(qBase-at)))
	total.Sub(total, square)
	return total, new(big.Int).Mul(big.NewInt(n), big.NewInt(n-1)), digitBits * at
}

// variance is that of a sample of n ≥ 2 numbers: only the result is rounded.
func variance(n int64, sum, squares *exact) float64 {
	if _, is := squares.odd(); is {
		return math.NaN()
	}
	return quotient(spread(n, sum, squares))
}

// deviation is the square root of the variance: only the result is rounded.
func deviation(n int64, sum, squares *exact) float64 {
	if _, is := squares.odd(); is {
		return math.NaN()
	}
	dividend, divisor, exp := spread(n, sum, squares)
	// Twice the bits of what the root needs, and an even exponent.
	q, exp, cut := divide(dividend, divisor, exp, 2*enough)
	root := new(big.Int).Sqrt(q)
	if new(big.Int).Mul(root, root).Cmp(q) != 0 {
		cut = true
	}
	return nearest(root, exp/2, cut)
}

// quotient is the float64 nearest to dividend·2^exp / divisor; neither is negative.
func quotient(dividend, divisor *big.Int, exp int) float64 {
	return nearest(divide(dividend, divisor, exp, enough))
}

// enough is more bits than a float64 has, with one for the half.
const enough = 66

// divide is dividend·2^exp / divisor as q·2^e, e even where exp is, with q of at least so
// many bits; cut says that the quotient is greater than that.
func divide(dividend, divisor *big.Int, exp, width int) (q *big.Int, e int, cut bool) {
	shift := max(0, width+1+divisor.BitLen()-dividend.BitLen())
	shift += shift & 1
	q, rest := new(big.Int).QuoRem(new(big.Int).Lsh(dividend, uint(shift)), divisor, new(big.Int))
	return q, exp - shift, rest.Sign() != 0
}

// nearest is the float64 nearest to q·2^exp or, where something was cut off behind, to
// what is greater than that by less than a unit of q.
func nearest(q *big.Int, exp int, cut bool) float64 {
	if cut {
		q = new(big.Int).Lsh(q, 1)
		q.SetBit(q, 0, 1)
		exp--
	}
	f := new(big.Float).SetInt(q) // of as many bits as q has
	v, _ := f.SetMantExp(f, exp).Float64()
	return v
}
