package tracking_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
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
	r, err := s.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
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
		if err := s.Logging.Log(ctx, proj, r.ID, batch); err != nil {
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
		if _, err := w.Imports.Import(ctx, proj, batch); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		found, _, err := w.Runs.SearchRuns(ctx, proj, tracking.Search{Experiments: []tracking.ExperimentID{7}, Filter: "metrics.m0 > 500", OrderBy: []string{"metrics.m1 DESC"}, Max: 100})
		if err != nil || len(found) != 100 {
			b.Fatal(len(found), err)
		}
	}
}

// BenchmarkWrites makes runs and logs into them what MLflow's clients do most, one
// request after the other ("alone") and eight at a time ("crowd").
func BenchmarkWrites(b *testing.B) {
	params := make([]tracking.Pair, 20)
	for i := range params {
		params[i] = tracking.Pair{Key: "p" + strconv.Itoa(i), Value: strconv.Itoa(i * 7919 % 97)}
	}
	metrics := make([]tracking.Metric, 10)
	for i := range metrics {
		metrics[i] = tracking.Metric{Key: "m" + strconv.Itoa(i), Value: float64(i) / 7, At: 1_700_000_000_000}
	}
	tags := []tracking.Pair{{Key: "mlflow.user", Value: "bench"}, {Key: "mlflow.source.type", Value: "LOCAL"}}
	for name, open := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		s := tracking.New(tracking.Config{DB: open(b, trackingsql.Migrations), Store: trackingsql.Store{}, Authz: trackingtest.Policy{"alice": {proj: {"*"}}}})
		ctx := as(b, "alice")
		create := func() (tracking.Run, error) {
			return s.Runs.CreateRun(ctx, proj, tracking.RunSpec{Tags: tags}, tracking.RunOptions{})
		}
		logs := func(batch tracking.Batch) func(tracking.Run) error {
			return func(r tracking.Run) error { return s.Logging.Log(ctx, proj, r.ID, batch) }
		}
		for _, c := range []struct {
			name string
			do   func(tracking.Run) error
		}{
			{"create", nil},
			{"log-10", logs(tracking.Batch{Metrics: metrics, Params: params[:1], Tags: tags[:1]})},
			{"log-20-params", logs(tracking.Batch{Params: params})},
		} {
			for _, callers := range []int{1, 8} {
				b.Run(name+"/"+c.name+"/"+map[int]string{1: "alone", 8: "crowd"}[callers], func(b *testing.B) {
					runs := make(chan tracking.Run, b.N)
					for range b.N {
						r := tracking.Run{}
						if c.do != nil {
							var err error
							if r, err = create(); err != nil {
								b.Fatal(err)
							}
						}
						runs <- r
					}
					close(runs)
					b.ResetTimer()
					var wait sync.WaitGroup
					for range callers {
						wait.Go(func() {
							for r := range runs {
								var err error
								if c.do == nil {
									_, err = create()
								} else {
									err = c.do(r)
								}
								if err != nil {
									b.Error(err)
								}
							}
						})
					}
					wait.Wait()
				})
			}
		}
	}
}
