package monitoring

import "github.com/falaj-ml/falaj/internal/monitoring/sketch"

const (
	classification = "classification"
	regression     = "regression"
)

// measure computes the metrics of labelled rows.
func measure(PerformanceSpec, string, []labelledRow) []Metric { return []Metric{} }

// estimate computes what the model's own confidence says of its performance.
func estimate(*sketch.Column) []Metric { return nil }
