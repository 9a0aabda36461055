package config

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/mirror"
)

// Follows reports whether this server is the gateway of another one.
func (c Config) Follows() bool { return c.Gateway.Upstream != "" }

// validateGateway says what is wrong with the values.
func (c Config) validateGateway() error {
	g := c.Gateway
	if !c.Follows() {
		if g.Name != "" || g.Project != "" || g.TokenFile != "" {
			return fault.New(fault.Invalid, "gateway.upstream is missing").WithHint("Set gateway.upstream, or remove the other gateway settings.")
		}
		return nil
	}
	u, err := url.Parse(g.Upstream)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return fault.New(fault.Invalid, "gateway.upstream: %.100q is not https://host:port", withoutPassword(g.Upstream)).WithHint("Use https. Plain HTTP is permitted only for loopback addresses.")
	}
	if err := id.CheckName("gateway.name", g.Name); err != nil {
		return err
	}
	if err := project.Name(g.Project).Validate(); err != nil {
		return fault.Wrap(err, "gateway.project")
	}
	if err := residency.Zone(g.Zone).Validate(); err != nil {
		return fault.Wrap(err, "gateway.zone")
	}
	if g.TokenFile == "" {
		return fault.New(fault.Invalid, "gateway.token_file is missing").
			WithHint("At the other server: falaj token create --project %s --name %s --role deployer --scope %s:%s > FILE.", g.Project, g.Name, gateway.ActionPull, g.Name)
	}
	if d, err := resource.ParseDuration(g.Alone); err != nil || d != 0 && d < time.Minute {
		return fault.New(fault.Invalid, "gateway.alone: %.40q is neither 0 nor a duration of at least 1m, such as 30d", g.Alone)
	}
	if d, err := time.ParseDuration(g.Every); err != nil || d < 100*time.Millisecond || d > time.Hour {
		return fault.New(fault.Invalid, "gateway.every: %.40q is not a duration of 100ms to 1h", g.Every)
	}
	for name, set := range map[string]bool{"store.url": c.Store.URL != "", "blob.s3": c.Blob.S3.Endpoint != "", "online.url": c.Online.URL != ""} {
		if set {
			return fault.New(fault.Invalid, "%s is not supported on a gateway, which stores all data in its data directory to work offline", name)
		}
	}
	return nil
}

// Upstream is the server that this one follows.
func (c Config) Upstream() (mirror.Server, error) {
	g := c.Gateway
	s := mirror.Server{URL: g.Upstream, TokenFile: g.TokenFile, Project: g.Project, Name: g.Name}
	if g.CA == "" {
		return s, nil
	}
	pem, err := os.ReadFile(g.CA)
	if err != nil {
		return s, fault.New(fault.Invalid, "gateway.ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return s, fault.New(fault.Invalid, "gateway.ca: %s contains no PEM certificate", g.CA)
	}
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	return s, nil
}
