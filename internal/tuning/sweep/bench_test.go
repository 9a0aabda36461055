package sweep_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/search"
	"github.com/falaj-ml/falaj/internal/tuning/space"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// BenchmarkRound is a round in which a trial of a long sweep ends and another begins, and
// what a writer of the same project waits meanwhile.
func BenchmarkRound(b *testing.B) {
	for _, algorithm := range []search.Algorithm{search.Random, search.TPE} {
		for _, n := range []int{100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", algorithm, n), func(b *testing.B) { benchmarkRound(b, algorithm, n) })
		}
	}
}

func benchmarkRound(b *testing.B, algorithm search.Algorithm, trials int) {
	b.Helper()
	db := storetest.SQLite(b, tuningsql.Migrations)
	w := newWorld(b, db)
	s := spec()
	s.Parameters = nil
	for i := range 5 {
		s.Parameters = append(s.Parameters, space.Parameter{Name: fmt.Sprint("x", i), Type: space.Float, Low: 0, High: 1})
	}
	s.Job.Command, s.Search.Algorithm, s.Stop, s.Budget.Trials = []string{"train"}, algorithm, stop.Rule{Kind: stop.ASHA}, 100_000
	long(b, db, w.apply("long", s), trials)
	w.round()
	var wait time.Duration
	writes := 0
	for b.Loop() {
		one := w.jobs.running()[0]
		w.jobs.log(one, "loss", 1, 0.5)
		w.jobs.end(one, training.Succeeded)
		w.jobs.order = w.jobs.order[len(w.jobs.order)-1:]
		done := make(chan struct{})
		var others sync.WaitGroup
		others.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				at := time.Now()
				err := db.Update(context.WithoutCancel(b.Context()), demo, func(ctx context.Context, tx *store.Tx) error {
					return tuningsql.Store{}.PutStudyAttribute(ctx, tx, demo, 999, tuning.User, "n", strconv.Itoa(n))
				})
				if err != nil {
					b.Error(err)
					return
				}
				wait = max(wait, time.Since(at))
				writes++
			}
		})
		w.round()
		close(done)
		others.Wait()
	}
	b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
	b.ReportMetric(float64(wait.Milliseconds()), "ms-most-wait")
}

// long gives a sweep trials that have ended, with ten reports each.
func long(tb testing.TB, db *store.DB, of sweep.Sweep, trials int) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	studies := tuning.Studies{Store: tuningsql.Store{}, Now: time.Now}
	for from := 0; from < trials; from += 1000 {
		err := db.Update(context.WithoutCancel(tb.Context()), demo, func(ctx context.Context, tx *store.Tx) error {
			for n := from; n < min(from+1000, trials); n++ {
				t := tuning.Trial{State: tuning.Complete, Values: []float64{rng.Float64()}, Params: map[string]tuning.Param{}, Intermediate: map[int64]float64{}}
				for _, p := range of.Spec.Parameters {
					d, err := p.Optuna()
					if err != nil {
						return err
					}
					t.Params[p.Name] = tuning.Param{Value: rng.Float64(), Distribution: tuning.Distribution(d)}
				}
				for step := range int64(10) {
					t.Intermediate[step+1] = rng.Float64()
				}
				id, _, err := studies.CreateTrial(ctx, tx, demo, of.Study, &t, "")
				if err != nil {
					return err
				}
				task := sweep.Task{Project: demo, Study: of.Study, Number: n, Trial: id, Job: training.JobID(fmt.Sprint("job_", n)), Done: true}
				if err := (tuningsql.Sweeps{}).PutTask(ctx, tx, task); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}
