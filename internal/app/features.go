package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
)

// featureGauges are the last comparisons of online rows with their sources. There
// are as many of each as view versions that are online.
type featureGauges struct{ checks func() []feature.Check }

var (
	featureCompared   = prometheus.NewDesc("falaj_feature_compared_values", "Online values of a view that were compared with what they were made from, in the last check.", []string{"project", "view"}, nil)
	featureMismatches = prometheus.NewDesc("falaj_feature_mismatched_values", "Of these, values that differ.", []string{"project", "view"}, nil)
	featureCheckedAt  = prometheus.NewDesc("falaj_feature_last_check_timestamp_seconds", "When a view was compared last.", []string{"project", "view"}, nil)
)

// Describe implements prometheus.Collector.
func (g featureGauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{featureCompared, featureMismatches, featureCheckedAt} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g featureGauges) Collect(out chan<- prometheus.Metric) {
	for _, c := range g.checks() {
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, string(c.Project), c.View)
		}
		gauge(featureCompared, float64(c.Values))
		gauge(featureMismatches, float64(c.Mismatches))
		if !c.Compared.IsZero() {
			gauge(featureCheckedAt, float64(c.Compared.Unix()))
		}
	}
}
