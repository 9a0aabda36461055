package httpapi

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func edge(t *testing.T, d Domains) *Server {
	t.Helper()
	return New(Options{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Ready: func() error { return nil }, Console: http.NotFoundHandler()}, d)
}

// TestOpenAPI: the description can be made, and every route is in it.
func TestOpenAPI(t *testing.T) {
	s := edge(t, Domains{})
	if _, err := s.OpenAPI(); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Routes()); n < 100 {
		t.Errorf("%d routes", n)
	}
}
