// Package console serves the web console's static files. The committed page is
// plain: it says what runs here and which commands to use.
package console

import (
	_ "embed"
	"net/http"
)

//go:embed index.html
var index []byte

// Handler serves the page. It needs no credentials and shows nothing that does.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(index) // the client went away: nobody to tell
	})
}
