package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// client talks to the server, as one member.
type client struct {
	base  *url.URL
	token string
	index int
	start string
	http  *http.Client
	zip   bool // streams are worth compressing

	mu      sync.Mutex
	reached time.Time // when it last answered
	met     bool      // it has answered once
	patient time.Duration
}

// answerTime bounds a request that is no stream; joins and beats are held back
// by the server for less.
const answerTime = 45 * time.Second

// stallTime is how long a stream may stand still.
const stallTime = 2 * time.Minute

func newClient(base, token, ca string, index int, start string, lease time.Duration) (*client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || !strings.HasSuffix(u.Path, "/worker/") {
		return nil, fault.New(fault.Invalid, "%s is %q, not the address of a server's worker routes", protocol.EnvURL, base)
	}
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 15 * time.Second, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13},
	}
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, fault.New(fault.Invalid, "%s has no PEM certificate", protocol.EnvCA)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	t.DisableCompression = local
	return &client{
		base: u, token: token, index: index, start: start, http: &http.Client{Transport: t}, zip: !local,
		reached: time.Now(), patient: lease,
	}, nil
}

func (c *client) host() string {
	if c.base.Port() != "" {
		return c.base.Host
	}
	port := "80"
	if c.base.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(c.base.Hostname(), port)
}

// away is how long the server was not reached.
func (c *client) away() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.reached)
}

// answered notes that the server is there.
func (c *client) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reached, c.met = time.Now(), true
}

// unsent is the error of a request that got no answer. A connection that TLS refuses is
// not tried again before the server has answered once: what is wrong is the
// configuration. Later it may be a certificate that is being renewed, which the lease
// outlasts.
func (c *client) unsent(err error) error {
	c.mu.Lock()
	met := c.met
	c.mu.Unlock()
	if refused := untrusted(c.host(), err); refused != nil && !met {
		return refused
	}
	return fault.New(fault.Unavailable, "%w", err)
}

// untrusted says of an error of TLS what is wrong and what to do about it; nil of other
// errors.
func untrusted(host string, err error) *fault.Error {
	if _, other := errors.AsType[tls.RecordHeaderError](err); other || errors.Is(err, http.ErrSchemeMismatch) {
		return fault.New(fault.Invalid, "%s does not speak TLS", host).
			WithHint("Set engines.NAME.url in the server's configuration to its https address.")
	}
	refused, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok {
		return nil
	}
	out := fault.New(fault.Invalid, "this node does not trust the certificate of %s: %w", host, refused.Err)
	_, name := errors.AsType[x509.HostnameError](err)
	invalid, _ := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case name:
		return out.WithHint("Set engines.NAME.url in the server's configuration to a name in the certificate, or have a certificate issued for this one.")
	case invalid.Reason == x509.Expired && invalid.Cert != nil:
		return out.WithHint("Renew the server's certificate (tls.cert). If it is valid, set the clock of this node.")
	}
	return out.WithHint("Name the authority's PEM file by engines.NAME.ca in the server's configuration, and restart the server.")
}

func (c *client) lease() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patient
}

func (c *client) setLease(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patient = d
}

// transient reports an error that may be another one later.
func transient(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Exhausted, fault.Internal:
		return true
	default:
		return false
	}
}

