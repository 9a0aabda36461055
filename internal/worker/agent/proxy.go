package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
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
	to := &url.URL{Scheme: a.c.base.Scheme, Host: a.c.base.Host}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // the worker sees the errors
	p := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     a.c.http.Transport,
		FlushInterval: -1, // streams of events and logs
		ErrorLog:      quiet,
	}
	s := &http.Server{Handler: p, ReadHeaderTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute, ErrorLog: quiet}
	go func() { _ = s.Serve(l) }()
	return l, nil
}
