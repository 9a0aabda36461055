package httpapi

import (
	"net/http"

	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
)

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
	route   *Route
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
	return w.route.Reads || w.request.Method == http.MethodGet || w.request.Method == http.MethodHead
}

// FlushError is what http.ResponseController calls.
func (w *heldWriter) FlushError() error {
	w.turn.End()
	w.commit()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
