package registry_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// TestFilterNeverFailsInSQL: whatever a filter says, it is refused with
// fault.Invalid or is SQL that both databases run.
func TestFilterNeverFailsInSQL(t *testing.T) {
	w := open(t)
	ctx := as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", []tracking.Pair{{Key: "t", Value: "É'%"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"}); err != nil {
		t.Fatal(err)
	}
	found := 0
	rapid.Check(t, func(rt *rapid.T) {
		in := registry.Search{Filter: trackingtest.Filters().Draw(rt, "filter"), OrderBy: trackingtest.Orders().Draw(rt, "order"), Max: 10}
		models, _, err1 := w.Models.SearchModels(ctx, proj, in)
		versions, _, err2 := w.Versions.SearchVersions(ctx, proj, in)
		found += len(models) + len(versions)
		for _, err := range []error{err1, err2} {
			if err != nil && !fault.Is(err, fault.Invalid) {
				rt.Fatalf("%q ordered by %q: %v", in.Filter, in.OrderBy, err)
			}
		}
	})
	if found == 0 {
		t.Error("no search found anything: the filters say nothing")
	}
}
