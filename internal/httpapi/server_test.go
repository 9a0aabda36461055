package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestClosed: whatever is not exactly an open path answers 401 to nobody, known
// or not, however the path is written.
func TestClosed(t *testing.T) {
	w := open(t)
	ask := func(method, raw string, authorization ...string) int {
		t.Helper()
		r := httptest.NewRequest(method, "/", nil)
		u, err := url.Parse("http://127.0.0.1" + raw)
		if err != nil {
			t.Fatal(err)
		}
		r.URL, r.Host, r.RequestURI = u, "127.0.0.1", raw
		r.Header["Authorization"] = authorization
		got := httptest.NewRecorder()
		w.server.ServeHTTP(got, r)
		if got.Code == http.StatusUnauthorized && !strings.HasPrefix(got.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s %s: 401 without WWW-Authenticate", method, raw)
		}
		return got.Code
	}
	for _, path := range []string{
		"/nothing", "/api", "/api/", "/api/v1", "/api/v1/nothing", "/api/v2/projects", "/api/openapi.json", "/metrics", "/metrics/",
		"/healthz/", "/healthz/x", "/Healthz", "//healthz", "/./healthz", "/x/../healthz", "/%68ealthz", "/healthz%2f", "/readyz%00",
		"/console", "/console/../metrics", "/console/%2e%2e/metrics", "/console/..%2fmetrics", "/console//x", "/console/./x", "/consolex/",
		"/v2", "/v2/models/x/infer", "/api/2.0/mlflow/runs/get", "/get-artifact", "/iceberg/v1/config", "/get-online-features", "/health", "/push", "/favicon.ico", "/.well-known/x", "/%2e%2e/healthz",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "TRACE", "BREW"} {
			if got := ask(method, path); got != http.StatusUnauthorized {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/", "/console/x.js"} {
		for method, open := range map[string]bool{"GET": true, "HEAD": true, "POST": false, "PUT": false, "DELETE": false, "OPTIONS": false} {
			if got := ask(method, path); (got != http.StatusUnauthorized) != open {
				t.Errorf("%s %s: %d", method, path, got)
			}
		}
	}

	good := "Bearer " + w.Secret
	for name, authorization := range map[string][]string{
		"nothing": {""}, "no scheme": {w.Secret}, "no token": {"Bearer "}, "another scheme": {"Token " + w.Secret},
		"two spaces": {"Bearer  " + w.Secret}, "a space after": {good + " "}, "a wrong digit": {good[:len(good)-1] + "!"}, "cut": {good[:len(good)-1]},
		"long": {good + strings.Repeat("0", 1<<16)}, "two": {good, good}, "no Base64": {"Basic !"}, "no colon": {"Basic " + "eA=="}, "control": {"Bearer \x00"},
	} {
		if got := ask("GET", "/api/v1/whoami", authorization...); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.SetBasicAuth("anybody", w.Secret)
	for _, authorization := range []string{good, "bearer " + w.Secret, r.Header.Get("Authorization")} {
		if got := ask("GET", "/api/v1/whoami", authorization); got != http.StatusOK {
			t.Errorf("a good token: %d", got)
		}
		if got := ask("GET", "/nothing", authorization); got != http.StatusNotFound {
			t.Errorf("nothing, asked with a token: %d", got)
		}
	}
}

// TestForms: what is refused before a handler runs is refused in the form of the
// path's protocol.
func TestForms(t *testing.T) {
	w := open(t)
	for path, want := range map[string]struct{ kind, content string }{
		"/v2":                        {`{"error":"`, "application/json"},
		"/v2/models/x":               {`{"error":"`, "application/json"},
		"/v2/nothing":                {`{"error":"`, "application/json"},
		"/get-online-features":       {`"{\"class\":\"Feast`, "application/json"},
		"/push":                      {`"{\"class\":\"Feast`, "application/json"},
		"/v20":                       {`"kind":`, "application/problem+json"},
		"/api/v1/nothing":            {`"kind":`, "application/problem+json"},
		"/api/2.0/mlflow/nothing":    {`"error_code":"`, "application/json"},
		"/api/2.0/mlflow/runs/get":   {`"error_code":"`, "application/json"},
		"/ajax-api/2.0/mlflow/x":     {`"error_code":"`, "application/json"},
		"/api/2.0/mlflow-artifacts/": {`"error_code":"`, "application/json"},
	} {
		check := func(why string, status int, got http.Header, body string) {
			t.Helper()
			if !strings.Contains(body, want.kind) || got.Get("Content-Type") != want.content {
				t.Errorf("%s %s: %d %s %s", path, why, status, got.Get("Content-Type"), body)
			}
			if status == http.StatusUnauthorized && got.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: 401 without WWW-Authenticate", path, why)
			}
		}
		nobody := w.do(t, "", "GET", path, "")
		if nobody.status != http.StatusUnauthorized {
			t.Errorf("%s without credentials: %d", path, nobody.status)
		}
		check("without credentials", nobody.status, nobody.header, nobody.body)
		if strings.Contains(path, "nothing") {
			got := w.do(t, w.Secret, "GET", path, "")
			if got.status != http.StatusNotFound {
				t.Errorf("%s with a token: %d", path, got.status)
			}
			check("with a token", got.status, got.header, got.body)
		}
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "evil.example"
		got := httptest.NewRecorder()
		w.server.ServeHTTP(got, r)
		check("for another host", got.Code, got.Header(), got.Body.String())

		broken := httptest.NewRecorder()
		w.server.recovered(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret") })).ServeHTTP(broken, r)
		if broken.Code != http.StatusInternalServerError || strings.Contains(broken.Body.String(), "secret") {
			t.Errorf("%s panicked: %d %s", path, broken.Code, broken.Body)
		}
		check("panicked", broken.Code, broken.Header(), broken.Body.String())
	}
}

// TestNarrow: the header binds a token to a project and never widens it.
func TestNarrow(t *testing.T) {
	w := open(t)
	boss, _ := w.member(t, "flights", "boss", "admin")
	for _, tt := range []struct {
		token, header, path string
		want                int
	}{
		{w.Secret, "flights", "/api/v1/projects/flights", 200},
		{w.Secret, "flights", "/api/v1/projects/other", 404},
		{w.Secret, "flights", "/metrics", 403},
		{w.Secret, "../x", "/api/v1/whoami", 400},
		{boss, "flights", "/api/v1/projects/flights", 200},
		{boss, "other", "/api/v1/projects/other", 403},
		{boss, "other", "/api/v1/whoami", 403},
		{boss, "", "/api/v1/projects/other", 404},
	} {
		if got := w.do(t, tt.token, "GET", tt.path, "", "Falaj-Project", tt.header); got.status != tt.want {
			t.Errorf("%s with Falaj-Project %q: %d, not %d: %s", tt.path, tt.header, got.status, tt.want, got.body)
		}
	}
}

// TestHost: a name that is not ours is not served, credentials or not.
func TestHost(t *testing.T) {
	w := open(t)
	for host, want := range map[string]int{"127.0.0.1:7070": 200, "localhost": 200, "[::1]:7070": 200, "10.0.0.1": 200, "evil.example": 400, "localhost.evil.example": 400, "": 400} {
		r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
		r.Host = host
		got := httptest.NewRecorder()
		w.server.ServeHTTP(got, r)
		if got.Code != want {
			t.Errorf("Host %q: %d, not %d", host, got.Code, want)
		}
	}
}

// TestTooLarge: a body over the limit is refused, with a length and without.
func TestTooLarge(t *testing.T) {
	w := open(t)
	body := `{"name":"` + strings.Repeat("x", 5<<20) + `"}`
	for name, path := range map[string]string{"JSON": "/api/v1/tokens", "manifests": "/api/v1/apply"} {
		got := w.do(t, w.Secret, "POST", path, body)
		if got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, `"kind":"too_large"`) {
			t.Errorf("%s: %d %.200s", name, got.status, got.body)
		}
		if got := w.do(t, w.Secret, "POST", path, body, idempotencyKey, "k"); got.status != http.StatusRequestEntityTooLarge {
			t.Errorf("%s with a key: %d %.200s", name, got.status, got.body)
		}
		r := httptest.NewRequest(http.MethodPost, path, struct{ *strings.Reader }{strings.NewReader(body)})
		r.Host, r.ContentLength = "127.0.0.1", -1
		r.Header.Set("Authorization", "Bearer "+w.Secret)
		chunked := httptest.NewRecorder()
		w.server.ServeHTTP(chunked, r)
		if chunked.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s without a length: %d %.200s", name, chunked.Code, chunked.Body)
		}
	}
}
