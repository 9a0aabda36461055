package sweep_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/tuning"
	"github.com/falaj-ml/falaj/internal/tuning/stop"
	"github.com/falaj-ml/falaj/internal/tuning/sweep"
	"github.com/falaj-ml/falaj/internal/tuning/trial"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// reader counts the trials that are read whole.
type reader struct {
	tuning.Store
	read int
	then func() // is done once, when some were
}

func (r *reader) Trials(ctx context.Context, tx *store.Tx, p project.Name, study tuning.StudyID, after tuning.TrialID, included []tuning.TrialID, limit int) ([]tuning.Trial, error) {
	all, err := r.Store.Trials(ctx, tx, p, study, after, included, limit)
	r.read += len(all)
	if then := r.then; then != nil {
		r.then = nil
		then()
	}
	return all, err
}

// TestLongSweep: what a round, a look and a page read does not grow with the trials that
// there were.
func TestLongSweep(t *testing.T) {
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	r := &reader{Store: tuningsql.Store{}}
	w.cfg.Studies.Store = r
	w.restart()
	s := spec()
	s.Budget.Trials = 10_000
	long(t, db, w.apply("warm", s), 1500)
	s.WarmStart, s.Stop = []string{"warm"}, stop.Rule{Kind: stop.ASHA}
	long(t, db, w.apply("long", s), 2500)
	if _, err := w.Stop(w.alice(), demo, "warm"); err != nil {
		t.Fatal(err)
	}
	w.round()
	if r.read < 4000 {
		t.Errorf("the first round read %d trials", r.read)
	}
	for range 5 {
		r.read = 0
		one := w.jobs.running()[0]
		w.jobs.log(one, "loss", 1, 0.5)
		w.jobs.end(one, training.Succeeded)
		w.round()
		if r.read > 5 {
			t.Errorf("a round read %d trials", r.read)
		}
	}
	r.read = 0
	if one := w.one("long"); one.Counts[trial.Complete] != 2505 || len(one.Best) != 1 || one.Counts[sweep.Queued] != 1 || one.Counts[trial.Running] != 0 || r.read != 1 {
		t.Errorf("%+v, after %d trials", one, r.read)
	}
	r.read = 0
	page, next, err := w.Trials(w.alice(), demo, "long", 2000, 10, true)
	if err != nil || len(page) != 10 || next != 2010 || page[0].Number != 2000 || len(page[0].Reports) != 10 || r.read != 11 {
		t.Errorf("%d trials to %d, %d read, %v", len(page), next, r.read, err)
	}
	if page, next, err := w.Trials(w.alice(), demo, "long", 2504, 10, true); err != nil || len(page) != 2 || next != 0 {
		t.Errorf("the last page: %d trials to %d, %v", len(page), next, err)
	}
	if page, next, err := w.Trials(w.alice(), demo, "long", 3000, 10, true); err != nil || len(page) != 0 || next != 0 {
		t.Errorf("no page: %d trials to %d, %v", len(page), next, err)
	}
}

// TestInterrupted: a sweep whose server forgets all between rounds does what one does that
// remembers, whatever clients do to its study meanwhile.
func TestInterrupted(t *testing.T) {
	for _, kind := range []stop.Kind{stop.None, stop.ASHA, stop.Median} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				remembers, forgets := acted(t, kind, seed, false), acted(t, kind, seed, true)
				if !reflect.DeepEqual(remembers, forgets) {
					t.Errorf("%v\nis not\n%v", remembers, forgets)
				}
			})
		}
	}
}

