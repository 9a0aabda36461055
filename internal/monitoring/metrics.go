package monitoring

import (
	"slices"

	"github.com/falaj-ml/falaj/internal/monitoring/performance"
	"github.com/falaj-ml/falaj/internal/sketch"
)

// The tasks.
const (
	classification = "classification"
	regression     = "regression"
)

// measure computes the metrics of labelled rows that the manifest wants.
func measure(spec PerformanceSpec, task string, rows []labelledRow) []Metric {
	if task == regression {
		var r performance.Regression
		for _, row := range rows {
			r.Add(row.Score, row.Label)
		}
		return shown(spec, r.Metrics())
	}
	c := performance.NewClassification(spec.Threshold)
	for _, row := range rows {
		c.Add(row.Score, row.Label >= 0.5)
	}
	return shown(spec, c.Metrics())
}

// estimate computes what the metrics probably are, by the scores' own confidence;
// nil when the scores are no probabilities of a yes.
func estimate(spec PerformanceSpec, score *sketch.Column) []Metric {
	if spec.Task == regression || score.Count() == 0 || score.Min() < 0 || score.Max() > 1 {
		return nil
	}
	e := performance.NewEstimate(spec.Threshold)
	sample, _ := score.Sample()
	for _, v := range sample {
		e.Add(v)
	}
	return shown(spec, e.Metrics())
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
