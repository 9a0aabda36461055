package gauges

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/membudget"
)

// Requests are the use of the budget, and its size.
func Requests(b *membudget.Budget) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "falaj_request_memory_bytes", Help: "Memory reserved for request bodies, decoded requests and responses.",
		ConstLabels: prometheus.Labels{"limit": strconv.FormatInt(b.Most(), 10)},
	}, func() float64 { return float64(b.Used()) })
}
