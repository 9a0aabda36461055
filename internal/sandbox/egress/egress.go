// Package egress is the way out of a sandbox's empty network: an HTTP proxy
// with an allow-list, run by the server on a unix socket per workload.
//
// Guarantees: only "host:port" pairs on the list are dialled; the address is
// resolved here, once, and the one that was checked is the one that is dialled;
// an address that is private, loopback, link-local (the metadata services of
// clouds) or otherwise not on the public internet is refused unless the address
// itself is on the list; every target that is not on the list is reported. Of one
// that is and cannot be connected to, the workload and its submitter learn only
// that (package outbound): not whether a name exists in the server's network.
//
// TLS passes through unread (CONNECT). Plain HTTP is forwarded too.
package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/outbound"
	"github.com/falaj-ml/falaj/internal/share"
)

const (
	dialTimeout   = 10 * time.Second // also how late a failure is told
	headerTimeout = 15 * time.Second
	idleTimeout   = 10 * time.Minute // of a tunnel without a byte in either direction
	maxTunnels    = 256
	maxEntries    = 256
)

// Allow is a parsed allow-list. The zero value allows nothing.
type Allow struct {
	names     map[string]bool // "host:port"
	suffixes  []string        // ".host:port"
	addresses map[netip.AddrPort]bool
	networks  []network
}

type network struct {
	prefix netip.Prefix
	port   uint16
}

// ParseAllow reads entries "host:port", "*.host:port" (any host below),
// "10.1.2.3:443" and "10.0.0.0/8:443". A name that resolves to an address that
// is not public is reachable only when the address is on the list as well.
func ParseAllow(entries []string) (Allow, error) {
	a := Allow{names: map[string]bool{}, addresses: map[netip.AddrPort]bool{}}
	if len(entries) > maxEntries {
		return a, fault.New(fault.TooLarge, "the allow-list has %d entries, at most %d are allowed", len(entries), maxEntries)
	}
	for _, e := range entries {
		host, port, err := split(e)
		if err != nil {
			return a, err
		}
		if prefix, err := netip.ParsePrefix(host); err == nil {
			a.networks = append(a.networks, network{prefix.Masked(), port})
			continue
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			a.addresses[netip.AddrPortFrom(ip.Unmap(), port)] = true
			continue
		}
		rest, wild := strings.CutPrefix(host, "*.")
		if !validHost(rest) {
			return a, fault.New(fault.Invalid, "allow-list entry %q: %q is not a host name", e, host).
				WithHint("Write host:port, such as index.example:443.")
		}
		if wild {
			a.suffixes = append(a.suffixes, "."+join(rest, port))
			continue
		}
		a.names[join(host, port)] = true
	}
	return a, nil
}

// Hosts are the plain names on the list.
func (a Allow) Hosts() []string {
	var hosts []string
	for n := range a.names {
		host, _, _ := strings.Cut(n, ":")
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// name reports whether the target may be tried at all.
func (a Allow) name(host string, port uint16) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return a.address(ip, port)
	}
	n := join(strings.TrimSuffix(host, "."), port)
	return a.names[n] || slices.ContainsFunc(a.suffixes, func(s string) bool { return strings.HasSuffix(n, s) })
}

// address reports whether the address itself is on the list.
func (a Allow) address(ip netip.Addr, port uint16) bool {
	ip = ip.Unmap().WithZone("")
	return a.addresses[netip.AddrPortFrom(ip, port)] ||
		slices.ContainsFunc(a.networks, func(n network) bool { return n.port == port && n.prefix.Contains(ip) })
}

func split(target string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(target)
	if err != nil || host == "" {
		return "", 0, fault.New(fault.Invalid, "%q is not host:port", clip(target)).WithHint("Write host:port, such as index.example:443.")
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fault.New(fault.Invalid, "%q has no port number", clip(target)).WithHint("Write host:port, such as index.example:443.")
	}
	return strings.ToLower(host), uint16(n), nil
}

func join(host string, port uint16) string {
	return strings.ToLower(host) + ":" + strconv.Itoa(int(port))
}

func validHost(h string) bool {
	if h == "" || len(h) > 253 {
		return false
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			if c := label[i]; !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_", rune(c)) {
				return false
			}
		}
	}
	return true
}

func clip(s string) string { return fault.Clip(s, 200) }

// Config of a Proxy.
type Config struct {
	Allow Allow

	// OnRefused is called for each "host:port" that is not on the list, possibly by
	// several goroutines.
	OnRefused func(target string)

	// Resolve gives a host's addresses; nil asks the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Dial connects to a checked address; nil dials directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout of connecting, and the longest delay until a failure is reported; 0 is 10 s.
	Timeout time.Duration
	Log     *slog.Logger
	// Connections, which bounds those of the listener, hears which are at work; may be
	// nil.
	Connections *share.Connections
}

