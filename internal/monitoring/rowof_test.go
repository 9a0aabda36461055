package monitoring

import (
	"math"
	"testing"

	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// TestRowsWithoutLabel: of a request's rows only those with a label are judged, each with
// its own answer.
func TestRowsWithoutLabel(t *testing.T) {
	r := &prediction.Record{Rows: 3, Scores: []float64{.1, .2, .3}, Predicted: []string{"a", "b", "c"}}
	for name, p := range map[string]label.Pair{
		"numbers": {Record: r, Labels: []float64{math.NaN(), 1, math.NaN()}},
		"classes": {Record: r, Texts: []string{"", "b", ""}},
	} {
		for i := range r.Rows {
			row, ok := rowOf(PerformanceSpec{}, Watched{}, p, i)
			if ok != (i == 1) || ok && (row.Score != .2 || row.Predicted != "b") {
				t.Errorf("%s, row %d: %+v, %t", name, i, row, ok)
			}
		}
	}
}
