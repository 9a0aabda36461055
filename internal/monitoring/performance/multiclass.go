package performance

import "math"

// Multiclass compares predicted classes with the true ones, of any number of
// classes. The zero value is ready.
type Multiclass struct {
	classes map[string]*classCount
	hits, n float64
	loss    mean
	unknown uint64
}

// classCount is how often a class was predicted, was true, and was both.
type classCount struct{ both, predicted, actual float64 }

// Add adds a row: the predicted class, the true one, and the probability that the
// model gave the true one, NaN where that is not known.
func (c *Multiclass) Add(predicted, actual string, p float64) {
	if c.classes == nil {
		c.classes = map[string]*classCount{}
	}
	c.n++
	c.class(predicted).predicted++
	c.class(actual).actual++
	if predicted == actual {
		c.hits++
		c.class(actual).both++
	}
	if !(p >= 0 && p <= 1) {
		c.unknown++
		return
	}
	c.loss.add(-math.Log(math.Max(epsilon, p)))
}

func (c *Multiclass) class(name string) *classCount {
	have := c.classes[name]
	if have == nil {
		have = &classCount{}
		c.classes[name] = have
	}
	return have
}

// Rows is how many rows were compared.
func (c *Multiclass) Rows() uint64 { return uint64(c.n) }

// Metrics are, in this order: Accuracy with Wilson's interval; MacroF1, the mean of
// the F1 of every class that was predicted or true, as scikit-learn's f1_score with
// average="macro", without an interval; LogLoss, the mean of -ln p of the true class
// with Student's interval, as scikit-learn's log_loss. LogLoss is undefined where a
// row has no probability for its class: the rest would be a biased sample.
func (c *Multiclass) Metrics() []Metric {
	loss := c.loss.metric(LogLoss)
	loss.Low = math.Max(0, loss.Low) // NaN stays
	if c.unknown > 0 {
		loss = undefined(LogLoss, "some rows have no probability of the true class")
	}
	f1 := undefined(MacroF1, noRows)
	if c.n > 0 {
		sum := 0.0
		for _, k := range c.classes {
			sum += 2 * k.both / (k.predicted + k.actual) // one of them is positive
		}
		f1 = Metric{Name: MacroF1, Value: sum / float64(len(c.classes)), Low: math.NaN(), High: math.NaN()}
	}
	return []Metric{share(Accuracy, c.hits, c.n, noRows), f1, loss}
}

// Confidence estimates the accuracy of a model of several classes without labels, by
// the probability of each predicted class (confidence-based performance estimation, as
// Estimate). The zero value is ready.
type Confidence struct {
	top      mean
	variance float64 // Σ p(1-p): what the labels still have
}

// Add adds the highest probability of a row; one outside of [0, 1] is left out.
func (c *Confidence) Add(p float64) {
	if !(p >= 0 && p <= 1) {
		return
	}
	c.top.add(p)
	c.variance += p * (1 - p)
}

// Metrics is the accuracy, marked as an estimate.
func (c *Confidence) Metrics() []Metric {
	m := undefined(Accuracy, "there are no probabilities")
	if n := c.top.n; n > 0 {
		h := z * math.Sqrt(c.variance) / n
		m = Metric{Name: Accuracy, Value: c.top.mean, Low: math.Max(0, c.top.mean-h), High: math.Min(1, c.top.mean+h)}
	}
	m.Estimate = true
	return []Metric{m}
}
