package monitoring_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// label sends labels: what comes true with the score's probability, or, when the
// model is wrong, with the opposite one.
func (w *world) label(r *rand.Rand, ids []string, scores []float64, wrong bool) {
	w.t.Helper()
	labels := make([]label.Label, len(ids))
	for i, id := range ids {
		p, y := scores[i], 0.0
		if wrong {
			p = 1 - p
		}
		if r.Float64() < p {
			y = 1
		}
		labels[i] = label.Label{ID: id, Values: []float64{y}, At: begin}
	}
	a, err := w.labels.Add(w.t.Context(), "nyc", "delay", labels)
	if err != nil || a.Accepted != len(ids) {
		w.t.Fatalf("%+v, %v", a, err)
	}
}

// metricOf is a metric of a window; nil when there is none.
func metricOf(win monitoring.Window, name string, estimate bool) *monitoring.Metric {
	for i, m := range win.Performance.Metrics {
		if m.Name == name && m.Estimate == estimate {
			return &win.Performance.Metrics[i]
		}
	}
	return nil
}

func TestLabelsComeLate(t *testing.T) {
	for name, spec := range map[string]monitoring.Spec{
		"days":    {Window: monitoring.WindowSpec{Every: "1d"}},
		"rows":    {Window: monitoring.WindowSpec{Rows: 300}},
		"sliding": {Window: monitoring.WindowSpec{Every: "1d", Slide: "12h"}},
	} {
		t.Run(name, func(t *testing.T) {
			limit := 0.3
			spec.Performance = monitoring.PerformanceSpec{
				Metrics: []string{"auc", "log_loss"}, Segments: []string{"carrier"}, Alert: map[string]monitoring.Limit{"brier": {Above: &limit}},
			}
			spec.Drift.MinRows = 200
			w := newWorld(t)
			s := w.service(nil)
			w.apply(s, spec)
			r := rand.New(rand.NewPCG(4, 4))
			const days = 5
			var ids [days][]string
			var scores [days][]float64
			for d := range days {
				for i := range 300 {
					var score float64
					id := w.predict(r, date(d).Add(time.Duration(i)*4*time.Minute), 0, func(rec *prediction.Record) { score = rec.Scores[0] })
					ids[d], scores[d] = append(ids[d], id), append(scores[d], score)
				}
			}
			w.predict(r, date(days+1), 0, nil)
			w.run(s)
			dayOf := func(d int) monitoring.Window {
				for _, win := range w.windows(s) {
					// Where they slide, the one that is the whole day.
					if spec.Window.Rows > 0 && win.From.Equal(date(d)) || win.From.Equal(date(d)) && win.To.Equal(date(d+1)) {
						return win
					}
				}
				t.Fatalf("no window of day %d", d)
				return monitoring.Window{}
			}
			first := dayOf(0)
			if first.Performance.State != "no labels yet" || first.Performance.Judged || metricOf(first, "brier", false) != nil {
				t.Errorf("%+v", first.Performance)
			}
			if m := metricOf(first, "brier", true); m == nil || *m.Value <= 0 || *m.Value >= 0.3 {
				t.Errorf("estimate %+v", first.Performance.Metrics)
			}

			// A part of the first day's, too few to judge it; then the rest.
			w.label(r, ids[0][:75], scores[0][:75], false)
			w.run(s)
			if p := dayOf(0).Performance; p.State != "labels 25 %" || p.Rows != 75 || p.Judged {
				t.Errorf("%+v", p)
			}
			w.label(r, ids[0][75:], scores[0][75:], false)
			w.run(s)
			first = dayOf(0)
			brier, estimated := metricOf(first, "brier", false), metricOf(first, "brier", true)
			if first.Performance.State != "labels 100 %" || !first.Performance.Judged || first.Performance.Degraded || brier == nil || estimated == nil {
				t.Fatalf("%+v", first.Performance)
			}
			if *brier.Limit != 0.3 || *estimated.Value < *brier.Low || *estimated.Value > *brier.High || metricOf(first, "auc", false) == nil || metricOf(first, "f1", false) != nil {
				t.Errorf("%+v", first.Performance.Metrics)
			}
			rows := int64(0)
			for _, seg := range first.Performance.Segments {
				if seg.Column != "carrier" || len(seg.Metrics) != 3 {
					t.Errorf("%+v", seg)
				}
				rows += seg.Rows
			}
			if rows != 300 || len(first.Performance.Segments) != 2 {
				t.Errorf("segments %+v", first.Performance.Segments)
			}
			one, err := s.Window(t.Context(), "nyc", "delay", first.ID)
			if err != nil || !reflect.DeepEqual(one.Performance.Segments, first.Performance.Segments) {
				t.Errorf("%+v, %v", one.Performance.Segments, err)
			}
			var kept []string // values of the data lie sealed
			if err := w.db.View(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				return tx.NewRaw("SELECT result FROM monitoring_window").Scan(ctx, &kept)
			}); err != nil || !strings.Contains(strings.Join(kept, ""), `"carrier"`) {
				t.Errorf("%s, %v", kept, err)
			}
			for _, seg := range first.Performance.Segments {
				if strings.Contains(strings.Join(kept, ""), `"`+seg.Value+`"`) {
					t.Errorf("%q is in the database", seg.Value)
				}
			}

			// From the fourth day on the model is wrong; the fifth's labels come first.
			w.label(r, ids[4], scores[4], true)
			w.run(s)
			w.label(r, ids[1], scores[1], false)
			w.label(r, ids[3], scores[3], true)
			w.run(s)
			names, findings := w.findings()
			got := strings.Join(names, ",")
			if want := "monitor.degraded"; len(findings) == 0 || !strings.HasPrefix(got, want) || strings.Contains(got, "recovered") {
				t.Fatalf("told %s", got)
			}
			f := findings[0]
			if f.Kind != monitoring.Performing || len(f.Metrics) != 1 || f.Metrics[0].Name != "brier" || !strings.Contains(f.Reason, "brier") || f.Labelled == 0 {
				t.Errorf("%+v", f)
			}
			if m, err := s.One(t.Context(), "nyc", "delay"); err != nil || m.State != monitoring.Degraded {
				t.Errorf("%+v, %v", m.Status, err)
			}
			// Who reads all of it again, after a restart, tells nothing new.
			w.run(w.service(nil))
			if again, _ := w.findings(); len(again) != len(names) {
				t.Errorf("told %v", again)
			}
		})
	}
}

