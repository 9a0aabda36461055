package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are Prometheus series by route pattern, never by path: a pattern has
// no identifiers in it, so their number is bounded.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "falaj_http_requests_total", Help: "HTTP requests by route and status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "falaj_http_request_seconds", Help: "Time to answer by route.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"route"}),
	}
	reg.MustRegister(m.requests, m.seconds)
	return m
}

type statusWriter struct {
	http.ResponseWriter
	status int
	route  string
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (s *Server) measured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		start := time.Now()
		defer func() { // also of an answer that is broken off
			if sw.route == "" {
				sw.route = "none"
			}
			s.metrics.requests.WithLabelValues(sw.route, strconv.Itoa(sw.status)).Inc()
			s.metrics.seconds.WithLabelValues(sw.route).Observe(time.Since(start).Seconds())
		}()
		next.ServeHTTP(sw, r)
	})
}