// retry repeats what may succeed later, for as long as the lease: so long the
// server may be away, fail, or have no room.
func (c *client) retry(ctx context.Context, f func(context.Context) error) error {
	var refused time.Time // since when it does nothing else
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := f(ctx)
		if err == nil || !transient(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case !fault.Is(err, fault.Internal) && !fault.Is(err, fault.Exhausted):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		}
		if c.away() > c.lease() || !refused.IsZero() && time.Since(refused) > c.lease() {
			return fault.Wrap(err, "giving up after %s", c.lease())
		}
		t := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // Jitter.
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// request sends one request; the answer's body is the caller's to close. Answers
// that say no are errors.
func (c *client) request(ctx context.Context, method, path string, query url.Values, body io.Reader, header http.Header) (*http.Response, error) {
	return c.send(ctx, method, path, query, body, 0, header)
}

// sized is request with a body of a known size, in bytes.
func (c *client) sized(ctx context.Context, method, path string, query url.Values, body io.Reader, size int64) (*http.Response, error) {
	if size == 0 {
		body = http.NoBody
	}
	return c.send(ctx, method, path, query, body, size, http.Header{"Content-Type": {"application/octet-stream"}})
}

// send is request; a size of 0 is that of the body where net/http knows it.
func (c *client) send(ctx context.Context, method, path string, query url.Values, body io.Reader, size int64, header http.Header) (*http.Response, error) {
	u := c.base.JoinPath(path)
	if query == nil {
		query = url.Values{}
	}
	query.Set("index", strconv.Itoa(c.index))
	query.Set("start", c.start)
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if size > 0 {
		r.ContentLength = size
	}
	maps.Copy(r.Header, header)
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok { // of the body
			return nil, e
		}
		return nil, c.unsent(err)
	}
	if resp.StatusCode < 300 {
		c.answered()
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var p protocol.Problem
	if json.Unmarshal(b, &p) != nil || p.Kind == "" {
		// Not our server's words: something in between.
		return nil, fault.New(fault.Unavailable, "%s answers %s", c.base.Host, resp.Status)
	}
	kind := fault.ParseKind(p.Kind)
	if kind != fault.Unavailable && kind != fault.Internal {
		c.answered()
	}
	return nil, &fault.Error{Kind: kind, Message: p.Detail, Hint: p.Hint}
}

// post sends JSON, and reads JSON into out.
func (c *client) post(ctx context.Context, path string, in, out any) (status int, err error) {
	b, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	return c.postBytes(ctx, path, nil, b, "application/json", out)
}

func (c *client) postBytes(ctx context.Context, path string, query url.Values, b []byte, media string, out any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	resp, err := c.request(ctx, http.MethodPost, path, query, bytes.NewReader(b), http.Header{"Content-Type": {media}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return 0, fault.New(fault.Unavailable, "%w", err)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return 0, fault.New(fault.Unavailable, "%s does not respond as a Falaj server: %w", c.base.Host, err)
	}
	return resp.StatusCode, nil
}

func (c *client) join(ctx context.Context, j protocol.Join, o *protocol.Order, w *protocol.Waiting) (ordered bool, err error) {
	var raw json.RawMessage
	status, err := c.post(ctx, "join", j, &raw)
	if err != nil {
		return false, err
	}
	if status == http.StatusAccepted {
		return false, json.Unmarshal(raw, w)
	}
	if err := json.Unmarshal(raw, o); err != nil || o.ID == "" {
		return false, fault.New(fault.Unavailable, "%s does not respond with an order", c.base.Host)
	}
	return true, nil
}

func (c *client) beat(ctx context.Context, b protocol.Beat) (t protocol.Instructions, err error) {
	_, err = c.post(ctx, "beat", b, &t)
	return t, err
}

func (c *client) end(ctx context.Context, e protocol.End) error {
	_, err := c.post(ctx, "end", e, &struct{}{})
	return err
}

func (c *client) profile(ctx context.Context, l protocol.Look) error {
	_, err := c.post(ctx, "profile", l, &struct{}{})
	return err
}

func (c *client) log(ctx context.Context, offset int64, piece []byte, last bool) (protocol.Reached, error) {
	q := url.Values{"offset": {strconv.FormatInt(offset, 10)}}
	if last {
		q.Set("last", "true")
	}
	var r protocol.Reached
	_, err := c.postBytes(ctx, "log", q, piece, "application/octet-stream", &r)
	return r, err
}

// mount reads a mount as a tar stream, which breaks off when it stands still.
func (c *client) mount(ctx context.Context, n int, read func(io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := newStall(cancel)
	defer watch.stop()
	resp, err := c.request(ctx, http.MethodGet, "mounts/"+strconv.Itoa(n), nil, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return cut(ctx, read(watch.reader(resp.Body)))
}

func (c *client) manifest(ctx context.Context, n int, m protocol.Manifest) (needed protocol.Needed, err error) {
	_, err = c.post(ctx, "mounts/"+strconv.Itoa(n)+"/manifest", m, &needed)
	return needed, err
}

// cut says of a stream that broke that it may be tried again.
func cut(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return fault.New(fault.Unavailable, "%w", cause)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "the stream was interrupted: %w", err)
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return fault.New(fault.Unavailable, "%w", err)
	}
	return err
}

// stall cancels what stands still for stallTime.
type stall struct{ timer *time.Timer }

func newStall(cancel context.CancelCauseFunc) *stall {
	return &stall{time.AfterFunc(stallTime, func() { cancel(errors.New("the stream has stalled")) })}
}

func (s *stall) stop() { s.timer.Stop() }

func (s *stall) reader(r io.Reader) io.Reader { return &moving{r: r, timer: s.timer} }

type moving struct {
	r     io.Reader
	timer *time.Timer
}

func (m *moving) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if n > 0 {
		m.timer.Reset(stallTime)
	}
	return n, err
}
