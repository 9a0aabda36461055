package drift

import (
	"math"
	"math/rand/v2"
)

// The tests of two lists of counts over the same categories.

// table is how often each category came on both sides.
type table struct{ ref, cur []float64 }

func (t table) totals() (ref, cur float64) { return sum(t.ref), sum(t.cur) }

// compact leaves out categories that came on neither side.
func (t table) compact() table {
	var out table
	for i := range t.ref {
		if t.ref[i]+t.cur[i] > 0 {
			out.ref, out.cur = append(out.ref, t.ref[i]), append(out.cur, t.cur[i])
		}
	}
	return out
}

// minExpected is the expected count below which a chi-square cell is too small
// (Cochran's rule).
const minExpected = 5

// pool puts the categories that are too rare for a chi-square statistic into one.
// Which ones are decides the sum of both sides, which says nothing about a
// difference between them.
func (t table) pool() table {
	t = t.compact()
	n, m := t.totals()
	least := minExpected * (n + m) / min(n, m)
	var out table
	var rareRef, rareCur float64
	for i := range t.ref {
		if t.ref[i]+t.cur[i] < least {
			rareRef += t.ref[i]
			rareCur += t.cur[i]
			continue
		}
		out.ref, out.cur = append(out.ref, t.ref[i]), append(out.cur, t.cur[i])
	}
	if rareRef+rareCur > 0 {
		out.ref, out.cur = append(out.ref, rareRef), append(out.cur, rareCur)
	}
	return out
}

// homogeneity is the chi-square test of the 2×k table: do both sides come from
// the same distribution.
func homogeneity(t table) (stat, p float64) {
	t = t.compact()
	n, m := t.totals()
	for i := range t.ref {
		both := t.ref[i] + t.cur[i]
		er, ec := both*n/(n+m), both*m/(n+m)
		stat += (t.ref[i]-er)*(t.ref[i]-er)/er + (t.cur[i]-ec)*(t.cur[i]-ec)/ec
	}
	return stat, chiSquareSF(stat, float64(len(t.ref)-1))
}

// fit is the chi-square, or with g the G, test of the current counts against the
// reference's shares as if those were known without error. A category that the
// reference does not have makes it certain: p = 0.
func fit(t table, g bool) (stat, p float64) {
	t = t.compact()
	n, m := t.totals()
	for i, e := range t.ref {
		e *= m / n
		o := t.cur[i]
		switch {
		case e == 0:
			return math.MaxFloat64, 0
		case !g:
			stat += (o - e) * (o - e) / e
		case o > 0:
			stat += 2 * o * math.Log(o/e)
		}
	}
	stat = math.Max(0, stat)
	return stat, chiSquareSF(stat, float64(len(t.ref)-1))
}

// twoShares is the z-test of x of n against y of m, pooled and two-sided.
func twoShares(x, n, y, m float64) (z, p float64) {
	share := (x + y) / (n + m)
	se := math.Sqrt(share * (1 - share) * (1/n + 1/m))
	if !(se > 0) {
		return 0, 1
	}
	z = (y/m - x/n) / se
	return z, clamp01(2 * normalSF(math.Abs(z)))
}

// fisher is the exact test of a 2×2 table: the probability of all tables with the
// same margins that are not more probable than this one.
func fisher(a, b, c, d float64) float64 {
	row, col, all := a+b, a+c, a+b+c+d
	norm := logChoose(all, col)
	log := func(x float64) float64 { return logChoose(row, x) + logChoose(all-row, col-x) - norm }
	observed := log(a) + 1e-7
	p := 0.0
	for x := max(0, col-(all-row)); x <= min(row, col); x++ {
		if l := log(x); l <= observed {
			p += math.Exp(l)
		}
	}
	return clamp01(p)
}

// fisherMost is the largest margin for which Fisher's test is made exactly.
const fisherMost = 100_000

const (
	permutations = 1000
	shuffleMost  = 20_000 // rows to shuffle; above, the limit of the shuffle is drawn
)

// variationTest is the total variation distance with its permutation p-value:
// how often a random division of the pooled rows is as far apart.
func variationTest(t table, seed uint64) (d, p float64) {
	t = t.compact()
	d = variation(t)
	n, m := t.totals()
	rng := rand.New(rand.NewPCG(seed, 0x7476645f)) //nolint:gosec // Repeatable, not secret.
	draw := t.limitDraw(rng)
	if n+m <= shuffleMost {
		draw = t.shuffleDraw(rng)
	}
	above := 1
	for range permutations {
		if draw() >= d-1e-12 {
			above++
		}
	}
	return d, float64(above) / (permutations + 1)
}

func (t table) shuffleDraw(rng *rand.Rand) func() float64 {
	var rows []int32
	for i := range t.ref {
		for range int(t.ref[i] + t.cur[i]) {
			rows = append(rows, int32(i))
		}
	}
	n, m := t.totals()
	small := int(min(n, m))
	counts := make([]float64, len(t.ref))
	return func() float64 {
		clear(counts)
		for i := range small { // the first rows of a Fisher–Yates shuffle
			j := i + rng.IntN(len(rows)-i)
			rows[i], rows[j] = rows[j], rows[i]
			counts[rows[i]]++
		}
		sum := 0.0
		for i, c := range counts {
			both := t.ref[i] + t.cur[i]
			sum += math.Abs(c/float64(small) - (both-c)/(n+m-float64(small)))
		}
		return sum / 2
	}
}

// limitDraw draws from what the shuffle tends to for many rows: normal
// differences with the multinomial covariance.
func (t table) limitDraw(rng *rand.Rand) func() float64 {
	n, m := t.totals()
	scale := math.Sqrt(1/n + 1/m)
	root, noise := make([]float64, len(t.ref)), make([]float64, len(t.ref))
	for i := range root {
		root[i] = math.Sqrt((t.ref[i] + t.cur[i]) / (n + m))
	}
	return func() float64 {
		along := 0.0
		for i, r := range root {
			noise[i] = rng.NormFloat64()
			along += r * noise[i]
		}
		sum := 0.0
		for i, r := range root {
			sum += math.Abs(r*noise[i]-r*r*along) * scale
		}
		return sum / 2
	}
}

func sum(vs []float64) float64 {
	s := 0.0
	for _, v := range vs {
		s += v
	}
	return s
}
