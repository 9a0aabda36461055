package sketch

import "math"

// Summary is a Column as JSON, with what a picture needs. Numbers that are not
// there are null.
type Summary struct {
	Kind          Kind         `json:"kind"`
	Rows          uint64       `json:"rows"`
	Missing       uint64       `json:"missing"`
	Infinite      uint64       `json:"infinite,omitempty"`
	Mistyped      uint64       `json:"mistyped,omitempty"`
	Distinct      uint64       `json:"distinct"`
	DistinctExact bool         `json:"distinct_exact"` // else an estimate, or "more than"
	Min           *float64     `json:"min,omitempty"`
	Max           *float64     `json:"max,omitempty"`
	Mean          *float64     `json:"mean,omitempty"`
	Std           *float64     `json:"std,omitempty"`
	Quantiles     []QuantileAt `json:"quantiles,omitempty"`
	RankError     float64      `json:"rank_error,omitempty"` // of the quantiles, with 99 % probability
	Histogram     *Histogram   `json:"histogram,omitempty"`
	Categories    []Category   `json:"categories,omitempty"` // the 20 most frequent
	Other         uint64       `json:"other,omitempty"`      // rows in none of them
}

// QuantileAt is the value that a share Q of all does not exceed.
type QuantileAt struct {
	Q     float64 `json:"q"`
	Value float64 `json:"value"`
}

// Histogram is the share of values in each bin. Bin i holds (Edges[i],
// Edges[i+1]]; the first one also holds what is below, the last what is above.
type Histogram struct {
	Edges  []float64 `json:"edges"`
	Shares []float64 `json:"shares"`
}

const (
	pictureBins       = 20
	pictureCategories = 20
)

// Summary is the JSON view.
func (c *Column) Summary() Summary {
	s := Summary{Kind: c.kind, Rows: c.Rows(), Missing: c.missing, Infinite: c.infinite, Mistyped: c.mistyped}
	s.Distinct, s.DistinctExact = c.Distinct()
	if c.Count() == 0 {
		return s
	}
	if c.kind == Categorical {
		known, other := c.texts.categories()
		for _, k := range known[min(len(known), pictureCategories):] {
			other += k.Count
		}
		s.Categories, s.Other = known[:min(len(known), pictureCategories)], other
		return s
	}
	s.Min, s.Max, s.Mean, s.Std = finite(c.Min()), finite(c.Max()), finite(c.Mean()), finite(c.Std())
	qs := []float64{0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99}
	for i, v := range c.numbers.kll.Quantiles(qs) {
		s.Quantiles = append(s.Quantiles, QuantileAt{Q: qs[i], Value: v})
	}
	s.RankError = c.numbers.kll.RankError(false)
	s.Histogram = c.Histogram(Edges(c))
	return s
}

// Edges are the limits of bins of equal width that suit all columns together,
// so that their pictures lie over each other: from the lowest 1st to the
// highest 99th percentile. Nil when there are no numbers.
func Edges(columns ...*Column) []float64 {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, c := range columns {
		if c == nil || c.kind != Numeric || c.Count() == 0 {
			continue
		}
		q := c.numbers.kll.Quantiles([]float64{0.01, 0.99})
		lo, hi = min(lo, q[0]), max(hi, q[1])
	}
	if lo > hi {
		return nil
	}
	// Halves, so that the width of the whole range of floats does not overflow.
	step := (hi/2 - lo/2) / pictureBins * 2
	edges := make([]float64, 0, pictureBins+1)
	for i := range pictureBins + 1 {
		e := lo + float64(i)*step
		if len(edges) == 0 || e > edges[len(edges)-1] {
			edges = append(edges, e)
		}
	}
	if len(edges) == 1 { // a constant: one bin around it
		w := max(math.Abs(lo)*1e-6, 0.5)
		edges = []float64{lo - w, lo + w}
	}
	return edges
}

// Histogram is the column over the given edges, which ascend; nil when there
// are no numbers or fewer than two edges.
func (c *Column) Histogram(edges []float64) *Histogram {
	if c.kind != Numeric || c.Count() == 0 || len(edges) < 2 {
		return nil
	}
	h := &Histogram{Edges: edges, Shares: make([]float64, len(edges)-1)}
	below := 0.0
	for i := range h.Shares {
		upTo := 1.0
		if i < len(h.Shares)-1 {
			upTo = c.numbers.kll.Rank(edges[i+1])
		}
		h.Shares[i] = max(0, upTo-below)
		below = upTo
	}
	return h
}

func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
