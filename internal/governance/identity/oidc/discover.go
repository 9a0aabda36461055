package oidc

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/falaj-ml/falaj/internal/outbound"
)

// Limits of what a provider answers.
const (
	maxAnswer    = 1 << 20 // bytes of one answer
	answerTime   = 10 * time.Second
	metadataAge  = time.Hour        // then it is asked for again
	metadataWait = 10 * time.Second // between two attempts to get it
)

// metadata is what the provider says of itself.
type metadata struct {
	provider *oidc.Provider
	keys     *keySet
	read     time.Time

	AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
	Algorithms  []string `json:"id_token_signing_alg_values_supported"`
	EndSession  string   `json:"end_session_endpoint"`
	JWKS        string   `json:"jwks_uri"`
	NamesItself bool     `json:"authorization_response_iss_parameter_supported"`

	algorithms []string // accepted ones of those that it uses
}

// metadata is what the provider says of itself, from memory for an hour, and longer while it
// does not answer.
func (p *Provider) metadata(ctx context.Context) (*metadata, error) {
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return nil, p.away(ctx.Err())
	}
	now := p.cfg.Now()
	known := p.meta
	if known == nil && p.err != nil && now.Sub(p.asked) < metadataWait {
		return nil, p.err
	}
	if known != nil && (now.Sub(known.read) < metadataAge || now.Sub(p.asked) < metadataWait) {
		return known, nil
	}
	p.asked = now
	m, err := p.discover(context.WithoutCancel(ctx)) // one caller asks for all
	p.err = err
	switch {
	case err == nil:
		m.read = now
		if known != nil && known.JWKS == m.JWKS {
			m.keys = known.keys
		}
		p.meta = m
		return m, nil
	case known != nil:
		return known, nil
	}
	return nil, err
}

func (p *Provider) discover(ctx context.Context) (*metadata, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	provider, err := oidc.NewProvider(p.context(ctx), p.cfg.Issuer)
	if err != nil {
		return nil, p.away(err)
	}
	m := &metadata{provider: provider}
	if err := provider.Claims(m); err != nil {
		return nil, p.away(err)
	}
	for _, endpoint := range []string{provider.Endpoint().AuthURL, provider.Endpoint().TokenURL, m.JWKS, cmp.Or(provider.UserInfoEndpoint(), m.JWKS)} {
		if err := CheckURL(endpoint); err != nil {
			return nil, p.away(fmt.Errorf("discovery: %w", err))
		}
	}
	if m.algorithms = accepted(m.Algorithms); len(m.algorithms) == 0 {
		return nil, p.away(fmt.Errorf("discovery: none of the signing algorithms %q is accepted", m.Algorithms))
	}
	m.keys = &keySet{lock: make(chan struct{}, 1), url: m.JWKS, client: p.cfg.Client, now: p.cfg.Now}
	return m, nil
}

// CheckURL refuses a URL that no provider may have: it is https, or http to a loopback
// address.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%.100q is not a URL", text)
	}
	if u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%.100q is neither https nor on a loopback address", text)
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// NewClient is the HTTP client for providers. It reaches the organisation's own network, but
// no link-local addresses, where clouds keep credentials; it follows no redirect, and reads
// at most 1 MiB of an answer.
// roots are the trusted authorities, asked for each connection; nil, or a nil pool, is the
// system's. log hears why a connection failed; nil hears nothing.
func NewClient(roots func() *x509.CertPool, log *slog.Logger) *http.Client {
	dialer := outbound.Dialer{Timeout: answerTime / 2, Log: log, Permit: func(to netip.AddrPort) bool {
		return to.Addr().IsPrivate() && to.Addr() != awsMetadata6 || to.Addr().IsLoopback()
	}}
	dial := func(ctx context.Context, address string) (conn net.Conn, host string, err error) {
		host, text, err := net.SplitHostPort(address)
		if err != nil {
			return nil, "", err
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, "", err
		}
		conn, err = dialer.Dial(ctx, host, uint16(port))
		return conn, host, err
	}
	return &http.Client{
		Timeout:       answerTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &limited{&http.Transport{
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				conn, _, err := dial(ctx, address)
				return conn, err
			},
			DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				conn, host, err := dial(ctx, address)
				if err != nil {
					return nil, err
				}
				config := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
				if roots != nil {
					config.RootCAs = roots()
				}
				secured := tls.Client(conn, config)
				if err := secured.HandshakeContext(ctx); err != nil {
					_ = conn.Close()
					return nil, err
				}
				return secured, nil
			},
			MaxIdleConnsPerHost:   4,
			IdleConnTimeout:       time.Minute,
			ResponseHeaderTimeout: answerTime,
		}},
	}
}

// awsMetadata6 is where AWS keeps credentials, in a range of private addresses.
var awsMetadata6 = netip.MustParseAddr("fd00:ec2::254")

// limited bounds what is read of an answer.
type limited struct{ next http.RoundTripper }

func (l *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err == nil {
		res.Body = &limitedBody{res.Body, maxAnswer}
	}
	return res, err
}

type limitedBody struct {
	io.ReadCloser

	left int64
}

var errTooLong = errors.New("the answer has more than 1 MiB")

func (b *limitedBody) Read(to []byte) (int, error) {
	if int64(len(to)) > b.left+1 {
		to = to[:b.left+1]
	}
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}
