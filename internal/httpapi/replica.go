package httpapi

import (
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/usecase/replica"
)

// Replicas are processes on other machines that wait for a model.
type Replicas interface {
	// Claim takes the only call of a replica: the connection, which take owns, is to
	// be given to it; nil if there is none after all. Errors: fault.Gone, fault.Conflict.
	Claim(workload string) (take func(net.Conn), err error)
}

func (s *Server) replicaRoutes(p string) {
	s.raw("GET", p+"/workloads/{workload}/replica", "workload.work", "For remote replicas: upgrade the connection that transfers the model and its requests", media{gives: "application/octet-stream"}, s.replica)
}

// replica hands the connection of a replica to who waits for it. Only its own token
// opens it, and only once: nobody else answers in its place.
func (s *Server) replica(w http.ResponseWriter, r *http.Request) {
	if err := s.connect(w, r, r.PathValue("workload")); err != nil {
		s.fail(w, r, err)
	}
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, workload string) error {
	if err := speaksFor(r, workload); err != nil {
		return err
	}
	if s.Replicas == nil {
		return fault.New(fault.Unsupported, "this server does not support remote replicas")
	}
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), replica.Protocol) {
		return fault.New(fault.Invalid, "this path requires an HTTP/1.1 connection with an upgrade to %s", replica.Protocol)
	}
	take, err := s.Replicas.Claim(workload)
	if err != nil {
		return err
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		take(nil)
		return fault.Wrap(err, "take the connection over")
	}
	_ = conn.SetDeadline(time.Now().Add(s.cfg.WriteTime))
	_, err = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + replica.Protocol + "\r\n\r\n")
	if err == nil {
		err = rw.Flush()
	}
	if err != nil || rw.Reader.Buffered() > 0 { // a replica says nothing before it is asked
		_ = conn.Close()
		take(nil)
		return nil //nolint:nilerr // there is nobody to tell
	}
	_ = conn.SetDeadline(time.Time{})
	take(conn)
	return nil
}
