package httpapi

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

// TestHeaders: every route of every protocol answers with the headers, whether the
// caller is refused, permitted, or the handler fails.
func TestHeaders(t *testing.T) {
	w := open(t)
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	routes := w.server.Routes()
	if len(routes) < 200 {
		t.Fatalf("%d routes", len(routes))
	}
	paths := []Route{{Method: "GET", Path: "/nowhere"}, {Method: "GET", Path: "//"}, {Method: "BREW", Path: "/api/v1/projects"}}
	for _, r := range append(routes, paths...) {
		path, method := parameter.ReplaceAllString(r.Path, "x"), r.Method
		if method == "" {
			method = "GET"
		}
		for _, token := range []string{"", w.Secret} {
			req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			_ = resp.Body.Close() // some are streams without end
			if h := resp.Header; h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" || h.Get("Strict-Transport-Security") != "" {
				t.Errorf("%s %s (%d): %v", method, path, resp.StatusCode, h)
			}
		}
	}
	for name, h := range map[string]http.Handler{"grpc": w.server.GRPC(), "flight": w.server.Flight()} {
		r := httptest.NewRecorder()
		h.ServeHTTP(r, httptest.NewRequest(http.MethodPost, "http://127.0.0.1/x", nil))
		if r.Header().Get("X-Content-Type-Options") != "nosniff" || r.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", name, r.Header())
		}
	}
}

func TestHeadersOfTLS(t *testing.T) {
	h := hardened(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-cache") }))
	for _, test := range []struct {
		host   string
		tls    bool
		strict string
	}{
		{"ml.example", true, "max-age=31536000"},
		{"ml.example:8443", true, "max-age=31536000"},
		{"ml.example", false, ""},
		{"localhost:8443", true, ""},
		{"LOCALHOST", true, ""},
		{"127.0.0.1:8443", true, ""},
		{"[::1]:8443", true, ""},
		{"[::1]", true, ""},
		{"", true, ""},
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		if req.Host = test.host; test.tls {
			req.TLS = &tls.ConnectionState{}
		}
		r := httptest.NewRecorder()
		h.ServeHTTP(r, req)
		if got := r.Header().Get("Strict-Transport-Security"); got != test.strict {
			t.Errorf("%q, TLS %t: %q", test.host, test.tls, got)
		}
		if got := r.Header()["Cache-Control"]; len(got) != 1 || got[0] != "no-cache" {
			t.Errorf("a handler's own policy: %q", got)
		}
	}
	if noStore[0] != "no-store" {
		t.Error("the shared value was changed")
	}
}

// BenchmarkHeaders is what the headers cost an answer.
func BenchmarkHeaders(b *testing.B) {
	req := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/", nil)
	for name, h := range map[string]http.Handler{
		"with":    hardened(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})),
		"without": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRecorder()
			for b.Loop() {
				clear(r.Header())
				h.ServeHTTP(r, req)
			}
		})
	}
}
