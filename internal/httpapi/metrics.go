package httpapi

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are Prometheus series by route pattern, never by path: a pattern has
// no identifiers in it, so their number is bounded.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	// Series are found by their labels once: it takes longer than to add to them.
	mu    sync.Mutex
	found atomic.Pointer[map[outcome]series] // replaced as a whole, under mu
}

// outcome is what requests have in common that are counted together.
type outcome struct {
	route  string
	status int
}

// clientGone is the status under which a request is counted whose client went away
// before a failure could be answered: no fault of the server, and no answer that anybody
// got. nginx writes the same number.
const clientGone = 499

// series are those that a request is counted in.
type series struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "falaj_http_requests_total", Help: "Number of HTTP requests by route and status; 499 means that the client disconnected before the response.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "falaj_http_request_seconds", Help: "Latency of HTTP requests by route.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"route"}),
	}
	m.found.Store(&map[outcome]series{})
	reg.MustRegister(m.requests, m.seconds)
	return m
}

// Measures are the metrics of the edge, for their description.
func Measures() []prometheus.Collector {
	m := newMetrics(prometheus.NewRegistry())
	return []prometheus.Collector{m.requests, m.seconds}
}

// of finds the series of an outcome.
func (m *metrics) of(o outcome) series {
	if s, ok := (*m.found.Load())[o]; ok {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := series{m.requests.WithLabelValues(o.route, strconv.Itoa(o.status)), m.seconds.WithLabelValues(o.route)}
	found := maps.Clone(*m.found.Load())
	found[o] = s
	m.found.Store(&found)
	return s
}

type statusWriter struct {
	http.ResponseWriter
	status int
	route  string
}

// WriteHeader writes the status. Every answer that asks to wait goes through it, and says
// for how long.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
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
			status := sw.status
			if status >= http.StatusInternalServerError && errors.Is(r.Context().Err(), context.Canceled) {
				status = clientGone
			}
			to := s.metrics.of(outcome{sw.route, status})
			to.requests.Inc()
			to.seconds.Observe(time.Since(start).Seconds())
		}()
		next.ServeHTTP(sw, r)
	})
}
