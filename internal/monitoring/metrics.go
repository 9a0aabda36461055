package monitoring

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/monitoring/label"
	"github.com/falaj-ml/falaj/internal/monitoring/performance"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// The tasks. Classification is declared by manifests only: it is binary or multiclass, as
// the answers are.
const (
	regression     = string(prediction.Regression)
	binary         = string(prediction.Binary)
	multiclass     = string(prediction.Multiclass)
	classification = "classification"
)

var (
	tasks     = []string{regression, binary, multiclass, classification}
	metricsOf = map[string][]string{
		regression: {performance.MAE, performance.RMSE, performance.R2, performance.Bias},
		binary: {
			performance.AUC, performance.Brier, performance.LogLoss, performance.Accuracy, performance.Precision, performance.Recall, performance.F1,
			performance.ECE,
		},
		multiclass: {performance.Accuracy, performance.MacroF1, performance.LogLoss},
	}
)

// taskOf is what the scores are judged as: what the manifest declares; else what the
// answers say, by the deployment's manifest or the model's outputs; else that of which
// the named metrics are, if it is one. Empty is not known: neither scores nor labels are
// looked at to guess it.
func taskOf(spec PerformanceSpec, answers string) string {
	switch {
	case spec.Task == classification && answers == multiclass:
		return multiclass
	case spec.Task == classification:
		return binary
	case spec.Task != "":
		return spec.Task
	case answers != "":
		return answers
	}
	named := slices.Clone(spec.Metrics)
	for name := range spec.Alert {
		named = append(named, name)
	}
	if len(named) == 0 {
		return ""
	}
	fits := ""
	for task, have := range metricsOf {
		if slices.ContainsFunc(named, func(m string) bool { return !slices.Contains(have, m) }) {
			continue
		}
		if fits != "" {
			return ""
		}
		fits = task
	}
	return fits
}

// unknownTask is what is said of labels whose task is not known.
const unknownTask = "there are no metrics: neither the manifest nor the model sets the task, so scores may be numbers or probabilities. " +
	"Set spec.prediction.task of the Deployment, or spec.performance.task of the Monitor"

// odd is why the metrics of a task cannot take a row; empty when they can. It says
// nothing of the values.
func (r *labelledRow) odd(task string) string {
	finite := func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
	switch task {
	case multiclass:
		switch {
		case r.Predicted == "":
			return "the prediction has no class"
		case r.Class == "":
			return "the label is not a class"
		}
	case binary:
		switch {
		case !(r.Score >= 0 && r.Score <= 1):
			return "the score is not a probability"
		case r.Label != 0 && r.Label != 1:
			return "the label is not 0, 1 or a class of the deployment"
		}
	case regression:
		switch {
		case !finite(r.Score):
			return "the score is not a number"
		case !finite(r.Label):
			return "the label is not a number"
		}
	}
	return ""
}

// measured is what the metrics of labelled rows say.
type measured struct {
	task    string
	metrics []Metric
	usable  []labelledRow
	odd     int
	why     string // of the first odd row, with its place
}

// measure computes the metrics of labelled rows that the manifest wants.
func measure(spec PerformanceSpec, task string, rows []labelledRow) measured {
	m := measured{task: task, metrics: []Metric{}}
	for i := range rows {
		r := &rows[i]
		why := r.odd(task)
		if why == "" {
			m.usable = append(m.usable, *r)
			continue
		}
		if m.odd++; m.why == "" {
			if m.why = why; r.ID != "" {
				m.why = fmt.Sprintf("row %d of prediction %s: %s", r.Row, r.ID, why)
			}
		}
	}
	if task != "" {
		m.metrics = shown(spec, compute(spec, task, m.usable))
	}
	return m
}

func compute(spec PerformanceSpec, task string, rows []labelledRow) []performance.Metric {
	switch task {
	case regression:
		var r performance.Regression
		for _, row := range rows {
			r.Add(row.Score, row.Label)
		}
		return r.Metrics()
	case multiclass:
		var c performance.Multiclass
		for _, row := range rows {
			c.Add(row.Predicted, row.Class, row.P)
		}
		return c.Metrics()
	default:
		c := performance.NewClassification(spec.Threshold)
		for _, row := range rows {
			c.Add(row.Score, row.Label == 1)
		}
		return c.Metrics()
	}
}

