package gauges

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/serving"
)

// Serving say how models answer, by version in memory: there are at most
// three of a deployment.
type Serving struct{ Measured func() []serving.Measured }

var (
	servingLabels   = []string{"project", "deployment", "version"}
	servingFailures = prometheus.NewDesc("falaj_serving_failures_total", "Number of failed requests, by kind of error.", append([]string{"reason"}, servingLabels...), nil)
	servingSeconds  = prometheus.NewDesc("falaj_serving_request_seconds", "Request latency, including feature lookup, queueing and failed requests.", servingLabels, nil)
	servingWaits    = prometheus.NewDesc("falaj_serving_queue_seconds", "Time successful requests waited for a batch and a CPU core.", servingLabels, nil)
	servingWaiting  = prometheus.NewDesc("falaj_serving_waiting_rows", "Number of rows waiting for the model.", servingLabels, nil)
	servingModel    = prometheus.NewDesc("falaj_serving_model_seconds_total", "Total inference time of the model.", servingLabels, nil)
	servingSizes    = prometheus.NewDesc("falaj_serving_batch_rows", "Rows per inference run, that is, the batch size.", servingLabels, nil)
)

// Describe implements prometheus.Collector.
func (g Serving) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{servingFailures, servingSeconds, servingWaits, servingWaiting, servingModel, servingSizes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g Serving) Collect(ch chan<- prometheus.Metric) {
	for _, m := range g.Measured() {
		labels := []string{m.Project, m.Deployment, strconv.FormatInt(m.Version, 10)}
		for kind, n := range m.Failures {
			ch <- prometheus.MustNewConstMetric(servingFailures, prometheus.CounterValue, float64(n), append([]string{kind.String()}, labels...)...)
		}
		var inModel float64
		var runs int64
		for _, b := range m.Batches {
			inModel += b.Infer.Time.Seconds()
			runs += b.Infer.Count
		}
		ch <- prometheus.MustNewConstMetric(servingModel, prometheus.CounterValue, inModel, labels...)
		ch <- prometheus.MustNewConstMetric(servingWaiting, prometheus.GaugeValue, float64(m.Waiting), labels...)
		histogram := func(d *prometheus.Desc, count int64, sum float64, below map[float64]uint64) {
			n := uint64(max(0, count))
			for bound, c := range below {
				below[bound] = min(c, n) // what was counted since the count was read
			}
			ch <- prometheus.MustNewConstHistogram(d, n, sum, below, labels...)
		}
		histogram(servingSeconds, m.Success.Count+m.Fail.Count, (m.Success.Time + m.Fail.Time).Seconds(), m.Latency)
		histogram(servingWaits, m.Queue.Count, m.Queue.Time.Seconds(), m.Waits)
		histogram(servingSizes, runs, float64(m.Inferences), m.Sizes)
	}
}