// TestLabelsBeforeTheWindowIsClosed: they count when it is.
func TestLabelsBeforeTheWindowIsClosed(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	r := rand.New(rand.NewPCG(4, 4))
	var ids []string
	var scores []float64
	for i := range 250 {
		ids = append(ids, w.predict(r, date(0).Add(time.Duration(i)*time.Minute), 0, func(rec *prediction.Record) { scores = append(scores, rec.Scores[0]) }))
	}
	w.label(r, ids, scores, false)
	w.run(s)
	w.predict(r, date(2), 0, nil)
	w.run(s)
	if p := w.windows(s)[0].Performance; p.Rows != 250 || p.Labelled != 1 || p.Task != "binary" {
		t.Errorf("%+v", p)
	}
}

// TestPostgreSQL: the statements are of both databases.
func TestPostgreSQL(t *testing.T) {
	w := newWorldOn(t, t.TempDir(), storetest.Postgres(t, schema...))
	s := w.service(nil)
	w.apply(s, monitoring.Spec{Window: monitoring.WindowSpec{Every: "2d", Slide: "1d"}})
	r := rand.New(rand.NewPCG(4, 4))
	var ids []string
	var scores []float64
	for i := range 500 {
		ids = append(ids, w.predict(r, date(0).Add(time.Duration(i)*5*time.Minute), 0, func(rec *prediction.Record) { scores = append(scores, rec.Scores[0]) }))
	}
	w.predict(r, date(3), 0, nil)
	w.predict(r, date(0), 0, nil)
	w.run(s)
	w.label(r, ids, scores, false)
	w.run(s)
	w.run(w.service(nil))
	windows := w.windows(s)
	if len(windows) != 2 || windows[1].Late != 1 || windows[1].Performance.Labelled != 1 || !windows[1].Judged {
		t.Errorf("%+v", windows)
	}
	if b, err := s.Baseline(t.Context(), "nyc", "delay", 1); err != nil || b.Rows != 4000 {
		t.Errorf("%+v, %v", b, err)
	}
	if err := s.Delete(t.Context(), "nyc", "delay"); err != nil {
		t.Error(err)
	}
}

