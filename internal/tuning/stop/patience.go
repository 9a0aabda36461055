package stop

import (
	"cmp"
	"math"
	"slices"

	"github.com/falaj-ml/falaj/internal/tuning/trial"
)

// patience ends a trial whose last reports are all no better than the best before
// them. NaN is no better than anything.
func (r Rule) patience(t trial.Trial) Decision {
	if len(t.Reports) <= r.Patience {
		return goOn("it has %d reports, within the patience of %d", len(t.Reports), r.Patience)
	}
	reports := slices.SortedFunc(slices.Values(t.Reports), func(a, b trial.Report) int { return cmp.Compare(a.Step, b.Step) })
	cut := len(reports) - r.Patience
	before, after := math.Inf(1), math.Inf(1)
	for i, p := range reports {
		if i < cut {
			before = min(before, r.Direction.Loss(p.Value))
		} else {
			after = min(after, r.Direction.Loss(p.Value))
		}
	}
	if after < before-r.MinDelta {
		return goOn("one of its last %d reports is its best", r.Patience)
	}
	return end("none of its last %d reports is better than %v", r.Patience, r.value(before))
}
