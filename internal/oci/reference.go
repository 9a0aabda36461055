package oci

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxRef = 1024

// Digest is what follows the @ of a pinned reference; fault.Invalid when the
// reference has none.
func Digest(ref string) (string, error) {
	if len(ref) > maxRef {
		return "", fault.New(fault.TooLarge, "the name of an image has %d bytes; at most %d", len(ref), maxRef)
	}
	d, err := name.NewDigest(ref)
	if err != nil || !strings.HasPrefix(d.DigestStr(), "sha256:") {
		return "", fault.New(fault.Invalid, "image %q is not named by a digest", ref).
			WithHint("Write registry/name@sha256:…; a tag is resolved when the environment is applied.")
	}
	return d.DigestStr(), nil
}

// parse reads a reference by tag or digest whose registry may be asked.
func (s *Store) parse(ref string) (name.Reference, error) {
	if len(ref) > maxRef {
		return nil, fault.New(fault.TooLarge, "the name of an image has %d bytes; at most %d", len(ref), maxRef)
	}
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%q is no name of an image: %v", ref, err).
			WithHint("Write registry/name:tag or registry/name@sha256:….")
	}
	host := r.Context().RegistryStr()
	if !slices.Contains(s.c.Registries, host) {
		listed := cmp.Or(strings.Join(s.c.Registries, ", "), "none")
		return nil, fault.New(fault.PermissionDenied, "images may not come from registry %s", host).
			WithHint("An administrator lists registries under images.registries in the configuration; now: %s.", listed)
	}
	if slices.Contains(s.c.Insecure, host) {
		return name.ParseReference(ref, name.Insecure)
	}
	return r, nil
}

// anonymous has no credentials.
type anonymous struct{}

func (anonymous) Resolve(authn.Resource) (authn.Authenticator, error) { return authn.Anonymous, nil }

// auths are credentials by registry.
type auths map[string]authn.AuthConfig

// Resolve gives those of a registry, or none.
func (a auths) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if c, ok := a[r.RegistryStr()]; ok {
		return authn.FromConfig(c), nil
	}
	return authn.Anonymous, nil
}

// parseAuths reads Docker's config.json. Programs that would be asked for
// credentials are not: the server starts nothing that a file names.
func parseAuths(b []byte) (auths, error) {
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
			RegistryToken string `json:"registrytoken"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fault.New(fault.Invalid, "the credentials of registries are not JSON").WithHint("Look at images.auth.")
	}
	all := auths{}
	for host, e := range file.Auths {
		c := authn.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
		if e.Auth != "" {
			plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(e.Auth))
			user, password, ok := strings.Cut(string(plain), ":")
			if err != nil || !ok {
				return nil, fault.New(fault.Invalid, "the credentials of registry %s cannot be read", host).WithHint("Look at images.auth.")
			}
			c.Username, c.Password = user, strings.TrimRight(password, "\x00")
		}
		host = strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://")
		host, _, _ = strings.Cut(host, "/")
		all[host] = c
	}
	return all, nil
}

// newTransport asks registries, with limits on every wait but that for a whole
// layer, which the pull's own time limits.
func newTransport(ca string) (http.RoundTripper, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if ca != "" {
		b, err := os.ReadFile(ca)
		if err != nil {
			return nil, fault.New(fault.Invalid, "reading images.ca: %w", err)
		}
		if !pool.AppendCertsFromPEM(b) {
			return nil, fault.New(fault.Invalid, "images.ca %s holds no certificate", ca)
		}
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4, ForceAttemptHTTP2: true,
	}, nil
}

// registryError says what went wrong at a registry, and what to do.
func registryError(err error, ref string) error {
	var answer *transport.Error
	var host *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Timeout, "pulling image %s took too long: %w", ref, err)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return fault.New(fault.NotFound, "the registry has no image %s", ref).
			WithHint("Look for a typing error, or push it. An image that was removed there cannot be pulled by its digest either.")
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return fault.New(fault.PermissionDenied, "the registry does not give image %s to us: %d", ref, answer.StatusCode).
			WithHint("Add its credentials to the file of images.auth, as `docker login` writes them.")
	case errors.As(err, &answer) && answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests:
		return fault.New(fault.Invalid, "the registry refuses image %s: %w", ref, err)
	case errors.As(err, &answer), errors.As(err, &host), errors.Is(err, io.ErrUnexpectedEOF), isNet(err):
		return fault.New(fault.Unavailable, "the registry of image %s does not answer as it should: %w", ref, err).
			WithHint("Try again when it does; images that were pulled before are still there.")
	}
	return fault.New(fault.Invalid, "image %s: %w", ref, err)
}

func isNet(err error) bool {
	var n net.Error
	return errors.As(err, &n)
}
