package gauges

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/feature"
)

// Streams say how the streams go that this process follows.
type Streams struct{ Streams *feature.Streams }

var (
	streamLabels  = []string{"project", "dataset"}
	streamEvents  = prometheus.NewDesc("falaj_stream_events_total", "Number of events accepted by the stream.", streamLabels, nil)
	streamBytes   = prometheus.NewDesc("falaj_stream_log_bytes", "Size of the events not yet in the online store or the dataset.", streamLabels, nil)
	streamWaiting = prometheus.NewDesc("falaj_stream_waiting_records", "Number of pushes not yet in the online store, for the view with the largest lag.", streamLabels, nil)
	streamUncut   = prometheus.NewDesc("falaj_stream_uncut_records", "Number of pushes not yet in a version of the dataset.", streamLabels, nil)
	streamStuck   = prometheus.NewDesc("falaj_stream_stuck", "1 if the stream is stuck, 0 otherwise; falaj feature stream shows the reason.", streamLabels, nil)
)

// Describe implements prometheus.Collector.
func (g Streams) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{streamEvents, streamBytes, streamWaiting, streamUncut, streamStuck} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g Streams) Collect(ch chan<- prometheus.Metric) {
	for _, s := range g.Streams.Gauges() {
		stuck := 0.0
		if s.Stuck {
			stuck = 1
		}
		gauge := func(d *prometheus.Desc, x float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, string(s.Project), s.Dataset)
		}
		ch <- prometheus.MustNewConstMetric(streamEvents, prometheus.CounterValue, float64(s.Events), string(s.Project), s.Dataset)
		gauge(streamBytes, float64(s.Bytes))
		gauge(streamWaiting, float64(s.Waiting))
		gauge(streamUncut, float64(s.Head-s.SnapshotSeq))
		gauge(streamStuck, stuck)
	}
}
