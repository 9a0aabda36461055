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

// growthless are the last words of the patterns of POST and PUT routes that keep
// nothing new (or a line, where not acting would do harm), or make room: they are
// answered also when the disk is nearly full.
// A wildcard is no word, so what a request writes in its place says nothing.
var growthless = []string{"DoExchange", "DoGet", "GetFlightInfo", "GetSchema", "ListFlights", "Read", "automation", "beat", "cancel", "delete", "delete-tag", "destroy", "end", "erase", "get-latest-versions", "get-online-features", "index", "infer", "join", "load", "log", "logging", "metrics", "online", "profile", "prune", "query", "read", "rollback", "search", "seen", "setting", "simulate", "unload", "verify"}

// grows reports whether requests of a route, as the mux takes it, may make Falaj
// keep more than it has.
func grows(pattern string) bool {
	method, route, _ := strings.Cut(pattern, " ")
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return !oip.Calls(route) && !oip.Scores(route) && (!optuna.Ours(route) || optuna.Keeps(route)) && !slices.Contains(growthless, path.Base(route))
	}
	return false
}

// roomy refuses what would grow while there is no room, before its body is read
// and while a file is: what is left is for what was begun, for refusals on record
// and for deleting.
func (s *Server) roomy(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.room(); err != nil {
			s.fail(w, r, err)
			return
		}
		if uploads(r) || flight.Uploads(r.URL.Path) {
			r.Body = &housed{ReadCloser: r.Body, room: s.room, unseen: roomEvery}
		}
		handle(w, r)
	}
}

// roomEvery is how many bytes of a file are read before the room is asked for
// again: so many and those of other uploads come out of limits.free.
const roomEvery = 4 << 20

// housed is a body that ends with an error when there is no more room for it.
type housed struct {
	io.ReadCloser
	room   func() error
	unseen int // bytes to read until the room is asked for
}

func (b *housed) Read(p []byte) (int, error) {
	if b.unseen <= 0 {
		if err := b.room(); err != nil {
			return 0, err
		}
		b.unseen = roomEvery
	}
	n, err := b.ReadCloser.Read(p)
	b.unseen -= n
	return n, err
}
