package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
)

// remoteGauges say how the models are that other servers run.
type remoteGauges struct{ remotes *remote.Runtime }

var (
	remoteBreaker  = prometheus.NewDesc("falaj_serving_remote_breaker", "State of the circuit breaker of a remote's model: 0 closed, requests are sent; 1 half-open, one request at a time; 2 open, no requests are sent.", []string{"remote", "model", "version"}, nil)
	remoteFailures = prometheus.NewDesc("falaj_serving_remote_failures_total", "Number of failed requests and health checks of a remote, by reason.", []string{"remote", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (g remoteGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- remoteBreaker
	ch <- remoteFailures
}

// Collect implements prometheus.Collector.
func (g remoteGauges) Collect(ch chan<- prometheus.Metric) {
	for _, m := range g.remotes.Measured() {
		ch <- prometheus.MustNewConstMetric(remoteBreaker, prometheus.GaugeValue, float64(m.State), m.Server, m.Model, m.Version)
	}
	for server, reasons := range g.remotes.Failures() {
		for why, n := range reasons {
			ch <- prometheus.MustNewConstMetric(remoteFailures, prometheus.CounterValue, float64(n), server, string(why))
		}
	}
}
