// Package tuningtest is what every tuning.Store must do, under the rules of Studies.
package tuningtest

import (
	"context"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tuning"
)

const proj = "demo"

const (
	unit    tuning.Distribution = `{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}`
	wide    tuning.Distribution = `{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 9.0, "log": false}}`
	logged  tuning.Distribution = `{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.1, "high": 1.0, "log": true}}`
	whole   tuning.Distribution = `{"name": "IntDistribution", "attributes": {"log": false, "step": 1, "low": 0, "high": 3}}`
	choices tuning.Distribution = `{"name": "CategoricalDistribution", "attributes": {"choices": [null, true, "a", 1.5]}}`
	python  tuning.Distribution = `{"name": "CategoricalDistribution", "attributes": {"choices": [null, 1, "a", 1.5]}}`
	odd     tuning.Distribution = `{"name": "CategoricalDistribution", "attributes": {"choices": [NaN, Infinity, -Infinity, "NaN \" NaN"]}}`
	others  tuning.Distribution = `{"name": "CategoricalDistribution", "attributes": {"choices": [null, true, "b", 1.5]}}`
)

type subject struct {
	*testing.T
	tuning.Studies
	db *store.DB
}

// Run tries s on a database of its own for each test.
func Run(t *testing.T, s tuning.Store, open func(testing.TB) *store.DB) {
	t.Helper()
	for name, test := range map[string]func(*subject){
		"names": names, "numbers": numbers, "claim": claim, "params": params, "finished": finished,
		"deltas": deltas, "template": template, "refused": refused, "deleted": deleted, "projects": projects,
		"repeated": repeated, "words": words, "labels": labels,
	} {
		t.Run(name, func(t *testing.T) {
			test(&subject{T: t, db: open(t), Studies: tuning.Studies{Store: s, Now: time.Now}})
		})
	}
}

func (t *subject) update(fn func(ctx context.Context, tx *store.Tx) error) error {
	return t.db.Update(t.Context(), proj, fn)
}

func (t *subject) do(fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := t.update(fn); err != nil {
		t.Fatal(err)
	}
}

func (t *subject) refuses(kind fault.Kind, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := t.update(fn); !fault.Is(err, kind) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}

func (t *subject) study(name string) (id tuning.StudyID) {
	t.Helper()
	t.do(func(ctx context.Context, tx *store.Tx) (err error) {
		id, _, err = t.Create(ctx, tx, tuning.Study{Project: proj, Name: name, Directions: []tuning.Direction{tuning.Maximize}})
		return err
	})
	return id
}

func (t *subject) trial(study tuning.StudyID, like *tuning.Trial) (id tuning.TrialID) {
	t.Helper()
	t.do(func(ctx context.Context, tx *store.Tx) (err error) {
		id, _, err = t.CreateTrial(ctx, tx, proj, study, like, "")
		return err
	})
	return id
}

func (t *subject) trials(study tuning.StudyID, after tuning.TrialID, included ...tuning.TrialID) (out []tuning.Trial) {
	t.Helper()
	err := t.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		out, err = t.Store.Trials(ctx, tx, proj, study, after, included, 1<<20)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func names(t *subject) {
	id := t.study("a")
	t.refuses(fault.Conflict, func(ctx context.Context, tx *store.Tx) error {
		_, _, err := t.Create(ctx, tx, tuning.Study{Project: proj, Name: "a", Directions: []tuning.Direction{tuning.Minimize}})
		return err
	})
	t.do(func(ctx context.Context, tx *store.Tx) error {
		if err := t.SetStudyAttribute(ctx, tx, proj, id, tuning.User, "k", "NaN"); err != nil {
			return err
		}
		if err := t.SetStudyAttribute(ctx, tx, proj, id, tuning.System, "k", "2"); err != nil {
			return err
		}
		s, err := t.Store.StudyNamed(ctx, tx, proj, "a")
		if s.ID != id || s.User["k"] != "NaN" || s.System["k"] != "2" || len(s.Directions) != 1 || s.Directions[0] != tuning.Maximize {
			t.Errorf("study is %+v", s)
		}
		return err
	})
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error {
		return t.SetStudyAttribute(ctx, tx, proj, id+1, tuning.User, "k", "1")
	})
}

