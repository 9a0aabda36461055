package monitoring_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// Whatever becomes of a baseline that was there, drifted traffic is never compared with
// itself, and nothing recovers: the version that stands for a redacted one takes its
// place, and what is lost is told of.
func TestBaselineThatIsLost(t *testing.T) {
	gone := fault.New(fault.Gone, "delays@1 was deleted")
	for name, test := range map[string]struct {
		spec   monitoring.Spec
		change func(w *world)
		state  monitoring.State
		told   []string // after the first finding
		says   string
	}{
		"redacted: another version stands for it": {
			change: func(w *world) { w.train(3900, 2); w.origin.Ref = "delays@2" },
			state:  monitoring.Drifted, says: "inputs drifted",
		},
		"deleted": {
			change: func(w *world) { w.failing = gone },
			state:  monitoring.Unjudged, told: []string{"monitor.unjudged"}, says: "the training set delays@1 is lost: delays@1 was deleted",
		},
		"the registry does not know it any more": {
			change: func(w *world) { w.failing = fault.New(fault.NotFound, "nothing is known") },
			state:  monitoring.Unjudged, told: []string{"monitor.unjudged"}, says: "is lost",
		},
		"its columns have other names": {
			change: func(w *world) { w.origin.Inputs, w.origin.Definition, w.origin.Scored = nil, "none", false },
			state:  monitoring.Unjudged, told: []string{"monitor.unjudged"}, says: "is lost",
		},
		"a dataset that the manifest names": {
			spec: monitoring.Spec{Baseline: "dataset:delays@1"}, change: func(w *world) { w.failing = gone },
			state: monitoring.Unjudged, told: []string{"monitor.unjudged"}, says: "the dataset delays@1 is lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, restarted := range []bool{false, true} {
				w := newWorld(t)
				s := w.service(nil)
				test.spec.Alerts = []alert.Target{{Webhook: "https://hooks.example.com/x"}}
				w.apply(s, test.spec)
				r := rand.New(rand.NewPCG(2, 2))
				w.days(r, begin, 3, 250, always(9))
				w.run(s)
				if names, _ := w.findings(); strings.Join(names, ",") != "monitor.drifted 2013-06-04" {
					t.Fatal(names)
				}
				test.change(w)
				if restarted {
					s = w.service(nil)
				}
				w.queued = nil
				w.days(r, date(3), 4, 250, always(9))
				w.run(s)
				var told []string
				names, bodies := w.findings()
				for _, one := range names[1:] {
					event, _, _ := strings.Cut(one, " ")
					told = append(told, event)
				}
				m, err := s.One(t.Context(), "nyc", "delay")
				if err != nil || m.State != test.state || !strings.Contains(m.Reason, test.says) || !slices.Equal(told, test.told) {
					t.Errorf("restarted %t: %+v, %v, told %v", restarted, m.Status, err, names)
				}
				if len(w.queued) != len(test.told) {
					t.Errorf("%d alerts", len(w.queued))
				}
				for _, win := range w.windows(s)[3:] {
					if win.Judged != (test.state == monitoring.Drifted) || win.Unjudged == win.Judged || win.Drifted != win.Judged || win.Unjudged && win.Baseline != "" {
						t.Errorf("restarted %t: %+v", restarted, win)
					}
				}
				if test.state != monitoring.Unjudged {
					continue
				}
				if b := bodies[len(bodies)-1]; b.Kind != monitoring.Drift || !strings.Contains(b.Reason, test.says) || b.Window.Rows != 250 {
					t.Errorf("%+v", b)
				}
				// It is back, and the traffic is as it was: only now has it recovered.
				w.failing = nil
				w.train(4000, 1)
				w.days(r, date(7), 2, 250, always(0))
				w.run(s)
				names, _ = w.findings()
				if m, err = s.One(t.Context(), "nyc", "delay"); err != nil || m.State != monitoring.OK || !strings.HasPrefix(names[len(names)-1], "monitor.recovered") {
					t.Errorf("restarted %t: %+v, %v, told %v", restarted, m.Status, err, names)
				}
			}
		})
	}
}

