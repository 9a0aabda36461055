package httpapi

import (
	"net/http"
	"time"
)

const (
	// writeTime is how long a reader may take for one piece of an answer before
	// it is cut off: for some an eighth less.
	writeTime = 30 * time.Second
	// writePiece bytes are a piece.
	writePiece = 64 << 10
)

// withWriteTimeout gives every write its own deadline: an answer may be large and slow, and
// a handler may think for long, but a reader that takes nothing is cut off and
// holds no goroutine and no file.
func (s *Server) withWriteTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Of the answer before on this connection there is no deadline: net/http takes it away.
		p := &timeoutWriter{ResponseWriter: w, timeout: s.cfg.WriteTime, stays: r.ProtoMajor < 2}
		if p.connection, _ = w.(deadliner); p.connection == nil {
			p.connection = http.NewResponseController(w)
		}
		next.ServeHTTP(p, r)
		p.limit() // for what net/http still has in its buffers
	})
}

// timeoutWriter limits the time of each write. In HTTP/1 a deadline matters to writes alone, so it
// may stay when one is done, and serves the next if enough of it is left. In HTTP/2 there is
// none between writes: it would end a request that is still at work.
type timeoutWriter struct {
	http.ResponseWriter
	connection deadliner
	timeout    time.Duration
	stays      bool
	end        time.Time // the deadline
}

// deadliner is net/http's own writer, or its way to one. Deadlines are refused by writers that
// are no connection, which never block.
type deadliner interface {
	SetWriteDeadline(at time.Time) error
}

func (p *timeoutWriter) limit() {
	if now := time.Now(); p.end.Sub(now) < p.timeout-p.timeout/8 {
		p.set(now.Add(p.timeout))
	}
}

func (p *timeoutWriter) resume() {
	if !p.stays {
		p.set(time.Time{})
	}
}

func (p *timeoutWriter) set(end time.Time) {
	p.end = end
	_ = p.connection.SetWriteDeadline(end)
}

func (p *timeoutWriter) Write(b []byte) (int, error) {
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
func (p *timeoutWriter) FlushError() error {
	defer p.resume()
	p.limit()
	return http.NewResponseController(p.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (p *timeoutWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