// estimate computes what the metrics probably are, by the scores' own confidence; nil
// when nothing says that the scores are probabilities.
func estimate(spec PerformanceSpec, all *pane) []Metric {
	switch taskOf(spec, all.Task) {
	case binary:
		if all.Score.Count() == 0 || all.Score.Min() < 0 || all.Score.Max() > 1 {
			return nil
		}
		e := performance.NewEstimate(spec.Threshold)
		sample, _ := all.Score.Sample()
		for _, v := range sample {
			e.Add(v)
		}
		return shown(spec, e.Metrics())
	case multiclass:
		if all.Top == nil || all.Top.Count() == 0 || all.Top.Min() < 0 || all.Top.Max() > 1 {
			return nil
		}
		return shown(spec, confidence(all.Top))
	default:
		return nil
	}
}

func confidence(top *sketch.Column) []performance.Metric {
	var e performance.Confidence
	sample, _ := top.Sample()
	for _, v := range sample {
		e.Add(v)
	}
	return e.Metrics()
}

// shown are the metrics that the manifest names, or has limits for; all when it
// names none.
func shown(spec PerformanceSpec, metrics []performance.Metric) []Metric {
	out := make([]Metric, 0, len(metrics))
	for _, m := range metrics {
		_, limited := spec.Alert[m.Name]
		if len(spec.Metrics) > 0 && !limited && !slices.Contains(spec.Metrics, m.Name) {
			continue
		}
		out = append(out, Metric{Name: m.Name, Value: number(m.Value), Low: number(m.Low), High: number(m.High), Estimate: m.Estimate, Note: m.Note})
	}
	return out
}

// rowOf is a labelled row of a prediction, as its task takes it; ok is false of a row
// that has no label or was erased.
func rowOf(spec PerformanceSpec, watched Watched, p label.Pair, i int) (row labelledRow, ok bool) {
	if !p.Labelled(i) {
		return row, false
	}
	r := p.Record
	row = labelledRow{At: r.At.UnixMicro(), Score: math.NaN(), Label: math.NaN(), P: math.NaN(), Task: taskOf(spec, string(r.Task))}
	n := max(len(p.Labels), len(p.Texts))
	if len(r.Scores) == n {
		row.Score = r.Scores[i]
	}
	if len(r.Predicted) == n {
		row.Predicted = r.Predicted[i]
	}
	if r.Erased && math.IsNaN(row.Score) && strings.Trim(row.Predicted, "\x00") == "" {
		return row, false
	}
	var text string
	if p.Texts != nil {
		text = p.Texts[i]
	} else {
		row.Label, text = p.Labels[i], label.ClassOf(p.Labels[i])
	}
	names := watched.Classes
	switch {
	case row.Task == multiclass:
		row.Class = text
		if width := len(r.Probabilities) / max(r.Rows, 1); width > 0 {
			row.P = probabilityOf(names, r.Probabilities[i*width:(i+1)*width], row.Predicted, text)
		}
	case row.Task == binary && len(names) == 2:
		at := slices.Index(names, text)
		switch {
		case at < 0:
			row.Label = math.NaN()
		case at == watched.Positive:
			row.Label = 1
		default:
			row.Label = 0
		}
	}
	if row.odd(row.Task) != "" {
		row.ID, row.Row = r.ID, i
	}
	return row, true
}

// probabilityOf is what the model gave a class; NaN where it is not known which column is
// the class's. Without names the columns are the classes 0, 1, 2 and so on, unless the
// model's own word for the most probable one is another.
func probabilityOf(names []string, p []float64, predicted, class string) float64 {
	at := slices.Index(names, class)
	if len(names) > 0 {
		if at < 0 || len(names) != len(p) {
			return math.NaN()
		}
		return p[at]
	}
	place := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n >= len(p) || strconv.Itoa(n) != text {
			return -1
		}
		return n
	}
	said := place(predicted)
	if at = place(class); at < 0 || said < 0 || p[said] < slices.Max(p) {
		return math.NaN()
	}
	return p[at]
}