// numbers: parallel makers leave no gap and no double.
func numbers(t *subject) {
	study := t.study("a")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if err := t.update(func(ctx context.Context, tx *store.Tx) error {
					_, _, err := t.CreateTrial(ctx, tx, proj, study, nil, "")
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i, trial := range t.trials(study, 0) {
		if trial.Number != int64(i) || trial.State != tuning.Running || trial.Started.IsZero() {
			t.Fatalf("trial %d is %+v", i, trial)
		}
	}
	if n := len(t.trials(study, 0)); n != 40 {
		t.Fatalf("%d trials, want 40", n)
	}
}

// claim: of many that want a waiting trial one gets it.
func claim(t *subject) {
	id := t.trial(t.study("a"), &tuning.Trial{State: tuning.Waiting})
	var all sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		all.Go(func() {
			var ok bool
			err := t.update(func(ctx context.Context, tx *store.Tx) (err error) {
				ok, _, err = t.SetState(ctx, tx, proj, id, tuning.Running, nil, "")
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if ok {
				won++
			}
		})
	}
	all.Wait()
	if won != 1 {
		t.Fatalf("%d claimed the trial, want 1", won)
	}
}

func params(t *subject) {
	study := t.study("a")
	set := func(name string, d tuning.Distribution) error {
		id := t.trial(study, nil)
		return t.update(func(ctx context.Context, tx *store.Tx) error {
			return t.SetParam(ctx, tx, proj, id, name, tuning.Param{Value: 1, Distribution: d})
		})
	}
	for _, c := range []struct {
		name string
		d    tuning.Distribution
		ok   bool
	}{
		{"x", unit, true},
		{"x", wide, true},
		{"x", logged, false},
		{"x", whole, false},
		{"x", choices, false},
		{"c", choices, true},
		{"c", choices, true},
		{"c", python, true},
		{"c", others, false},
		{"c", unit, false},
		{"y", "{}", false},
		{"y", "[", false},
		{"", unit, false},
		{"y", logged, true},
	} {
		if err := set(c.name, c.d); (err == nil) != c.ok {
			t.Errorf("%s as %s: %v, want ok %v", c.name, c.d, err, c.ok)
		}
	}
}

func finished(t *subject) {
	study := t.study("a")
	for _, state := range []tuning.State{tuning.Complete, tuning.Pruned, tuning.Failed} {
		id := t.trial(study, nil)
		t.do(func(ctx context.Context, tx *store.Tx) error {
			_, _, err := t.SetState(ctx, tx, proj, id, state, []float64{math.Inf(1)}, "")
			return err
		})
		for _, fn := range []func(ctx context.Context, tx *store.Tx) error{
			func(ctx context.Context, tx *store.Tx) error {
				return t.SetParam(ctx, tx, proj, id, "x", tuning.Param{Distribution: unit})
			},
			func(ctx context.Context, tx *store.Tx) error { return t.SetIntermediate(ctx, tx, proj, id, 1, 1) },
			func(ctx context.Context, tx *store.Tx) error {
				return t.SetTrialAttribute(ctx, tx, proj, id, tuning.User, "k", "1")
			},
			func(ctx context.Context, tx *store.Tx) error {
				_, _, err := t.SetState(ctx, tx, proj, id, tuning.Running, nil, "")
				return err
			},
		} {
			t.refuses(fault.Conflict, fn)
		}
	}
	for _, trial := range t.trials(study, 0) {
		if !trial.State.Finished() || trial.Completed.IsZero() || len(trial.Values) != 1 || !math.IsInf(trial.Values[0], 1) {
			t.Errorf("trial is %+v", trial)
		}
	}
}

func deltas(t *subject) {
	study, other := t.study("a"), t.study("b")
	a, foreign, b, c := t.trial(study, nil), t.trial(other, nil), t.trial(study, nil), t.trial(study, nil)
	ids := func(after tuning.TrialID, included ...tuning.TrialID) (out []tuning.TrialID) {
		for _, trial := range t.trials(study, after, included...) {
			out = append(out, trial.ID)
		}
		return out
	}
	for _, x := range []struct{ got, want []tuning.TrialID }{
		{ids(-1), []tuning.TrialID{a, b, c}},
		{ids(b), []tuning.TrialID{c}},
		{ids(b, a, foreign), []tuning.TrialID{a, c}},
		{ids(c), nil},
	} {
		if !reflect.DeepEqual(x.got, x.want) {
			t.Errorf("trials %v, want %v", x.got, x.want)
		}
	}
}

func template(t *subject) {
	at := time.UnixMicro(1_700_000_000_123_456).UTC()
	want := tuning.Trial{
		State: tuning.Complete, Values: []float64{0.1}, Started: at, Completed: at.Add(time.Second),
		Params: map[string]tuning.Param{"x": {Value: 0.1 + 0.2, Distribution: unit}},
		User:   tuning.Attributes{"u": `"é"`}, System: tuning.Attributes{"s": "[1]"},
		Intermediate: map[int64]float64{math.MaxInt64: math.Inf(-1), math.MinInt64: 5e-324},
	}
	want.Study = t.study("a")
	want.ID = t.trial(want.Study, &want)
	if got := t.trials(want.Study, 0); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("trials %+v, want %+v", got, want)
	}
	id := t.trial(want.Study, nil)
	t.do(func(ctx context.Context, tx *store.Tx) error {
		if err := t.SetIntermediate(ctx, tx, proj, id, 3, 1); err != nil {
			return err
		}
		return t.SetIntermediate(ctx, tx, proj, id, 3, math.NaN())
	})
	if got := t.trials(want.Study, want.ID); !math.IsNaN(got[0].Intermediate[3]) {
		t.Fatalf("reported NaN, kept %v", got[0].Intermediate)
	}
}

func refused(t *subject) {
	study := t.study("a")
	id := t.trial(study, nil)
	for _, values := range [][]float64{nil, {1, 2}, {math.NaN()}} {
		t.refuses(fault.Invalid, func(ctx context.Context, tx *store.Tx) error {
			_, _, err := t.SetState(ctx, tx, proj, id, tuning.Complete, values, "")
			return err
		})
	}
	t.refuses(fault.Invalid, func(ctx context.Context, tx *store.Tx) error {
		return t.SetTrialAttribute(ctx, tx, proj, id, tuning.User, "k", "\x00")
	})
	t.refuses(fault.TooLarge, func(ctx context.Context, tx *store.Tx) error {
		return t.SetTrialAttribute(ctx, tx, proj, id, tuning.User, "k", string(make([]byte, 2<<20)))
	})
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error { return t.SetIntermediate(ctx, tx, proj, id+1, 0, 0) })
	t.refuses(fault.Invalid, func(ctx context.Context, tx *store.Tx) error {
		_, _, err := t.Create(ctx, tx, tuning.Study{Project: proj, Name: "b"})
		return err
	})
}

// deleted: the name is free again, the numbers are not.
func deleted(t *subject) {
	study := t.study("a")
	old := t.trial(study, nil)
	t.do(func(ctx context.Context, tx *store.Tx) error {
		if err := t.SetParam(ctx, tx, proj, old, "x", tuning.Param{Distribution: unit}); err != nil {
			return err
		}
		return t.Store.DeleteStudy(ctx, tx, proj, study)
	})
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error { return t.Store.DeleteStudy(ctx, tx, proj, study) })
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error { return t.SetIntermediate(ctx, tx, proj, old, 0, 0) })
	again := t.study("a")
	id := t.trial(again, nil)
	if again <= study || id <= old {
		t.Fatalf("study %d and trial %d, after %d and %d", again, id, study, old)
	}
	t.do(func(ctx context.Context, tx *store.Tx) error {
		left, err := t.Store.Distribution(ctx, tx, proj, study, "x")
		if err != nil {
			return err
		}
		if left != "" {
			t.Errorf("the deleted study left %s", left)
		}
		return t.SetParam(ctx, tx, proj, id, "x", tuning.Param{Distribution: whole})
	})
}

