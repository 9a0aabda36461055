// Package remote runs models on other servers that speak the Open Inference
// Protocol: Triton, KServe, another Falaj. Who runs such a server keeps the model
// there; Load compares what the server says of it with the file that was registered.
//
//   - remote.go: Server, Runtime, and Load.
//   - session.go: a model there, and what is believed of an answer.
//   - breaker.go: whether requests go there. watch.go looks how it is there.
//   - wire.go: what a protocol does; grpc.go and http.go are those that there are.
//
// # Guarantees
//
// A request is sent once: what may have run is not sent again. An answer is of the
// request, the model and the version that were asked, and is what the model's
// signature says, or it is none. Nothing that a server sends is trusted: each answer
// is bounded where it is read, and none of its words is told to who asked or logged.
// A model whose server fails is asked no more, until the server says that it is
// ready; then one request goes ahead of the others.
package remote

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Protocol is how a server is asked.
type Protocol string

// The protocols.
const (
	GRPC Protocol = "oip-grpc"
	HTTP Protocol = "oip-http" // with binary tensor data
)

// Protocols lists them all.
var Protocols = []Protocol{GRPC, HTTP}

// Server is another server, as its operator named it.
type Server struct {
	Address     string // host:port
	Path        string // of HTTP, before /v2
	Protocol    Protocol
	TLS         *tls.Config   // nil: in the clear
	TokenFile   string        // of the bearer token; empty: none is sent
	Timeout     time.Duration // of one request
	Connections int           // that requests are spread over; of HTTP/1, the most that there are
}

// maxAnswer bounds an answer; it is also what Falaj takes of a request.
const maxAnswer = 64 << 20

// Config is what a Runtime is made of.
type Config struct {
	Servers map[string]Server
	// Signature reads what a registered model takes and gives, and refuses what is
	// no model.
	Signature func(model []byte) (runtime.Metadata, error)
	Log       *slog.Logger // may be nil
}

// Runtime asks models on other servers. Make it with New, and Close it.
type Runtime struct {
	signature func([]byte) (runtime.Metadata, error)
	log       *slog.Logger
	servers   map[string]*server

	mu       sync.Mutex
	sessions []*session
}

var _ runtime.Runtime = (*Runtime)(nil)

// server is a Server with the connections to it, which its models share.
type server struct {
	name    string
	wire    wire
	timeout time.Duration

	mu       sync.Mutex
	failures map[Reason]int64
}

// New makes a runtime. Nothing is connected yet.
func New(c Config) (*Runtime, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{signature: c.Signature, log: c.Log, servers: map[string]*server{}}
	for name, s := range c.Servers {
		w, err := open(s)
		if err != nil {
			return nil, errors.Join(fault.Wrap(err, "remote %s", name), r.Close())
		}
		r.servers[name] = &server{name: name, wire: w, timeout: s.Timeout, failures: map[Reason]int64{}}
	}
	return r, nil
}

// Close ends the connections, and what looks at the models of sessions that were not
// closed.
func (r *Runtime) Close() error {
	r.mu.Lock()
	for _, s := range r.sessions {
		s.end()
	}
	r.mu.Unlock()
	var all []error
	for _, s := range r.servers {
		all = append(all, s.wire.close())
	}
	return errors.Join(all...)
}

// Load makes a session of o.Remote, whose model must take what the registered one
// takes and give what it gives. Errors: fault.Invalid when it does not,
// fault.Unavailable when the server does not answer.
func (r *Runtime) Load(ctx context.Context, file []byte, o runtime.Options) (runtime.Session, error) {
	want, err := r.signature(file)
	if err != nil {
		return nil, err
	}
	want.Optional = nil // the protocol does not say whether a server takes them
	on := r.servers[o.Remote.Server]
	if on == nil {
		return nil, fault.New(fault.Invalid, "remote %q is not configured", o.Remote.Server)
	}
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the request timed out before the remote was called")
	}
	s := &session{
		runtime: r, server: on, model: model{o.Remote.Model, o.Remote.Version}, meta: want, id: rand.Text()[:8], breaker: newBreaker(),
	}
	limit, cancel := context.WithTimeout(ctx, min(on.timeout, probeTime))
	defer cancel()
	if s.meta.Platform, err = s.compare(limit); err != nil {
		return nil, s.told(ctx, err)
	}
	if s.maxRows, err = on.wire.maxRows(limit, s.model); err != nil {
		s.maxRows = 0 // not every server has a configuration to show
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	s.watcher.Go(func() { s.watch(life) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = append(r.sessions, s)
	return s, nil
}

// forget drops a session that was closed.
func (r *Runtime) forget(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = slices.DeleteFunc(r.sessions, func(o *session) bool { return o == s })
}

// Measured is how a model of a server is.
type Measured struct {
	Server, Model, Version string
	State                  State // the worst of those who ask it
}

// Measured lists the models that are asked, each once.
func (r *Runtime) Measured() []Measured {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Measured
	for _, s := range r.sessions {
		m := Measured{Server: s.server.name, Model: s.model.name, Version: s.model.version, State: s.breaker.now()}
		i := slices.IndexFunc(out, func(o Measured) bool {
			return o.Server == m.Server && o.Model == m.Model && o.Version == m.Version
		})
		if i < 0 {
			out = append(out, m)
		} else {
			out[i].State = max(out[i].State, m.State)
		}
	}
	return out
}

// Failures are how many requests and looks failed at each server, by reason.
func (r *Runtime) Failures() map[string]map[Reason]int64 {
	out := map[string]map[Reason]int64{}
	for name, s := range r.servers {
		s.mu.Lock()
		out[name] = maps.Clone(s.failures)
		s.mu.Unlock()
	}
	return out
}

func (s *server) failed(why Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[why]++
}
