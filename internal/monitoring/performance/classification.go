package performance

import "math"

// Classification compares probabilities with binary labels. Make one with
// NewClassification.
type Classification struct {
	threshold float64
	ranking   ranking
	loss      mean
	squared   mean
	confusion Confusion
	bins      [calibrationBins]CalibrationBin
	unusable  uint64
}

// Confusion is how often each label met each call.
type Confusion struct {
	TruePositive  uint64 `json:"true_positive"`
	FalsePositive uint64 `json:"false_positive"`
	FalseNegative uint64 `json:"false_negative"`
	TrueNegative  uint64 `json:"true_negative"`
}

const calibrationBins = 10

// epsilon is how far from 0 and 1 a probability is brought for its logarithm, as
// scikit-learn has it.
const epsilon = 2.220446049250313e-16

// NewClassification compares at a threshold: a score of at least so much calls
// the row positive. A threshold outside of (0, 1) means 0.5.
func NewClassification(threshold float64) *Classification {
	if !(threshold > 0 && threshold < 1) {
		threshold = 0.5
	}
	return &Classification{threshold: threshold}
}

// Add adds a row. A score that is not in [0, 1] is only counted, in Unusable.
func (c *Classification) Add(score float64, label bool) {
	if !(score >= 0 && score <= 1) {
		c.unusable++
		return
	}
	y, called := 0.0, score >= c.threshold
	if label {
		y = 1
	}
	c.ranking.add(score, y, 1-y)
	p := math.Min(1-epsilon, math.Max(epsilon, score))
	if label {
		c.loss.add(-math.Log(p))
	} else {
		c.loss.add(-math.Log1p(-p))
	}
	c.squared.add((score - y) * (score - y))
	switch {
	case label && called:
		c.confusion.TruePositive++
	case called:
		c.confusion.FalsePositive++
	case label:
		c.confusion.FalseNegative++
	default:
		c.confusion.TrueNegative++
	}
	b := &c.bins[min(int(score*calibrationBins), calibrationBins-1)]
	b.Rows++
	b.Score += score
	b.Positive += y
}

// Rows is how many rows were compared.
func (c *Classification) Rows() uint64 { return uint64(c.squared.n) }

// Unusable is how many scores were not probabilities.
func (c *Classification) Unusable() uint64 { return c.unusable }

// Confusion is the table at the threshold.
func (c *Classification) Confusion() Confusion { return c.confusion }

// Metrics are, in this order: AUC, LogLoss, Brier, Accuracy, Precision, Recall,
// F1, ECE. Intervals: DeLong; Student's for the two losses; Wilson's for the
// shares, also behind F1; none for ECE.
func (c *Classification) Metrics() []Metric {
	tp, fp := float64(c.confusion.TruePositive), float64(c.confusion.FalsePositive)
	fn, tn := float64(c.confusion.FalseNegative), float64(c.confusion.TrueNegative)
	auc := undefined(AUC, noRows)
	if c.squared.n > 0 {
		auc = area(c.ranking.groups())
	}
	out := []Metric{
		auc,
		c.loss.metric(LogLoss),
		c.squared.metric(Brier),
		share(Accuracy, tp+tn, tp+fp+fn+tn, noRows),
		share(Precision, tp, tp+fp, "no row was predicted positive"),
		share(Recall, tp, tp+fn, "no row is positive"),
		f1(tp, fp, fn),
		c.Calibration().metric(),
	}
	for i := range out[:3] {
		out[i].Low = math.Max(0, out[i].Low) // NaN stays
	}
	out[2].High = math.Min(1, out[2].High)
	return out
}

// CalibrationBin is the rows with scores in one tenth of [0, 1].
type CalibrationBin struct {
	Rows     uint64  `json:"rows"`
	Score    float64 `json:"score"`    // their mean score
	Positive float64 `json:"positive"` // the share of them that is positive
	Low      float64 `json:"low"`      // of its 95 % interval
	High     float64 `json:"high"`
}

// Calibration is whether scores are the probabilities that they say.
type Calibration struct {
	Bins []CalibrationBin `json:"bins"` // those with rows, by score
	ECE  float64          `json:"ece"`  // mean over rows of |score - share positive| in their bin
	// Chance is the ECE that perfect probabilities would show with so few rows: an
	// ECE is never 0, and one near Chance says nothing against the model.
	Chance float64 `json:"chance"`
	Rows   uint64  `json:"rows"`
}

// Calibration compares scores with shares, in ten bins of equal width.
func (c *Classification) Calibration() Calibration {
	out := Calibration{Rows: c.Rows()}
	for _, b := range c.bins {
		if b.Rows == 0 {
			continue
		}
		n := float64(b.Rows)
		p := b.Score / n
		out.ECE += math.Abs(b.Score-b.Positive) / c.squared.n
		out.Chance += math.Sqrt(2/math.Pi*p*(1-p)/n) * n / c.squared.n
		low, high := wilson(b.Positive, n)
		out.Bins = append(out.Bins, CalibrationBin{Rows: b.Rows, Score: p, Positive: b.Positive / n, Low: low, High: high})
	}
	return out
}

func (c Calibration) metric() Metric {
	m := undefined(ECE, noRows)
	if c.Rows > 0 {
		m.Value, m.Note = c.ECE, ""
	}
	return m
}