// Proxy serves one workload. Safe for concurrent use.
type Proxy struct {
	c       Config
	dialer  outbound.Dialer
	tunnels chan struct{}
	forward *httputil.ReverseProxy
	server  *http.Server

	mu   sync.Mutex
	open map[net.Conn]bool
	done bool
}

// New makes a proxy; Serve runs it.
func New(c Config) *Proxy {
	if c.Timeout <= 0 {
		c.Timeout = dialTimeout
	}
	if c.OnRefused == nil {
		c.OnRefused = func(string) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{c: c, tunnels: make(chan struct{}, maxTunnels), open: map[net.Conn]bool{}}
	p.dialer = outbound.Dialer{
		Timeout: c.Timeout, Resolve: c.Resolve, Connect: c.Dial, Log: c.Log,
		Permit: func(a netip.AddrPort) bool { return c.Allow.address(a.Addr(), a.Port()) },
		Hint:   "The server's log has the reason. A name with a private address needs address:port on the allow-list, too.",
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.Host = r.In.Host },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, target string) (net.Conn, error) { return p.dial(ctx, target) },
			// Each connection is for one client; nothing is kept between.
			DisableKeepAlives: true, ResponseHeaderTimeout: idleTimeout,
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { p.answer(w, r.Host, err) },
		ErrorLog:     slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	c.Connections.Serve(p.server)
	return p
}

// Serve answers on the listener until Close.
func (p *Proxy) Serve(l net.Listener) error {
	err := p.server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends the proxy and its tunnels.
func (p *Proxy) Close() error {
	err := p.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	for c := range p.open {
		_ = c.Close()
	}
	return err
}

// ServeHTTP answers CONNECT and absolute-form requests.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		if r.URL.Scheme != "http" || r.URL.Host == "" {
			http.Error(w, "falaj: this is a proxy; send it CONNECT or an absolute http URL", http.StatusBadRequest)
			return
		}
		p.forward.ServeHTTP(w, r)
		return
	}
	select {
	case p.tunnels <- struct{}{}:
		defer func() { <-p.tunnels }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "falaj: too many connections of this workload", http.StatusServiceUnavailable)
		return
	}
	to, err := p.dial(r.Context(), r.Host)
	if err != nil {
		p.answer(w, r.Host, err)
		return
	}
	defer to.Close()
	rc := http.NewResponseController(w)
	from, buffered, err := rc.Hijack()
	if err != nil {
		http.Error(w, "falaj: this connection cannot be a tunnel", http.StatusInternalServerError)
		return
	}
	defer from.Close()
	if !p.track(from) {
		return
	}
	defer p.untrack(from)
	_ = from.SetDeadline(time.Time{})
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	if n := buffered.Reader.Buffered(); n > 0 { // the client did not wait for the answer
		early, _ := buffered.Peek(n)
		if _, err := to.Write(early); err != nil {
			return
		}
	}
	tunnel(from, to)
}

// dial connects to a target on the list.
func (p *Proxy) dial(ctx context.Context, target string) (net.Conn, error) {
	host, port, err := split(withPort(target))
	if err != nil {
		return nil, err
	}
	if !p.c.Allow.name(host, port) {
		p.c.OnRefused(join(host, port))
		return nil, fault.New(fault.PermissionDenied, "%s is not on the workload's allow-list", join(host, port)).
			WithHint("Add it to the allow-list of the job or of environment builds.")
	}
	return p.dialer.Dial(ctx, host, port)
}

// withPort adds the default port of plain HTTP.
func withPort(target string) string {
	if _, _, err := net.SplitHostPort(target); err == nil {
		return target
	}
	return net.JoinHostPort(strings.Trim(target, "[]"), "80")
}

func (p *Proxy) answer(w http.ResponseWriter, target string, err error) {
	status := http.StatusBadGateway
	switch fault.KindOf(err) {
	case fault.PermissionDenied:
		status = http.StatusForbidden
	case fault.Invalid:
		status = http.StatusBadRequest
	default:
	}
	p.c.Log.Debug("egress refused", slog.String("target", clip(target)), slog.Any("err", err))
	text := "falaj: " + err.Error()
	if hint := fault.HintOf(err); hint != "" {
		text += ". " + hint
	}
	http.Error(w, text, status)
}

func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return false
	}
	p.open[c] = true
	return true
}

func (p *Proxy) untrack(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// tunnel copies both ways until both sides have ended, or neither sent a byte
// for idleTimeout.
func tunnel(a, b net.Conn) {
	idle := time.AfterFunc(idleTimeout, func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer idle.Stop()
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				idle.Reset(idleTimeout)
				if _, werr := to.Write(buf[:n]); werr != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		if w, ok := to.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
			return
		}
		_ = to.Close()
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}
