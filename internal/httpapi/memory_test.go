package httpapi

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/membudget"
)

// budgeted is the edge of a world again, with so many bytes for requests.
func (w *world) budgeted(t *testing.T, most int64) *membudget.Budget {
	t.Helper()
	budget := membudget.New(most)
	server := New(Options{
		Auth: w.Accounts, Authz: w.Authority, DB: w.DB, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(), Memory: budget,
	}, w.server.Domains)
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	w.server, w.url = server, listener.URL
	return budget
}

// TestDeepBodies: every route that takes JSON or a manifest refuses one that nests deep,
// before a parser has it.
func TestDeepBodies(t *testing.T) {
	w := open(t)
	document, err := w.server.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody *struct{ Content map[string]any }
		}
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	wildcard := regexp.MustCompile(`\{[^}]*\}`)
	var routes []string
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if strings.HasSuffix(path, "/setting") || path == "/v2/logging" || oip.Scores(path) { // their bodies are not read, and of the last only once a model is there
				continue
			}
			if op.RequestBody != nil && (op.RequestBody.Content["application/json"] != nil || op.RequestBody.Content["application/yaml"] != nil) {
				routes = append(routes, strings.ToUpper(method)+" "+path)
			}
		}
	}
	for _, r := range mlflow.Routes() {
		if (r.Method == http.MethodPost || r.Method == http.MethodPatch) && !strings.Contains(r.Pattern, "artifacts") {
			routes = append(routes, r.Method+" "+r.Pattern)
		}
	}
	slices.Sort(routes)
	if len(routes) < 60 {
		t.Fatalf("only %d routes", len(routes))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	refused := 0
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		path = wildcard.ReplaceAllString(strings.Replace(path, "{project}", "flights", 1), "x")
		for _, body := range []string{strings.Repeat("[", 70_000), strings.Repeat(`{"a":`, 70_000)} {
			got := w.do(t, w.Secret, method, path, body, "Content-Type", "application/json", "Falaj-Project", "flights")
			switch {
			case got.status == http.StatusForbidden, got.status == http.StatusNotFound, got.status == http.StatusNotImplemented:
			case got.status != http.StatusRequestEntityTooLarge && got.status != http.StatusBadRequest:
				t.Errorf("%s: %d %.200s", route, got.status, got.body)
			default:
				refused++
			}
		}
	}
	runtime.ReadMemStats(&after)
	if refused < 200 { // others are not offered, or for other callers
		t.Errorf("only %d of %d refused a deep body", refused, 2*len(routes))
	}
	if took := (after.TotalAlloc - before.TotalAlloc) / uint64(2*len(routes)); took > 8<<20 {
		t.Errorf("a deep body takes %d bytes", took)
	}
}

// TestApplyIsRefusedBeforeItIsRead: who may apply nothing in the project of their token is
// refused for that, whatever they send.
func TestApplyIsRefusedBeforeItIsRead(t *testing.T) {
	w := open(t)
	viewer, _ := w.member(t, "flights", "v", project.Viewer)
	if got := w.do(t, viewer, "POST", "/api/v1/apply?project=flights", "no manifest"); got.status != http.StatusForbidden {
		t.Errorf("a viewer: %d %s", got.status, got.body)
	}
	engineer, _ := w.member(t, "flights", "e", project.Engineer)
	if got := w.do(t, engineer, "POST", "/api/v1/apply?project=flights", "no manifest"); got.status != http.StatusBadRequest {
		t.Errorf("an engineer: %d %s", got.status, got.body)
	}
}

// TestRequestMemory: bodies count while requests are under way, what does not fit is
// refused with the limit's name, and others are answered afterwards.
func TestRequestMemory(t *testing.T) {
	w := open(t)
	budget := w.budgeted(t, 4<<20)
	large := `{"sql":"` + strings.Repeat("x", 2<<20) + `"}`
	got := w.do(t, w.Secret, "POST", "/api/v1/projects/flights/query", large)
	if got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, membudget.Setting) {
		t.Errorf("a body of more than half: %d %.300s", got.status, got.body)
	}
	values := `{"sql":"x","inputs":{` + strings.TrimSuffix(strings.Repeat(`"a":"b",`, 40_000), ",") + `}}`
	if got := w.do(t, w.Secret, "POST", "/api/v1/projects/flights/query", values); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is large when it is decoded: %d %.300s", got.status, got.body)
	}
	other := budget.Share("someone else")
	other.Hold(4 << 20)
	for path, body := range map[string]string{
		"/api/v1/projects/flights/query": `{"sql":"SELECT 1"}`, "/api/v1/apply": "kind: Dataset", "/api/2.0/mlflow/experiments/create": `{"name":"a"}`,
	} {
		got = w.do(t, w.Secret, "POST", path, body, "Falaj-Project", "flights")
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, membudget.Setting) {
			t.Errorf("%s while the memory is used: %d %v %.300s", path, got.status, got.header, got.body)
		}
	}
	if got := w.do(t, w.Secret, "GET", "/api/v1/whoami", ""); got.status != http.StatusOK {
		t.Errorf("a request without a body: %d %s", got.status, got.body)
	}
	other.Free()
	if got := w.do(t, w.Secret, "POST", "/api/v1/apply?project=flights", "kind: Dataset"); got.status != http.StatusBadRequest {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
	eventually(t, "everything is given back", func() bool { return budget.Used() == 0 })
}

// TestLargeAnswers: a large answer is held while it is written; one that was only read is
// refused where there is no room for it, and one that changed something is not.
func TestLargeAnswers(t *testing.T) {
	budget := membudget.New(4 << 20)
	s := &Server{log: slog.New(slog.DiscardHandler)}
	serve := func(method string, route *Route) *httptest.ResponseRecorder {
		got := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), method, "/api/v1/projects/flights/datasets", nil)
		share := budget.Share("alice")
		defer share.Free()
		w := &heldWriter{ResponseWriter: got, server: s, request: r, route: route, share: share}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		for range 2 {
			if _, err := w.Write(make([]byte, heldAnswer)); err != nil {
				t.Error(err)
			}
		}
		w.commit()
		return got
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if got := serve(method, unknown); got.Code != http.StatusCreated || got.Body.Len() != 2*heldAnswer || budget.Used() != 0 {
			t.Errorf("%s: %d, %d bytes, %d held", method, got.Code, got.Body.Len(), budget.Used())
		}
	}
	budget.Share("someone else").Hold(4 << 20)
	if got := serve(http.MethodPost, unknown); got.Code != http.StatusCreated || got.Body.Len() != 2*heldAnswer {
		t.Errorf("what changed something: %d, %d bytes", got.Code, got.Body.Len())
	}
	for _, got := range []*httptest.ResponseRecorder{serve(http.MethodGet, unknown), serve(http.MethodPost, &Route{Reads: true})} {
		if got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" || got.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(got.Body.String(), membudget.Setting) {
			t.Errorf("what was read: %d %v %.300s", got.Code, got.Header(), got.Body)
		}
	}
}
