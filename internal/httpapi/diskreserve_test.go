package httpapi

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
)

// full is an edge that has no room.
func full(t *testing.T, w *world) *Server {
	t.Helper()
	return New(Options{
		Auth: w.Accounts, Authz: w.Authority, DB: w.DB, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
		CheckDiskReserve: func() error { return fault.New(fault.Exhausted, "the disk is full").WithCause(fault.ErrFull) },
	}, w.server.Domains)
}

// TestNoRoom: with a disk that is nearly full every route that grows refuses,
// whatever stands in the place of a wildcard.
func TestNoRoom(t *testing.T) {
	w := open(t)
	s := full(t, w)
	ask := func(method, path string) answered {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader("{}"))
		r.Host = "127.0.0.1"
		r.Header.Set("Authorization", "Bearer "+w.Secret)
		r.Header.Set("Falaj-Project", "flights")
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r)
		return answered{got.Code, got.Header(), got.Body.String()}
	}
	grown := 0
	for _, r := range s.Routes() {
		if !r.Keeps {
			continue
		}
		grown++
		for _, word := range []string{"x", "query", "delete", "cancel", "infer", "Read"} {
			path := r.Path
			for _, wildcard := range []string{"{project}", "{path...}", "{rest...}", "{name}", "{ref}", "{id}", "{model_id}", "{job}"} {
				path = strings.ReplaceAll(path, wildcard, word)
			}
			if got := ask(r.Method, path); got.status != http.StatusInsufficientStorage {
				t.Errorf("%s %s: %d %.200s", r.Method, path, got.status, got.body)
			}
		}
	}
	if grown < 50 {
		t.Errorf("only %d routes grow", grown)
	}
	if got := ask("POST", "/api/v1/projects/flights/keys/destroy"); got.status != http.StatusBadRequest {
		t.Errorf("what makes room: %d %s", got.status, got.body)
	}
}

// TestRoomWhileReading: a file that began with room ends when there is none.
func TestRoomWhileReading(t *testing.T) {
	routes := edge(t, Domains{}).mux
	asked := 0
	s := &Server{log: slog.New(slog.DiscardHandler), checkDiskReserve: func() error {
		if asked++; asked > 3 {
			return fault.New(fault.Exhausted, "the disk is full")
		}
		return nil
	}}
	for path, want := range map[string]int64{
		"/api/2.0/mlflow-artifacts/artifacts/0/r/artifacts/x": 3 * reserveEvery,
		"/api/v1/projects/flights/datasets/x/versions":        3 * reserveEvery,
		flight.Prefix + "DoPut":                               3 * reserveEvery,
		"/api/v1/apply":                                       5 * reserveEvery,
	} {
		asked = 0
		method := http.MethodPost
		if strings.Contains(path, "mlflow") {
			method = http.MethodPut
		}
		var read int64
		var err error
		r := httptest.NewRequest(method, path, bytes.NewReader(make([]byte, 5*reserveEvery)))
		handle := s.requireDiskReserve(routes.of(r), func(_ http.ResponseWriter, r *http.Request) { read, err = io.Copy(io.Discard, r.Body) })
		handle(httptest.NewRecorder(), r)
		if read < want || read > want+1<<20 || fault.Is(err, fault.Exhausted) != (want < 5*reserveEvery) {
			t.Errorf("%s: %d bytes were read, then %v", path, read, err)
		}
	}
}
