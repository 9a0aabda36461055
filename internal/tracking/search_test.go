package tracking_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// searched makes one of each kind to be found.
func searched(tb testing.TB, w *world) (search func(in tracking.Search) (found int, errs []error)) {
	tb.Helper()
	ctx := as(tb, "alice")
	r, err := w.Runs.CreateRun(ctx, proj, tracking.RunSpec{Name: "r", Tags: []tracking.Pair{{Key: "t", Value: "É'%"}}}, tracking.RunOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	b := tracking.Batch{Metrics: []tracking.Metric{{Key: "a", Value: 1}, {Key: "a b", Value: 2}}, Params: []tracking.Pair{{Key: "x", Value: "y"}}}
	if err := w.Logging.Log(ctx, proj, r.ID, b); err != nil {
		tb.Fatal(err)
	}
	if err := w.Logging.LogInputs(ctx, proj, r.ID, []tracking.DatasetInput{{Name: "d", Digest: "1", SourceType: "s", Source: "s"}}, nil); err != nil {
		tb.Fatal(err)
	}
	if _, err := w.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Name: "m", Run: r.ID, Params: b.Params}); err != nil {
		tb.Fatal(err)
	}
	return func(in tracking.Search) (int, []error) {
		in.Experiments, in.Max, in.View = []tracking.ExperimentID{0}, 10, tracking.ViewAll
		runs, _, err1 := w.Runs.SearchRuns(ctx, proj, in)
		experiments, _, err2 := w.Experiments.SearchExperiments(ctx, proj, in)
		models, _, err3 := w.LoggedModels.SearchLoggedModels(ctx, proj, in)
		return len(runs) + len(experiments) + len(models), []error{err1, err2, err3}
	}
}

// TestFilterNeverFailsInSQL: whatever a filter says, it is refused with
// fault.Invalid or is SQL that both databases run.
func TestFilterNeverFailsInSQL(t *testing.T) {
	search := searched(t, open(t))
	ran, found := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		in := tracking.Search{Filter: trackingtest.Filters().Draw(rt, "filter"), OrderBy: trackingtest.Orders().Draw(rt, "order")}
		n, errs := search(in)
		found += n
		for _, err := range errs {
			if err == nil {
				ran++
			} else if !fault.Is(err, fault.Invalid) {
				rt.Fatalf("%q ordered by %q: %v", in.Filter, in.OrderBy, err)
			}
		}
	})
	if ran == 0 || found == 0 {
		t.Errorf("%d searches ran and found %d: the filters say nothing", ran, found)
	}
}

// FuzzSearch is the same of bytes.
func FuzzSearch(f *testing.F) {
	for _, seed := range []string{"", "name = 'x'", "metrics.a > 1", "params.x IS NULL", "tags.t LIKE '%[?*'", "run_id IN ('a')", "status = 'RUNNING' AND start_time > 1e308", "tags.`?` = '?'", "'", "--", "tags.t = '\x00'", "tags.t = '\xff'"} {
		f.Add(seed, "metrics.a DESC")
	}
	search := searched(f, open(f))
	f.Fuzz(func(t *testing.T, filter, order string) {
		_, errs := search(tracking.Search{Filter: filter, OrderBy: []string{order}})
		for _, err := range errs {
			if err != nil && !fault.Is(err, fault.Invalid) {
				t.Fatalf("%q ordered by %q: %v", filter, order, err)
			}
		}
	})
}
