package monitoring_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/classifier"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// laboratory is what is behind the classifiers of a test: it keeps rows in memory
// and ends jobs when it is told to.
type laboratory struct {
	t       *testing.T
	refused error // of Check
	kept    []kept
	jobs    []monitoring.ClassifierJob
	outcome monitoring.ClassifierOutcome
	asked   int // for outcomes
}

type kept struct {
	monitoring.KeptWindow
	columns map[string][]float64
	texts   map[string][]string
	rows    int
}

func (l *laboratory) Check(_ context.Context, _, baseline, env string) error {
	if baseline != "delays@1" || env != "sklearn" {
		l.t.Errorf("asked for %s and %s", baseline, env)
	}
	return l.refused
}

func (l *laboratory) Keep(_ context.Context, w monitoring.KeptWindow) (string, error) {
	k := kept{KeptWindow: w, columns: map[string][]float64{}, texts: map[string][]string{}}
	for w.Rows.Next() {
		batch := w.Rows.RecordBatch()
		k.rows += int(batch.NumRows())
		for i, f := range batch.Schema().Fields() {
			switch values := batch.Column(i).(type) {
			case *array.Float64:
				for row := range values.Len() {
					v := math.NaN()
					if values.IsValid(row) {
						v = values.Value(row)
					}
					k.columns[f.Name] = append(k.columns[f.Name], v)
				}
			case *array.String:
				for row := range values.Len() {
					k.texts[f.Name] = append(k.texts[f.Name], values.ValueStr(row))
				}
			}
		}
	}
	if err := w.Rows.Err(); err != nil {
		return "", err
	}
	l.kept = append(l.kept, k)
	return fmt.Sprintf("%s@%d", w.Dataset, len(l.kept)), nil
}

func (l *laboratory) Begin(_ context.Context, j monitoring.ClassifierJob) (string, error) {
	l.jobs = append(l.jobs, j)
	return fmt.Sprintf("job_%d", len(l.jobs)), nil
}

func (l *laboratory) Outcome(_ context.Context, p, _ string) (monitoring.ClassifierOutcome, error) {
	if p != "nyc" {
		l.t.Errorf("of project %q", p)
	}
	l.asked++
	return l.outcome, nil
}

const told = `{"auc": 0.8, "low": 0.75, "high": 0.84, "p_value": 0.002, "sampled": [4000, 300], "features": [{"name": "weather:temp", "importance": 0.3, "deviation": 0.01}]}`

// watchedWeek is a monitor with some closed windows, its laboratory beside it.
func watchedWeek(t *testing.T, w *world, spec monitoring.Spec) (*world, *monitoring.Service, *laboratory) {
	t.Helper()
	l := &laboratory{t: t}
	s := w.service(func(c *monitoring.Config) { c.Classifiers = l })
	spec.Lateness = "2h"
	w.apply(s, spec)
	w.days(rand.New(rand.NewPCG(8, 7)), begin, 4, 300, summer)
	w.run(s)
	return w, s, l
}

var sklearn = monitoring.Spec{Drift: monitoring.DriftSpec{Classifier: &monitoring.ClassifierSpec{Environment: "sklearn"}}}

func TestClassify(t *testing.T) { classify(t, newWorld(t)) }

func TestClassifyOnPostgres(t *testing.T) {
	classify(t, newWorldOn(t, t.TempDir(), storetest.Postgres(t, schema...)))
}

