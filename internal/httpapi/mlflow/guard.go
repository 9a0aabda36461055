package mlflow

import (
	"net/http"
	"path"
	"strings"

	"github.com/falaj-ml/falaj/internal/tracking"
)

// ours says whether a path is one of MLflow's.
func ours(p string) bool {
	for _, prefix := range []string{"/api/2.0/mlflow", "/api/3.0/mlflow", "/ajax-api/", "/get-artifact", "/model-versions/"} {
		if strings.HasPrefix(p, prefix) {
			return true
		}
	}
	return false
}

// Ours says whether a path is one of this protocol's.
func Ours(p string) bool { return ours(p) }

// Guard answers 400 to a request for one of our routes whose path is not plain:
// empty segments, back slashes or NUL, as they are or percent-encoded, and dot segments,
// however often encoded. A mux would redirect or clean some of
// these; here the request ends, before anything is looked up. Other requests
// pass untouched.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if touchesUs(r.URL.Path) && !plain(r.URL.EscapedPath()) {
			writeError(w, http.StatusBadRequest, "INVALID_PARAMETER_VALUE", "Invalid path")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// touchesUs holds for our paths, also when they only lead to us or out of us
// after cleaning.
func touchesUs(p string) bool { return ours(p) || ours(path.Clean(p)) }

// maxNesting bounds how often a path may be encoded over again, so that a long
// one costs little.
const maxNesting = 8

func plain(p string) bool {
	for n := range maxNesting {
		// Encoded twice and more, it is a name that has a percent sign, such as "loss%5c.png".
		if n < 2 && (strings.ContainsAny(p, "\\\x00") || strings.Contains(p, "//")) || dotted(p) {
			return false
		}
		decoded := tracking.DecodePercent(p)
		if decoded == p {
			return true
		}
		p = decoded
	}
	return false
}

func dotted(p string) bool {
	for segment := range strings.SplitSeq(strings.ReplaceAll(p, `\`, "/"), "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}
