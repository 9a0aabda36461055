package monitoring

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature/naming"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/monitoring/change"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Limits of a manifest.
const (
	maxMonitors = 1000 // of a project
	maxPanes    = 64   // panes of a sliding window
	maxRows     = 10_000_000
	maxNames    = 512 // features, segments or metrics named
	maxAlerts   = alert.MaxTargets
	minEvery    = time.Minute
	maxEvery    = 366 * 24 * time.Hour
	maxText     = 64 << 10
	minJudged   = 1
	manyPanes   = 64 // lateness in panes
	futureSlack = 5 * time.Minute
)

// Spec is what a Monitor manifest says. Empty fields have defaults.
type Spec struct {
	Deployment string     `json:"deployment,omitempty" doc:"Monitored deployment; default: the monitor's name"`
	Window     WindowSpec `json:"window,omitzero" doc:"Default one day"`
	Lateness   string     `json:"lateness,omitempty" doc:"How long a window accepts late records after its end, in event time; default 1h"`
	Baseline   string     `json:"baseline,omitempty" doc:"training (the served version's training set), dataset:NAME@VERSION, or window:first; default training"`
	// Prediction is declared: a column is no score because of what is in it.
	Prediction  string          `json:"prediction_column,omitempty" doc:"Column of the baseline's dataset with the model's scores, for deployments whose model Falaj cannot run over it; default the column prediction, if there is one"`
	Drift       DriftSpec       `json:"drift,omitzero" doc:"How inputs and scores are compared with the baseline"`
	Performance PerformanceSpec `json:"performance,omitzero" doc:"Performance metrics from labels"`
	Detectors   []string        `json:"detectors,omitempty" doc:"Stream detectors of the score: adwin, page_hinkley"`
	Alerts      []alert.Target  `json:"alerts,omitempty" doc:"Alert receivers"`
	Repeat      int             `json:"repeat,omitempty" doc:"Number of consecutive bad windows after which the alert is repeated; default 7; -1: never"`
	Retrain     *RetrainSpec    `json:"retrain,omitempty" doc:"Retraining on drift or degradation"`
}

// WindowSpec says how records become windows: by time or by rows.
type WindowSpec struct {
	Every string `json:"every,omitempty" doc:"Duration, such as 7d"`
	Rows  int64  `json:"rows,omitempty" doc:"Number of rows, instead of a duration"`
	Slide string `json:"slide,omitempty" doc:"Interval between windows, such as 1d or a number of rows; default: the length of the window"`
}

// DriftSpec says how inputs and scores are compared with the baseline.
type DriftSpec struct {
	Method     string   `json:"method,omitempty" doc:"Test for all columns, or auto: by type and size; default auto"`
	Alpha      float64  `json:"alpha,omitempty" doc:"Significance level of tests with a p-value, for all columns of a window together; default 0.01"`
	Threshold  float64  `json:"threshold,omitempty" doc:"Threshold of distances; default 0.1"`
	Correction string   `json:"correction,omitempty" doc:"none, bonferroni, holm or benjamini_hochberg; default holm"`
	Share      float64  `json:"share,omitempty" doc:"A window is drifted when this share of its features is drifted, or when the score is; default 0.3"`
	Features   []string `json:"features,omitempty" doc:"Monitor only these inputs; default all"`
	MinRows    int64    `json:"min_rows,omitempty" doc:"Minimum number of rows to evaluate a window; default 200"`

	Classifier *ClassifierSpec `json:"classifier,omitempty" doc:"Settings of falaj monitor classify"`
}

// ClassifierSpec says how the domain classifiers of a monitor are trained.
type ClassifierSpec struct {
	Environment string  `json:"environment,omitempty" doc:"An environment with scikit-learn and pyarrow"`
	AUC         float64 `json:"auc,omitempty" doc:"Drifted when the lower bound of the confidence interval of the area under the ROC curve is above this value; default 0.55"`
}

