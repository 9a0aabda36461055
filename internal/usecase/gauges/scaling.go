package gauges

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/serving"
)

// Scaling say how deployments scale whose manifests say how.
type Scaling struct {
	Scaled func() ([]serving.Scaling, []serving.ColdStarts)
}

var (
	scalingWanted  = prometheus.NewDesc("falaj_serving_replicas_wanted", "Desired number of replicas of a version; 0 if it is scaled to zero.", servingLabels, nil)
	scalingRunning = prometheus.NewDesc("falaj_serving_replicas_running", "Number of ready replicas of a version.", servingLabels, nil)
	scalingHeld    = prometheus.NewDesc("falaj_serving_held_requests", "Number of requests in the activation queue, waiting for a cold start.", servingLabels[:2], nil)
	scalingColds   = prometheus.NewDesc("falaj_serving_cold_starts_total", "Number of cold starts.", servingLabels[:2], nil)
	scalingSeconds = prometheus.NewDesc("falaj_serving_cold_start_seconds_total", "Total duration of cold starts.", servingLabels[:2], nil)
)

// Describe implements prometheus.Collector.
func (g Scaling) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{scalingWanted, scalingRunning, scalingHeld, scalingColds, scalingSeconds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g Scaling) Collect(ch chan<- prometheus.Metric) {
	versions, holds := g.Scaled()
	for _, v := range versions {
		labels := []string{v.Project, v.Deployment, strconv.FormatInt(v.Version, 10)}
		ch <- prometheus.MustNewConstMetric(scalingWanted, prometheus.GaugeValue, float64(v.Wanted), labels...)
		ch <- prometheus.MustNewConstMetric(scalingRunning, prometheus.GaugeValue, float64(v.Running), labels...)
	}
	for _, h := range holds {
		labels := []string{h.Project, h.Deployment}
		ch <- prometheus.MustNewConstMetric(scalingHeld, prometheus.GaugeValue, float64(h.Waiting), labels...)
		ch <- prometheus.MustNewConstMetric(scalingColds, prometheus.CounterValue, float64(h.Loads.Count), labels...)
		ch <- prometheus.MustNewConstMetric(scalingSeconds, prometheus.CounterValue, h.Loads.Time.Seconds(), labels...)
	}
}
