package sizing

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// confidence of all intervals.
const confidence = 0.95

// measured compares what this family showed in both places. With the logarithms of
// the rates x₁…xₙ now and y₁…yₘ there, the logarithm of the time ratio is
//
//	x̄ − ȳ ± t(n+m−2) · s · √(1/n + 1/m)
//
// with the pooled variance s² and Student's t: the interval of two normal samples
// with one variance. With fewer than three attempts there is none.
func (q Question) measured(p Place) (Option, bool) {
	x, y := q.rates(q.Now.Device, q.Now.Workers), q.rates(p.Device, p.Workers)
	if len(x) == 0 || len(y) == 0 {
		return Option{}, false
	}
	o := Option{Place: p, Known: Measured, Attempts: len(y)}
	if p.Device == q.Now.Device && p.Workers == q.Now.Workers {
		o.Time = Ratio{Is: 1} // the same device in another pool
		return o, true
	}
	d := stat.Mean(x, nil) - stat.Mean(y, nil)
	o.Time = Ratio{Is: math.Exp(d)}
	n, m := float64(len(x)), float64(len(y))
	if n+m < 3 {
		return o, true
	}
	s := math.Sqrt((spread(x) + spread(y)) / (n + m - 2))
	o.Time = interval(d, quantile(n+m-2)*s*math.Sqrt(1/n+1/m))
	return o, true
}

// spread is the sum of squares around the mean.
func spread(v []float64) (sum float64) {
	mean := stat.Mean(v, nil)
	for _, x := range v {
		sum += (x - mean) * (x - mean)
	}
	return sum
}

// quantile is that of Student's t for the two-sided interval.
func quantile(freedom float64) float64 {
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile((1 + confidence) / 2)
}

func interval(log, half float64) Ratio {
	return Ratio{Is: math.Exp(log), Low: math.Exp(log - half), High: math.Exp(log + half)}
}
