package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/blob/quota"
)

// storedGauges are the metrics of what projects store.
type storedGauges struct{ accounts *quota.Accounts }

var (
	storedBytes   = prometheus.NewDesc("falaj_project_stored_bytes", "Bytes stored by the project, by kind. Absent until the first count after a server start, which a write, a delete or a read of the usage starts.", []string{"project", "kind"}, nil)
	storedObjects = prometheus.NewDesc("falaj_project_stored_objects", "Files that the project stores, by kind; absent as falaj_project_stored_bytes is.", []string{"project", "kind"}, nil)
)

// Describe implements prometheus.Collector.
func (storedGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- storedBytes
	ch <- storedObjects
}

// Collect implements prometheus.Collector.
func (g storedGauges) Collect(ch chan<- prometheus.Metric) {
	g.accounts.Each(func(project string, kinds []quota.Used) {
		for _, k := range kinds {
			ch <- prometheus.MustNewConstMetric(storedBytes, prometheus.GaugeValue, float64(k.Bytes), project, k.Kind)
			ch <- prometheus.MustNewConstMetric(storedObjects, prometheus.GaugeValue, float64(k.Objects), project, k.Kind)
		}
	})
}
