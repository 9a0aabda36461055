package gauges

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
)

// Features are the last comparisons of online rows with their sources, as many of
// each as view versions that are online, and what was done to keep the store tidy.
type Features struct {
	Verification *feature.Verification
	Rows         *feature.OnlineRows
}

var (
	featureCompared   = prometheus.NewDesc("falaj_feature_compared_values", "Number of online values of a view compared with their source in the last check.", []string{"project", "view"}, nil)
	featureMismatches = prometheus.NewDesc("falaj_feature_mismatched_values", "Number of compared online values that differ from their source.", []string{"project", "view"}, nil)
	featureMoved      = prometheus.NewDesc("falaj_feature_moved_rows_total", "Number of versions of online rows moved to another subkey by compaction.", nil, nil)
	featureSwept      = prometheus.NewDesc("falaj_feature_swept_rows_total", "Number of expired versions of online rows removed.", nil, nil)
	featureDropped    = prometheus.NewDesc("falaj_feature_dropped_tables_total", "Number of tables of online rows dropped: those of a replaced generation, or orphans without a record.", []string{"of"}, nil)
	featureCheckedAt  = prometheus.NewDesc("falaj_feature_last_check_timestamp_seconds", "Time of the last check of a view.", []string{"project", "view"}, nil)
)

// Describe implements prometheus.Collector.
func (g Features) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{featureCompared, featureMismatches, featureCheckedAt, featureMoved, featureSwept, featureDropped} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g Features) Collect(out chan<- prometheus.Metric) {
	for _, c := range g.Verification.Checks() {
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, string(c.Project), c.View)
		}
		gauge(featureCompared, float64(c.Values))
		gauge(featureMismatches, float64(c.Mismatches))
		if !c.Compared.IsZero() {
			gauge(featureCheckedAt, float64(c.Compared.Unix()))
		}
	}
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	t := g.Rows.CompactionStats()
	count(featureMoved, t.Moved)
	count(featureSwept, t.Swept)
	count(featureDropped, t.Dropped, "generation")
	count(featureDropped, t.Orphans, "orphan")
}