func classify(t *testing.T, w *world) {
	t.Helper()
	_, s, l := watchedWeek(t, w, sklearn)
	ctx := t.Context()
	windows := w.windows(s)
	r := rand.New(rand.NewPCG(5, 5))
	// Of another window, another version, live, and without inputs: none is of it.
	for _, change := range []func(*prediction.Record){
		func(rec *prediction.Record) { rec.At = date(1) }, func(rec *prediction.Record) { rec.Version = 2 },
		func(rec *prediction.Record) { rec.Replay = false }, func(rec *prediction.Record) { rec.Inputs = nil },
	} {
		w.predict(r, date(0).Add(time.Hour), 0, change)
	}
	w.predict(r, date(0).Add(time.Hour), 0, func(rec *prediction.Record) { rec.Inputs[2].Numbers[0] = math.NaN() }) // late, and it is
	first := windows[0]
	c, err := s.Classify(ctx, "nyc", "delay", monitoring.ClassifyRequest{Window: first.ID})
	if err != nil {
		t.Fatal(err)
	}
	if c.State != monitoring.Classifying || c.Job != "job_1" || c.Dataset != "delay-window@1" || c.Baseline != "delays@1" || c.Environment != "sklearn" ||
		c.Threshold != .55 || c.AUC != nil || c.Window != first.ID {
		t.Errorf("%+v", c)
	}
	k := l.kept[0]
	if k.Project != "nyc" || k.Deployment != "delay" || k.Model != "delay" || k.Version != 1 || !strings.Contains(k.Window, "2013-06-03T00:00:00Z to 2013-06-04T00:00:00Z, replayed") {
		t.Errorf("%+v", k.KeptWindow)
	}
	if k.rows != 301 || len(k.columns) != 3 || len(k.columns["weather__temp"]) != 301 || !math.IsNaN(k.columns["wind"][300]) {
		t.Errorf("%d rows of %d columns", k.rows, len(k.columns))
	}
	j := l.jobs[0]
	if j.Script != classifier.Script || j.Name != "delay-domain" || j.Data["baseline"] != "delays@1" || j.Data["window"] != "delay-window@1" {
		t.Errorf("%s %v", j.Name, j.Data)
	}
	var task classifier.Task
	if err := json.Unmarshal([]byte(j.Argument), &task); err != nil || len(task.Columns) != 3 || task.Columns[0] != (classifier.Column{Name: "weather:temp", Column: "weather__temp"}) {
		t.Errorf("%s: %v", j.Argument, err)
	}

	// The loop writes a window anew, as it was before, when labels come; the
	// classifier stays.
	if err := w.db.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error {
		m, err := monitoringsql.Store{}.One(ctx, tx, "nyc", "delay")
		if err != nil {
			return err
		}
		return monitoringsql.Store{}.PutWindow(ctx, tx, m.ID, first, nil)
	}); err != nil {
		t.Fatal(err)
	}
	find := func(id string) *monitoring.Classification {
		t.Helper()
		for _, win := range w.windows(s) {
			if win.ID == id {
				return win.Classifier
			}
		}
		return nil
	}
	if err := s.ClassifierEnded(ctx, "nyc", "job_1"); err != nil { // it goes on
		t.Fatal(err)
	}
	if found := find(first.ID); found == nil || found.State != monitoring.Classifying {
		t.Errorf("%+v", found)
	}
	if found := find(windows[1].ID); found != nil {
		t.Errorf("%+v", found)
	}
	l.outcome = monitoring.ClassifierOutcome{Ended: true, Succeeded: true, Result: []byte(told)}
	for range 3 { // an event may come more than once
		if err := s.ClassifierEnded(ctx, "nyc", "job_1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"nyc", "other"} { // jobs that nobody waits for
		if err := s.ClassifierEnded(ctx, p, "job_9"); err != nil {
			t.Error(err)
		}
	}
	if l.asked != 3 { // once by Classify itself, and twice while it ran
		t.Errorf("asked %d times", l.asked)
	}
	found := find(first.ID)
	if found.State != monitoring.Classified || *found.AUC != .8 || *found.Low != .75 || *found.High != .84 || *found.PValue != .002 || !found.Drifted ||
		len(found.TopFeatures) != 1 || found.TopFeatures[0].Name != "weather:temp" || found.Ended == nil || found.Sampled[1] != 300 {
		t.Errorf("%+v", found)
	}
	if one, err := s.Window(ctx, "nyc", "delay", first.ID); err != nil || one.Classifier == nil || !one.Classifier.Drifted {
		t.Errorf("%+v, %v", one.Classifier, err)
	}
	if states := w.classified(); states != "running done" {
		t.Errorf("told %s", states)
	}

	// What ended already is there at once; nothing named is the newest.
	c, err = s.Classify(ctx, "nyc", "delay", monitoring.ClassifyRequest{})
	if err != nil || c.State != monitoring.Classified || c.Window != windows[len(windows)-1].ID {
		t.Errorf("%+v, %v", c, err)
	}
	// It goes with its monitor.
	if err := s.Delete(ctx, "nyc", "delay"); err != nil {
		t.Fatal(err)
	}
	if err := w.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var n int
		if err := tx.NewRaw("SELECT COUNT(*) FROM monitoring_classifier").Scan(ctx, &n); err != nil || n != 0 {
			t.Errorf("%d rows stay, %v", n, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// classified are the states that were told.
func (w *world) classified() string {
	w.t.Helper()
	var states []string
	var at store.Position
	for {
		records, next, err := w.db.ReadStream(w.t.Context(), "event", at, 100)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range records {
			if r.Kind != monitoring.EventClassified {
				continue
			}
			var e monitoring.ClassifiedEvent
			if err := (event.Event{Name: r.Kind, Body: r.Body}).Decode(&e); err != nil {
				w.t.Fatal(err)
			}
			states = append(states, string(e.State))
		}
		if len(records) == 0 {
			return strings.Join(states, " ")
		}
		at = next
	}
}

func TestClassifyOfClassifiersThatFail(t *testing.T) {
	_, s, l := watchedWeek(t, newWorld(t), sklearn)
	for name, one := range map[string]struct {
		outcome monitoring.ClassifierOutcome
		want    string
	}{
		"no package":  {monitoring.ClassifierOutcome{Ended: true, Reason: "exit code 1", Result: []byte(`{"error": "the environment has no sklearn"}`)}, "the environment has no sklearn"},
		"out of time": {monitoring.ClassifierOutcome{Ended: true, Reason: "it ran longer than 30m0s"}, "job job_%d did not succeed: it ran longer than 30m0s. See `falaj job logs job_%d`."},
		"no answer":   {monitoring.ClassifierOutcome{Ended: true, Succeeded: true}, "job job_%d did not write domain.json. See `falaj job logs job_%d`."},
		"nonsense":    {monitoring.ClassifierOutcome{Ended: true, Succeeded: true, Result: []byte(`{"auc": 2}`)}, "domain.json lacks a required field"},
		"not drifted": {monitoring.ClassifierOutcome{Ended: true, Succeeded: true, Result: []byte(strings.Replace(told, "0.75", "0.55", 1))}, ""},
	} {
		l.outcome = one.outcome
		c, err := s.Classify(t.Context(), "nyc", "delay", monitoring.ClassifyRequest{})
		want := one.want
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, len(l.jobs), len(l.jobs))
		}
		if err != nil || c.Reason != want || (c.State == monitoring.ClassifyFailed) != (want != "") || c.Drifted || c.Ended == nil {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestClassifyRefuses(t *testing.T) {
	w, s, l := watchedWeek(t, newWorld(t), monitoring.Spec{})
	ctx := t.Context()
	in := monitoring.ClassifyRequest{Environment: "sklearn"}
	ask := func(r monitoring.ClassifyRequest) error {
		_, err := s.Classify(ctx, "nyc", "delay", r)
		return err
	}
	if err := ask(monitoring.ClassifyRequest{}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "--environment") {
		t.Errorf("no environment: %v", err)
	}
	for _, id := range []string{"1-77r", "nonsense"} {
		if err := ask(monitoring.ClassifyRequest{Environment: "sklearn", Window: id}); !fault.Is(err, fault.NotFound) {
			t.Errorf("window %s: %v", id, err)
		}
	}
	for _, a := range []policy.Action{monitoring.ActionRead, monitoring.ActionSubmit} {
		w.denied = a
		if err := ask(in); !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("without %s: %v", a, err)
		}
	}
	w.denied = ""
	l.refused = fault.New(fault.PermissionDenied, "not yours")
	if err := ask(in); !fault.Is(err, fault.PermissionDenied) || len(l.kept) != 0 {
		t.Errorf("a baseline of others: %v, %d datasets", err, len(l.kept))
	}
	l.refused = nil
	newest := func() *monitoring.Classification {
		all := w.windows(s)
		return all[len(all)-1].Classifier
	}
	if newest() != nil {
		t.Errorf("%+v", newest())
	}

	w.failing = fault.New(fault.NotFound, "delay@1 was trained on 0 datasets")
	if err := ask(in); !fault.Is(err, fault.Conflict) || newest() == nil || newest().State != monitoring.ClassifyFailed || !strings.Contains(newest().Reason, "is not a dataset: delay@1 was trained on 0 datasets") {
		t.Errorf("no baseline: %v, %+v", err, newest())
	}
	w.failing = nil
	inputs := w.origin.Inputs
	w.origin.Inputs = []monitoring.OriginInput{{Name: "other", Column: "wind"}}
	w.origin.Definition, w.origin.Scored = "other", false
	if err := ask(in); !fault.Is(err, fault.Conflict) || !strings.Contains(newest().Reason, "no input in common") {
		t.Errorf("no input: %v, %+v", err, newest())
	}
	w.origin.Inputs, w.origin.Definition = inputs, "d"
	if err := ask(in); err != nil || newest().State != monitoring.Classifying {
		t.Errorf("%v, %+v", err, newest())
	}
	// One that cannot begin hides nothing that was found.
	l.outcome = monitoring.ClassifierOutcome{Ended: true, Succeeded: true, Result: []byte(told)}
	if err := s.ClassifierEnded(ctx, "nyc", "job_1"); err != nil {
		t.Fatal(err)
	}
	w.failing = fault.New(fault.NotFound, "no more")
	if err := ask(in); !fault.Is(err, fault.Conflict) || newest().State != monitoring.Classified {
		t.Errorf("%v, %+v", err, newest())
	}
	w.failing = nil
	w.apply(s, monitoring.Spec{Lateness: "2h", Baseline: "window:first"})
	if err := ask(in); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "is the first window") {
		t.Error(err)
	}
	if len(w.reads) == 0 || !strings.Contains(fmt.Sprint(w.reads[len(w.reads)-1]), "rows of window") {
		t.Errorf("the reading of confidential rows is not recorded: %v", w.reads)
	}
}

func TestClassifyOfTooFewRows(t *testing.T) {
	w, l := newWorld(t), &laboratory{t: t}
	s := w.service(func(c *monitoring.Config) { c.Classifiers = l })
	w.apply(s, monitoring.Spec{Lateness: "2h"})
	r := rand.New(rand.NewPCG(1, 1))
	w.days(r, begin, 1, 20, summer)
	w.predict(r, date(2), 0, nil)
	w.run(s)
	_, err := s.Classify(t.Context(), "nyc", "delay", monitoring.ClassifyRequest{Environment: "sklearn"})
	if win := w.windows(s)[0]; !fault.Is(err, fault.Conflict) || win.Classifier == nil || !strings.HasPrefix(win.Classifier.Reason, "the prediction log has 20 rows of window") {
		t.Errorf("%v, %+v", err, win.Classifier)
	}
}

func TestClassifyOfTextsAndOfWindowsByRows(t *testing.T) {
	w, l := newWorld(t), &laboratory{t: t}
	s := w.service(func(c *monitoring.Config) { c.Classifiers = l })
	w.apply(s, monitoring.Spec{Window: monitoring.WindowSpec{Rows: 300}, Drift: monitoring.DriftSpec{Features: []string{"weather:temp", "wind"}}})
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 700 {
		w.predict(r, begin.Add(time.Duration(i)*time.Minute), 0, func(rec *prediction.Record) {
			rec.Inputs[2] = prediction.Column{Name: "wind", Texts: []string{"strong"}} // the baseline has numbers
			if i%2 == 0 {
				rec.Failure = "unavailable"
			}
			rec.Replay = false
			rec.Received = rec.At
		})
	}
	w.run(s)
	windows := w.windows(s)
	c, err := s.Classify(t.Context(), "nyc", "delay", monitoring.ClassifyRequest{Environment: "sklearn", Window: windows[1].ID})
	if err != nil || !strings.HasPrefix(c.Reason, "without wind: ") {
		t.Fatalf("%+v, %v", c, err)
	}
	if k := l.kept[0]; k.rows != 300 || len(k.columns) != 1 || len(k.columns["weather__temp"]) != 300 {
		t.Errorf("%d rows of %d columns", k.rows, len(k.columns))
	}
}

func TestClassifierSpec(t *testing.T) {
	for auc, good := range map[float64]bool{0: true, .5: true, .99: true, 1: false, .49: false, math.NaN(): false} {
		err := monitoring.Spec{Drift: monitoring.DriftSpec{Classifier: &monitoring.ClassifierSpec{AUC: auc}}}.WithDefaults("delay").Validate()
		if (err == nil) != good {
			t.Errorf("%g: %v", auc, err)
		}
	}
	var none *monitoring.ClassifierSpec
	if s := (monitoring.Spec{}).WithDefaults("delay"); s.Drift.Classifier != none {
		t.Error("it came by itself")
	}
}
