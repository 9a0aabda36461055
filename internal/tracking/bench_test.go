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
