// Package httpapi is Falaj's HTTP edge: it translates requests into calls of
// the domains' services and their answers into JSON. It decides nothing.
//
// # Map
//
//   - routes.go is the whole API; one file per domain holds its handlers. route.go says what
//     a route declares: its action, its body (body.go), whether it keeps something on the disk
//     and whether a gateway has it. testdata/traffic.txt lists all of them.
//   - server.go is what happens to every request before a handler runs:
//     set headers → authenticate → bound the size → project permission → decode → act.
//   - headers.go has the headers of every answer.
//   - problem.go is the one translation of errors (RFC 9457).
//   - idempotency.go: requests that take effect at most once; events.go: the watch;
//     turn.go: processors for heavy work;
//     diskreserve.go: what is refused on a disk that is nearly full; memory.go: the memory
//     of requests; writetimeout.go: slow readers; slowbody.go: slow senders.
//   - mlflow/, oip/, iceberg/, feast/ and optuna/ speak other people's protocols and
//     match their texts; flight.go leads to Arrow Flight, grpc.go to rpc/, optuna/ and
//     the calls of oip/.
//
// Open without credentials: /healthz, /readyz, the console's static files.
// Everything else, known or unknown, answers 401; one route of iceberg/ looks for
// the token in the body.
package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/search"
)

// Authenticator turns a bearer token into who is asking.
type Authenticator interface {
	Authenticate(ctx context.Context, bearer string) (identity.Principal, error)
}

// Authorizer answers whether the context's principal may act; Permits without
// putting a refusal on record, for choosing what to show.
type Authorizer interface {
	policy.Authorizer
	Permits(ctx context.Context, action policy.Action, object policy.Object) (bool, error)
}

// Config bounds what the edge accepts.
type Config struct {
	Hosts   []string       // Host headers accepted beside loopback names, against DNS rebinding
	Proxies []netip.Prefix // whose X-Forwarded-For is believed
	MaxBody int64          // bytes of a JSON body; 0 is 4 MiB
	Upload  int64          // bytes of an uploaded file; 0 is 64 GiB
	Answer  int64          // bytes of rows that are answered as one JSON document; 0 is dataset.DefaultAnswer
	Tree    int64          // bytes of a worker's checkpoint or output; 0 is Upload
	Version string
	Secure  bool // browsers reach the server by https
	// Heartbeat is how often a silent stream of events says that it is there, and
	// how late a revoked token or role ends it; 0 is 15 s.
	Heartbeat time.Duration
	// LeastRate is how many bytes a second a body must bring, on the average beyond a
	// grace of some seconds; 0 is 4 KiB.
	LeastRate int64
	// WriteTime is how long a reader may take for 64 KiB of an answer before it is
	// cut off; 0 is 30 s.
	WriteTime time.Duration
}

// Server is the HTTP edge. Make it with New.
type Server struct {
	Domains
	cfg              Config
	auth             Authenticator
	authz            Authorizer
	db               *store.DB
	journal          audit.Journal
	log              *slog.Logger
	metrics          *metrics
	pages            search.Pages // seals page tokens of searches
	mux              *mux
	api              huma.API
	handler          http.Handler
	checkDiskReserve func() error
	memory           *membudget.Budget
	central          string // the server whose gateway this one is

	idempotency keyLocks
	watches     *share.Pool // streams of events
	follows     *share.Pool // logs that are followed
	uploading   *share.Pool
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// guard is the chain before every handler, outermost first.
func (s *Server) guard(mux http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return hardened(s.withWriteTimeout(s.measured(s.recovered(s.hostChecked(crossOrigin.Handler(s.authenticated(mlflow.Guard(mux))))))))
}

func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			s.log.ErrorContext(r.Context(), "handler panicked", slog.String("path", r.URL.Path), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			refuse(w, r, fault.New(fault.Internal, "panic"))
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
		host = strings.ToLower(strings.Trim(host, "[]"))
		if host == "localhost" || slices.Contains(s.cfg.Hosts, host) || isIP(host) {
			next.ServeHTTP(w, r)
			return
		}
		refuse(w, r, fault.New(fault.Invalid, "host %q is not served here", host).
			WithHint("Add the name to http_hosts in the configuration if clients should use it."))
	})
}

// isIP reports what net.ParseIP does.
func isIP(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == ""
}

// A refused body is read to its end, if it is no longer than that and comes in time: most
// clients read no answer before they have sent all, and an end of the connection hides it.
const (
	maxDrain  = 64 << 20
	drainTime = 5 * time.Second
)

// drain reads what a handler that refused the request left of its body.
func drain(r *http.Request, body io.Reader, control http.ResponseController) {
	if r.ProtoMajor > 1 || r.ContentLength <= 0 || r.ContentLength > maxDrain || r.Header.Get("Expect") != "" {
		return
	}
	_ = control.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.Copy(io.Discard, body) // it is nobody's any more
}

// principal is who sent the request.
func (s *Server) principal(r *http.Request) (identity.Principal, error) {
	if len(r.Header.Values("Authorization")) > 1 {
		return identity.Principal{}, fault.New(fault.Unauthenticated, "more than one Authorization header")
	}
	p, err := s.auth.Authenticate(r.Context(), s.bearer(r))
	if err != nil {
		return p, err
	}
	if p.Strayed(r.Context()) {
		return p, strayed(p)
	}
	return narrow(p, r.Header.Get("Falaj-Project"))
}