// A version that could have been trained on several datasets has no baseline, and the
// first window does not take its place; one of which nothing is known has, and says so.
func TestNoBaselineIsGuessed(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		spec  monitoring.Spec
		first bool
		says  string
	}{
		"several":              {err: fault.New(fault.Conflict, "it read test@1 and train@1").WithHint("Declare training_data."), says: "there is no baseline: it read test@1 and train@1. Declare training_data."},
		"deleted before":       {err: fault.New(fault.Gone, "train@1 was deleted"), says: "train@1 was deleted"},
		"a dataset that is no": {err: fault.New(fault.NotFound, "no dataset old"), spec: monitoring.Spec{Baseline: "dataset:old@1"}, says: "no dataset old"},
		"nothing is known":     {err: fault.New(fault.NotFound, "it was registered by hand"), first: true, says: "it was registered by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.service(nil)
			w.apply(s, test.spec)
			w.failing = test.err
			w.days(rand.New(rand.NewPCG(2, 2)), begin, 4, 250, always(0))
			w.run(s)
			windows := w.windows(s)
			m, err := s.One(t.Context(), "nyc", "delay")
			if err != nil {
				t.Fatal(err)
			}
			for i, win := range windows {
				if !strings.Contains(win.Note, test.says) || win.Judged != (test.first && i > 0) || win.Unjudged == test.first {
					t.Errorf("window %d: %+v", i, win)
				}
			}
			if test.first && (m.State != monitoring.OK || m.Baseline != "first window, from 2013-06-03 to 2013-06-04" || !strings.Contains(m.Note, test.says)) ||
				!test.first && (m.State != monitoring.Unjudged || !strings.Contains(m.Reason, test.says)) {
				t.Errorf("%+v", m.Status)
			}
			if _, err := s.Baseline(t.Context(), "nyc", "delay", 1); (err == nil) != test.first {
				t.Error(err)
			}
		})
	}
}

