package config

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
)

// Remote is a server that runs models for this one.
type Remote struct {
	URL         string   `koanf:"url"`         // https://host:port, or http:// of a loopback address; oip-http may have a path
	Protocol    string   `koanf:"protocol"`    // oip-grpc or oip-http
	Zone        string   `koanf:"zone"`        // where it stands: only data that may be there goes there
	TokenFile   string   `koanf:"token_file"`  // bearer token for it; empty sends none
	CA          string   `koanf:"ca"`          // PEM bundle that is trusted for it; empty is the system's
	Timeout     duration `koanf:"timeout"`     // of one request; empty is 10s
	Connections int      `koanf:"connections"` // over which requests are spread; 0 is 2 for oip-grpc and 64, the most, for oip-http
	Runs        int      `koanf:"runs"`        // requests, or batches of some, at a time, of all its models; 0 is 64
	Projects    []string `koanf:"projects"`    // that may use it; none means all
}

// validateRemotes says what is wrong with the values.
func (c Config) validateRemotes() error {
	for name, r := range c.Serving.Remotes {
		if err := id.CheckName("remote name", name); err != nil {
			return err
		}
		u, err := url.Parse(r.URL)
		if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
			u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) ||
			r.Protocol == string(remote.GRPC) && strings.Trim(u.Path, "/") != "" {
			return fault.New(fault.Invalid, "serving.remotes.%s.url: %.100q is not https://host:port", name, withoutPassword(r.URL)).
				WithHint("Use https. Plain HTTP is permitted only for loopback addresses. A gRPC URL has no path.")
		}
		if !slices.Contains(remote.Protocols, remote.Protocol(r.Protocol)) {
			return fault.New(fault.Invalid, "serving.remotes.%s.protocol: %.40q must be one of %q", name, r.Protocol, remote.Protocols)
		}
		if r.Zone == "" {
			return fault.New(fault.Invalid, "serving.remotes.%s.zone is missing", name).WithHint("Set the zone of the server: only data whose residency includes it is sent there.")
		}
		if err := residency.Zone(r.Zone).Validate(); err != nil {
			return fault.Wrap(err, "serving.remotes.%s.zone", name)
		}
		for key, path := range map[string]string{"token_file": r.TokenFile, "ca": r.CA} {
			if path != "" && !filepath.IsAbs(path) {
				return fault.New(fault.Invalid, "serving.remotes.%s.%s: %q is not an absolute path", name, key, path)
			}
		}
		if d, err := resource.ParseDuration(r.Timeout); err != nil || r.Timeout != "" && (d < 10*time.Millisecond || d > 10*time.Minute) {
			return fault.New(fault.Invalid, "serving.remotes.%s.timeout: %.40q must be a duration from 10ms to 10m", name, r.Timeout)
		}
		if r.Connections < 0 || r.Connections > 256 || r.Runs < 0 || r.Runs > 4096 {
			return fault.New(fault.Invalid, "serving.remotes.%s: connections must be at most 256, and runs at most 4096", name)
		}
	}
	return nil
}

// Servers are the remotes as they are asked.
func (c Config) Servers() (map[string]remote.Server, error) {
	out := map[string]remote.Server{}
	for name, r := range c.Serving.Remotes {
		u, err := url.Parse(r.URL)
		if err != nil {
			return nil, err
		}
		s := remote.Server{
			Address: u.Host, Path: u.Path, Protocol: remote.Protocol(r.Protocol), TokenFile: r.TokenFile, Timeout: 10 * time.Second, Connections: r.Connections,
		}
		if r.Timeout != "" {
			s.Timeout, _ = resource.ParseDuration(r.Timeout) // validated
		}
		if s.Connections == 0 {
			s.Connections = 2
			if s.Protocol == remote.HTTP {
				s.Connections = 64
			}
		}
		if u.Scheme == "https" {
			if u.Port() == "" {
				s.Address = net.JoinHostPort(u.Hostname(), "443")
			}
			s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ServerName: u.Hostname()}
		} else if u.Port() == "" {
			s.Address = net.JoinHostPort(u.Hostname(), "80")
		}
		if r.CA != "" {
			pem, err := os.ReadFile(r.CA)
			if err != nil {
				return nil, fault.New(fault.Invalid, "serving.remotes.%s.ca: %w", name, err)
			}
			roots := x509.NewCertPool()
			if !roots.AppendCertsFromPEM(pem) {
				return nil, fault.New(fault.Invalid, "serving.remotes.%s.ca: %s contains no PEM certificate", name, r.CA)
			}
			if s.TLS == nil {
				return nil, fault.New(fault.Invalid, "serving.remotes.%s.ca: the url is not https", name)
			}
			s.TLS.RootCAs = roots
		}
		out[name] = s
	}
	return out, nil
}

// ServingRemotes are the remotes as serving lets requests go to them.
func (c Config) ServingRemotes() map[string]serving.Remote {
	out := map[string]serving.Remote{}
	for name, r := range c.Serving.Remotes {
		out[name] = serving.Remote{Zone: residency.Zone(r.Zone), Projects: r.Projects, Runs: r.Runs}
	}
	return out
}
