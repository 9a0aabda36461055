package drift

import (
	"cmp"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Correction is how many tests at once are judged together.
type Correction string

// The corrections. Bonferroni and Holm keep the chance of any false alarm among
// all tests at α, however the tests depend on each other; Holm finds more.
// Benjamini–Hochberg keeps the expected share of false ones among the alarms.
const (
	None              Correction = "none"
	Bonferroni        Correction = "bonferroni"
	Holm              Correction = "holm"
	BenjaminiHochberg Correction = "benjamini_hochberg"
)

// Corrections are the names that Correct takes.
func Corrections() []Correction {
	return []Correction{None, Bonferroni, Holm, BenjaminiHochberg}
}

// Correct returns the results with adjusted p-values and judged by them.
// Distances and what was not compared stay as they are and do not count in the
// number of tests. It fails with Invalid for an unknown correction.
func Correct(results []Result, correction Correction) ([]Result, error) {
	out := slices.Clone(results)
	if correction == "" {
		correction = None
	}
	if !slices.Contains(Corrections(), correction) {
		return nil, fault.New(fault.Invalid, "there is no correction %q", correction).WithHint("The corrections are %v.", Corrections())
	}
	var tests []int
	for i, r := range out {
		if r.Outcome == Compared && !math.IsNaN(r.PValue) {
			tests = append(tests, i)
		}
	}
	slices.SortStableFunc(tests, func(i, j int) int { return cmp.Compare(out[i].PValue, out[j].PValue) })
	n := float64(len(tests))
	adjusted := make([]float64, len(tests))
	for rank, i := range tests {
		p := out[i].PValue
		switch correction {
		case None:
			adjusted[rank] = p
		case Bonferroni:
			adjusted[rank] = math.Min(1, p*n)
		case Holm:
			adjusted[rank] = math.Min(1, p*(n-float64(rank)))
			if rank > 0 {
				adjusted[rank] = math.Max(adjusted[rank], adjusted[rank-1])
			}
		case BenjaminiHochberg:
			adjusted[rank] = math.Min(1, p*n/float64(rank+1))
		}
	}
	if correction == BenjaminiHochberg {
		for rank := len(tests) - 2; rank >= 0; rank-- {
			adjusted[rank] = math.Min(adjusted[rank], adjusted[rank+1])
		}
	}
	for rank, i := range tests {
		out[i].Adjusted = adjusted[rank]
		out[i].Drifted = adjusted[rank] < out[i].Threshold
	}
	return out, nil
}