// What names no single thing is refused when the manifest is applied.
func TestManifestsThatGuess(t *testing.T) {
	limit := 0.3
	limits := map[string]monitoring.Limit{"brier": {Above: &limit}}
	for text, spec := range map[string]monitoring.Spec{
		"spec.baseline":                           {Baseline: "dataset:delays"}, // the newest version is another one with each import
		"spec.prediction_column":                  {Baseline: "window:first", Prediction: "p"},
		"brier is not a metric of task multi":     {Performance: monitoring.PerformanceSpec{Task: "multiclass", Alert: limits}},
		"macro_f1 is not a metric of task regre":  {Performance: monitoring.PerformanceSpec{Task: "regression", Metrics: []string{"macro_f1"}}},
		"mae is not a metric of task classificat": {Performance: monitoring.PerformanceSpec{Task: "classification", Metrics: []string{"mae"}}},
	} {
		if err := spec.WithDefaults("m").Validate(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	w := newWorld(t)
	w.failing = fault.New(fault.Conflict, "it may be test@1, train@1")
	if _, _, err := w.service(nil).Apply(t.Context(), "nyc", "delay", monitoring.Spec{Baseline: "training"}, false); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// A window that shares rows with the one that is the baseline is not compared with it.
func TestNoWindowIsComparedWithItself(t *testing.T) {
	for name, test := range map[string]struct {
		window monitoring.WindowSpec
		shared int
	}{
		"apart":           {monitoring.WindowSpec{Every: "1d"}, 1},
		"sliding":         {monitoring.WindowSpec{Every: "3d", Slide: "1d"}, 3},
		"by rows":         {monitoring.WindowSpec{Rows: 500}, 1},
		"sliding by rows": {monitoring.WindowSpec{Rows: 750, Slide: "250"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.service(nil)
			w.apply(s, monitoring.Spec{Window: test.window, Baseline: "window:first"})
			w.days(rand.New(rand.NewPCG(2, 2)), begin, 8, 250, always(0))
			w.run(s)
			// Windows at the edges of the log have few rows and are no baseline.
			for i, win := range slices.DeleteFunc(w.windows(s), func(win monitoring.Window) bool { return win.Rows < 200 }) {
				if win.Judged != (i >= test.shared) || win.Unjudged || !win.Judged && !strings.Contains(win.Note, "baseline") {
					t.Errorf("window %d from %s: judged %t, %q", i, win.From, win.Judged, win.Note)
				}
			}
		})
	}
}

// Scores are compared with what the dataset has of them, or with nothing, which is said.
func TestBaselineOfScores(t *testing.T) {
	for name, test := range map[string]struct {
		world   func(w *world)
		spec    monitoring.Spec
		inputs  bool // the window's inputs are in the baseline
		judged  bool
		drifted bool // of the score
		source  string
		says    string
	}{
		"the model over the rows": {inputs: true, judged: true, source: "scores of the model on 4000 rows"},
		"no features, a dataset with predictions": {
			world: func(w *world) { w.predictions("prediction", 0.01) }, judged: true, drifted: true, source: "column prediction of delays@1",
		},
		"no inputs, a dataset without": {
			world: func(w *world) { w.origin.Scored, w.origin.Unscored = false, "delays@1 has no column of them" }, inputs: true, judged: true,
			says: "scores have no baseline: delays@1 has no column of them",
		},
		"predictions that are text": {
			world: func(w *world) { w.words("prediction") }, inputs: true, judged: true, says: "scores have no baseline: column prediction of delays@1 is text",
		},
		"predictions that are dates": {
			world: func(w *world) { w.dates("prediction"); w.origin.Prediction = "prediction" }, inputs: true, judged: true,
			says: "scores have no baseline: column prediction of delays@1: type date32 has no summary",
		},
		"the model fails": {
			world: func(w *world) { w.noScores = true }, inputs: true, judged: true, says: "scores have no baseline: scoring failed on",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.world != nil {
				test.world(w)
			}
			s := w.service(nil)
			w.apply(s, test.spec)
			r := rand.New(rand.NewPCG(2, 2))
			for d := range 3 {
				for i := range 250 {
					w.predict(r, date(d).Add(time.Duration(i)*time.Minute), 0, func(rec *prediction.Record) {
						if !test.inputs { // one tensor, of which nobody knows the columns' names
							for i := range rec.Inputs {
								rec.Inputs[i].Name = fmt.Sprintf("x.%d", i)
							}
						}
					})
				}
			}
			if !test.inputs {
				w.origin.Declared = false
			}
			w.run(s)
			for _, win := range w.windows(s) {
				if win.Judged != test.judged || win.Score == nil || win.Score.Drifted != test.drifted || !strings.Contains(win.Note, test.says) || win.Unjudged == win.Judged {
					t.Errorf("%+v, score %+v", win, win.Score)
				}
			}
			m, err := s.One(t.Context(), "nyc", "delay")
			if err != nil || !strings.Contains(m.Note, test.says) || (m.State == monitoring.Unjudged) == test.judged {
				t.Errorf("%+v, %v", m.Status, err)
			}
			b, err := s.Baseline(t.Context(), "nyc", "delay", 1)
			if err != nil || !strings.Contains(b.ScoreSource, test.source) || (b.ScoreSource == "") != (b.ScoreNote != "") || (b.Score == nil) != (b.ScoreSource == "") {
				t.Errorf("%+v, %v", b, err)
			}
		})
	}
}

// predictions adds a column of scores to the training set.
func (w *world) predictions(name string, value float64) {
	b := array.NewFloat64Builder(w.allocator())
	for i := range w.training.NumRows() {
		b.Append(value + float64(i%7)/1000)
	}
	w.column(name, b.NewArray())
}

func (w *world) words(name string) {
	b := array.NewStringBuilder(w.allocator())
	for range w.training.NumRows() {
		b.Append("late")
	}
	w.column(name, b.NewArray())
}

func (w *world) dates(name string) {
	b := array.NewDate32Builder(w.allocator())
	for i := range w.training.NumRows() {
		b.Append(arrow.Date32(i))
	}
	w.column(name, b.NewArray())
}

func (w *world) column(name string, values arrow.Array) {
	fields := append(w.training.Schema().Fields(), arrow.Field{Name: name, Type: values.DataType()})
	w.training = array.NewRecordBatch(arrow.NewSchema(fields, nil), append(slices.Clone(w.training.Columns()), values), w.training.NumRows())
	w.origin.Prediction, w.origin.Scored, w.origin.Definition = name, false, name
}

// A column whose type has no summary is left out with its reason, if it is an input at
// all; the other inputs and the score are compared.
func TestColumnsWithoutSummary(t *testing.T) {
	list := func(w *world, name string) {
		b := array.NewListBuilder(w.allocator(), arrow.PrimitiveTypes.Float64)
		for range w.training.NumRows() {
			b.Append(true)
			b.ValueBuilder().(*array.Float64Builder).Append(1)
		}
		w.column(name, b.NewArray())
	}
	decimal := func(w *world, name string) {
		b := array.NewDecimal128Builder(w.allocator(), &arrow.Decimal128Type{Precision: 9, Scale: 2})
		for range w.training.NumRows() {
			b.AppendNull()
		}
		w.column(name, b.NewArray())
	}
	for name, test := range map[string]struct {
		add   func(w *world, name string)
		input bool // the records have it
		says  string
	}{
		"a date that is no input":  {add: (*world).dates},
		"a list that is no input":  {add: list},
		"a decimal, no input":      {add: decimal},
		"a date that is an input":  {add: (*world).dates, input: true, says: "type date32 has no summary"},
		"a list that is an input":  {add: list, input: true, says: "type list<item: float64, nullable> has no summary"},
		"a decimal, also an input": {add: decimal, input: true, says: "type decimal(9, 2) has no summary"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, declared := range []bool{true, false} {
				w := newWorld(t)
				scored := w.origin.Scored
				test.add(w, "odd")
				w.origin.Prediction, w.origin.Declared = "", declared
				w.origin.Scored = scored && declared
				if test.input || !declared { // undeclared inputs are all columns
					w.origin.Inputs = append(slices.Clone(w.origin.Inputs), monitoring.OriginInput{Name: "odd", Column: "odd"})
				}
				s := w.service(nil)
				w.apply(s, monitoring.Spec{})
				r := rand.New(rand.NewPCG(2, 2))
				for i := range 750 {
					w.predict(r, begin.Add(time.Duration(i)*5*time.Minute), 0, func(rec *prediction.Record) {
						if test.input {
							rec.Inputs = append(rec.Inputs, prediction.Column{Name: "odd", Numbers: []float64{1}})
						}
					})
				}
				w.run(s)
				windows := w.windows(s)
				if len(windows) == 0 {
					t.Fatal("no window")
				}
				for _, win := range windows {
					at := slices.IndexFunc(win.Features, func(f monitoring.Feature) bool { return f.Name == "odd" })
					if !win.Judged || win.Drifted || win.Baseline != "training set delays@1" || (at >= 0) != test.input ||
						strings.Contains(win.Note, "summary") != test.input || !strings.Contains(win.Note, test.says) {
						t.Errorf("declared %t: %+v", declared, win)
					}
					if at >= 0 && win.Features[at].Note != "it has no baseline: "+test.says {
						t.Errorf("declared %t: %q", declared, win.Features[at].Note)
					}
				}
			}
		})
	}
}

// A model with one tensor, of which nobody knows the columns' names, is compared with its
// own first window, and drift is found in the later ones.
func TestInputsOfOtherNames(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		w := newWorld(t)
		w.origin.Declared, w.origin.Scored, w.origin.Unscored = false, false, "no features"
		s := w.service(nil)
		w.apply(s, monitoring.Spec{})
		r := rand.New(rand.NewPCG(2, 2))
		log := func(day int, shift float64) {
			for i := range 250 {
				w.predict(r, date(day).Add(time.Duration(i)*5*time.Minute), shift, func(rec *prediction.Record) {
					for i := range rec.Inputs {
						rec.Inputs[i].Name = fmt.Sprintf("X.%d", i)
					}
				})
			}
		}
		log(0, 0)
		log(1, 0)
		log(2, 0)
		w.run(s)
		if restarted {
			s = w.service(nil)
		}
		log(3, 9)
		log(4, 9)
		w.run(s)
		windows := w.windows(s)
		for i, win := range windows {
			if win.Unjudged || win.Judged != (i > 0) || win.Drifted != (i >= 3) || win.Baseline != "" && !strings.HasPrefix(win.Baseline, "first window, ") ||
				!strings.Contains(win.Note, "no input of the model is a column of delays@1") {
				t.Errorf("restarted %t, window %d: %+v", restarted, i, win)
			}
		}
		b, err := s.Baseline(t.Context(), "nyc", "delay", 1)
		if err != nil || b.Source != "first window" || len(windows) < 4 {
			t.Errorf("restarted %t: %+v, %v, %d windows", restarted, b, err, len(windows))
		}
	}
}