func TestRegression(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	w.apply(s, monitoring.Spec{})
	r := rand.New(rand.NewPCG(4, 4))
	var labels []label.Label
	for i := range 250 {
		at := date(0).Add(time.Duration(i) * time.Minute)
		id := w.predict(r, at, 0, func(rec *prediction.Record) { rec.Scores[0], rec.Task = 100+float64(i), prediction.Regression })
		labels = append(labels, label.Label{ID: id, Values: []float64{103 + float64(i)}, At: at})
	}
	w.predict(r, date(2), 0, nil)
	if _, err := w.labels.Add(t.Context(), "nyc", "delay", labels); err != nil {
		t.Fatal(err)
	}
	w.run(s)
	win := w.windows(s)[0]
	if m := metricOf(win, "bias", false); win.Performance.Task != "regression" || m == nil || *m.Value != -3 || metricOf(win, "brier", true) != nil {
		t.Errorf("%+v", win.Performance)
	}
	if win.Performance.State != "labels 100 %" {
		t.Error(win.Performance.State)
	}
}

// The first labels of a window say little about the others where they come by
// what they say: its limits wait for as many as the manifest asks for.
func TestLimitsWaitForLabels(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	limit := 0.01
	w.apply(s, monitoring.Spec{
		Drift:       monitoring.DriftSpec{MinRows: 20},
		Performance: monitoring.PerformanceSpec{MinLabelled: 0.9, Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}},
	})
	r := rand.New(rand.NewPCG(3, 4))
	var ids []string
	var scores []float64
	for range 100 {
		ids = append(ids, w.predict(r, begin, 0, func(rec *prediction.Record) { scores = append(scores, rec.Scores[0]) }))
	}
	w.predict(r, begin.AddDate(0, 0, 2), 0, nil)
	for _, test := range []struct {
		from, to int
		judged   bool
	}{{0, 80, false}, {80, 95, true}} {
		w.label(r, ids[test.from:test.to], scores[test.from:test.to], false)
		w.run(s)
		if p := w.windows(s)[0].Performance; p.Judged != test.judged || p.Degraded != test.judged || p.Rows != int64(test.to) {
			t.Errorf("%+v", p)
		}
	}
}

// Labels that come may degrade a window, and later not, and again: each time is
// told, by an alert of its own.
func TestEachChangeIsAnAlert(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	limit := 0.3
	w.apply(s, monitoring.Spec{
		Drift: monitoring.DriftSpec{MinRows: 20}, Performance: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}},
		Alerts: []alert.Target{{Webhook: "https://hooks.example.com/x"}},
	})
	r := rand.New(rand.NewPCG(3, 4))
	var labels []label.Label
	for n := range 200 {
		good := n >= 30 && n < 100
		w.predict(r, begin, 0, func(rec *prediction.Record) {
			y := 0.0
			if (rec.Scores[0] >= 0.5) == good {
				y = 1
			}
			labels = append(labels, label.Label{ID: rec.ID, Values: []float64{y}})
		})
	}
	w.predict(r, begin.AddDate(0, 0, 2), 0, nil)
	w.run(s)
	w.queued = nil
	for _, upTo := range []int{30, 100, 200} {
		if _, err := w.labels.Add(t.Context(), "nyc", "delay", labels[:upTo]); err != nil {
			t.Fatal(err)
		}
		w.run(s)
	}
	keys := map[string]bool{}
	var told []string
	for _, a := range w.queued {
		keys[a.Key] = true
		told = append(told, a.Type)
	}
	if got := strings.Join(told, " "); got != "monitor.degraded monitor.recovered monitor.degraded" || len(keys) != 3 {
		t.Errorf("told %s by %d keys", got, len(keys))
	}
}
