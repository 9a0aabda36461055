package statistics

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/sketch"
)

const topValues = 10 // of a column

// ColumnProfile is what a column looks like. Quantiles and edges are as people read
// values, as in Summary.
type ColumnProfile struct {
	Summary
	Type      table.Type      `json:"type"`
	Quantiles []Quantile      `json:"quantiles,omitempty"`
	Histogram *ValueHistogram `json:"histogram,omitempty"`
	Top       []TopValue      `json:"top,omitempty"` // of text and bool, and of few different numbers; most frequent first, at most 10
}

// Quantile is the value that a share of the others does not exceed.
type Quantile struct {
	Share float64 `json:"share"`
	Value string  `json:"value"`
}

// ValueHistogram has the share of the values in each bin. Bin i is over Edges[i] and
// up to Edges[i+1]; the first has what is below, too, and the last what is above.
type ValueHistogram struct {
	Edges  []string  `json:"edges"`
	Shares []float64 `json:"shares"`
}

// TopValue is a frequent value and its share of the values.
type TopValue struct {
	Value string  `json:"value"`
	Share float64 `json:"share"`
}

// ProfileOf is what a column looks like by its summary and its sketch, which may be nil.
func ProfileOf(f table.Field, s Summary, sketch *sketch.Column) ColumnProfile {
	s.Estimated = s.Distinct > fewMost // versions of earlier releases do not say it
	c := ColumnProfile{Summary: s, Type: f.Type}
	if sketch != nil {
		c.draw(sketch)
	}
	return c
}

// draw adds what a sketch knows. Of classified data the statistics leave the
// extremes out; here they may be seen, and are those of the sketch.
func (c *ColumnProfile) draw(col *sketch.Column) {
	values := float64(col.Count())
	if values == 0 {
		return
	}
	if known, _, ok := col.Categories(); ok {
		c.top(known, values)
	}
	if col.Kind() != sketch.Numeric {
		return
	}
	text := func(v float64) string { return valueText(c.Type, v) }
	if c.Min == "" {
		c.Min, c.Max = text(col.Min()), text(col.Max())
	}
	seen := col.Summary()
	for _, q := range seen.Quantiles {
		c.Quantiles = append(c.Quantiles, Quantile{q.Q, text(q.Value)})
	}
	if h := seen.Histogram; h != nil {
		c.Histogram = &ValueHistogram{Shares: h.Shares}
		for _, e := range h.Edges {
			c.Histogram.Edges = append(c.Histogram.Edges, text(e))
		}
	}
}

func (c *ColumnProfile) top(known []sketch.Category, values float64) {
	slices.SortStableFunc(known, func(a, b sketch.Category) int { return cmp.Compare(b.Count, a.Count) })
	for _, k := range known[:min(len(known), topValues)] {
		text := k.Text
		if v, err := strconv.ParseFloat(text, 64); err == nil && numeric(c.Type) {
			text = valueText(c.Type, v)
		}
		c.Top = append(c.Top, TopValue{text, float64(k.Count) / values})
	}
}

// valueText is a number of a sketch as people read values of the type. Those
// between two whole numbers, as edges are, keep their fraction.
func valueText(t table.Type, v float64) string {
	switch t {
	case table.Timestamp:
		return cell.TimestampText(int64(v))
	case table.Date:
		return cell.DateText(int64(v))
	case table.Float32:
		return cell.Float32Text(float32(v))
	default:
	}
	return cell.FloatText(v)
}
