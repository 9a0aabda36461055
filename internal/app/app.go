package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/console"
	"github.com/falaj-ml/falaj/internal/diskspace"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/heap"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/usecase/erasure"
)

// World is what the server touches outside its configuration.
type World struct {
	Version string
	Out     io.Writer // for people: the first-run token, the addresses
	Log     io.Writer // structured log
	Path    []string  // directories in which Python and uv are looked for
	// Keep stores the first-run token for this user's command line, and the
	// certificate to trust, if there is one; may be nil.
	Keep func(server, token, ca string) error
	// Hardening is why the process could not give up rights, see package harden; nil: it did.
	Hardening error
}

// App is a server that was put together. Close what New opened with Stop.
type App struct {
	cfg   config.Config
	world World
	log   *slog.Logger
	group lifecycle.Group
	lock  *lifecycle.DirLock
	// groupsOwner names this installation in the control groups of its children.
	groupsOwner string
	// upgrading is told before the schema of the database changes, and may forbid it.
	upgrading func(store.Upgrade) error
	// server serves HTTP from the beginning of the start; until the end of the start it answers
	// with its progress.
	server *http.Server
	failed chan error // of the listeners

	certificate *certificate // nil without TLS
	followed    []followed   // files that are read again
	stores      stores
	close       []func() error // in order of opening; closed in reverse

	parts
	conns *share.Connections
	http  net.Listener
	edge  *httpapi.Server
	ready atomic.Bool
	// hangups are the SIGHUPs that came.
	hangups <-chan os.Signal
}

// newApp is an App that has opened nothing.
func newApp(cfg config.Config, w World) *App {
	a := &App{cfg: cfg, world: w, log: newLogger(cfg, w.Log)}
	a.erasure = &erasure.Service{}
	a.stores = stores{log: a.log, away: map[string]error{}, database: func() error {
		if a.db == nil {
			return nil
		}
		return a.db.Outage()
	}}
	return a
}

// Run builds the server, starts it, tells when it is ready, and stops it when
// ctx ends. It returns when everything has stopped.
func Run(ctx context.Context, cfg config.Config, w World) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // also while it starts
	defer signal.Stop(hangups)
	a, err := New(ctx, cfg, w)
	if err != nil {
		return err
	}
	a.hangups = hangups
	err = a.serve(ctx)
	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

// New opens everything. Errors: fault.Conflict when another server has the data
// directory; fault.Invalid for wrong settings; fault.Exhausted for a full disk.
func New(ctx context.Context, cfg config.Config, w World) (_ *App, err error) {
	a := newApp(cfg, w)
	a.conns = share.NewConnections(share.Files(), cfg.Limits.Connections)
	a.warnOfURLs(ctx)
	a.upgrading = a.beginUpgrade
	defer func() {
		if err != nil {
			_ = a.Stop(context.WithoutCancel(ctx))
		}
	}()
	if a.cfg.Data, err = filepath.Abs(cfg.Data); err != nil {
		return nil, fault.Wrap(err, "data directory")
	}
	if err := a.openCertificate(); err != nil {
		return nil, err
	}
	if err := private(a.cfg.Data, a.log); err != nil {
		return nil, err
	}
	if a.lock, err = lifecycle.LockDir(a.cfg.Data); err != nil {
		return nil, err
	}
	if w.Hardening != nil {
		a.log.WarnContext(ctx, "the server could not drop unneeded privileges; falaj doctor lists them", slog.Any("error", w.Hardening))
	}
	if err := backup.Unfinished(a.cfg.Data); err != nil {
		return nil, err
	}
	if err := a.cfg.CheckFree(); err != nil {
		return nil, err
	}
	if err := a.sweepCgroups(ctx); err != nil {
		return nil, err
	}
	if err := a.holdDiskReserve(ctx); err != nil {
		return nil, err
	}
	usual := heap.Tune(config.Bytes(a.cfg.Limits.Garbage))
	memory := memoryLimit()
	unlimited := heap.Limit(memory)
	a.onClose(func() error { usual(); unlimited(); return nil })
	if err := a.answer(); err != nil { // not before the lock: the address is this directory's
		return nil, err
	}
	ctx = identity.With(ctx, identity.Loop("start"))
	domains := a.openDomains
	if cfg.Follows() {
		domains = a.openFollower
	}
	for _, step := range []struct {
		name string
		open func(context.Context) error
	}{
		{"governance", a.openGovernance},
		{"domains", domains},
	} {
		if err := step.open(ctx); err != nil {
			return nil, fault.Wrap(err, "%s", step.name)
		}
	}
	requests := a.requestBudget(memory)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(a.collectors(requests)...)
	if len(a.followed) > 0 {
		a.every(certificateEvery, "files of certificates and credentials", func(ctx context.Context) error { return a.refresh(ctx, false) })
	}
	a.edge = httpapi.New(httpapi.Options{
		Config: httpapi.Config{Hosts: append(a.cfg.EngineHosts(), a.cfg.HTTPHosts...), Proxies: a.cfg.Proxies(), MaxBody: config.Bytes(a.cfg.Limits.Body), Upload: config.Bytes(a.cfg.Limits.Upload), Answer: config.Bytes(a.cfg.Limits.Answer), Tree: config.Bytes(a.cfg.Limits.Checkpoint), LeastRate: cmp.Or(config.Bytes(a.cfg.Limits.BodyRate), -1), Version: w.Version, Secure: strings.HasPrefix(a.cfg.Identity.URL, "https:")},
		Memory: requests,
		Auth:   a.accounts, Authz: a.authorizer, Journal: a.journal, DB: a.db, Log: a.log, Registry: registry, Console: console.Handler(), Follows: a.cfg.Gateway.Upstream,
		CheckDiskReserve: a.cfg.CheckFree,
		Ready: func() error {
			if !a.ready.Load() {
				return fault.New(fault.Unavailable, "starting")
			}
			if err := diskspace.Check("the data directory", a.cfg.Data, diskspace.Full(a.cfg.Reserve())); err != nil {
				return err
			}
			if err := a.stores.ready(); err != nil {
				return err
			}
			return auditReady(a.sequencer.Status(), time.Now())
		},
	}, a.domains())
	a.api.Started(a.edge)
	return a, nil
}

