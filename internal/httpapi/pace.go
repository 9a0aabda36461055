package httpapi

import (
	"net/http"
	"time"
)

const (
	// writeTime is how long a reader may take for one piece of an answer before
	// it is cut off.
	writeTime = 30 * time.Second
	// writePiece bytes are a piece.
	writePiece = 64 << 10
)

// paced gives every write its own deadline: an answer may be large and slow, and
// a handler may think for long, but a reader that takes nothing is cut off and
// holds no goroutine and no file.
func (s *Server) paced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := &pacer{ResponseWriter: w, control: http.NewResponseController(w), patience: s.cfg.WriteTime}
		p.resume() // from the end of the answer before on this connection
		next.ServeHTTP(p, r)
		p.limit() // for what net/http still has in its buffers
	})
}

// pacer limits the time of each write. Between writes there is no deadline: in
// HTTP/2 it would end a request that is still at work.
type pacer struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
}

// Deadlines are refused by writers that are no connection, which never block.
func (p *pacer) limit()  { _ = p.control.SetWriteDeadline(time.Now().Add(p.patience)) }
func (p *pacer) resume() { _ = p.control.SetWriteDeadline(time.Time{}) }

func (p *pacer) Write(b []byte) (int, error) {
	defer p.resume()
	for n := 0; ; {
		p.limit()
		m, err := p.ResponseWriter.Write(b[n:min(len(b), n+writePiece)])
		n += m
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// FlushError is what http.ResponseController calls.
func (p *pacer) FlushError() error {
	defer p.resume()
	p.limit()
	return p.control.Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacer) Unwrap() http.ResponseWriter { return p.ResponseWriter }
