package gauges

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
)

func TestServingGauges(t *testing.T) {
	g := Serving{func() []serving.Measured {
		return []serving.Measured{{
			Project: "nyc", Deployment: "delay",
			Statistics: serving.Statistics{
				Version: 3, Inferences: 5, Executions: 2,
				Success: serving.Spent{Count: 3, Time: 2 * time.Second}, Fail: serving.Spent{Count: 1, Time: time.Second}, Queue: serving.Spent{Count: 3, Time: time.Second},
				Batches: []serving.BatchStatistics{{Size: 1, Infer: serving.Spent{Count: 1, Time: time.Second}}, {Size: 4, Infer: serving.Spent{Count: 1, Time: time.Second}}},
			},
			Failures: map[fault.Kind]int64{fault.Unavailable: 1}, Latency: map[float64]uint64{0.5: 1, 2: 9}, Waits: map[float64]uint64{1: 3}, Sizes: map[float64]uint64{1: 1, 4: 2},
		}}
	}}
	page := metricsOf(t, g)
	for _, line := range []string{
		`falaj_serving_batch_rows_bucket{deployment="delay",project="nyc",version="3",le="1"} 1`,
		`falaj_serving_batch_rows_bucket{deployment="delay",project="nyc",version="3",le="4"} 2`,
		`falaj_serving_batch_rows_bucket{deployment="delay",project="nyc",version="3",le="+Inf"} 2`,
		`falaj_serving_batch_rows_sum{deployment="delay",project="nyc",version="3"} 5`,
		`falaj_serving_batch_rows_count{deployment="delay",project="nyc",version="3"} 2`,
		`falaj_serving_failures_total{deployment="delay",project="nyc",reason="unavailable",version="3"} 1`,
		`falaj_serving_model_seconds_total{deployment="delay",project="nyc",version="3"} 2`,
		`falaj_serving_request_seconds_bucket{deployment="delay",project="nyc",version="3",le="0.5"} 1`,
		`falaj_serving_request_seconds_bucket{deployment="delay",project="nyc",version="3",le="2"} 4`,
		`falaj_serving_request_seconds_bucket{deployment="delay",project="nyc",version="3",le="+Inf"} 4`,
		`falaj_serving_request_seconds_sum{deployment="delay",project="nyc",version="3"} 3`,
		`falaj_serving_request_seconds_count{deployment="delay",project="nyc",version="3"} 4`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, page)
		}
	}
}

// metricsOf is what a scrape of a collector says.
func metricsOf(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestScalingGauges(t *testing.T) {
	page := metricsOf(t, Scaling{func() ([]serving.Scaling, []serving.ColdStarts) {
		return []serving.Scaling{{Project: "nyc", Deployment: "delay", Version: 3, Wanted: 4, Running: 2}},
			[]serving.ColdStarts{{Project: "nyc", Deployment: "delay", Waiting: 7, Loads: serving.Spent{Count: 2, Time: 3 * time.Second}}}
	}})
	for _, line := range []string{
		`falaj_serving_replicas_wanted{deployment="delay",project="nyc",version="3"} 4`,
		`falaj_serving_replicas_running{deployment="delay",project="nyc",version="3"} 2`,
		`falaj_serving_held_requests{deployment="delay",project="nyc"} 7`,
		`falaj_serving_cold_starts_total{deployment="delay",project="nyc"} 2`,
		`falaj_serving_cold_start_seconds_total{deployment="delay",project="nyc"} 3`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("there is no %s in\n%s", line, page)
		}
	}
}
