// Package statistics describes the columns of a version: counts, extremes, moments, and the
// sketches that quantiles, histograms and drift are read from.
package statistics

import (
	"math"
	"math/bits"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/zeebo/xxh3"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Summary is what is known of a column of a version. Min and Max are as people read
// values, and left out for confidential and restricted data. Mean and Std (of
// the sample, with n-1; absent below two values) are of columns of numbers, finite values only.
type Summary struct {
	Column   string `json:"column"`
	Count    int64  `json:"count"` // values that are not null
	Nulls    int64  `json:"nulls"`
	NaNs     int64  `json:"nans,omitempty"`
	Distinct int64  `json:"distinct"` // exact up to 256, beyond an estimate with a standard error of 1.6 percent
	// Estimated says that Distinct is an estimate.
	Estimated bool     `json:"distinct_estimated,omitempty" doc:"distinct is an estimate, with a standard error of 1.6 percent"`
	Min       string   `json:"min,omitempty"`
	Max       string   `json:"max,omitempty"`
	Mean      *float64 `json:"mean,omitempty"`
	Std       *float64 `json:"std,omitempty" doc:"Sample standard deviation (n-1), as of pandas and of the std feature; absent below two values"`
}

// Collector collects summaries over the batches of one version.
type Collector struct {
	schema table.Schema
	cols   []column
	hide   bool
}

type column struct {
	rows, nulls, nans, finite int64
	mean, m2                  float64 // Welford, merged over batches
	seen                      bool
	minN, maxN                float64
	minI, maxI                int64
	minS, maxS                string
	sketch                    distinct
}

// NewCollector makes a collector. With hide the summaries have no values of the rows.
func NewCollector(s table.Schema, hide bool) *Collector {
	return &Collector{schema: s, cols: make([]column, len(s)), hide: hide}
}

// Add reads the rows of a batch.
func (p *Collector) Add(rec arrow.RecordBatch) {
	for c := range p.cols {
		p.cols[c].add(rec.Column(c))
	}
}

func (p *column) add(a arrow.Array) {
	p.rows += int64(a.Len())
	p.nulls += int64(a.NullN())
	switch v := a.(type) {
	case *array.Int32:
		each(a, func(i int) { p.integer(int64(v.Value(i))) })
		p.moments(a, func(i int) float64 { return float64(v.Value(i)) })
	case *array.Float32:
		each(a, func(i int) { p.float(float64(v.Value(i))) })
		p.moments(a, func(i int) float64 { return float64(v.Value(i)) })
	case *array.Int64:
		each(a, func(i int) { p.integer(v.Value(i)) })
		p.moments(a, func(i int) float64 { return float64(v.Value(i)) })
	case *array.Timestamp:
		each(a, func(i int) { p.integer(int64(v.Value(i))) })
	case *array.Date32:
		each(a, func(i int) { p.integer(int64(v.Value(i))) })
	case *array.Float64:
		each(a, func(i int) { p.float(v.Value(i)) })
		p.moments(a, v.Value)
	case *array.Boolean:
		each(a, func(i int) {
			n := int64(0)
			if v.Value(i) {
				n = 1
			}
			p.integer(n)
		})
	case *array.String:
		each(a, func(i int) { p.text(v.Value(i)) })
	case *array.List: // lists have no order
		var buf []byte
		each(a, func(i int) {
			buf = cell.Append(buf[:0], a, i)
			p.sketch.add(xxh3.Hash(buf))
		})
	}
}

func each(a arrow.Array, f func(i int)) {
	whole := a.NullN() == 0
	for i := range a.Len() {
		if whole || a.IsValid(i) {
			f(i)
		}
	}
}

func (p *column) integer(n int64) {
	if !p.seen {
		p.seen, p.minI, p.maxI = true, n, n
	}
	p.minI, p.maxI = min(p.minI, n), max(p.maxI, n)
	p.sketch.add(mix(uint64(n))) //nolint:gosec // the same bits
}

func (p *column) float(f float64) {
	p.sketch.add(mix(cell.FloatBits(f)))
	if math.IsNaN(f) {
		p.nans++
		return
	}
	if !p.seen {
		p.seen, p.minN, p.maxN = true, f, f
	}
	p.minN, p.maxN = min(p.minN, f), max(p.maxN, f)
}

func (p *column) text(s string) {
	p.sketch.add(xxh3.HashString(s))
	if !p.seen {
		p.seen, p.minS, p.maxS = true, clone(s), clone(s)
		return
	}
	if s < p.minS {
		p.minS = clone(s)
	}
	if s > p.maxS {
		p.maxS = clone(s)
	}
}

// maxText is how many characters of a text are kept.
const maxText = 200

// clone frees a kept value from its batch's memory.
func clone(s string) string { return string([]byte(s)) }

// moments merges a batch's mean and squared deviations into the column's
// (Chan et al.): two passes over a batch keep large offsets from cancelling.
func (p *column) moments(a arrow.Array, value func(int) float64) {
	n, sum := int64(0), 0.0
	finite := func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
	each(a, func(i int) {
		if f := value(i); finite(f) {
			n++
			sum += f
		}
	})
	if n == 0 {
		return
	}
	mean, m2 := sum/float64(n), 0.0
	each(a, func(i int) {
		if f := value(i); finite(f) {
			m2 += (f - mean) * (f - mean)
		}
	})
	total := p.finite + n
	delta := mean - p.mean
	p.m2 += m2 + delta*delta*float64(p.finite)*float64(n)/float64(total)
	p.mean += delta * float64(n) / float64(total)
	p.finite = total
}

// Summaries gives what was read, by column.
func (p *Collector) Summaries() []Summary {
	out := make([]Summary, len(p.cols))
	for i := range p.cols {
		out[i] = p.cols[i].summary(p.schema[i], p.hide)
	}
	return out
}

func (p *column) summary(f table.Field, hide bool) Summary {
	s := Summary{Column: f.Name, Count: p.rows - p.nulls, Nulls: p.nulls, NaNs: p.nans}
	s.Distinct, s.Estimated = min(p.sketch.estimate(), s.Count), p.sketch.count > fewMost
	if p.finite > 0 {
		mean, variance := p.mean, p.m2/float64(max(p.finite-1, 1))
		if finite := !math.IsInf(mean, 0) && !math.IsInf(variance, 0) && !math.IsNaN(variance); finite {
			s.Mean = &mean
			if std := math.Sqrt(variance); p.finite > 1 {
				s.Std = &std
			}
		}
	}
	if !p.seen || hide {
		return s
	}
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	switch f.Type {
	case "int32", "int64":
	case "float32":
		s.Min, s.Max = cell.Float32Text(float32(p.minN)), cell.Float32Text(float32(p.maxN))
		return s
	case "float64":
		s.Min, s.Max = cell.FloatText(p.minN), cell.FloatText(p.maxN)
		return s
	case "string":
		s.Min, s.Max = fault.Clip(p.minS, maxText), fault.Clip(p.maxS, maxText)
		return s
	case "timestamp":
		text = cell.TimestampText
	case "date":
		text = cell.DateText
	case "bool":
		text = func(n int64) string { return strconv.FormatBool(n == 1) }
	}
	s.Min, s.Max = text(p.minI), text(p.maxI)
	return s
}

// distinct counts distinct hashes: exactly while there are few, and by HyperLogLog
// with 2^12 registers (linear counting while few of them are used) beyond. The
// zero distinct is empty.
type distinct struct {
	few   [fewSlots]uint64 // open addressing; 0 is free
	zero  bool             // the hash 0 was seen
	count int              // in few and zero; over fewMost, few is out of use
	reg   [1 << sketchBits]uint8
}

const (
	sketchBits = 12
	fewSlots   = 512
	fewMost    = fewSlots / 2
)

func (s *distinct) add(h uint64) {
	if s.count <= fewMost {
		s.addFew(h)
	}
	i := h >> (64 - sketchBits)
	rank := uint8(bits.LeadingZeros64(h<<sketchBits|1<<(sketchBits-1)) + 1) //nolint:gosec // at most 53
	if rank > s.reg[i] {
		s.reg[i] = rank
	}
}

func (s *distinct) addFew(h uint64) {
	if h == 0 {
		if !s.zero {
			s.zero = true
			s.count++
		}
		return
	}
	for i := h % fewSlots; ; i = (i + 1) % fewSlots {
		switch s.few[i] {
		case h:
			return
		case 0:
			s.few[i] = h
			s.count++
			return
		}
	}
}

func (s *distinct) estimate() int64 {
	if s.count <= fewMost {
		return int64(s.count)
	}
	const m = float64(1 << sketchBits)
	sum, empty := 0.0, 0
	for _, r := range s.reg {
		sum += 1 / float64(uint64(1)<<r)
		if r == 0 {
			empty++
		}
	}
	e := 0.7213 / (1 + 1.079/m) * m * m / sum
	if e <= 2.5*m && empty > 0 {
		e = m * math.Log(m/float64(empty))
	}
	return max(fewMost+1, int64(e+0.5)) // so many were seen
}

// mix spreads an integer over 64 bits (the finaliser of MurmurHash3).
func mix(h uint64) uint64 {
	h ^= 0x9e3779b97f4a7c15
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
