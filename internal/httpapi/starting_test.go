package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestStarting: a server that starts lives, is not ready, says what it is at in the form of
// each protocol, and when to ask again.
func TestStarting(t *testing.T) {
	var s Starting
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return w
	}
	if w := ask("/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "the server is starting\n" {
		t.Errorf("/readyz: %d %s", w.Code, w.Body)
	}
	s.At("upgrading the database, 1 of 2 steps done")
	for path, form := range map[string]string{
		"/readyz": "text/plain; charset=utf-8", "/api/v1/projects": "application/problem+json",
		"/v2/models/m": "application/json", "/api/2.0/mlflow/runs/get": "application/json", "/metrics": "application/problem+json",
	} {
		w := ask(path)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Content-Type") != form || w.Header().Get("Retry-After") == "" ||
			!strings.Contains(w.Body.String(), "the server is starting: upgrading the database, 1 of 2 steps done") {
			t.Errorf("%s: %d %v\n%s", path, w.Code, w.Header(), w.Body)
		}
	}
	if w := ask("/healthz"); w.Code != http.StatusOK {
		t.Errorf("/healthz: %d %s", w.Code, w.Body)
	}
	s.Started(http.NotFoundHandler())
	if w := ask("/healthz"); w.Code != http.StatusNotFound {
		t.Errorf("after the start: %d %s", w.Code, w.Body)
	}
}
