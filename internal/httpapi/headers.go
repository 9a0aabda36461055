package httpapi

import (
	"net"
	"net/http"
	"strings"
)

// The headers of every answer. The slices are shared: who sets another value replaces
// them.
var (
	nosniff = []string{"nosniff"}
	noStore = []string{"no-store"}
	oneYear = []string{"max-age=31536000"}
)

// hardened sets what every answer says to browsers and proxies, of all protocols and
// of refusals, too. No answer is cached, since it may hold a token or rows, unless its
// handler sets another policy, as the console does for its files.
func hardened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["X-Content-Type-Options"] = nosniff
		h["Cache-Control"] = noStore
		if r.TLS != nil && dnsName(r.Host) {
			h["Strict-Transport-Security"] = oneYear
		}
		next.ServeHTTP(w, r)
	})
}

// dnsName reports whether a host is a DNS name other than localhost: browsers keep
// Strict-Transport-Security for these only (RFC 6797, section 8.1.1), and a developer's
// machine answers other ports by plain HTTP.
func dnsName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return host != "" && host != "localhost" && !isIP(host)
}
