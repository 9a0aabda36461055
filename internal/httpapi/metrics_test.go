package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestEveryAnswerIsCounted, under its route: also of a handler that panics, and
// one that is broken off.
func TestEveryAnswerIsCounted(t *testing.T) {
	w := open(t)
	w.server.mux.HandleFunc("GET /test/panics", func(http.ResponseWriter, *http.Request) { panic("a defect") })
	w.server.mux.HandleFunc("GET /test/breaks", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "some")
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	})
	if got := w.do(t, w.Secret, "GET", "/test/panics", ""); got.status != http.StatusInternalServerError {
		t.Errorf("a panic answers %d", got.status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/test/breaks", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.Secret)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	began := make(chan struct{})
	w.server.mux.HandleFunc("GET /test/waits", func(rw http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	ctx, leave := context.WithCancel(t.Context())
	waits := req.Clone(ctx)
	waits.URL.Path = "/test/waits"
	go func() {
		<-began
		leave()
	}()
	if resp, err := http.DefaultTransport.RoundTrip(waits); err == nil {
		_ = resp.Body.Close()
		t.Error("who went away was answered")
	}
	for _, want := range []string{`route="GET /test/waits",status="499"} 1`, `route="GET /test/panics",status="500"} 1`, `route="GET /test/breaks",status="200"} 1`} {
		eventually(t, want+" is counted", func() bool {
			return strings.Contains(w.do(t, w.Secret, "GET", "/metrics", "").body, want)
		})
	}
}
