package serving_test

import (
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
)

// What a version says of given rows is what it would answer, and leaves no trace.
func TestScore(t *testing.T) {
	p, w, n := fed(t)
	ctx := t.Context()
	p.apply(t, spec(serving.FeaturesSpec{}))
	rows := make([][]float64, 2500)
	for i := range rows {
		rows[i] = []float64{700, 30}
	}
	got, err := p.Score(ctx, "nyc", "d", 2, serving.Rows{Values: rows})
	if err != nil || len(got) != len(rows) || slices.Min(got) != 2 || slices.Max(got) != 2 { // the number of the version
		t.Fatalf("%d scores, %v", len(got), err)
	}
	s, err := p.Status(ctx, "nyc", "d")
	if err != nil || len(s.Versions) != 1 || s.Versions[0].Version != 1 || s.Versions[0].Requests != 0 || len(n.records) != 0 || len(w.asks) != 0 {
		t.Errorf("%+v, %v, %d records", s.Versions, err, len(n.records))
	}
	if _, err := p.Score(ctx, "nyc", "d", 1, serving.Rows{Values: [][]float64{{1}}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a row of one column: %v", err)
	}
	if _, err := p.Score(ctx, "nyc", "d", 99, serving.Rows{Values: rows}); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such version: %v", err)
	}
	p.apply(t, serving.Spec{Model: "m"})
	if _, err := p.Score(ctx, "nyc", "d", 1, serving.Rows{Values: rows}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a deployment without columns: %v", err)
	}
	if _, err := p.Score(ctx, "sun", "d", 1, serving.Rows{Values: rows}); !fault.Is(err, fault.NotFound) {
		t.Errorf("another project: %v", err)
	}
}
