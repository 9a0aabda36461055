package httpapi

import (
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
)

// keepsNothing are the last words of the patterns of POST and PUT routes that keep
// nothing new (or a line, where not acting would do harm), or make room: they are
// answered also when the disk is nearly full.
// A wildcard is no word, so what a request writes in its place says nothing.
var keepsNothing = []string{"DoExchange", "DoGet", "GetFlightInfo", "GetSchema", "ListFlights", "Read", "automation", "beat", "cancel", "delete", "delete-tag", "destroy", "end", "erase", "get-latest-versions", "get-online-features", "index", "infer", "join", "load", "log", "logging", "metrics", "online", "profile", "prune", "query", "read", "rollback", "search", "seen", "setting", "simulate", "unload", "verify"}

// growsDisk reports whether requests of a route, as the mux takes it, may make Falaj
// keep more than it has.
func growsDisk(pattern string) bool {
	method, route, _ := strings.Cut(pattern, " ")
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return !oip.Calls(route) && !oip.Scores(route) && (!optuna.Ours(route) || optuna.Keeps(route)) && !slices.Contains(keepsNothing, path.Base(route))
	}
	return false
}

// requireDiskReserve refuses what would grow the disk while its reserve is used up, before the
// body is read and while a file is: what is left is for what was begun, for refusals on record
// and for deleting.
func (s *Server) requireDiskReserve(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.checkDiskReserve(); err != nil {
			s.fail(w, r, err)
			return
		}
		if uploads(r) || flight.Uploads(r.URL.Path) {
			r.Body = &reserveBody{ReadCloser: r.Body, check: s.checkDiskReserve, untilCheck: reserveEvery}
		}
		handle(w, r)
	}
}

// reserveEvery is how many bytes of a file are read before the reserve is checked
// again: so many and those of other uploads come out of limits.free.
const reserveEvery = 4 << 20

// reserveBody is a body that ends with an error when the reserve of the disk is used up.
type reserveBody struct {
	io.ReadCloser
	check      func() error
	untilCheck int // bytes to read until the next check
}

func (b *reserveBody) Read(p []byte) (int, error) {
	if b.untilCheck <= 0 {
		if err := b.check(); err != nil {
			return 0, err
		}
		b.untilCheck = reserveEvery
	}
	n, err := b.ReadCloser.Read(p)
	b.untilCheck -= n
	return n, err
}
