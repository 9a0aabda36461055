package gauges

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/share"
)

// Shares say how much of the shared resources is used, by the name of the limit:
// names are constants of the code.
type Shares struct{}

var (
	shareSlots   = prometheus.NewDesc("falaj_share_slots", "Capacity of a shared resource; 0 for rates and counts.", []string{"limit"}, nil)
	shareHeld    = prometheus.NewDesc("falaj_share_used", "Amount of a shared resource in use.", []string{"limit"}, nil)
	shareWaiting = prometheus.NewDesc("falaj_share_waiting", "Number of requests waiting for a shared resource.", []string{"limit"}, nil)
	shareGranted = prometheus.NewDesc("falaj_share_granted_total", "Number of grants of a shared resource.", []string{"limit"}, nil)
	shareRefused = prometheus.NewDesc("falaj_share_refused_total", "Number of refusals because a share was exhausted; for connections, including those closed in favour of new ones.", []string{"limit"}, nil)
)

// Describe implements prometheus.Collector.
func (Shares) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{shareSlots, shareHeld, shareWaiting, shareGranted, shareRefused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (Shares) Collect(ch chan<- prometheus.Metric) {
	for _, u := range share.Measured() {
		for _, m := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value int64
		}{
			{shareSlots, prometheus.GaugeValue, u.Slots},
			{shareHeld, prometheus.GaugeValue, u.Held},
			{shareWaiting, prometheus.GaugeValue, u.Waiting},
			{shareGranted, prometheus.CounterValue, u.Granted},
			{shareRefused, prometheus.CounterValue, u.Refused},
		} {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.value), u.Name)
		}
	}
}