// answer starts the HTTP server. Until the start is complete it answers 503 with the current
// step.
func (a *App) answer() error {
	l, err := a.listenHTTP()
	if err != nil {
		return err
	}
	a.failed = make(chan error, 3)
	a.server = a.newServer(&a.api)
	go func() { a.failed <- a.server.Serve(l) }()
	return nil
}

// OpenAPI is the description of the API, for `make generate`.
func OpenAPI(version string) ([]byte, error) {
	edge := httpapi.New(httpapi.Options{
		Config: httpapi.Config{Version: version}, Log: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(), Console: console.Handler(), Ready: func() error { return nil },
	}, httpapi.Domains{})
	return edge.OpenAPI()
}

// serve listens, starts the loops, and returns when ctx ends or a listener fails.
func (a *App) serve(ctx context.Context) error {
	defer func() { _ = a.server.Close() }()
	grpcListener, err := a.listen("grpc", a.cfg.GRPC)
	if err != nil {
		return err
	}
	flightListener, err := a.listen("flight", a.cfg.Flight)
	if err != nil {
		_ = grpcListener.Close()
		return err
	}
	calls, rows := a.newServer(a.edge.GRPC()), a.newServer(a.edge.Flight())
	defer func() { _, _ = calls.Close(), rows.Close() }()
	go func() { a.failed <- calls.Serve(grpcListener) }()
	go func() { a.failed <- rows.Serve(flightListener) }()
	if err := a.group.Start(ctx); err != nil {
		return err
	}
	a.ready.Store(true)
	if err := a.welcome(ctx, a.url(a.http)); err != nil {
		return err
	}
	for stopping := false; !stopping; {
		select {
		case err = <-a.failed:
			stopping = true
		case <-ctx.Done():
			stopping = true
		case <-a.hangups:
			a.reread(ctx)
		}
	}
	a.ready.Store(false)
	a.serving.Loader.Stopping() // those who are held for a load hear of it while they can be told
	// Running requests may finish; long ones (log streams) are cut.
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = rows.Shutdown(stop), calls.Shutdown(stop)
	}()
	_ = a.server.Shutdown(stop)
	<-ended
	return err
}

// reread reads again what the server may change while it runs.
func (a *App) reread(ctx context.Context) {
	if len(a.followed) == 0 {
		a.log.InfoContext(ctx, "SIGHUP: no certificate or credential file to reload; settings need a restart")
		return
	}
	if err := a.refresh(ctx, true); err != nil {
		a.log.ErrorContext(ctx, "SIGHUP: not everything was read again", slog.Any("error", err), slog.String("hint", fault.HintOf(err)))
	}
}

// maxStreams is how many requests of a connection of HTTP/2 are under way.
const maxStreams = 250

// newServer serves a handler: HTTP/1, and HTTP/2 also without TLS, which
// Arrow Flight needs.
func (a *App) newServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	// A peer that is gone, or takes nothing, keeps no connection.
	s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: 30 * time.Second}
	a.conns.Serve(s)
	return s
}

