package sizing

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// The prior of what devices do, in logarithms. Before anything is measured, devices
// differ by about a factor e (spreadOfDevices), and a kind of work differs from
// what its device does to others by about 30 % (spreadOfWork), which is worth as
// much as beliefInWork comparisons. These are chosen, not measured: with five like
// jobs or more they hardly matter.
const (
	spreadOfDevices = 1.0
	spreadOfWork    = 0.3
	beliefInWork    = 2.0
)

// absurd is a factor between two devices for one kind of work that nobody measured:
// steps that a program made up. It is left out.
const absurd = 1000.0

// devices is how fast devices are for work of all kinds.
type devices struct {
	names  []string
	effect []float64 // logarithms
	cov    *mat.SymDense
	scale  float64 // s², of one kind on one device
	nu     float64 // degrees of freedom of s²
	// kinds that ran on each device, by family.
	ran map[string]map[string]bool
}

// fitDevices fits the additive model
//
//	log rate(kind, device) = a(kind) + b(device) + e,   e ~ N(0, σ²)
//
// to the means of each kind of work, with its number of workers, on each device.
// a has a flat prior; b ~ N(0, σ²/λ), λ = spreadOfWork² / spreadOfDevices², which
// shrinks what little was seen towards no difference (ridge regression: Hoerl and
// Kennard, Technometrics 12, 1970); σ² ~ Inv-χ²(ν₀, s₀²). The prior is conjugate
// (Gelman et al., Bayesian Data Analysis, 3rd ed., chapter 14), so that with M the
// projection that takes the mean of each kind off,
//
//	b  = V·Zᵀ M y,   V = (Zᵀ M Z + λI)⁻¹
//	s² = (ν₀s₀² + |M(y − Zb)|² + λ|b|²) / ν,   ν = ν₀ + Σ(devices of a kind − 1)
//
// A kind that ran on one device says nothing of devices and leaves no trace.
func fitDevices(all []Profile) devices {
	type row struct {
		Kind
		workers int
	}
	cells := map[row]map[string][]float64{}
	for _, p := range all {
		r := row{p.Kind, p.Workers}
		if cells[r] == nil {
			cells[r] = map[string][]float64{}
		}
		cells[r][p.Device] = append(cells[r][p.Device], math.Log(p.Rate))
	}
	m := devices{ran: map[string]map[string]bool{}, nu: beliefInWork}
	type cell struct {
		device int
		y      float64
	}
	var rows [][]cell
	index := map[string]int{}
	for r, by := range cells {
		low, high := math.Inf(1), math.Inf(-1)
		for _, logs := range by {
			low, high = min(low, mean(logs)), max(high, mean(logs))
		}
		if len(by) < 2 || high-low > math.Log(absurd) {
			delete(cells, r)
			continue
		}
		for device := range by {
			index[device] = 0
			if m.ran[device] == nil {
				m.ran[device] = map[string]bool{}
			}
			m.ran[device][r.Family] = true
		}
	}
	for device := range index {
		m.names = append(m.names, device)
	}
	slices.Sort(m.names) // sums in one order give one answer
	for i, device := range m.names {
		index[device] = i
	}
	for _, by := range cells {
		var r []cell
		for device, logs := range by {
			r = append(r, cell{index[device], mean(logs)})
		}
		slices.SortFunc(r, func(a, b cell) int { return a.device - b.device })
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b []cell) int {
		return slices.CompareFunc(a, b, func(x, y cell) int {
			switch {
			case x.device != y.device:
				return x.device - y.device
			case x.y < y.y:
				return -1
			case x.y > y.y:
				return 1
			}
			return 0
		})
	})
	n := len(m.names)
	if n == 0 {
		return m
	}
	const lambda = spreadOfWork * spreadOfWork / (spreadOfDevices * spreadOfDevices)
	gram, rhs := mat.NewSymDense(n, nil), mat.NewVecDense(n, nil)
	for i := range n {
		gram.SetSym(i, i, lambda)
	}
	for _, r := range rows {
		k, middle := float64(len(r)), 0.0
		for _, c := range r {
			middle += c.y / k
		}
		for i, c := range r {
			rhs.SetVec(c.device, rhs.AtVec(c.device)+c.y-middle)
			gram.SetSym(c.device, c.device, gram.At(c.device, c.device)+1)
			for _, d := range r[i:] {
				gram.SetSym(c.device, d.device, gram.At(c.device, d.device)-1/k)
			}
		}
		m.nu += k - 1
	}
	var chol mat.Cholesky
	chol.Factorize(gram) // positive definite: λ > 0
	var b mat.VecDense
	m.cov = mat.NewSymDense(n, nil)
	if chol.SolveVecTo(&b, rhs) != nil || chol.InverseTo(m.cov) != nil {
		return devices{}
	}
	m.effect = b.RawVector().Data
	m.scale = beliefInWork * spreadOfWork * spreadOfWork
	for _, r := range rows {
		k, middle := float64(len(r)), 0.0
		for _, c := range r {
			middle += (c.y - m.effect[c.device]) / k
		}
		for _, c := range r {
			e := c.y - m.effect[c.device] - middle
			m.scale += e * e
		}
	}
	for _, v := range m.effect {
		m.scale += lambda * v * v
	}
	m.scale /= m.nu
	return m
}

// like predicts from what the two devices did to other families that ran on both:
// with c the contrast of the two, the logarithm of the time ratio is
//
//	−cᵀb ± t(ν) · s · √(cᵀVc + 2)
//
// where 2 is for what this family differs by, on either device.
func (q Question) like(p Place, m devices) (Option, bool) {
	if p.Workers != q.Now.Workers || p.Device == q.Now.Device || q.Unit == "" {
		return Option{}, false
	}
	families := 0
	for f := range m.ran[q.Now.Device] {
		if f != q.Family && m.ran[p.Device][f] {
			families++
		}
	}
	if families == 0 {
		return Option{}, false
	}
	i, j := slices.Index(m.names, q.Now.Device), slices.Index(m.names, p.Device)
	d := m.effect[i] - m.effect[j]
	v := m.cov.At(i, i) + m.cov.At(j, j) - 2*m.cov.At(i, j)
	sd := math.Sqrt(m.scale * (v + 2))
	return Option{Place: p, Known: LikeJobs, Families: families, Time: interval(d, quantile(m.nu)*sd), mean: d, sd: sd}, true
}

func mean(v []float64) (sum float64) {
	for _, x := range v {
		sum += x / float64(len(v))
	}
	return sum
}