func (c *ClassifierSpec) withDefaults() ClassifierSpec {
	var s ClassifierSpec
	if c != nil {
		s = *c
	}
	def(&s.AUC, 0.55)
	return s
}

// PerformanceSpec says how answers are compared with labels.
type PerformanceSpec struct {
	Metrics  []string         `json:"metrics,omitempty" doc:"Metrics; default: all of the task"`
	Segments []string         `json:"segments,omitempty" doc:"Inputs or keys; the metrics are also reported for each of their values"`
	Alert    map[string]Limit `json:"alert,omitempty" doc:"Limits of metrics, by name"`
	// Labels of one outcome often come first, and say little about the others.
	MinLabelled float64 `json:"min_labelled,omitempty" doc:"Minimum share of a window's predictions with a label before its limits are evaluated, 0 to 1; default 0: min_rows suffices"`
	Threshold   float64 `json:"threshold,omitempty" doc:"Score threshold of the positive class; default 0.5"`
	Task        string  `json:"task,omitempty" doc:"regression, binary or multiclass; classification is binary or multiclass, depending on the predictions. Default: the deployment's spec.prediction.task, else the task of the model's outputs, else the task of the named metrics; without any there are no metrics"`
}

// Limit is what a metric may not pass.
type Limit struct {
	Above *float64 `json:"above,omitempty" doc:"Degraded when the metric is above"`
	Below *float64 `json:"below,omitempty" doc:"Degraded when the metric is below"`
}

// RetrainSpec is read by what reacts to findings; monitoring validates and keeps
// it.
type RetrainSpec struct {
	Job         string   `json:"job" doc:"Job to run again"`
	Data        string   `json:"data" doc:"Name of the job's input that receives the new training set"`
	TrainingSet string   `json:"training_set" doc:"Dataset of the new training set"`
	Service     string   `json:"service,omitempty" doc:"Feature service to join"`
	Spine       string   `json:"spine" doc:"SQL of the spine's rows, with {{from}} and {{to}}"`
	Timestamp   string   `json:"timestamp" doc:"Column of the spine"`
	Label       string   `json:"label,omitempty" doc:"Column of the spine"`
	Window      string   `json:"window" doc:"Time range before the end of the drifted window, such as 120d"`
	Cooldown    string   `json:"cooldown,omitempty" doc:"Minimum time between retrainings, in event time; default 30d"`
	On          []string `json:"on,omitempty" doc:"Triggers: drift, degraded; default both"`
}

// measures are the metrics that a manifest may name.
var measures = []string{
	"auc", "brier", "log_loss", "accuracy", "precision", "recall", "f1", "ece", "macro_f1", "mae", "rmse", "r2", "bias",
}

