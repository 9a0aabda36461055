package feature_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// answered are answers as serving logs them: looked up online as of each hour,
// with defaults for what is not there.
func (w *world) answered(origin string, defaults map[string]float64, hours ...float64) []feature.LoggedAnswer {
	w.t.Helper()
	var out []feature.LoggedAnswer
	for i, h := range hours {
		got, err := w.Lookup(w.ctx, feature.LookupRequest{
			Project: nyc, Service: "delay", Rows: 1, Keys: []feature.KeyColumn{{Name: "origin", Texts: []string{origin}}}, AsOf: at(h),
		})
		if err != nil {
			w.t.Fatal(err)
		}
		a := feature.LoggedAnswer{ID: fmt.Sprint(origin, i), At: at(h), Received: w.now, Keys: map[string]any{"origin": origin}}
		for n, name := range []string{"temp", "humid"} {
			v := got.Columns[n].Values[0]
			if d, there := defaults[name]; there && math.IsNaN(v) {
				v = d
			}
			a.Values = append(a.Values, float64(float32(v)))
		}
		out = append(out, a)
	}
	return out
}

// served is a world with a feature service over the weather, online.
func served(t *testing.T) *world {
	t.Helper()
	w := weather(t)
	if _, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "delay"}, feature.ServiceSpec{Features: []string{"weather:temp", "weather:humid"}}); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("weather", at(100))
	return w
}

func (w *world) verifyAnswers(answers []feature.LoggedAnswer, change func(columns []feature.AnswerColumn)) feature.AnswersReport {
	w.t.Helper()
	columns := []feature.AnswerColumn{{Feature: "weather:temp"}, {Feature: "weather:humid"}}
	if change != nil {
		change(columns)
	}
	r, err := w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{Project: nyc, Service: "delay@1", Columns: columns, Answers: answers})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func TestAnswersAgree(t *testing.T) {
	w := served(t)
	answers := slices.Concat(w.answered("EWR", nil, -1, 0, .5, 1, 2, 4.5, 8, 11, 11.1), w.answered("JFK", nil, 0, 1, 3), w.answered("LGA", nil, 5))
	r := w.verifyAnswers(answers, nil)
	if r.Answers != 13 || r.Values != 26 || r.Mismatches != 0 || r.Agreement != 1 || len(r.Inputs) != 0 || r.Present == 0 {
		t.Errorf("%+v", r)
	}
	zero := 0.0
	r = w.verifyAnswers(w.answered("EWR", map[string]float64{"temp": 0, "humid": 0}, 5, 9), func(cs []feature.AnswerColumn) {
		cs[0].Default, cs[1].Default = &zero, &zero
	})
	if r.Mismatches != 0 || r.Defaulted != 2 {
		t.Errorf("with defaults: %+v", r)
	}
}

// Rows that came late into the source are on one side only; the report says so,
// and over which data the answers are.
func TestAnswersFindLateData(t *testing.T) {
	w := served(t)
	answers := w.answered("EWR", nil, .9, 1.5, 4, 9)
	late := weatherRows()
	late.rows = append(late.rows, []value.Value{str("EWR"), ts(1.4), num(99), num(98)})
	w.data.put("weather", late)

	r := w.verifyAnswers(answers, nil)
	if r.Mismatches != 4 || r.Causes[feature.CauseLateData] != 4 || len(r.Causes) != 1 || r.Agreement != .5 {
		t.Errorf("%+v", r)
	}
	expect(t, r.Inputs, []feature.InputDifference{{View: "weather@1", Table: "weather", Offline: "weather@2", Online: "weather@1"}})
	e := r.Examples[0]
	if e.ID != "EWR1" || e.Feature != "weather@1:temp" || *e.Logged != 11 || *e.Offline != 99 || e.Detail == "" {
		t.Errorf("example %+v", e)
	}
	// Also when the late rows were brought online since: the run is on record.
	w.mustMaterialise("weather", at(100))
	if r := w.verifyAnswers(answers, nil); r.Causes[feature.CauseLateData] != 4 || len(r.Inputs) != 0 {
		t.Errorf("after materialising: %+v", r)
	}
	if r := w.verifyAnswers(w.answered("EWR", nil, .9, 1.5, 4, 9), nil); r.Mismatches != 0 {
		t.Errorf("new answers: %+v", r)
	}
}

