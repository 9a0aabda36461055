package remote

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	breakerState   = prometheus.NewDesc("falaj_serving_remote_breaker", "State of the circuit breaker of a remote's model: 0 closed, requests are sent; 1 half-open, one request at a time; 2 open, no requests are sent.", []string{"remote", "model", "version"}, nil)
	failedRequests = prometheus.NewDesc("falaj_serving_remote_failures_total", "Number of failed requests and health checks of a remote, by reason.", []string{"remote", "reason"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Runtime) Describe(ch chan<- *prometheus.Desc) {
	ch <- breakerState
	ch <- failedRequests
}

// Collect implements prometheus.Collector.
func (r *Runtime) Collect(ch chan<- prometheus.Metric) {
	for _, m := range r.Measured() {
		ch <- prometheus.MustNewConstMetric(breakerState, prometheus.GaugeValue, float64(m.State), m.Server, m.Model, m.Version)
	}
	for server, reasons := range r.Failures() {
		for why, n := range reasons {
			ch <- prometheus.MustNewConstMetric(failedRequests, prometheus.CounterValue, float64(n), server, string(why))
		}
	}
}
