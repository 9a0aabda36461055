package tracking_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// BenchmarkLog logs batches of 1,000 points of ten keys; points/s is the rate of
// synced points of one writer.
func BenchmarkLog(b *testing.B) {
	db, err := store.Open(b.Context(), store.Config{
		URL: "sqlite://" + b.TempDir() + "/falaj.db", Migrations: []store.Migrations{trackingsql.Migrations},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	s := tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Authz: trackingtest.Policy{"alice": {proj: {"*"}}}})
	ctx := identity.With(b.Context(), identity.Principal{Kind: identity.User, ID: "alice", Project: proj})
	r, err := s.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
	if err != nil {
		b.Fatal(err)
	}
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	batch := tracking.Batch{Metrics: make([]tracking.Metric, tracking.MaxBatchMetrics)}
	step := int64(0)
	for b.Loop() {
		for i := range batch.Metrics {
			batch.Metrics[i] = tracking.Metric{Key: keys[i%10], Value: float64(i), At: tracking.Millis(step), Step: step}
			step++
		}
		if err := s.Log(ctx, proj, r.ID, batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(tracking.MaxBatchMetrics)*float64(b.N)/b.Elapsed().Seconds(), "points/s")
}

// BenchmarkSearchRuns finds 100 of 2,000 runs by a metric, in the order of another.
func BenchmarkSearchRuns(b *testing.B) {
	w, ctx := open(b), as(b, "alice")
	for n := range 4 {
		batch := tracking.Import{Experiments: []tracking.ImportedExperiment{foreignExperiment()}}
		for i := range 500 {
			r := foreignRun(n*500 + i)
			r.Metrics = nil
			for k := range 4 {
				r.Metrics = append(r.Metrics, tracking.Metric{Key: "m" + string(rune('0'+k)), Value: float64((n*500 + i) * (k + 7) % 1000)})
			}
			batch.Runs = append(batch.Runs, r)
		}
		if _, err := w.Import(ctx, proj, batch); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		found, _, err := w.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{7}, Filter: "metrics.m0 > 500", OrderBy: []string{"metrics.m1 DESC"}, Max: 100})
		if err != nil || len(found) != 100 {
			b.Fatal(len(found), err)
		}
	}
}
