package gauges

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// Predictions say how the prediction log goes.
type Predictions struct{ Log *prediction.Log }

var (
	predictionsKept = prometheus.NewDesc("falaj_predictions_logged_total", "Number of predictions written to the log since the server started.", nil, nil)
	predictionsLost = prometheus.NewDesc("falaj_predictions_lost_total", "Number of predictions that could not be written to the log since the server started.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g Predictions) Describe(ch chan<- *prometheus.Desc) {
	ch <- predictionsKept
	ch <- predictionsLost
}

// Collect implements prometheus.Collector.
func (g Predictions) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(predictionsKept, prometheus.CounterValue, float64(g.Log.Appended()))
	ch <- prometheus.MustNewConstMetric(predictionsLost, prometheus.CounterValue, float64(g.Log.Lost()))
}
