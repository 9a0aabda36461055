package search

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/space"
)

// parzen is a density: a mixture of one kernel for each observation and one, the
// prior, that is as wide as the space. A kernel is the product of those of its
// parameters, so that the mixture knows how they interact.
type parzen struct {
	upTo    []float64 // sums of the weights, for drawing
	weights []float64 // their logarithms
	kernels []kernels // of each parameter
}

// kernels are those of one parameter, the prior's last. A number has truncated normal
// ones, in logarithms where the parameter counts so, and a number with steps the mass
// of its cell; a choice has more weight where it was observed.
type kernels struct {
	p         space.Parameter
	low, high float64
	mu, sigma []float64
	norm      []float64 // log of the factor before the exponential, or of the mass in the bounds with steps
	class     []int     // with steps: kernels that are equal, or as wide, have the same
	classes   []int     // a kernel of each class
	at        []float64 // with a table: the step at which a kernel is
	table     [][]float64

	choice      []int // of each observation
	other, same float64
}

// priorWeight is that of the prior; an observation that is not old has 1.
const priorWeight = 1.0

// newParzen is the density of observations, values as Encode gives them, oldest first.
func newParzen(params []space.Parameter, observed [][]float64, weights []float64) *parzen {
	e := &parzen{weights: append(slices.Clone(weights), priorWeight)}
	total := 0.0
	for _, w := range e.weights {
		total += w
	}
	sum := 0.0
	for i, w := range e.weights {
		sum += w / total
		e.upTo = append(e.upTo, sum)
		e.weights[i] = math.Log(w / total)
	}
	column := make([]float64, len(observed))
	for d, p := range params {
		for i, row := range observed {
			column[i] = row[d]
		}
		e.kernels = append(e.kernels, newKernels(p, column))
	}
	return e
}

// ageing are the weights of n observations, oldest first: the last 25 count fully,
// those before them less, down to 1/n.
func ageing(n int) []float64 {
	const full = 25
	out := make([]float64, n)
	for i := range out {
		out[i] = 1
		if ramp := n - full; i < ramp {
			out[i] = 1 / float64(n)
			if ramp > 1 {
				out[i] += (1 - 1/float64(n)) * float64(i) / float64(ramp-1)
			}
		}
	}
	return out
}

func newKernels(p space.Parameter, observed []float64) kernels {
	k := kernels{p: p}
	n := float64(len(observed))
	if p.Type == space.Categorical {
		c := float64(len(p.Choices))
		share := priorWeight / (n + 1)
		k.other, k.same = math.Log(share/(1+c*share)), math.Log((1+share)/(1+c*share))
		for _, x := range observed {
			k.choice = append(k.choice, int(x))
		}
		return k
	}
	k.low, k.high = p.Bounds()
	width := k.high - k.low
	k.mu = make([]float64, len(observed), len(observed)+1)
	for i, x := range observed {
		if p.Log {
			x = math.Log(x)
		}
		k.mu[i] = x
	}
	k.sigma = widths(k.mu, k.low, k.high)
	k.mu, k.sigma = append(k.mu, k.low+width/2), append(k.sigma, width)
	k.norm = make([]float64, len(k.mu))
	for i, mu := range k.mu {
		k.norm[i] = -logMass((k.low-mu)/k.sigma[i], (k.high-mu)/k.sigma[i])
		if p.Stride() == 0 {
			k.norm[i] -= math.Log(k.sigma[i] * math.Sqrt(2*math.Pi))
		}
	}
	if p.Stride() > 0 {
		k.classify()
	}
	return k
}

// widths are the deviations: the distance to the farther neighbour, at the ends to
// the only one, not below a share of the bounds that shrinks with the observations.
func widths(mu []float64, low, high float64) []float64 {
	n := len(mu)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(mu[a], mu[b]) })
	least := (high - low) / min(100, float64(n+2))
	out := make([]float64, n)
	for at, i := range order {
		left, right := mu[i]-low, high-mu[i]
		if at > 0 {
			left = mu[i] - mu[order[at-1]]
		}
		if at < n-1 {
			right = mu[order[at+1]] - mu[i]
		}
		switch {
		case n >= 2 && at == 0:
			left = 0
		case n >= 2 && at == n-1:
			right = 0
		}
		out[i] = min(max(left, right, least), high-low)
	}
	return out
}

// compare orders numbers that are not NaN.
func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// maxTable is how many cells are kept.
const maxTable = 1 << 18

// classify finds kernels whose cells have the same: with few values there are few.
func (k *kernels) classify() {
	n, _ := k.p.Count()
	widths := map[float64]bool{}
	for _, sigma := range k.sigma {
		widths[sigma] = true
	}
	tabled := !k.p.Log && n*float64(len(widths)) <= maxTable
	seen := map[[2]float64]int{}
	for i, mu := range k.mu {
		key := [2]float64{mu, k.sigma[i]}
		if tabled {
			key[0] = 0
			k.at = append(k.at, math.Round((mu-k.p.Low)/k.p.Stride()))
		}
		c, ok := seen[key]
		if !ok {
			c = len(k.classes)
			seen[key] = c
			k.classes = append(k.classes, i)
			if tabled {
				k.table = append(k.table, make([]float64, int(n)))
			}
		}
		k.class = append(k.class, c)
	}
}

// draw draws values of all parameters from a kernel that is drawn by weight.
func (e *parzen) draw(rng *rand.Rand) []float64 {
	u := rng.Float64()
	i, _ := slices.BinarySearchFunc(e.upTo, u, func(sum, u float64) int {
		if sum > u {
			return 1
		}
		return -1
	})
	i = min(i, len(e.upTo)-1) // sums may end just below 1
	out := make([]float64, len(e.kernels))
	for d := range e.kernels {
		out[d] = e.kernels[d].draw(i, rng)
	}
	return out
}