// A baseline without rows, or windows of which nothing is recorded, is not "ok".
func TestWhatCannotBeComparedIsNotOK(t *testing.T) {
	for name, test := range map[string]struct {
		world  func(w *world)
		record func(rec *prediction.Record)
		says   string
	}{
		"a baseline without rows": {world: func(w *world) { w.train(0, 1) }, says: "no input or score of the window could be compared"},
		"nothing is recorded": {record: func(rec *prediction.Record) {
			rec.Inputs, rec.Scores = nil, nil
		}, says: "the window has no recorded inputs or scores"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.world != nil {
				test.world(w)
			}
			s := w.service(nil)
			w.apply(s, monitoring.Spec{Repeat: -1})
			r := rand.New(rand.NewPCG(2, 2))
			for d := range 4 {
				for i := range 250 {
					w.predict(r, date(d).Add(time.Duration(i)*time.Minute), 0, test.record)
				}
			}
			w.run(s)
			m, err := s.One(t.Context(), "nyc", "delay")
			names, _ := w.findings()
			if err != nil || m.State != monitoring.Unjudged || !strings.Contains(m.Reason, test.says) || strings.Join(names, ",") != "monitor.unjudged 2013-06-04" {
				t.Errorf("%+v, %v, told %v", m.Status, err, names)
			}
		})
	}
}

