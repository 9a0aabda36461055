package httpapi

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
)

// Memory that bodies take, in bytes for a byte.
const (
	perProtobuf = 16 // messages of numbers and short texts
	perRecord   = 4  // kept and copied, not decoded
)

// formOf is how the body of a request is weighed: nil for what is written to a file, read by
// another process, or weighed by its protocol.
func formOf(r *http.Request) *membudget.Form {
	form := membudget.JSON
	switch {
	case oip.Ours(r.URL.Path), oip.Calls(r.URL.Path), uploads(r), flight.Ours(r.URL.Path):
		return nil
	case rpc.Ours(r.URL.Path), optuna.Ours(r.URL.Path):
		form = membudget.Binary(perProtobuf)
	case handsBack(r.URL.Path), logs(r), decompresses(r) && r.Header.Get("Content-Encoding") != "": // what is decompressed is weighed there
		form = membudget.Copied(perRecord)
	case r.URL.Path == "/api/v1/apply", r.URL.Path == "/api/v1/jobs/read":
		form = membudget.YAML
	}
	return &form
}

// decompresses reports whether what takes a request reads its Content-Encoding. The others
// take bodies as they are, and refuse one that is something else.
func decompresses(r *http.Request) bool {
	tree, _ := worked(r)
	return tree || oip.Ours(r.URL.Path) || r.URL.Path == reportPath
}

// logs reports whether a worker sends what a job wrote.
func logs(r *http.Request) bool {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/projects/"), "/")
	return len(parts) == 5 && parts[1] == "workloads" && parts[3] == "worker" && parts[4] == "log"
}

// heldAnswer is the least piece of an answer that is held of the memory for requests while
// it is written: handlers write a JSON document as one piece.
const heldAnswer = 256 << 10

// heldWriter holds the memory of large answers while they are written, which takes as long
// as the reader takes. One for which there is no room is refused, if it was only read: the
// status is written with the first bytes.
type heldWriter struct {
	http.ResponseWriter
	server  *Server
	request *http.Request
	share   *membudget.Share
	turn    *share.Turn // ends when the answer is written

	status    int // that is to be written; 0: none, or it is
	committed bool
	refused   bool
	sent      int // the status that was written
}

func (w *heldWriter) WriteHeader(status int) {
	switch {
	case w.committed || w.refused:
	case status < http.StatusOK:
		w.ResponseWriter.WriteHeader(status)
	case w.status == 0:
		w.status = status
	}
}

// commit writes the status.
func (w *heldWriter) commit() {
	if w.committed {
		return
	}
	w.committed = true
	if w.status != 0 {
		w.sent = w.status
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *heldWriter) Write(b []byte) (int, error) {
	w.turn.End()
	if w.refused {
		return len(b), nil
	}
	if len(b) >= heldAnswer && w.share != nil {
		n := 2 * int64(len(b)) // the document and what it was made of
		if w.committed || !w.reads() {
			w.share.Hold(n)
		} else if err := w.share.Take(w.request.Context(), n); err != nil {
			w.refused, w.committed = true, true
			for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding", "ETag"} {
				w.Header().Del(name)
			}
			w.server.logInternal(w.request.Context(), w.request.URL.Path, err)
			refuse(w.ResponseWriter, w.request, err)
			return len(b), nil
		}
		defer w.share.Give(n)
	}
	w.commit()
	return w.ResponseWriter.Write(b)
}

// reads reports whether the request changed nothing, and may be refused when it was done.
func (w *heldWriter) reads() bool {
	switch w.request.Method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPost:
		return slices.Contains([]string{"query", "search", "get-online-features"}, path.Base(w.request.URL.Path))
	}
	return false
}

// FlushError is what http.ResponseController calls.
func (w *heldWriter) FlushError() error {
	w.turn.End()
	w.commit()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
