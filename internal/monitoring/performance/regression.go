package performance

import "math"

// Regression compares predictions with numbers. Its zero value is ready.
type Regression struct {
	absolute, squared, signed mean
	label                     mean
	// Sums for the interval of R², of labels less the first one.
	origin   float64
	powers   [5]float64 // Σ v^k
	cross    [3]float64 // Σ e²·v^k
	unusable uint64
}

// maxMagnitude is beyond which fourth powers are no numbers.
const maxMagnitude = 1e70

// Add adds a row. Numbers that are not finite, or beyond 10⁷⁰, are only counted,
// in Unusable.
func (r *Regression) Add(prediction, label float64) {
	if !(math.Abs(prediction) <= maxMagnitude && math.Abs(label) <= maxMagnitude) {
		r.unusable++
		return
	}
	if r.label.n == 0 {
		r.origin = label
	}
	e := prediction - label
	r.absolute.add(math.Abs(e))
	r.squared.add(e * e)
	r.signed.add(e)
	r.label.add(label)
	v, power := label-r.origin, 1.0
	for k := range r.powers {
		r.powers[k] += power
		if k < len(r.cross) {
			r.cross[k] += e * e * power
		}
		power *= v
	}
}

// Rows is how many rows were compared.
func (r *Regression) Rows() uint64 { return uint64(r.label.n) }

// Unusable is how many rows had a number that is none.
func (r *Regression) Unusable() uint64 { return r.unusable }

// Metrics are, in this order: MAE, RMSE, R2, Bias. Intervals: Student's for means;
// that of the mean squared error, rooted, for RMSE; the delta method for R².
func (r *Regression) Metrics() []Metric {
	rmse := r.squared.metric(RMSE)
	for _, v := range []*float64{&rmse.Value, &rmse.Low, &rmse.High} {
		*v = math.Sqrt(math.Max(0, *v)) // NaN stays
	}
	mae := r.absolute.metric(MAE)
	mae.Low = math.Max(0, mae.Low)
	return []Metric{mae, rmse, r.explained(), r.signed.metric(Bias)}
}

func (r *Regression) explained() Metric {
	n := r.label.n
	switch {
	case n == 0:
		return undefined(R2, noRows)
	case n < 2:
		return undefined(R2, "one row has no variance")
	case r.label.m2 <= 1e-24*n*r.label.mean*r.label.mean: // rounding
		return undefined(R2, "all labels are equal")
	}
	a, b := r.squared.mean, r.label.m2/n // mean of e², variance of the label
	m := Metric{Name: R2, Value: 1 - a/b, Low: math.NaN(), High: math.NaN()}
	if n < 10 {
		m.Note = "an interval requires ten rows"
		return m
	}
	// With x = e² and w = (y-ȳ)², R² = 1 - x̄/w̄: var(x̄/w̄) by its derivatives.
	d := r.label.mean - r.origin
	p := func(k int) float64 { return r.powers[k] / n }
	fourth := p(4) - 4*d*p(3) + 6*d*d*p(2) - 4*d*d*d*p(1) + d*d*d*d
	varX := r.squared.m2 / n
	varW := math.Max(0, fourth-b*b)
	cov := (r.cross[2]-2*d*r.cross[1]+d*d*r.cross[0])/n - a*b
	v := (varX - 2*a/b*cov + a*a/(b*b)*varW) / (b * b) / n
	h := z * math.Sqrt(math.Max(0, v))
	m.Low, m.High = m.Value-h, math.Min(1, m.Value+h)
	return m
}