// judge logs a day of predictions with labels and is the window's performance.
func (w *world) judge(spec monitoring.Spec, n int, one func(i int, rec *prediction.Record) label.Label) (monitoring.Window, monitoring.Monitor) {
	w.t.Helper()
	s := w.service(nil)
	w.apply(s, spec)
	r := rand.New(rand.NewPCG(5, 5))
	var labels []label.Label
	for i := range n {
		w.predict(r, date(0).Add(time.Duration(i)*time.Minute), 0, func(rec *prediction.Record) {
			l := one(i, rec)
			l.ID = rec.ID
			labels = append(labels, l)
		})
	}
	w.predict(r, date(2), 0, nil)
	if a, err := w.labels.Add(w.t.Context(), "nyc", "delay", labels); err != nil || a.Accepted != n {
		w.t.Fatal(a, err)
	}
	w.run(s)
	m, err := s.One(w.t.Context(), "nyc", "delay")
	if err != nil {
		w.t.Fatal(err)
	}
	return w.windows(s)[0], m
}

func names(metrics []monitoring.Metric, estimate bool) string {
	var out []string
	for _, m := range metrics {
		if m.Estimate == estimate {
			out = append(out, m.Name)
		}
	}
	return strings.Join(out, " ")
}

// A classifier of several classes has its own metrics, by the classes' numbers or names.
func TestSeveralClasses(t *testing.T) {
	words := []string{"cat", "dog", "owl"}
	const all, few = "accuracy macro_f1 log_loss", "accuracy macro_f1"
	for name, test := range map[string]struct {
		classes   []string // of the deployment
		predicted func(k int) string
		label     func(k int) label.Label
		loss      bool
	}{
		"numbers": {
			predicted: strconv.Itoa, label: func(k int) label.Label { return label.Label{Values: []float64{float64(k)}} }, loss: true,
		},
		"names": {
			classes: words, predicted: func(k int) string { return words[k] }, label: func(k int) label.Label { return label.Label{Texts: []string{words[k]}} }, loss: true,
		},
		"names that nobody has told the order of": {
			predicted: func(k int) string { return words[k] }, label: func(k int) label.Label { return label.Label{Texts: []string{words[k]}} },
		},
		"classes that are counted from 1": {
			predicted: func(k int) string { return strconv.Itoa(k + 1) }, label: func(k int) label.Label { return label.Label{Values: []float64{float64(k + 1)}} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.classes = test.classes
			top := 0.0
			win, _ := w.judge(monitoring.Spec{}, 300, func(i int, rec *prediction.Record) label.Label {
				k := i % 3
				p := []float64{0.1, 0.1, 0.1}
				p[k] = 0.8
				top += 0.8 / 300
				rec.Task, rec.Predicted, rec.Probabilities, rec.Scores = prediction.Multiclass, []string{test.predicted(k)}, p, []float64{p[2]}
				if i < 30 { // a tenth is wrong
					k = (k + 1) % 3
				}
				return test.label(k)
			})
			p := win.Performance
			if p.Task != "multiclass" || p.Labelled != 1 || p.Unusable != 0 || names(p.Metrics, false) != all || names(p.Metrics, true) != "accuracy" {
				t.Fatalf("%+v", p)
			}
			near := func(name string, estimate bool, want float64) {
				t.Helper()
				if m := metricOf(win, name, estimate); m.Value == nil || math.Abs(*m.Value-want) > 1e-9 {
					t.Errorf("%s is %v, want %v", name, m.Value, want)
				}
			}
			near("accuracy", false, 0.9)
			near("macro_f1", false, 0.9)
			near("accuracy", true, top)
			if loss := metricOf(win, "log_loss", false); test.loss {
				near("log_loss", false, -(0.9*math.Log(0.8) + 0.1*math.Log(0.1)))
			} else if loss.Value != nil || loss.Note == "" {
				t.Errorf("%+v", loss)
			}
		})
	}
}