// projects: one does not see another's.
func projects(t *subject) {
	study := t.study("a")
	id := t.trial(study, nil)
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error {
		_, err := t.Store.Study(ctx, tx, "other", study)
		return err
	})
	t.refuses(fault.NotFound, func(ctx context.Context, tx *store.Tx) error {
		_, _, err := t.SetState(ctx, tx, "other", id, tuning.Failed, nil, "")
		return err
	})
}

// repeated: a request with a key that is made again does nothing again; another one
// is another one.
func repeated(t *subject) {
	create := func(name, request string) (id tuning.StudyID, err error) {
		err = t.update(func(ctx context.Context, tx *store.Tx) error {
			id, _, err = t.Create(ctx, tx, tuning.Study{Project: proj, Name: name, Directions: []tuning.Direction{tuning.Maximize}, Request: request})
			return err
		})
		return id, err
	}
	study, err := create("a", "r1")
	if again, err2 := create("a", "r1"); err != nil || err2 != nil || again != study {
		t.Fatalf("studies %d and %d: %v %v", study, again, err, err2)
	}
	for _, request := range []string{"", "r2"} {
		if _, err := create("a", request); !fault.Is(err, fault.Conflict) {
			t.Errorf("request %q: %v", request, err)
		}
	}
	trial := func(request string) (id tuning.TrialID) {
		t.do(func(ctx context.Context, tx *store.Tx) (err error) {
			id, _, err = t.CreateTrial(ctx, tx, proj, study, &tuning.Trial{State: tuning.Waiting}, request)
			return err
		})
		return id
	}
	move := func(id tuning.TrialID, state tuning.State, request string) (moved bool, err error) {
		err = t.update(func(ctx context.Context, tx *store.Tx) error {
			var values []float64
			if state == tuning.Complete {
				values = []float64{1}
			}
			moved, _, err = t.SetState(ctx, tx, proj, id, state, values, request)
			return err
		})
		return moved, err
	}
	first := trial("t1")
	for _, x := range []struct {
		state   tuning.State
		request string
		moved   bool
		refused bool
	}{
		{tuning.Running, "m1", true, false},
		{tuning.Running, "m1", true, false},
		{tuning.Running, "m2", false, false},
		{tuning.Running, "", false, false},
		{tuning.Complete, "m3", true, false},
		{tuning.Complete, "m3", true, false},
		{tuning.Complete, "m4", false, true},
		{tuning.Running, "m1", false, true},
	} {
		if moved, err := move(first, x.state, x.request); moved != x.moved || fault.Is(err, fault.Conflict) != x.refused || err != nil && !x.refused {
			t.Errorf("%s by %q: %t %v", x.state, x.request, moved, err)
		}
	}
	// Whoever claimed it meanwhile, the request made this one.
	if again := trial("t1"); again != first {
		t.Errorf("t1 made %d and %d", first, again)
	}
	if a, b, c := trial("t2"), trial(""), trial(""); a == first || b == c || a == b {
		t.Errorf("trials %d, %d, %d", a, b, c)
	}
}