// strayed is the error of an attempt's token that came from outside its sandbox.
func strayed(p identity.Principal) error {
	err := fault.New(fault.Unauthenticated, "the token of %s works only inside the job's sandbox", p).
		WithHint("Send the request from the job, or submit the job with token: anywhere.")
	return audit.Refuse(err, audit.Entry{Actor: p, Project: string(p.Project), Action: account.ActionAuthenticate, Object: "token " + p.Token})
}

// addressOf is the IP address of who sent the request: of the connection, or what a proxy
// that is believed says of it. Empty is not known, as of a job's sandbox.
func (s *Server) addressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip := at.Addr().Unmap()
	believed := func(ip netip.Addr) bool {
		return slices.ContainsFunc(s.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	if !believed(ip) {
		return ip.String()
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) { // each proxy has added whom it heard
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if ip = next.Unmap().WithZone(""); !believed(ip) {
			break
		}
	}
	return ip.String()
}

// ownerOf is in whose shares a connection is. Only the project of a job's token is
// certain: others are named by a header before anybody has asked for a permission.
func ownerOf(p identity.Principal) share.Owner {
	o := share.Owner{Principal: p.ID}
	if p.Kind == identity.Attempt {
		o.Project = string(p.Project)
	}
	return o
}

// purposeHeader says what the features of a request are read for, in every protocol.
const purposeHeader = "Falaj-Purpose"

func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(identity.WithCall(r.Context(), identity.Call{Address: s.addressOf(r), Method: r.Method, Path: r.URL.Path}))
		if s.opened(r) || iceberg.OpensItself(r) {
			next.ServeHTTP(w, r)
			return
		}
		principal, err := s.principal(r)
		if err == nil {
			if err = share.Proved(r.Context(), ownerOf(principal)); err != nil && r.ProtoMajor < 2 {
				w.Header().Set("Connection", "close")
			}
		}
		r = r.WithContext(identity.With(r.Context(), principal)) // the zero one, where nobody proved who they are
		if err != nil {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedGrace))
			s.fail(w, r, err)
			return
		}
		if s.cfg.Version != "" {
			w.Header().Set("Falaj-Version", s.cfg.Version) // for clients of another version, and for nobody else
		}
		if purpose := r.Header.Get(purposeHeader); purpose != "" {
			r = r.WithContext(feature.WithPurpose(r.Context(), purpose))
		}
		route := s.mux.of(r)
		body := route.Body
		if !body.packed {
			if _, err := coding.Of(strings.Join(r.Header.Values("Content-Encoding"), ",")); err != nil {
				s.fail(w, r, err)
				return
			}
		}
		memory := s.memory.Share(principal.ID)
		defer memory.Free()
		ctx, turn := membudget.With(r.Context(), memory), turnOf(r, body)
		if turn != nil {
			ctx = share.WithTurn(ctx, turn)
			defer turn.End()
		}
		r = r.WithContext(ctx)
		control := *http.NewResponseController(w)
		untimed := body.unhurried && s.cfg.LeastRate > 0
		if body.time > 0 {
			until := time.Now().Add(body.time)
			if untimed {
				until = time.Time{}
			}
			_ = control.SetReadDeadline(until)
		}
		b := s.bounded(w, r, body.bytes(s.cfg), control)
		defer b.finish()
		if b.grace, b.credit = body.patience(), body.patience(); body.anyRate {
			b.rate = 0
		}
		if body.upload {
			b.takes(s.uploading, r)
		}
		unread := b.ReadCloser
		r.Body = b
		if form := body.formOf(r); form != nil {
			m := membudget.NewMeter(r.Context(), b, memory, *form)
			if r.Body = m; turn != nil && !form.Copied() {
				r.Body = newTurning(r, m, turn)
			}
		}
		if sw, ok := w.(*statusWriter); ok {
			defer func() { sw.route = r.Pattern }()
		}
		held := &heldWriter{ResponseWriter: w, server: s, request: r, route: route, share: memory, turn: turn}
		next.ServeHTTP(held, r)
		if untimed {
			b.leave()
		}
		if held.commit(); held.sent >= http.StatusBadRequest {
			drain(r, unread, control)
		}
	})
}

// bearer is the token that a request brings: in its header, else, of the console in a browser,
// in the cookie of a login.
func (s *Server) bearer(r *http.Request) string {
	if len(r.Header.Values("Authorization")) == 0 {
		return s.cookieOf(r, sessionCookie)
	}
	return bearer(r)
}

// bearer is the token of "Authorization: Bearer …", or the password of Basic
// credentials, which is where MLflow's and other clients can put one.
func bearer(r *http.Request) string {
	const scheme = "Bearer "
	if h := r.Header.Get("Authorization"); len(h) >= len(scheme) && strings.EqualFold(h[:len(scheme)], scheme) {
		return h[len(scheme):]
	}
	_, password, _ := r.BasicAuth()
	return password
}