// A label that is none of a task changes the task of no window: it is counted, with its
// place, and what is left too few for is told of.
func TestLabelsThatTheTaskDoesNotHave(t *testing.T) {
	limit, low := 0.3, 0.5
	yes := label.Label{Values: []float64{1}}
	for name, test := range map[string]struct {
		task     prediction.Task
		spec     monitoring.PerformanceSpec
		classes  []string
		label    func(i int) label.Label
		unusable int64
		state    monitoring.State
		metrics  string
		says     string // of the performance
		why      string // of the state
	}{
		"one label of 2": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}, Metrics: []string{"brier"}},
			label: func(i int) label.Label { return label.Label{Values: []float64{float64(min(i/249, 1) * 2)}} }, unusable: 1, state: monitoring.Degraded, metrics: "brier",
			says: "1 of 250 labelled rows are unusable; first row 0 of prediction prd_",
		},
		"most of them": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}},
			label: func(i int) label.Label { return label.Label{Values: []float64{float64(i % 3)}} }, unusable: 83, state: monitoring.Unjudged,
			metrics: "auc log_loss brier accuracy precision recall f1 ece",
			why:     "brier: 167 of 250 labelled rows are usable, and 200 are required",
		},
		"texts of a binary model": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Metrics: []string{"accuracy"}}, label: func(i int) label.Label { return label.Label{Texts: []string{"yes"}} },
			unusable: 250, state: monitoring.Waiting, metrics: "accuracy", says: "the label is not 0, 1 or a class",
		},
		"texts whose classes are declared": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Metrics: []string{"accuracy"}}, classes: []string{"no", "yes"},
			label: func(i int) label.Label { return label.Label{Texts: []string{[]string{"no", "yes"}[i%2]}} }, state: monitoring.Waiting, metrics: "accuracy",
		},
		"one class only": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"auc": {Below: &low}}, Metrics: []string{"auc"}},
			label: func(i int) label.Label { return yes }, state: monitoring.Unjudged, metrics: "auc", why: "metrics with a limit could not be computed: auc: ",
		},
		"a limit of another task": {
			task: prediction.Regression, spec: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}, Metrics: []string{"mae"}},
			label: func(i int) label.Label { return yes }, state: monitoring.Unjudged, metrics: "mae", why: "brier: it is not a metric of task regression",
		},
		"a limit, and the task is not known": {
			spec:  monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"accuracy": {Below: &low}}},
			label: func(i int) label.Label { return yes }, state: monitoring.Unjudged, says: "neither the manifest nor the model sets", why: "accuracy: the task is unknown",
		},
		"nothing says what it is": {
			label: func(i int) label.Label { return yes }, state: monitoring.Waiting, says: "neither the manifest nor the model sets",
		},
		"the named metrics say it": {
			spec:  monitoring.PerformanceSpec{Metrics: []string{"rmse", "bias"}},
			label: func(i int) label.Label { return yes }, state: monitoring.Waiting, metrics: "rmse bias",
		},
		"the manifest says it": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Task: "regression", Metrics: []string{"bias"}},
			label: func(i int) label.Label { return yes }, state: monitoring.Waiting, metrics: "bias",
		},
		"no scores": {
			task: prediction.Binary, spec: monitoring.PerformanceSpec{Task: "regression", Metrics: []string{"bias"}},
			label: func(i int) label.Label { return label.Label{Values: []float64{math.MaxFloat64}} }, state: monitoring.Waiting, metrics: "bias",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.classes = test.classes
			w.failing = fault.New(fault.NotFound, "nothing is known") // the first window waits
			win, m := w.judge(monitoring.Spec{Performance: test.spec}, 250, func(i int, rec *prediction.Record) label.Label {
				rec.Task, rec.Scores = test.task, []float64{0.9 + float64(i)/10000}
				return test.label(i)
			})
			p := win.Performance
			if p.Unusable != test.unusable || names(p.Metrics, false) != test.metrics || !strings.Contains(p.Note, test.says) {
				t.Errorf("%+v", p)
			}
			if m.State != test.state || !strings.Contains(m.Reason, test.why) {
				t.Errorf("%+v", m.Status)
			}
			told, findings := w.findings()
			want := map[monitoring.State]string{monitoring.Unjudged: "monitor.unjudged", monitoring.Degraded: "monitor.degraded"}[test.state]
			if len(told) != min(len(want), 1) || len(told) == 1 && (!strings.HasPrefix(told[0], want) || findings[0].Kind != monitoring.Performing) {
				t.Errorf("told %v: %+v", told, findings)
			}
		})
	}
}

