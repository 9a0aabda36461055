package drift

import (
	"math"
	"slices"
	"strconv"

	"github.com/falaj-ml/falaj/internal/sketch"
)

const (
	bins       = 10 // of numbers, by quantiles of the baseline
	ownBinMost = 20 // different numbers up to which each has a bin of its own
)

// align counts both columns over the same categories. binned says that they are
// bins of numbers.
func align(ref, cur *sketch.Column) (t table, binned bool) {
	a, otherA, okA := ref.Categories()
	b, otherB, okB := cur.Categories()
	if !okA || !okB || ref.Kind() == sketch.Numeric && max(len(a), len(b)) > ownBinMost {
		return inBins(ref, cur, edges(ref, a, okA)), true
	}
	if ref.Exact() && cur.Exact() {
		return alignCategories(a, b, 0, 0, 0, 0), false
	}
	return alignCategories(a, b, otherA, otherB, ref.Count()/sketch.MaxCategories, cur.Count()/sketch.MaxCategories), false
}

// alignCategories counts each category that comes more than leastA or leastB
// times; a column's count of one that comes less may be unknown. The others are
// one.
func alignCategories(a, b []sketch.Category, otherA, otherB, leastA, leastB uint64) table {
	at := map[string]int{}
	for _, k := range a {
		if k.Count > leastA {
			at[k.Text] = len(at)
		}
	}
	for _, k := range b {
		if _, ok := at[k.Text]; !ok && k.Count > leastB {
			at[k.Text] = len(at)
		}
	}
	t := table{ref: make([]float64, len(at)+1), cur: make([]float64, len(at)+1)}
	put := func(into []float64, ks []sketch.Category, other uint64) {
		into[len(at)] = float64(other)
		for _, k := range ks {
			i, ok := at[k.Text]
			if !ok {
				i = len(at)
			}
			into[i] += float64(k.Count)
		}
	}
	put(t.ref, a, otherA)
	put(t.cur, b, otherB)
	return t.compact()
}

// edges are the inner limits of the bins: the baseline's deciles or, when it has
// few values, limits around each of them, so that what lies between is seen.
func edges(ref *sketch.Column, values []sketch.Category, few bool) []float64 {
	var out []float64
	if few && len(values) <= ownBinMost {
		for _, k := range values {
			v, err := strconv.ParseFloat(k.Text, 64)
			if err != nil { // a number's own text
				continue
			}
			out = append(out, math.Nextafter(v, math.Inf(-1)), v)
		}
		return out
	}
	w := ref.Weighted()
	total, cum, next := sum(w.Weights), 0.0, 1
	for i, v := range w.Values {
		cum += w.Weights[i]
		for next < bins && cum >= total*float64(next)/bins {
			out = append(out, v)
			next++
		}
	}
	return slices.Compact(out)
}

func inBins(ref, cur *sketch.Column, edges []float64) table {
	count := func(w sketch.Weighted) []float64 {
		out := make([]float64, len(edges)+1)
		for i, v := range w.Values {
			bin, _ := slices.BinarySearch(edges, v) // (edges[bin-1], edges[bin]]
			out[bin] += w.Weights[i]
		}
		return out
	}
	return table{ref: count(ref.Weighted()), cur: count(cur.Weighted())}
}