func (k *kernels) draw(i int, rng *rand.Rand) float64 {
	u := rng.Float64()
	if k.p.Type == space.Categorical {
		c := float64(len(k.p.Choices))
		if i < len(k.choice) {
			same := math.Exp(k.same) - math.Exp(k.other)
			if u < same {
				return float64(k.choice[i])
			}
			u = (u - same) / (1 - same)
		}
		return min(math.Floor(u*c), c-1)
	}
	// The mean is within the bounds, so that the inverse is had where it is exact.
	mu, sigma := k.mu[i], k.sigma[i]
	from, to := math.Erf((k.low-mu)/sigma/math.Sqrt2), math.Erf((k.high-mu)/sigma/math.Sqrt2)
	x := min(max(mu+sigma*math.Sqrt2*math.Erfinv(from+u*(to-from)), k.low), k.high)
	if k.p.Log {
		x = math.Exp(x)
	}
	return nearest(k.p, x)
}

// nearest is the value of a number that the parameter can have.
func nearest(p space.Parameter, x float64) float64 {
	switch v := p.Decode(x).(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return x
}

// logDensities are those of points.
func (e *parzen) logDensities(points [][]float64) []float64 {
	n := len(e.weights)
	sums := make([]float64, len(points)*n) // of each point, of each kernel
	for i := range points {
		copy(sums[i*n:], e.weights)
	}
	for d := range e.kernels {
		e.kernels[d].add(points, d, sums)
	}
	out := make([]float64, len(points))
	for i := range points {
		out[i] = logSum(sums[i*n : (i+1)*n])
	}
	return out
}

// add adds the logarithms of the kernels at coordinate d of points.
func (k *kernels) add(points [][]float64, d int, sums []float64) {
	n := len(sums) / len(points)
	cells := map[float64][]float64{}
	for i, point := range points {
		x, to := point[d], sums[i*n:(i+1)*n]
		switch {
		case k.p.Type == space.Categorical:
			for j, c := range k.choice {
				if c == int(x) {
					to[j] += k.same
				} else {
					to[j] += k.other
				}
			}
			to[n-1] -= math.Log(float64(len(k.p.Choices)))
		case k.table != nil:
			k.addTabled(x, to)
		case k.class != nil:
			cell, ok := cells[x]
			if !ok {
				cell = k.cell(x)
				cells[x] = cell
			}
			for j, c := range k.class {
				to[j] += cell[c]
			}
		default:
			if k.p.Log {
				x = math.Log(x)
			}
			for j, mu := range k.mu {
				z := (x - mu) / k.sigma[j]
				to[j] += k.norm[j] - z*z/2
			}
		}
	}
}

// addTabled adds what the kernels have in the cell of x. The prior may be between steps.
func (k *kernels) addTabled(x float64, to []float64) {
	last := len(to) - 1
	step := k.p.Stride()
	here := math.Round((x - k.p.Low) / step)
	for j, c := range k.class[:last] {
		away := math.Abs(here - k.at[j])
		v := &k.table[c][int(away)]
		if *v == 0 { // a mass of 1 would be computed again
			*v = logMass((away-0.5)*step/k.sigma[j], (away+0.5)*step/k.sigma[j])
		}
		to[j] += *v + k.norm[j]
	}
	to[last] += logMass((x-step/2-k.mu[last])/k.sigma[last], (x+step/2-k.mu[last])/k.sigma[last]) + k.norm[last]
}

// cell is the logarithm of what each class of kernels has around x, half a step to
// both sides.
func (k *kernels) cell(x float64) []float64 {
	half := k.p.Stride() / 2
	low, high := x-half, x+half
	if k.p.Log {
		low, high = math.Log(low), math.Log(high)
	}
	out := make([]float64, len(k.classes))
	for c, j := range k.classes {
		out[c] = logMass((low-k.mu[j])/k.sigma[j], (high-k.mu[j])/k.sigma[j]) + k.norm[j]
	}
	return out
}

// logMass is the logarithm of what the standard normal distribution has from a to b,
// exact in both tails. What is narrow and not too far out is had by a series, within
// 1e-5: φ in the middle, times the width, times the mean of exp(-zt - t²/2).
func logMass(a, b float64) float64 {
	if h := b - a; h < 0.1 {
		z := (a + b) / 2
		if y := z * h / 2; math.Abs(y) < 1 {
			y *= y
			return math.Log(h/math.Sqrt(2*math.Pi)) - z*z/2 + y*(1./6-y*(1./180-y*(1./2835-y/37800))) - h*h/8*(1./3+y*2/45)
		}
	}
	if a > 0 {
		a, b = -b, -a
	}
	if b <= 0 {
		return math.Log((math.Erfc(-b/math.Sqrt2) - math.Erfc(-a/math.Sqrt2)) / 2)
	}
	return math.Log((math.Erf(b/math.Sqrt2) - math.Erf(a/math.Sqrt2)) / 2)
}

// logSum is the logarithm of the sum of exponentials.
func logSum(logs []float64) float64 {
	most := slices.Max(logs)
	if math.IsInf(most, -1) {
		return most
	}
	sum := 0.0
	for _, l := range logs {
		if l > most-40 { // less is below what a float64 adds
			sum += math.Exp(l - most)
		}
	}
	return most + math.Log(sum)
}