func TestCausesOfDisagreement(t *testing.T) {
	nan := math.NaN()
	answer := func(hour, temp, humid float64) []feature.LoggedAnswer {
		return []feature.LoggedAnswer{{ID: "a", At: at(hour), Received: start.Add(1000 * 24 * time.Hour), Keys: map[string]any{"origin": "EWR"}, Values: []float64{temp, humid}}}
	}
	for _, test := range []struct {
		name    string
		prepare func(w *world)
		answers []feature.LoggedAnswer
		columns func([]feature.AnswerColumn)
		want    feature.Cause
	}{
		{name: "max_age", answers: answer(9, -1, 58), want: feature.CauseFreshness, columns: func(cs []feature.AnswerColumn) {
			d := -1.0
			cs[0].Default, cs[0].MaxAge = &d, 30*time.Minute
		}},
		{name: "older than the TTL", answers: answer(5, 11, nan), want: feature.CauseTTL},
		{name: "default", answers: answer(8, -1, 58), want: feature.CauseDefault, columns: func(cs []feature.AnswerColumn) {
			d := -1.0
			cs[0].Default = &d
		}},
		{name: "another definition", answers: answer(5, 11, nan), want: feature.CauseDefinition, prepare: func(w *world) {
			longer := weatherSpec
			longer.TTL = "10h"
			w.view("weather", longer)
		}},
		{name: "changed by hand", answers: answer(8, 7, 58), want: feature.CauseUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := served(t)
			if test.prepare != nil {
				test.prepare(w)
			}
			r := w.verifyAnswers(test.answers, test.columns)
			if r.Mismatches != 1 || r.Causes[test.want] != 1 {
				t.Errorf("want one %s: %+v", test.want, r)
			}
		})
	}
}

func TestAnswersBeforeMaterialisation(t *testing.T) {
	w := weather(t)
	if _, _, err := w.ApplyServiceDefinition(w.ctx, feature.ApplyRequest{Project: nyc, Name: "delay"}, feature.ServiceSpec{Features: []string{"weather:temp", "weather:humid"}}); err != nil {
		t.Fatal(err)
	}
	w.mustMaterialise("weather", at(5))
	w.now = w.now.Add(time.Minute)
	early := w.answered("EWR", nil, 8.5) // the row of hour 8 is not online
	w.now = w.now.Add(time.Minute)
	w.mustMaterialise("weather", at(100))
	r := w.verifyAnswers(early, nil)
	if r.Mismatches != 2 || r.Causes[feature.CauseNotMaterialised] != 2 {
		t.Errorf("%+v", r)
	}
}

func TestVerifyAnswersRefuses(t *testing.T) {
	w := served(t)
	_, err := w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{Project: nyc, Service: "delay@1", Columns: []feature.AnswerColumn{{Feature: "plane:built"}}})
	refused(t, err, fault.Invalid, "plane:built")
	_, err = w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{Project: nyc, Service: "delay@1", Answers: make([]feature.LoggedAnswer, 100_001)})
	refused(t, err, fault.TooLarge)
	w.gates.refuse[feature.ActionHistory] = true
	_, err = w.VerifyAnswers(w.ctx, feature.VerifyAnswersRequest{Project: nyc, Service: "delay@1", Columns: []feature.AnswerColumn{{Feature: "weather:temp"}}})
	refused(t, err, fault.PermissionDenied)
	w.gates.refuse = map[policy.Action]bool{}
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	if _, err := w.VerifyAnswers(ctx, feature.VerifyAnswersRequest{Project: nyc, Service: "delay@1"}); err == nil {
		t.Error("a caller who has gone away is answered")
	}
}
