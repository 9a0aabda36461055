package alert

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/outbound"
)

const (
	maxRedirects = 3
	maxResponse  = 64 << 10 // bytes that are read of an answer
	dialTimeout  = 5 * time.Second
	hostHint     = "An operator can allow an internal host with alerts.hosts in the configuration."
)

// webhooks posts events.
type webhooks struct {
	allow   []string
	timeout time.Duration
	client  *http.Client
	still   *http.Client    // follows no redirect
	guarded outbound.Dialer // to hosts that the configuration does not name
}

func newWebhooks(c Config) *webhooks {
	w := &webhooks{allow: c.Allow, timeout: c.Timeout, guarded: outbound.Dialer{
		Timeout: c.Connect, Resolve: c.Resolve, Log: c.Log,
		Hint: "The server's log has details. " + hostHint,
	}}
	w.client = &http.Client{
		CheckRedirect: w.redirect,
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would connect in our place, unchecked
			DialContext:            w.dial,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
			TLSHandshakeTimeout:    dialTimeout,
			DisableKeepAlives:      true, // each delivery is checked anew
			MaxResponseHeaderBytes: maxResponse,
			DisableCompression:     true,
		},
	}
	w.still = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: w.client.Transport,
	}
	return w
}

// ownHeaders are those of a CloudEvent, signed as Standard Webhooks says.
func ownHeaders(r Row, secret []byte, at time.Time) http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	h.Set("User-Agent", "falaj-alerts/1")
	h.Set("Webhook-Id", r.Event)
	h.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	if secret != nil {
		h.Set("Webhook-Signature", sign(secret, r.Event, at, r.Body))
	}
	return h
}

// post delivers once, and gives the status of the answer, whose content is of no
// interest.
func (w *webhooks) post(ctx context.Context, r Row, header http.Header) (status int, err error) {
	if err := w.permitted(r.To.Webhook); err != nil {
		return 0, refusal{err}
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.To.Webhook, bytes.NewReader(r.Body))
	if err != nil {
		return 0, refusal{fault.New(fault.Invalid, "the webhook URL is invalid")}
	}
	req.Header = header
	client := w.client
	if r.Form != "" {
		client = w.still
	}
	resp, err := client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // without the URL, whose path may be secret
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, fault.New(fault.Timeout, "no response within %s", w.timeout)
		}
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxResponse)
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return resp.StatusCode, nil
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return resp.StatusCode, refusal{fault.New(fault.Invalid, "the receiver returned the redirect %s, which is not followed", resp.Status)}
	case resp.StatusCode == http.StatusGone: // Standard Webhooks: the receiver wants no more
		return resp.StatusCode, refusal{fault.New(fault.Gone, "the receiver returned %s", resp.Status)}
	}
	failure := fault.New(fault.Unavailable, "the receiver returned %s", resp.Status)
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
		return resp.StatusCode, later{failure, time.Duration(seconds) * time.Second}
	}
	return resp.StatusCode, failure
}

// permitted refuses a URL before any connection.
func (w *webhooks) permitted(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fault.New(fault.Invalid, "the webhook URL is invalid")
	}
	host := hostPort(u)
	switch {
	case u.User != nil || u.Scheme != "https" && u.Scheme != "http":
		return fault.New(fault.Invalid, "the webhook URL must use https and have no user information")
	case w.allowed(host):
		return nil
	case u.Scheme != "https":
		return fault.New(fault.Invalid, "alerts to %s require https", u.Host).
			WithHint("An operator can allow plain http to an internal host with alerts.hosts in the configuration.")
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil && !outbound.Public(a) {
		return blocked(u.Host)
	}
	return nil
}

// redirect follows at most three, never from https to http, never to a request
// without the event, and never from a host at home to one that is not.
func (w *webhooks) redirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return refusal{fault.New(fault.Invalid, "the receiver redirects more than %d times", maxRedirects)}
	case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
		return refusal{fault.New(fault.Invalid, "the receiver redirects from https to %s", req.URL.Scheme)}
	case req.Method != http.MethodPost:
		return refusal{fault.New(fault.Invalid, "the receiver's redirect would drop the request body")}
	}
	if err := w.permitted(req.URL.String()); err != nil {
		return refusal{fault.Wrap(err, "a redirect")}
	}
	if w.allowed(hostPort(via[0].URL)) && !w.allowed(hostPort(req.URL)) {
		return refusal{fault.New(fault.PermissionDenied, "the receiver redirects from the home zone to %s, which alerts.hosts does not list", req.URL.Host)}
	}
	return nil
}

// dial resolves and connects: to what the configuration names wherever it is, to
// others by the guarded dialer.
func (w *webhooks) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.allowed(strings.ToLower(address)) {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, refusal{fault.New(fault.Invalid, "%q is not a port", port)}
	}
	return w.guarded.Dial(ctx, host, uint16(n))
}

// named reports whether the configuration names the URL's host.
func (w *webhooks) named(text string) bool {
	u, err := url.Parse(text)
	return err == nil && w.allowed(hostPort(u))
}

// allowed reports whether the configuration names the host, with or without its
// port.
func (w *webhooks) allowed(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	return slices.ContainsFunc(w.allow, func(a string) bool {
		return strings.EqualFold(a, hostPort) || err == nil && strings.EqualFold(a, host)
	})
}

// hostPort is the host with its port, the scheme's if it names none.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return strings.ToLower(net.JoinHostPort(u.Hostname(), port))
}

func blocked(host string) error {
	return fault.New(fault.PermissionDenied, "%s is not a public address", host).
		WithHint(hostHint)
}