// A limit that could not be computed in one window lets nothing recover.
func TestNotComputedIsNoRecovery(t *testing.T) {
	w := newWorld(t)
	s := w.service(nil)
	limit := 0.3
	w.apply(s, monitoring.Spec{Performance: monitoring.PerformanceSpec{Alert: map[string]monitoring.Limit{"brier": {Above: &limit}}}})
	r := rand.New(rand.NewPCG(5, 5))
	day := func(d int, truth float64) {
		t.Helper()
		var labels []label.Label
		for i := range 250 {
			w.predict(r, date(d).Add(time.Duration(i)*time.Minute), 0, func(rec *prediction.Record) {
				rec.Scores = []float64{0.9}
				labels = append(labels, label.Label{ID: rec.ID, Values: []float64{truth}})
			})
		}
		if a, err := w.labels.Add(t.Context(), "nyc", "delay", labels); err != nil || a.Accepted != 250 {
			t.Fatal(a, err)
		}
		w.predict(r, date(d+1).Add(2*time.Hour), 0, nil)
		w.run(s)
	}
	day(0, 0) // wrong
	day(2, 7) // no labels of this task
	day(4, 1) // right
	var told []string
	all, findings := w.findings()
	for i, name := range all {
		if findings[i].Kind == monitoring.Performing {
			event, _, _ := strings.Cut(name, " ")
			told = append(told, event)
		}
	}
	if got := strings.Join(told, " "); got != "monitor.degraded monitor.unjudged monitor.recovered" {
		t.Error(got)
	}
}

// A column that requests do not have makes no segment: it is refused where the columns
// are known, and said where they are not.
func TestSegmentsOfAColumnThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	win, _ := w.judge(monitoring.Spec{Performance: monitoring.PerformanceSpec{Segments: []string{"emirate", "carrier", "temp", "weather__temp"}}}, 250, func(i int, rec *prediction.Record) label.Label {
		rec.Inputs[0].Numbers[0] = float64(i % 2)
		if i < 10 {
			rec.Keys = nil
		}
		return label.Label{Values: []float64{1}}
	})
	rows := map[string]int64{}
	for _, s := range win.Performance.Segments {
		rows[s.Column] += s.Rows
	}
	if rows["emirate"] != 0 || rows["carrier"] != 240 || rows["temp"] != 250 || rows["weather__temp"] != 250 || len(rows) != 3 {
		t.Error(rows)
	}
	if !strings.Contains(win.Performance.Note, "spec.performance.segments: no request has a column or key emirate") {
		t.Errorf("%q", win.Performance.Note)
	}
	w.columns = []string{"carrier", "weather:temp", "hour", "wind"}
	s := w.service(nil)
	for _, spec := range []monitoring.Spec{
		{Performance: monitoring.PerformanceSpec{Segments: []string{"emirate"}}},
		{Drift: monitoring.DriftSpec{Features: []string{"temp", "rain"}}},
	} {
		if _, _, err := s.Apply(t.Context(), "nyc", "delay", spec, false); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "weather:temp") {
			t.Error(err)
		}
	}
	w.apply(s, monitoring.Spec{Drift: monitoring.DriftSpec{Features: []string{"temp", "wind"}}, Performance: monitoring.PerformanceSpec{Segments: []string{"weather__temp", "carrier"}}})
	w.days(rand.New(rand.NewPCG(2, 2)), date(3), 3, 250, always(0))
	w.run(s)
	windows := w.windows(s)
	var got []string
	for _, f := range windows[len(windows)-1].Features {
		got = append(got, f.Name)
	}
	if strings.Join(got, " ") != "weather:temp wind" {
		t.Error(got)
	}
}
