package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// serve forwards Falaj's API to the worker, on loopback: it adds nothing, the
// worker has a token of its own. It goes on until the listener is closed.
func (a *agent) serve(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fault.Wrap(err, "opening Falaj's API to the worker")
	}
	s := &http.Server{
		Handler: forward(a.c.base, a.c.http.Transport.(*http.Transport)), ReadHeaderTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: quiet, Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true) // Arrow Flight
	go func() { _ = s.Serve(l) }()
	return l, nil
}

// quiet drops what the worker is told anyway.
var quiet = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)

// forward passes requests on to a server: those of Arrow Flight, which is gRPC,
// by HTTP/2, and all others as they always went.
func forward(base *url.URL, plain *http.Transport) http.Handler {
	to := &url.URL{Scheme: base.Scheme, Host: base.Host}
	streams := plain.Clone()
	streams.Protocols = new(http.Protocols)
	streams.Protocols.SetHTTP2(true)
	streams.Protocols.SetUnencryptedHTTP2(true)
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     byProtocol{plain, streams},
		FlushInterval: -1, // streams of events and logs
		ErrorLog:      quiet,
	}
}

// byProtocol sends calls of gRPC by HTTP/2, whose trailers have the outcome.
type byProtocol struct{ one, two http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b byProtocol) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return b.two.RoundTrip(r)
	}
	return b.one.RoundTrip(r)
}
