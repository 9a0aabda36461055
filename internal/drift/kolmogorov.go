package drift

import "math"

// ksExactSF is P(D ≥ d) for samples of n and m values without ties, by counting
// lattice paths within the band (Hodges, 1957). With ties the true probability
// is lower, so a test by it keeps its level. O(n·m) time.
func ksExactSF(d float64, n, m int) float64 {
	if n > m {
		n, m = m, n
	}
	fn, fm := float64(n), float64(m)
	// The statistic is a multiple of 1/(n·m): compare in the middle between two.
	q := (0.5 + math.Floor(d*fn*fm-1e-7)) / (fn * fm)
	u := make([]float64, m+1)
	for j := range u {
		if float64(j)/fm <= q {
			u[j] = 1
		}
	}
	for i := 1; i <= n; i++ {
		at := float64(i) / fn
		w := float64(i) / float64(i+m) // keeps u within [0, 1]
		if at > q {
			u[0] = 0
		} else {
			u[0] *= w
		}
		// Outside of the band all are 0.
		from := max(1, int(math.Ceil((at-q)*fm))-1)
		to := min(m, int((at+q)*fm)+1)
		if from > 1 {
			u[from-1] = 0
		}
		for j := from; j <= to; j++ {
			if math.Abs(at-float64(j)/fm) > q {
				u[j] = 0
			} else {
				u[j] = w*u[j] + u[j-1]
			}
		}
		if to < m {
			u[to+1] = 0
		}
	}
	return clamp01(1 - u[m])
}

// kolmogorovSF is P(D ≥ d) for one sample of n against its own distribution,
// which is the asymptotic law of the two-sample statistic with n = n₁·n₂/(n₁+n₂)
// (rounded), as scipy's asymptotic p-value is. Exact up to n = 500 (Marsaglia,
// Tsang, Wang, 2003) and in the tail; beyond, Kolmogorov's limit with Stephens'
// correction.
func kolmogorovSF(d float64, n int) float64 {
	fn := float64(n)
	switch {
	case n < 1 || d <= 0.5/fn:
		return 1
	case d >= 1:
		return 0
	case n > 10_000:
		return kolmogorovLimit(d * math.Sqrt(fn))
	case d >= 0.5 || fn*d*d > 4:
		// The two sides exclude each other, exactly from 0.5 on and up to 1e-13 beyond.
		return clamp01(2 * smirnovSF(d, n))
	case n <= 500:
		return clamp01(1 - kolmogorovCDF(d, n))
	}
	root := math.Sqrt(fn)
	return kolmogorovLimit(d * (root + 0.12 + 0.11/root))
}

// kolmogorovLimit is 2·Σ (-1)^(k-1) exp(-2k²x²).
func kolmogorovLimit(x float64) float64 {
	if x < 0.2 {
		return 1
	}
	sum, sign := 0.0, 1.0
	for k := 1.0; k <= 100; k++ {
		term := math.Exp(-2 * k * k * x * x)
		sum += sign * term
		if term < 1e-17 {
			break
		}
		sign = -sign
	}
	return clamp01(2 * sum)
}

// smirnovSF is P(D⁺ ≥ d) for one sample of n (Birnbaum, Tingey, 1951).
func smirnovSF(d float64, n int) float64 {
	fn := float64(n)
	sum := 0.0
	for j := 0; j <= int(math.Floor(fn*(1-d))); j++ {
		fj := float64(j)
		rest := 1 - d - fj/fn
		tail := 0.0
		if j < n {
			if rest <= 0 {
				continue
			}
			tail = (fn - fj) * math.Log(rest)
		}
		sum += math.Exp(logChoose(fn, fj) + (fj-1)*math.Log(d+fj/fn) + tail)
	}
	return clamp01(d * sum)
}

// kolmogorovCDF is P(D < d), by the power of a matrix of size 2⌈n·d⌉-1.
func kolmogorovCDF(d float64, n int) float64 {
	k := int(float64(n)*d) + 1
	m := 2*k - 1
	h := float64(k) - float64(n)*d
	a := make([]float64, m*m)
	for i := range m {
		for j := range m {
			if i-j+1 >= 0 {
				a[i*m+j] = 1
			}
		}
	}
	for i := range m {
		a[i*m] -= math.Pow(h, float64(i+1))
		a[(m-1)*m+i] -= math.Pow(h, float64(m-i))
	}
	a[(m-1)*m] += math.Pow(math.Max(0, 2*h-1), float64(m))
	for i := range m {
		for j := range m {
			for g := 1; g <= i-j+1; g++ {
				a[i*m+j] /= float64(g)
			}
		}
	}
	p, exp := matrixPower(a, m, n)
	s := p[(k-1)*m+k-1]
	for i := 1; i <= n; i++ {
		s *= float64(i) / float64(n)
		if s < 1e-140 {
			s *= 1e140
			exp -= 140
		}
	}
	return s * math.Pow(10, float64(exp))
}

// matrixPower is a^n = b·10^exp, by squaring, kept in the range of floats.
func matrixPower(a []float64, m, n int) (b []float64, exp int) {
	b = make([]float64, m*m)
	for i := range m {
		b[i*m+i] = 1
	}
	aExp := 0
	scale := func(x []float64, e int) int {
		if x[(m/2)*m+m/2] > 1e140 {
			for i := range x {
				x[i] *= 1e-140
			}
			return e + 140
		}
		return e
	}
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			b = matrixProduct(b, a, m)
			exp = scale(b, exp+aExp)
		}
		if n > 1 {
			a = matrixProduct(a, a, m)
			aExp = scale(a, 2*aExp)
		}
	}
	return b, exp
}

func matrixProduct(a, b []float64, m int) []float64 {
	c := make([]float64, m*m)
	for i := range m {
		for k := range m {
			x := a[i*m+k]
			if x == 0 {
				continue
			}
			for j := range m {
				c[i*m+j] += x * b[k*m+j]
			}
		}
	}
	return c
}

func logChoose(n, k float64) float64 {
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(k + 1)
	c, _ := math.Lgamma(n - k + 1)
	return a - b - c
}

func clamp01(p float64) float64 { return math.Min(1, math.Max(0, p)) }
