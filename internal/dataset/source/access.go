package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
)

// Access is what sources may reach. The zero Access reaches nothing.
type Access struct {
	Hosts []string // host, or host:port
	Files []string // directories
}

// Allowed refuses a host that the configuration does not name. Error:
// fault.PermissionDenied.
func (a Access) Allowed(hostport string) error {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	for _, h := range a.Hosts {
		if strings.EqualFold(h, hostport) || strings.EqualFold(h, host) {
			return nil
		}
	}
	return fault.New(fault.PermissionDenied, "sources may not connect to %s", hostport).
		WithHint("An operator must add the host to sources.hosts in the server's configuration.")
}

// Dial connects to a host that is allowed, by the name that was asked for.
func (a Access) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, fault.New(fault.Invalid, "sources support only TCP, not %s", network)
	}
	if err := a.Allowed(address); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: ConnectTime}
	return d.DialContext(ctx, network, address)
}

// Transport speaks HTTP with hosts that are allowed, by no proxy.
func (a Access) Transport(secure *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext: a.Dial, TLSClientConfig: secure, TLSHandshakeTimeout: ConnectTime, ResponseHeaderTimeout: StallTime,
		MaxResponseHeaderBytes: 1 << 20, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
	}
}

// Directory is a file's or directory's path with links resolved, when it is in a
// directory that is allowed. Error: fault.PermissionDenied, fault.NotFound.
func (a Access) Directory(path string) (string, error) {
	refused := fault.New(fault.PermissionDenied, "sources may not read %s", path).
		WithHint("An operator must add the directory to sources.files in the server's configuration.")
	if !filepath.IsAbs(path) {
		return "", fault.New(fault.Invalid, "%s is not an absolute path", path)
	}
	within := func(path string) bool {
		return slices.ContainsFunc(a.Files, func(dir string) bool {
			if at, err := filepath.EvalSymlinks(dir); err == nil {
				dir = at
			}
			rel, err := filepath.Rel(dir, path)
			return err == nil && filepath.IsLocal(rel)
		})
	}
	at, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && within(filepath.Clean(path)):
		return "", fault.New(fault.NotFound, "there is no %s", path)
	case err != nil || !within(at): // whether a file is there that one may not see is not said
		return "", refused
	}
	return at, nil
}

// TLS is how to speak to host: nil for not at all encrypted. The secret may have
// ca, cert and key in PEM.
func TLS(mode TLSMode, host string, secret map[string]secrets.Text) (*tls.Config, error) {
	if mode == TLSOff {
		return nil, nil //nolint:nilnil // no TLS is not an error
	}
	c := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if mode == TLSInsecure {
		c.InsecureSkipVerify = true // the manifest says so in these words
	}
	if ca, ok := secret["ca"]; ok {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(ca.Reveal())) {
			return nil, fault.New(fault.Invalid, "the secret's ca contains no PEM certificate")
		}
	}
	if cert, ok := secret["cert"]; ok {
		pair, err := tls.X509KeyPair([]byte(cert.Reveal()), []byte(secret["key"].Reveal()))
		if err != nil {
			return nil, fault.New(fault.Invalid, "the secret's cert and key are not a matching PEM pair")
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// CheckTLS refuses a mode that there is not.
func CheckTLS(field string, mode TLSMode) error {
	switch mode {
	case "", TLSVerify, TLSInsecure, TLSOff:
		return nil
	}
	return fault.New(fault.Invalid, "%s: %q is not verify, insecure or off", field, string(mode))
}

// Unreachable puts what a network says of a host into words: fault.Unavailable
// for what may pass; nil when err is something else.
func Unreachable(host string, err error) error {
	var dns *net.DNSError
	var refused *fault.Error
	var cert *tls.CertificateVerificationError
	var netErr net.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &dns):
		return fault.New(fault.Unavailable, "host %s not found", host).WithHint("Check spec.from and this machine's DNS.")
	case errors.As(err, &cert):
		return fault.New(fault.Invalid, "the certificate of %s is not trusted: %v", host, cert.Err).
			WithHint("Put the CA certificate into the secret as `ca`.")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.Unavailable, "%s refused the connection", host).WithHint("Check that the server is running and that the port is correct.")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fault.New(fault.Unavailable, "host %s is not reachable from this machine", host)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fault.New(fault.Unavailable, "%s closed the connection", host)
	case errors.As(err, &netErr) && netErr.Timeout():
		return fault.New(fault.Unavailable, "%s timed out", host)
	}
	return nil
}
