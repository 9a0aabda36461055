// Package httpapi is Falaj's HTTP edge: it translates requests into calls of
// the domains' services and their answers into JSON. It decides nothing.
//
// # Map
//
//   - routes.go is the whole API; one file per domain holds its handlers.
//   - server.go is what happens to every request before a handler runs:
//     authenticate → bound the size → project permission → decode → act.
//   - problem.go is the one translation of errors (RFC 9457).
//   - mlflow/ and oip/ speak other people's protocols and match their texts.
//
// Open without credentials: /healthz, /readyz, the console's static files.
// Everything else, known or unknown, answers 401.
package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
)

// Authenticator turns a bearer token into who is asking.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (identity.Principal, error)
}

// Config bounds what the edge accepts.
type Config struct {
	Hosts   []string // Host headers accepted beside loopback names, against DNS rebinding
	MaxBody int64    // bytes of a JSON body; 0 is 1 MiB
	Upload  int64    // bytes of an uploaded file; 0 is 64 GiB
	Version string
}

// maxInference bounds the body of an inference request, in bytes.
const maxInference = 64 << 20

// Server is the HTTP edge. Make it with New.
type Server struct {
	Domains
	cfg     Config
	auth    Authenticator
	authz   policy.Authorizer
	log     *slog.Logger
	metrics *metrics
	mux     *http.ServeMux
	api     huma.API
	routes  []Route
	handler http.Handler
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// guard is the chain before every handler, outermost first.
func (s *Server) guard(mux http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return s.recovered(s.measured(s.hostChecked(crossOrigin.Handler(s.authenticated(mlflow.Guard(mux))))))
}

func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.ErrorContext(r.Context(), "handler panicked", slog.String("path", r.URL.Path), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			writeProblem(w, problemOf(fault.New(fault.Internal, "panic")))
		}()
		next.ServeHTTP(w, r)
	})
}

// hostChecked refuses requests for a host that is not ours: a page that
// rebinds its own name to our address gets no further (Ray CVE-2025-62593).
func (s *Server) hostChecked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		ip := net.ParseIP(host)
		if host == "localhost" || ip != nil || slices.Contains(s.cfg.Hosts, host) {
			next.ServeHTTP(w, r)
			return
		}
		writeProblem(w, problemOf(fault.New(fault.Invalid, "host %q is not served here", host).
			WithHint("Add the name to http_hosts in the configuration if clients should use it.")))
	})
}

// open lists what answers without credentials, by exact path or by prefix.
func open(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == "/" || path == "/favicon.ico" || strings.HasPrefix(path, "/console/")
}

func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		principal, err := s.auth.Authenticate(r.Context(), bearer(r))
		if err == nil {
			principal, err = narrow(principal, r.Header.Get("Falaj-Project"))
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		r = r.WithContext(identity.With(r.Context(), principal))
		limit := s.cfg.MaxBody
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			limit = max(limit, maxInference)
		case uploads(r):
			limit = s.cfg.Upload
			// A large file may take longer than the server's read time-out.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Hour))
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		next.ServeHTTP(w, r)
		if sw, ok := w.(*statusWriter); ok {
			sw.route = r.Pattern
		}
	})
}

// uploads reports whether the request carries a file.
func uploads(r *http.Request) bool {
	switch {
	case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/mlflow-artifacts/artifacts/"):
		return true
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/api/v1/projects/"):
		return strings.HasSuffix(r.URL.Path, "/versions") && strings.Contains(r.URL.Path, "/datasets/")
	}
	return false
}

// bearer is the token of "Authorization: Bearer …", or the password of Basic
// credentials, which is where MLflow's and other clients can put one.
func bearer(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token
	}
	_, password, _ := r.BasicAuth()
	return password
}