// WithDefaults fills what the manifest leaves out.
func (s Spec) WithDefaults(name string) Spec {
	def(&s.Deployment, name)
	if s.Window.Rows == 0 {
		def(&s.Window.Every, "1d")
		def(&s.Window.Slide, s.Window.Every)
	} else {
		def(&s.Window.Slide, strconv.FormatInt(s.Window.Rows, 10))
	}
	def(&s.Lateness, "1h")
	def(&s.Baseline, "training")
	def(&s.Drift.Method, "auto")
	def(&s.Drift.Alpha, 0.01)
	def(&s.Drift.Threshold, 0.1)
	def(&s.Drift.Correction, "holm")
	def(&s.Drift.Share, 0.3)
	def(&s.Drift.MinRows, 200)
	if s.Drift.Classifier != nil {
		c := s.Drift.Classifier.withDefaults()
		s.Drift.Classifier = &c
	}
	def(&s.Performance.Threshold, 0.5)
	def(&s.Repeat, 7)
	if s.Retrain != nil {
		r := *s.Retrain
		def(&r.Cooldown, "30d")
		if len(r.On) == 0 {
			r.On = []string{"drift", "degraded"}
		}
		s.Retrain = &r
	}
	return s
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate says what is wrong with a spec that has its defaults.
func (s Spec) Validate() error {
	return errors.Join(s.validWindow(), s.validBaseline(), s.validDrift(), s.validPerformance(), s.validAlerts(), s.Retrain.validate())
}

func (s Spec) validWindow() error {
	w := s.Window
	if w.Rows != 0 && w.Every != "" {
		return fault.New(fault.Invalid, "spec.window: set either every or rows, not both").WithHint("A window has a duration or a number of rows.")
	}
	size, slide, err := w.sizes()
	if err != nil {
		return err
	}
	if w.Rows != 0 {
		if size < 2 || size > maxRows {
			return fault.New(fault.Invalid, "spec.window.rows is %d, and must be 2 to %d", size, maxRows)
		}
	} else if size < minEvery.Microseconds() || size > maxEvery.Microseconds() {
		return fault.New(fault.Invalid, "spec.window.every is %q, and must be %s to 366d", w.Every, minEvery)
	}
	if slide < 1 || slide > size || size%slide != 0 || size/slide > maxPanes {
		return fault.New(fault.Invalid, "spec.window.slide is %q, and the window must be 1 to %d whole slides long", w.Slide, maxPanes)
	}
	late, err := resource.ParseDuration(s.Lateness)
	if err != nil {
		return fault.Wrap(err, "spec.lateness")
	}
	if w.Rows == 0 && late.Microseconds() > manyPanes*slide {
		return fault.New(fault.Invalid, "spec.lateness is %q, and must be at most %d times spec.window.slide", s.Lateness, manyPanes).
			WithHint("Reduce spec.lateness, or increase spec.window.slide: windows stay in memory until they close.")
	}
	return nil
}

// sizes are the window's length and slide: microseconds, or rows.
func (w WindowSpec) sizes() (size, slide int64, err error) {
	if w.Rows != 0 {
		slide, err = strconv.ParseInt(w.Slide, 10, 64)
		if err != nil {
			return 0, 0, fault.New(fault.Invalid, "spec.window.slide is %.40q, and must be a number of rows for a window by rows", w.Slide)
		}
		return w.Rows, slide, nil
	}
	every, err := resource.ParseDuration(w.Every)
	if err != nil {
		return 0, 0, fault.Wrap(err, "spec.window.every")
	}
	by, err := resource.ParseDuration(w.Slide)
	if err != nil {
		return 0, 0, fault.Wrap(err, "spec.window.slide")
	}
	return every.Microseconds(), by.Microseconds(), nil
}

func (s Spec) validBaseline() error {
	if len(s.Prediction) > 200 || s.Prediction != "" && s.Baseline == baselineFirst {
		return fault.New(fault.Invalid, "spec.prediction_column: %.80q is not a valid column name", s.Prediction).WithHint("Name a column of the baseline's dataset, with at most 200 bytes.")
	}
	ref, isDataset := strings.CutPrefix(s.Baseline, "dataset:")
	switch {
	case s.Baseline == baselineTraining, s.Baseline == baselineFirst:
	case isDataset && len(ref) <= 200 && strings.LastIndexByte(ref, '@') > 0: // the newest version would be another baseline with each import
	default:
		return fault.New(fault.Invalid, "spec.baseline: %.80q is not a valid baseline", s.Baseline).WithHint("Write training, dataset:NAME@VERSION or window:first.")
	}
	return nil
}

func (s Spec) validDrift() error {
	d := s.Drift
	switch {
	case !slices.Contains(change.Methods(), d.Method):
		return unknown("spec.drift.method", d.Method, change.Methods())
	case !slices.Contains(change.Corrections(), d.Correction):
		return unknown("spec.drift.correction", d.Correction, change.Corrections())
	case !(d.Alpha > 0 && d.Alpha < 1):
		return fault.New(fault.Invalid, "spec.drift.alpha is %g, and must be over 0 and under 1", d.Alpha)
	case !(d.Threshold > 0) || math.IsInf(d.Threshold, 0):
		return fault.New(fault.Invalid, "spec.drift.threshold is %g, and must be over 0", d.Threshold)
	case !(d.Share > 0 && d.Share <= 1):
		return fault.New(fault.Invalid, "spec.drift.share is %g, and must be over 0 and at most 1", d.Share)
	case d.MinRows < minJudged || d.MinRows > maxRows:
		return fault.New(fault.Invalid, "spec.drift.min_rows is %d, and must be %d to %d", d.MinRows, minJudged, maxRows)
	case len(d.Features) > maxNames:
		return fault.New(fault.Invalid, "spec.drift.features has %d names, over the limit of %d", len(d.Features), maxNames)
	case d.Classifier != nil && !(d.Classifier.AUC >= 0.5 && d.Classifier.AUC < 1):
		return fault.New(fault.Invalid, "spec.drift.classifier.auc is %g, and must be at least 0.5 and under 1", d.Classifier.AUC)
	case d.Classifier != nil && len(d.Classifier.Environment) > 200:
		return fault.New(fault.Invalid, "spec.drift.classifier.environment has %d bytes, over the limit of 200", len(d.Classifier.Environment))
	case s.Repeat < -1 || s.Repeat > 1_000_000:
		return fault.New(fault.Invalid, "spec.repeat is %d, and must be at least -1", s.Repeat).WithHint("Write a number of windows, or -1 for never.")
	}
	for _, name := range s.Detectors {
		if !slices.Contains(change.Detectors(), name) {
			return unknown("spec.detectors", name, change.Detectors())
		}
	}
	return nil
}

func (s Spec) validPerformance() error {
	p := s.Performance
	if len(p.Segments) > 10 {
		return fault.New(fault.Invalid, "spec.performance.segments has %d names, over the limit of 10", len(p.Segments))
	}
	if p.Task != "" && !slices.Contains(tasks, p.Task) {
		return unknown("spec.performance.task", p.Task, tasks)
	}
	if !(p.MinLabelled >= 0 && p.MinLabelled <= 1) {
		return fault.New(fault.Invalid, "spec.performance.min_labelled is %g, and must be from 0 to 1", p.MinLabelled)
	}
	if math.IsNaN(p.Threshold) || math.IsInf(p.Threshold, 0) {
		return fault.New(fault.Invalid, "spec.performance.threshold is %g, which is not a valid threshold", p.Threshold)
	}
	for _, m := range p.Metrics {
		if !slices.Contains(measures, m) {
			return unknown("spec.performance.metrics", m, measures)
		}
		if err := p.ofTask("metrics", m); err != nil {
			return err
		}
	}
	for _, m := range slices.Sorted(maps.Keys(p.Alert)) {
		l := p.Alert[m]
		if !slices.Contains(measures, m) {
			return unknown("spec.performance.alert", m, measures)
		}
		if l.Above == nil && l.Below == nil {
			return fault.New(fault.Invalid, "spec.performance.alert.%s: a limit is required", m).WithHint("Write above: or below:.")
		}
		if err := p.ofTask("alert", m); err != nil {
			return err
		}
	}
	return nil
}

// ofTask refuses a metric that the declared task does not have.
func (p PerformanceSpec) ofTask(field, metric string) error {
	var have []string
	switch p.Task {
	case "":
		return nil
	case classification:
		have = slices.Concat(metricsOf[binary], metricsOf[multiclass])
	default:
		have = metricsOf[p.Task]
	}
	if slices.Contains(have, metric) {
		return nil
	}
	return fault.New(fault.Invalid, "spec.performance.%s: %s is not a metric of task %s", field, metric, p.Task).WithHint("The metrics of the task are %s.", strings.Join(have, ", "))
}

// names refuses names of columns that the deployment does not have, where its columns are
// known. Error: fault.Invalid.
func (s Spec) names(columns []string) error {
	if len(columns) == 0 {
		return nil
	}
	for _, f := range []struct {
		field string
		names []string
	}{{"performance.segments", s.Performance.Segments}, {"drift.features", s.Drift.Features}} {
		for _, name := range f.names {
			at, err := naming.Find(columns, name)
			if err == nil && at < 0 {
				err = fault.New(fault.Invalid, "the deployment has no key or column %.80q", name).
					WithHint("Its keys and columns are %s.", strings.Join(columns[:min(len(columns), maxHinted)], ", "))
			}
			if err != nil {
				return fault.Wrap(err, "spec.%s", f.field)
			}
		}
	}
	return nil
}

// maxHinted bounds the names in a hint.
const maxHinted = 50

func (s Spec) validAlerts() error {
	if len(s.Alerts) > maxAlerts {
		return fault.New(fault.Invalid, "spec.alerts has %d entries, over the limit of %d", len(s.Alerts), maxAlerts)
	}
	for i, a := range s.Alerts {
		if err := a.Validate(); err != nil {
			return fault.Wrap(err, "spec.alerts[%d]", i)
		}
	}
	return nil
}

func (r *RetrainSpec) validate() error {
	if r == nil {
		return nil
	}
	for _, f := range []struct{ name, value string }{
		{"job", r.Job}, {"data", r.Data}, {"training_set", r.TrainingSet}, {"spine", r.Spine}, {"timestamp", r.Timestamp}, {"window", r.Window},
	} {
		if f.value == "" {
			return fault.New(fault.Invalid, "spec.retrain.%s is required", f.name)
		}
		if len(f.value) > maxText {
			return fault.New(fault.TooLarge, "spec.retrain.%s has %d bytes, over the limit of %d", f.name, len(f.value), maxText)
		}
	}
	for _, f := range []struct{ name, value string }{{"window", r.Window}, {"cooldown", r.Cooldown}} {
		d, err := resource.ParseDuration(f.value)
		if err != nil {
			return fault.Wrap(err, "spec.retrain.%s", f.name)
		}
		if f.name == "window" && d == 0 {
			return fault.New(fault.Invalid, "spec.retrain.window is 0")
		}
	}
	for _, mark := range []string{"{{from}}", "{{to}}"} {
		if !strings.Contains(r.Spine, mark) {
			return fault.New(fault.Invalid, "spec.retrain.spine does not use %s", mark).
				WithHint("Use both markers to select the rows for training, e.g. WHERE departs >= {{from}} AND departs < {{to}}.")
		}
	}
	for _, on := range r.On {
		if on != "drift" && on != "degraded" {
			return unknown("spec.retrain.on", on, []string{"drift", "degraded"})
		}
	}
	return nil
}

func unknown[T ~string](field, got string, known []T) error {
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = string(k)
	}
	return fault.New(fault.Invalid, "%s: %.40q is not a known value", field, got).WithHint("The values are %s.", strings.Join(words, ", "))
}

// Wants reports whether a finding of a kind begins a training job.
func (r *RetrainSpec) Wants(k Kind) bool {
	return r != nil && (k == Drift && slices.Contains(r.On, "drift") || k == Performing && slices.Contains(r.On, "degraded"))
}

// Span is the rows' stretch of time for a finding at a time.
func (r *RetrainSpec) Span(at time.Time) (from, to time.Time) {
	window, _ := resource.ParseDuration(r.Window) // validated
	return at.Add(-window).UTC(), at.UTC()
}

// SQL is the spine between two times.
func (r *RetrainSpec) SQL(from, to time.Time) string {
	literal := func(t time.Time) string {
		return "TIMESTAMPTZ '" + t.UTC().Format("2006-01-02 15:04:05.999999+00") + "'"
	}
	return strings.NewReplacer("{{from}}", literal(from), "{{to}}", literal(to)).Replace(r.Spine)
}
