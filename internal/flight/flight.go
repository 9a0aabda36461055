// Package flight is Falaj's Arrow Flight edge: it streams the rows of dataset
// versions to pyarrow, the Python SDK and whatever else speaks the protocol. Like
// httpapi it translates and decides nothing.
//
// # Map
//
//   - flight.go: Server, an http.Handler: gRPC is HTTP/2, so calls arrive on the
//     HTTP listener, on the Flight listener, and by the ways that jobs have to the
//     API, through the one chain of checks that httpapi has for every request.
//   - ask.go: what descriptors and tickets say. describe.go: GetFlightInfo,
//     GetSchema, ListFlights. stream.go: DoGet. status.go: errors, translated once.
//   - exchange.go: DoExchange and DoPut, which bring rows: to a dataset, or for what
//     Commands says.
//
// # Guarantees
//
// A ticket names a version by number and digest, its columns, a shard and a place
// in it (dataset.Shard), and nothing else: whoever has one still needs a token that
// may read, which is asked on each call and again while a stream goes on. Equal
// tickets give equal rows in equal order, so a stream that broke after n rows goes
// on with n added to "skip", also on another server.
//
// What DoExchange and DoPut bring goes as it is to another process that parses it:
// nothing of Arrow that a stranger wrote is read here. DoAction is not offered.
package flight

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/share"
)

// Prefix begins the path of every call.
const Prefix = "/arrow.flight.protocol.FlightService/"

// Ours reports whether a path is a call of this protocol.
func Ours(path string) bool { return strings.HasPrefix(path, Prefix) }

// maxAsk bounds a message of a client, in bytes: descriptors and tickets with
// some thousand names of columns.
const maxAsk = 256 << 10

// Config bounds what the edge does. A zero field means its default.
type Config struct {
	Streams int           // that one principal has open; 256
	Message int64         // bytes of a record batch that is sent, about; 1 MiB. One row is sent whole.
	Recheck time.Duration // how late a revoked token or role ends a stream; 15 s
}

// Options is what New needs.
type Options struct {
	Config
	Datasets dataset.Services
	Commands Commands // may be nil: DoExchange and DoPut are not offered then
	// Ended takes the error that ends a call, logs and records it, and gives what the
	// caller is told; nil logs defects.
	Ended func(ctx context.Context, method string, err error) error
	Log   *slog.Logger
}

// Server answers the calls of the protocol. Safe for concurrent use.
type Server struct {
	flight.BaseFlightServer
	cfg      Config
	datasets dataset.Services
	commands Commands
	ended    func(ctx context.Context, method string, err error) error
	grpc     *grpc.Server

	streams *share.Pool
}

// New makes the edge. Each request that it serves has its principal in the context,
// bound to a project (identity.With), and how to ask for it anew (WithAgain), and
// passed the gate of the call's action in that project.
func New(o Options) *Server {
	if o.Streams == 0 {
		o.Streams = 256
	}
	if o.Message == 0 {
		o.Message = 1 << 20
	}
	if o.Recheck == 0 {
		o.Recheck = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Ended == nil {
		o.Ended = func(ctx context.Context, method string, err error) error {
			if fault.KindOf(err) == fault.Internal && ctx.Err() == nil {
				o.Log.ErrorContext(ctx, "request failed", slog.String("path", method), slog.String("error", err.Error()))
			}
			return err
		}
	}
	s := &Server{cfg: o.Config, datasets: o.Datasets, commands: o.Commands, ended: o.Ended, streams: share.New(share.Limits{
		Name: "row_streams", What: "streams of rows", Slots: 4 * o.Streams, PerProject: 2 * o.Streams, PerPrincipal: o.Streams, NoWait: true,
	})}
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxAsk), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	flight.RegisterFlightServiceServer(s.grpc, s)
	return s
}

// ServeHTTP implements http.Handler for requests of HTTP/2.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.commands != nil && Uploads(r.URL.Path) {
		s.upload(w, r)
		return
	}
	s.grpc.ServeHTTP(flusher{w, http.NewResponseController(w)}, r)
}

// flusher is a writer that grpc takes: it asks for http.Flusher, which writers
// around writers lose.
type flusher struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (f flusher) Flush() { _ = f.control.Flush() }

// unary translates what handlers of one answer return.
func (s *Server) unary(ctx context.Context, ask any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = s.guarded(ctx, info.FullMethod, func() error {
		answer, err = handle(ctx, ask)
		return err
	})
	return answer, err
}

// stream translates what handlers of streams return.
func (s *Server) stream(srv any, to grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return s.guarded(to.Context(), info.FullMethod, func() error { return handle(srv, to) })
}

func (s *Server) guarded(ctx context.Context, method string, handle func() error) error {
	err := recovered(handle)
	if err != nil {
		err = s.refusal(ctx, method, err)
	}
	return err
}

func recovered(handle func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Internal, "panic: %v", p)
		}
	}()
	return handle()
}

// begin takes the slot of a stream; end gives it back. Error: fault.Exhausted.
func (s *Server) begin(ctx context.Context) (end func(), err error) {
	return s.streams.Take(ctx, identity.Share(ctx, identity.From(ctx).Project))
}
