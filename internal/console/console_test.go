package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

var tree = fstest.MapFS{
	".gitignore":             {Data: []byte("*")},
	".sources":               {Data: []byte("digest")},
	"index.html":             {Data: []byte("<!doctype html>built")},
	"index.html.br":          {Data: []byte("brotli page")},
	"assets/main-1a2b.js":    {Data: []byte("script")},
	"assets/main-1a2b.js.br": {Data: []byte("brotli script")},
	"assets/main-1a2b.js.gz": {Data: []byte("gzip script")},
	"assets/main-1a2b.css":   {Data: []byte("style")},
}

func get(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestBuilt(t *testing.T) {
	h := handler(tree)
	for _, test := range []struct {
		path, encodings string
		status          int
		kind, encoding  string
		body, cache     string
	}{
		{"/", "", 200, "text/html; charset=utf-8", "", "<!doctype html>built", "no-cache"},
		{"/", "gzip, deflate, br, zstd", 200, "text/html; charset=utf-8", "br", "brotli page", "no-cache"},
		{"/console/", "gzip", 200, "text/html; charset=utf-8", "", "<!doctype html>built", "no-cache"},
		{"/console/p/nyc/deployments/delay", "", 200, "text/html; charset=utf-8", "", "<!doctype html>built", "no-cache"},
		{"/console/assets/main-1a2b.js", "br;q=0, gzip;q=0.5", 200, "text/javascript; charset=utf-8", "gzip", "gzip script", forever},
		{"/console/assets/main-1a2b.js", "*", 200, "text/javascript; charset=utf-8", "br", "brotli script", forever},
		{"/console/assets/main-1a2b.js", "identity, br;q=no", 200, "text/javascript; charset=utf-8", "", "script", forever},
		{"/console/assets/main-1a2b.css", "br", 200, "text/css; charset=utf-8", "", "style", forever},
		{"/console/assets/main-0000.js", "br", 404, "text/plain; charset=utf-8", "", "404 page not found\n", ""},
		{"/console/.sources", "", 404, "text/plain; charset=utf-8", "", "404 page not found\n", ""},
	} {
		r := get(h, "GET", test.path, "Accept-Encoding", test.encodings)
		if r.Code != test.status || r.Header().Get("Content-Type") != test.kind || r.Header().Get("Content-Encoding") != test.encoding ||
			r.Header().Get("Cache-Control") != test.cache || r.Body.String() != test.body {
			t.Errorf("%s (%s): %d %v", test.path, test.encodings, r.Code, r.Header())
		}
	}
}

func TestPolicy(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{"built": tree, "plain": {".gitignore": {}}} {
		r := get(handler(files), "GET", "/console/")
		p := r.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(p, "default-src 'none'; ") || strings.Contains(p, "http") ||
			strings.Contains(p, "*") || !strings.Contains(p, "frame-ancestors 'none'") || strings.Contains(p, "unsafe") {
			t.Errorf("%s: %s", name, p)
		}
		if r.Header().Get("X-Content-Type-Options") != "nosniff" || r.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", name, r.Header())
		}
	}
}

// TestPlain: a binary built without Node has a page, too.
func TestPlain(t *testing.T) {
	r := get(handler(fstest.MapFS{".gitignore": {}}), "GET", "/console/p/nyc/jobs")
	if b := r.Body.String(); r.Code != http.StatusOK || !strings.Contains(b, "falaj login") {
		t.Errorf("%d %s", r.Code, b)
	}
}

func TestConditional(t *testing.T) {
	h := handler(tree)
	for _, encoding := range []string{"", "br", "gzip"} {
		first := get(h, "GET", "/console/assets/main-1a2b.js", "Accept-Encoding", encoding)
		etag := first.Header().Get("ETag")
		for have, want := range map[string]int{etag: 304, "W/" + etag: 304, `"x", ` + etag: 304, "*": 304, `"x"`: 200, "": 200} {
			r := get(h, "GET", "/console/assets/main-1a2b.js", "Accept-Encoding", encoding, "If-None-Match", have)
			if b := r.Body.String(); r.Code != want || want == 304 && b != "" {
				t.Errorf("%s, If-None-Match %s: %d %q", encoding, have, r.Code, b)
			}
		}
	}
	if get(h, "GET", "/", "Accept-Encoding", "br").Header().Get("ETag") == get(h, "GET", "/").Header().Get("ETag") {
		t.Error("two encodings have one ETag: a cache would mix them")
	}
	head := get(h, "HEAD", "/console/assets/main-1a2b.js")
	if b := head.Body.String(); b != "" || head.Header().Get("Content-Length") != "6" {
		t.Errorf("HEAD: %q %v", b, head.Header())
	}
}
