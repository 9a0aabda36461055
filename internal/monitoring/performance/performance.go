package performance

import (
	"encoding/json"
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/falaj-ml/falaj/internal/fault"
)

// The metrics.
const (
	AUC       = "auc"       // area under the ROC curve
	LogLoss   = "log_loss"  // in nats
	Brier     = "brier"     // mean squared difference of score and label
	Accuracy  = "accuracy"  // at the threshold, as the three below
	Precision = "precision" // of the rows called positive, the share that is
	Recall    = "recall"    // of the positive rows, the share called so
	F1        = "f1"        // harmonic mean of the two
	MacroF1   = "macro_f1"  // mean of the F1 of each class, of several classes
	ECE       = "ece"       // expected calibration error, 10 bins of equal width
	MAE       = "mae"       // mean absolute error
	RMSE      = "rmse"      // root mean squared error
	R2        = "r2"        // share of the labels' variance that is explained
	Bias      = "bias"      // mean of prediction less label
)

// Metric is a number that says how good a model was.
type Metric struct {
	Name     string
	Value    float64 // NaN when it is not defined; Note says why
	Low      float64 // of the 95 % interval; NaN when there is none
	High     float64
	Estimate bool // made without labels
	Note     string
}

type metricJSON struct {
	Name     string   `json:"name"`
	Value    *float64 `json:"value"`
	Low      *float64 `json:"low"`
	High     *float64 `json:"high"`
	Estimate bool     `json:"estimate"`
	Note     string   `json:"note,omitempty"`
}

// MarshalJSON writes NaN as null, which JSON does not have.
func (m Metric) MarshalJSON() ([]byte, error) {
	return json.Marshal(metricJSON{m.Name, number(m.Value), number(m.Low), number(m.High), m.Estimate, m.Note})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *Metric) UnmarshalJSON(b []byte) error {
	var j metricJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fault.New(fault.Invalid, "reading a metric: %w", err)
	}
	*m = Metric{j.Name, orNaN(j.Value), orNaN(j.Low), orNaN(j.High), j.Estimate, j.Note}
	return nil
}

func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func orNaN(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// z is the quantile of the normal distribution for 95 %, two-sided.
const z = 1.959963984540054

func undefined(name, why string) Metric {
	return Metric{Name: name, Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Note: why}
}

// share is a proportion with Wilson's interval. The counts may be expected ones.
func share(name string, hits, of float64, why string) Metric {
	if of <= 0 {
		return undefined(name, why)
	}
	low, high := wilson(hits, of)
	return Metric{Name: name, Value: hits / of, Low: low, High: high}
}

func wilson(hits, of float64) (low, high float64) {
	p := hits / of
	mid := (p + z*z/(2*of)) / (1 + z*z/of)
	half := z / (1 + z*z/of) * math.Sqrt(p*(1-p)/of+z*z/(4*of*of))
	return math.Max(0, mid-half), math.Min(1, mid+half)
}

// f1 is a proportion in disguise: with j = TP/(TP+FP+FN), F1 = 2j/(1+j).
func f1(tp, fp, fn float64) Metric {
	m := share(F1, tp, tp+fp+fn, "no row is positive or was predicted positive")
	for _, v := range []*float64{&m.Value, &m.Low, &m.High} {
		*v = 2 * *v / (1 + *v)
	}
	return m
}

// mean is a running mean and variance (Welford).
type mean struct{ n, mean, m2 float64 }

func (m *mean) add(v float64) {
	m.n++
	d := v - m.mean
	m.mean += d / m.n
	m.m2 += d * (v - m.mean)
}

// half is half of the interval of the mean, by Student's law; NaN under two rows.
func (m *mean) half() float64 {
	if m.n < 2 {
		return math.NaN()
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: m.n - 1}.Quantile(0.975)
	return t * math.Sqrt(m.m2/(m.n-1)/m.n)
}

func (m *mean) metric(name string) Metric {
	if m.n == 0 {
		return undefined(name, noRows)
	}
	h := m.half()
	return Metric{Name: name, Value: m.mean, Low: m.mean - h, High: m.mean + h}
}

const noRows = "there are no rows with a label"