// acted is what became of a sweep of which everything that happens is of the seed.
func acted(t *testing.T, kind stop.Kind, seed uint64, forgets bool) (out []string) {
	t.Helper()
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	s := spec()
	s.Parallel, s.Budget.Trials, s.Stop = 4, 40, stop.Rule{Kind: kind, Startup: 2}
	made := w.apply("s", s)
	rng := rand.New(rand.NewPCG(seed, 7))
	var theirs []tuning.TrialID
	client := func(do func(ctx context.Context, tx *store.Tx) error) {
		if err := db.Update(t.Context(), demo, do); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 {
		if forgets {
			w.restart()
		}
		w.round()
		for _, one := range w.jobs.running() {
			for range rng.IntN(3) {
				w.jobs.log(one, "loss", int64(len(w.jobs.points[one.Run]["loss"])+1), rng.Float64())
			}
			if rng.IntN(3) == 0 || one.Stop != "" {
				w.jobs.end(one, []training.State{training.Succeeded, training.Succeeded, training.Failed}[rng.IntN(3)])
			}
		}
		switch rng.IntN(6) {
		case 0:
			client(func(ctx context.Context, tx *store.Tx) error {
				id, _, err := w.cfg.Studies.CreateTrial(ctx, tx, demo, made.Study, &tuning.Trial{State: tuning.Waiting}, "")
				theirs = append(theirs, id)
				return err
			})
		case 1:
			if len(theirs) > 0 {
				id := theirs[0]
				theirs = theirs[1:]
				client(func(ctx context.Context, tx *store.Tx) error {
					_, _, err := w.cfg.Studies.SetState(ctx, tx, demo, id, tuning.Complete, []float64{rng.Float64()}, "")
					return err
				})
			}
		}
	}
	for _, one := range w.trials("s") {
		out = append(out, fmt.Sprint(one.Number, one.State, one.Params, one.Values, one.Reason, one.Reports))
	}
	return append(out, w.one("s").Reason)
}

// TestAddedMeanwhile: a client adds a trial while the next one is chosen, whose number that
// was to be.
func TestAddedMeanwhile(t *testing.T) {
	db := storetest.SQLite(t, tuningsql.Migrations)
	w := newWorld(t, db)
	r := &reader{Store: tuningsql.Store{}}
	w.cfg.Studies.Store = r
	w.restart()
	s := spec()
	s.Search.Algorithm = "sobol"
	made := w.apply("s", s)
	r.then = func() {
		err := db.Update(context.WithoutCancel(t.Context()), demo, func(ctx context.Context, tx *store.Tx) error {
			_, _, err := w.cfg.Studies.CreateTrial(ctx, tx, demo, made.Study, nil, "")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	w.round()
	s.Search.First = nil
	other := w.apply("other", s)
	w.round()
	w.jobs.end(w.jobs.of[training.JobID(w.trials("other")[0].Job)], training.Failed)
	w.round()
	all, want := w.trials("s"), w.trials("other")
	if len(all) != 2 || all[0].Job != "" || all[1].Job == "" || !reflect.DeepEqual(all[1].Params, want[1].Params) || other.Study == made.Study {
		t.Errorf("%+v\nnot the parameters of %+v", all, want)
	}
}

// TestSummary: what is shown of a sweep is what its trials say.
func TestSummary(t *testing.T) {
	each(t, func(t *testing.T, db *store.DB) {
		t.Helper()
		w := newWorld(t, db)
		s := spec()
		s.Objectives = []sweep.Objective{{Metric: "loss"}, {Metric: "size", Direction: trial.Maximize}}
		s.Parallel, s.Budget.Trials = 5, 30
		w.apply("s", s)
		rng := rand.New(rand.NewPCG(3, 4))
		for range 12 {
			w.round()
			for _, one := range w.jobs.running() {
				w.jobs.log(one, "loss", 1, []float64{rng.Float64(), math.Inf(1), math.NaN()}[rng.IntN(3)])
				w.jobs.log(one, "size", 1, rng.Float64())
				if rng.IntN(3) > 0 {
					w.jobs.end(one, training.Succeeded)
				}
			}
		}
		counts := map[trial.State]int{}
		var all []trial.Trial
		for _, one := range w.trials("s") {
			counts[one.State]++
			t := trial.Trial{Number: one.Number, State: one.State}
			for _, v := range one.Values {
				t.Values = append(t.Values, float64(v))
			}
			all = append(all, t)
		}
		var want, best []int
		for _, t := range trial.Front(all, []trial.Direction{trial.Minimize, trial.Maximize}) {
			want = append(want, t.Number)
		}
		one := w.one("s")
		for _, b := range one.Best {
			best = append(best, b.Number)
		}
		if !reflect.DeepEqual(one.Counts, counts) || !slices.Equal(best, want) || len(best) == 0 || one.Best[0].Job == "" || one.Best[0].Reports != nil {
			t.Errorf("%+v, not %v and %v", one, counts, want)
		}
	})
}