// words: choices may be what JSON has no form for, and are told apart.
func words(t *subject) {
	study := t.study("a")
	set := func(d tuning.Distribution) error {
		id := t.trial(study, nil)
		return t.update(func(ctx context.Context, tx *store.Tx) error {
			return t.SetParam(ctx, tx, proj, id, "x", tuning.Param{Value: 1, Distribution: d})
		})
	}
	for range 2 {
		if err := set(odd); err != nil {
			t.Error(err)
		}
	}
	const quoted tuning.Distribution = `{"name": "CategoricalDistribution", "attributes": {"choices": ["NaN", "Infinity", "-Infinity", "NaN \" NaN"]}}`
	for _, d := range []tuning.Distribution{quoted, `{"name": "CategoricalDistribution", "attributes": {"choices": [NaN, Inf]}}`, `{"name": "CategoricalDistribution", "attributes": {"choices": [NaN`} {
		if err := set(d); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", d, err)
		}
	}
	for i, want := range []any{"NaN", "Infinity", "-Infinity", `NaN " NaN`} {
		if got := (tuning.Param{Value: float64(i), Distribution: odd}).External(); got != want {
			t.Errorf("choice %d is %v, want %v", i, got, want)
		}
	}
	if got := (tuning.Param{Value: 3, Distribution: whole}).External(); got != int64(3) {
		t.Errorf("a whole number is %v (%T)", got, got)
	}
}

// labels are kept, and replaced.
func labels(t *subject) {
	study := t.study("a")
	t.do(func(ctx context.Context, tx *store.Tx) error {
		return t.Store.Relabel(ctx, tx, proj, study, residency.Of("AE", "DE"), "restricted")
	})
	t.do(func(ctx context.Context, tx *store.Tx) error {
		got, err := t.Store.StudyNamed(ctx, tx, proj, "a")
		if err == nil && (!got.Residency.Same(residency.Of("DE", "AE")) || got.Classification != "restricted") {
			t.Errorf("the label is %v, %s", got.Residency, got.Classification)
		}
		return err
	})
}
