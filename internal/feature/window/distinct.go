package window

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/falaj-ml/falaj/internal/feature/value"
)

const (
	maxHashes    = 512 // kept as they are
	registerBits = 12
	registers    = 1 << registerBits
	maxRank      = 64 - registerBits + 1
)

// distinct counts different values: their hashes up to maxHashes, then
// HyperLogLog's registers. Which of the two depends on the set only. (A library's
// sketch turns from sparse to dense when its buffers are full, which depends on
// the order.)
type distinct struct {
	hashes    []uint64 // ascending; unused once dense
	registers []uint8  // nil, or all
	spare     []uint64 // memory for the next merge
	scratch   []byte
}

func (d *distinct) add(v value.Value, _, _ int64) {
	d.scratch = value.AppendKey(d.scratch[:0], v)
	d.insert(xxhash.Sum64(d.scratch))
}

func (d *distinct) insert(h uint64) {
	if d.registers != nil {
		d.register(h)
		return
	}
	at, there := slices.BinarySearch(d.hashes, h)
	if there {
		return
	}
	d.hashes = slices.Insert(d.hashes, at, h)
	if len(d.hashes) > maxHashes {
		d.fill()
	}
}

// fill turns to registers.
func (d *distinct) fill() {
	d.registers = make([]uint8, registers)
	for _, h := range d.hashes {
		d.register(h)
	}
	d.hashes = d.hashes[:0]
}

func (d *distinct) register(h uint64) {
	at := h >> (64 - registerBits)
	rank := uint8(bits.LeadingZeros64(h<<registerBits|1<<(registerBits-1)) + 1) //nolint:gosec // at most maxRank
	d.registers[at] = max(d.registers[at], rank)
}

func (d *distinct) merge(o accumulator) {
	other := o.(*distinct)
	if other.registers == nil && d.registers == nil {
		both := union(d.spare, d.hashes, other.hashes, func(x, y *uint64) int { return cmp.Compare(*x, *y) }, func(x, y *uint64) {})
		if d.hashes, d.spare = both, d.hashes; len(both) > maxHashes {
			d.fill()
		}
		return
	}
	for _, h := range other.hashes { // none once dense
		d.register(h)
	}
	if other.registers == nil {
		return
	}
	if d.registers == nil {
		d.fill()
	}
	for i, r := range other.registers {
		d.registers[i] = max(d.registers[i], r)
	}
}

func (d *distinct) reset() { d.hashes, d.registers = d.hashes[:0], nil }

// estimate is the number of different values: Ertl's improved raw estimator (New
// cardinality estimation algorithms for HyperLogLog sketches, 2017), which needs
// neither tables nor a correction for small numbers. The conversions keep
// compilers from fusing multiplications with additions: the answer is the same on
// every machine.
func (d *distinct) estimate() int64 {
	if d.registers == nil {
		return int64(len(d.hashes))
	}
	var counts [maxRank + 1]int
	for _, r := range d.registers {
		counts[r]++
	}
	const m = float64(registers)
	z := float64(m * tau(1-float64(counts[maxRank])/m))
	for k := maxRank - 1; k >= 1; k-- {
		z = 0.5 * (z + float64(counts[k]))
	}
	z += float64(m * sigma(float64(counts[0])/m))
	n := m * m / (2 * math.Ln2 * z)
	return max(int64(math.Round(n)), maxHashes+1)
}

func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	y, z := 1.0, x
	for {
		x *= x
		last := z
		z += float64(x * y)
		y += y
		if z == last {
			return z
		}
	}
}

func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		last := z
		y *= 0.5
		d := 1 - x
		z -= float64(float64(d*d) * y)
		if z == last {
			return z / 3
		}
	}
}
