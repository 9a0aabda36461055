package performance

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Estimate says how good binary probabilities probably are, without labels: of
// rows scored p, a share p is positive (confidence-based performance estimation,
// as in NannyML). It holds as long as the scores are calibrated, also on shifted
// inputs; it cannot see that what the labels depend on has changed. Every metric
// of it is marked as an estimate. Make one with NewEstimate.
type Estimate struct {
	threshold          float64
	ranking            ranking
	loss, squared      mean
	tp, fp, fn, tn     float64
	uncertain          float64 // Σ c(1-c) of the chance c that a call is right
	lossVar, squareVar float64 // Σ of the variances that the labels still have
	unusable           uint64
}

// NewEstimate estimates at a threshold, as NewClassification compares.
func NewEstimate(threshold float64) *Estimate {
	return &Estimate{threshold: NewClassification(threshold).threshold}
}

// Add adds a row by its calibrated probability, called by the threshold. A score
// that is not in [0, 1] is only counted, in Unusable.
func (e *Estimate) Add(score float64) { e.AddCalibrated(score, score) }

// AddCalibrated adds a row that the model gave score and a Calibrator p: the
// score decides the call and the rank, p is how probable the label is.
func (e *Estimate) AddCalibrated(score, p float64) {
	if !(score >= 0 && score <= 1 && p >= 0 && p <= 1) {
		e.unusable++
		return
	}
	e.ranking.add(score, p, 1-p)
	s := math.Min(1-epsilon, math.Max(epsilon, score))
	hit, miss := -math.Log(s), -math.Log1p(-s)
	e.loss.add(p*hit + (1-p)*miss)
	e.lossVar += p * (1 - p) * (hit - miss) * (hit - miss)
	e.squared.add(p*(1-score)*(1-score) + (1-p)*score*score)
	e.squareVar += p * (1 - p) * (1 - 2*score) * (1 - 2*score)
	e.uncertain += p * (1 - p)
	if score >= e.threshold {
		e.tp += p
		e.fp += 1 - p
		return
	}
	e.fn += p
	e.tn += 1 - p
}

// Rows is how many rows the estimate is of.
func (e *Estimate) Rows() uint64 { return uint64(e.squared.n) }

// Unusable is how many scores were not probabilities.
func (e *Estimate) Unusable() uint64 { return e.unusable }

// Metrics are, in this order: AUC, LogLoss, Brier, Accuracy, Precision, Recall,
// F1. The intervals are of what the metric will be once the labels are there, if
// the scores are calibrated.
func (e *Estimate) Metrics() []Metric {
	n := e.squared.n
	const none = "there are no rows"
	auc := undefined(AUC, none)
	if n > 0 {
		auc = area(e.ranking.groups())
	}
	around := func(name string, value, variance float64) Metric {
		if n == 0 {
			return undefined(name, none)
		}
		h := z * math.Sqrt(variance) / n
		return Metric{Name: name, Value: value, Low: math.Max(0, value-h), High: value + h}
	}
	accuracy := around(Accuracy, (e.tp+e.tn)/n, e.uncertain)
	accuracy.High = math.Min(1, accuracy.High)
	out := []Metric{
		auc,
		around(LogLoss, e.loss.mean, e.lossVar),
		around(Brier, e.squared.mean, e.squareVar),
		accuracy,
		share(Precision, e.tp, e.tp+e.fp, "no row was predicted positive"),
		share(Recall, e.tp, e.tp+e.fn, "no row is positive"),
		f1(e.tp, e.fp, e.fn),
	}
	for i := range out {
		out[i].Estimate = true
	}
	return out
}

// Calibrator maps scores to probabilities: isotonic regression on rows with
// labels, so that the order of scores is kept. The zero value changes nothing.
type Calibrator struct {
	scores, values []float64 // ascending; linear in between
}

const maxKnots = 256

// Calibrator fits to the rows so far. With fewer than 50 rows, or of one label
// only, it changes nothing.
func (c *Classification) Calibrator() Calibrator {
	groups := c.ranking.groups()
	var pos, neg float64
	for _, g := range groups {
		pos += g.pos
		neg += g.neg
	}
	if pos+neg < 50 || pos == 0 || neg == 0 {
		return Calibrator{}
	}
	// Pool adjacent violators: blocks of scores with ascending shares.
	type block struct{ pos, all, score float64 }
	var blocks []block
	for _, g := range groups {
		all := g.pos + g.neg
		blocks = append(blocks, block{g.pos, all, g.score * all})
		for n := len(blocks); n > 1 && blocks[n-2].pos*blocks[n-1].all >= blocks[n-1].pos*blocks[n-2].all; n = len(blocks) {
			b := blocks[n-1]
			blocks = blocks[:n-1]
			blocks[n-2].pos += b.pos
			blocks[n-2].all += b.all
			blocks[n-2].score += b.score
		}
	}
	// Of too many blocks neighbours go together.
	if size := (len(blocks) + maxKnots - 1) / maxKnots; size > 1 {
		var fewer []block
		for part := range slices.Chunk(blocks, size) {
			var sum block
			for _, b := range part {
				sum = block{sum.pos + b.pos, sum.all + b.all, sum.score + b.score}
			}
			fewer = append(fewer, sum)
		}
		blocks = fewer
	}
	var out Calibrator
	for _, b := range blocks {
		out.scores = append(out.scores, b.score/b.all)
		out.values = append(out.values, b.pos/b.all)
	}
	return out
}

// Map is the probability for a score; beyond the scores that were seen, that of
// the nearest.
func (c Calibrator) Map(score float64) float64 {
	n := len(c.scores)
	if n == 0 || math.IsNaN(score) {
		return score
	}
	at, exact := slices.BinarySearch(c.scores, score)
	switch {
	case exact:
		return c.values[at]
	case at == 0:
		return c.values[0]
	case at == n:
		return c.values[n-1]
	}
	w := (score - c.scores[at-1]) / (c.scores[at] - c.scores[at-1])
	return c.values[at-1] + w*(c.values[at]-c.values[at-1])
}

type calibratorJSON struct {
	Scores []float64 `json:"scores"`
	Values []float64 `json:"values"`
}

// MarshalJSON writes the knots.
func (c Calibrator) MarshalJSON() ([]byte, error) {
	return json.Marshal(calibratorJSON{c.scores, c.values})
}

// UnmarshalJSON reads the knots. It fails with Invalid when they do not ascend or
// leave [0, 1], and with TooLarge when there are too many.
func (c *Calibrator) UnmarshalJSON(b []byte) error {
	if len(b) > 64<<10 {
		return fault.New(fault.TooLarge, "the calibration has %d bytes, over the limit of %d", len(b), 64<<10)
	}
	var j calibratorJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fault.New(fault.Invalid, "reading a calibration: %w", err)
	}
	if len(j.Scores) != len(j.Values) || len(j.Scores) > maxKnots {
		return fault.New(fault.Invalid, "the calibration has %d scores and %d values, over the limit of %d each", len(j.Scores), len(j.Values), maxKnots)
	}
	for i, s := range j.Scores {
		v := j.Values[i]
		if s < 0 || s > 1 || v < 0 || v > 1 || i > 0 && (s <= j.Scores[i-1] || v < j.Values[i-1]) {
			return fault.New(fault.Invalid, "the calibration's knots do not increase within [0, 1]")
		}
	}
	c.scores, c.values = j.Scores, j.Values
	return nil
}
