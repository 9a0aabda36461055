package httpapi

import (
	"net/http"
	"path"
	"slices"
	"strings"
)

// growthless are the last words of POST requests that keep nothing new, or make
// room: they are answered also when the disk is nearly full.
var growthless = []string{"cancel", "delete", "delete-tag", "destroy", "get-latest-versions", "infer", "query", "search", "verify"}

// grows reports whether a request may make Falaj keep more than it has.
func grows(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return !strings.HasPrefix(r.URL.Path, "/v2/") && !slices.Contains(growthless, path.Base(r.URL.Path))
	}
	return false
}

// roomy refuses what would grow while there is no room, before its body is read:
// what is left is for what was begun, for refusals on record and for deleting.
func (s *Server) roomy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.room != nil && grows(r) {
			if err := s.room(); err != nil {
				s.fail(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