// listenHTTP listens, once: engines may have to know the address before the
// server is there to answer.
func (a *App) listenHTTP() (net.Listener, error) {
	if a.http != nil {
		return a.http, nil
	}
	l, err := a.listen("http", a.cfg.HTTP)
	if err != nil {
		return nil, err
	}
	a.http = l
	a.onClose(func() error {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return l, nil
}

// url is where this machine's clients reach the listener.
func (a *App) url(l net.Listener) string {
	if a.cfg.TLS.Cert != "" {
		return "https://" + reachable(l.Addr())
	}
	return "http://" + reachable(l.Addr())
}

func (a *App) listen(name, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr) //nolint:noctx // a listener lives as long as the server
	if err != nil {
		return nil, fault.New(fault.Conflict, "%s listener on %s: %w", name, addr, err).
			WithHint("Is something else listening there? Choose another with --%s HOST:PORT.", name)
	}
	l = a.conns.Listen(l)
	if a.certificate == nil {
		return l, nil
	}
	return tls.NewListener(l, a.certificate.config()), nil
}

// reachable is the address as this machine's clients write it: what listens on
// every address is asked at localhost.
func reachable(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}

// welcome prints the first-run token, once in the life of a data directory, and
// where the server listens.
func (a *App) welcome(ctx context.Context, url string) error {
	secret, created, err := a.accounts.Bootstrap(ctx)
	if err != nil {
		return fault.Wrap(err, "first administrator")
	}
	if created {
		if err := a.hand(ctx, url, secret); err != nil {
			return err
		}
	}
	if a.cfg.JSONLog() { // programs read every line
		a.log.InfoContext(ctx, "Falaj is ready", slog.String("url", url))
		return nil
	}
	fmt.Fprintf(a.world.Out, "Falaj is ready at %s\n", url)
	return nil
}

// hand gives the first-run token to people and to this user's command line. One
// of the two must have it: the server knows no more than its hash.
func (a *App) hand(ctx context.Context, url, secret string) error {
	printed := a.show(ctx, secret)
	kept := errors.New("there is nobody to keep it")
	if a.world.Keep != nil {
		ca := a.cfg.TLS.Cert
		if ca != "" {
			ca, _ = filepath.Abs(ca) // else as it was written
		}
		if kept = a.world.Keep(url, secret, ca); kept != nil {
			a.log.WarnContext(ctx, "the token was not stored for this user's command line", slog.String("error", kept.Error()))
		}
	}
	if printed == nil || kept == nil {
		return nil
	}
	return fault.New(fault.Unavailable, "the first administrator's token could be neither shown (%w) nor stored (%w), and is lost", printed, kept).
		WithHint("Create another one with `falaj recover-admin --data %s`.", fault.ShellWord(a.cfg.Data))
}

// show prints the first-run token. A log that programs read and keep has the name of a file
// with it instead.
func (a *App) show(ctx context.Context, secret string) error {
	if !a.cfg.JSONLog() {
		_, err := fmt.Fprintf(a.world.Out, "Admin token (shown once): %s\n", secret)
		return err
	}
	file := filepath.Join(a.cfg.Data, "admin-token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "the first administrator's token was written to a file; use it for falaj login, and remove the file", slog.String("file", file))
	return nil
}

// Stop stops the loops and closes everything, last opened first.
func (a *App) Stop(ctx context.Context) error {
	if a.server != nil { // no request finds closed stores
		_ = a.server.Close()
	}
	err := a.group.Stop(ctx)
	for _, v := range slices.Backward(a.close) {
		err = errors.Join(err, v())
	}
	a.close = nil
	if a.lock != nil {
		err = errors.Join(err, a.lock.Unlock())
		a.lock = nil
	}
	return err
}

func (a *App) onClose(f func() error) { a.close = append(a.close, f) }

// atLast calls f when the server has stopped, for at most five seconds.
func (a *App) atLast(f func(context.Context) error) {
	a.onClose(func() error {
		last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return f(last)
	})
}

// every adds a loop that calls run, and gives it, to be woken.
func (a *App) every(pause time.Duration, name string, run func(context.Context) error) *lifecycle.Loop {
	loop := &lifecycle.Loop{Name: name, Every: pause, Run: run, Logger: a.log}
	a.group.Add(loop.Service())
	return loop
}

func newLogger(cfg config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // validated
	options := &slog.HandlerOptions{Level: level}
	if cfg.JSONLog() {
		options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // else a number, whose unit nothing says
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// warnOfURLs logs what of the configuration a later release refuses.
func (a *App) warnOfURLs(ctx context.Context) {
	for _, name := range a.cfg.PasswordsInURLs() {
		a.log.WarnContext(ctx, "the configuration has a password in a URL", slog.String("setting", name+".url"), slog.String("hint", fmt.Sprintf(config.MoveHint, name)))
	}
}
