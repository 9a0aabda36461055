package config

import (
	"cmp"
	"crypto/x509"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity/oidc"
	"github.com/falaj-ml/falaj/internal/governance/identity/signin"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Identity is where people log in.
type Identity struct {
	URL       string              `koanf:"url" doc:"URL under which browsers reach this server, such as https://falaj.example:7070. Required with identity providers"`
	Providers map[string]Provider `koanf:"providers" doc:"OpenID Connect providers for logins, by name: issuer, client_id, client_secret_file and more; configuration file only"`
}

// Provider is an OpenID Connect provider that people log in at.
type Provider struct {
	Issuer        string            `koanf:"issuer"`             // exactly as the provider's discovery document has it
	ClientID      string            `koanf:"client_id"`          // of Falaj at the provider
	SecretFile    string            `koanf:"client_secret_file"` // empty: a public client
	Title         string            `koanf:"title"`              // on the login page; empty is the name
	Scopes        []string          `koanf:"scopes"`             // beside openid; none means profile and email
	GroupsClaim   string            `koanf:"groups_claim"`       // empty is groups
	UsernameClaim string            `koanf:"username_claim"`     // empty is preferred_username
	Require       []string          `koanf:"require"`            // groups of which one is needed to log in; none means that all may
	Parameters    map[string]string `koanf:"parameters"`         // added to the authorization request
	ACR           []string          `koanf:"acr"`                // classes of authentication of which one is needed
	Session       duration          `koanf:"session"`            // how long a login lasts; empty is 12h
	Recheck       duration          `koanf:"recheck"`            // how often the provider is asked whether a person is still active; empty is 5m
	Unproved      duration          `koanf:"unproved"`           // how long tokens work while the provider does not confirm their person; empty is 24h
	Graph         string            `koanf:"graph"`              // Microsoft Graph, for people in too many groups for a token; empty refuses these
	CA            string            `koanf:"ca"`                 // PEM bundle that is trusted for it; empty is the system's
}

// Login is an identity provider as people log in at it. secret and roots are nil where
// none are set.
func (i Identity) Login(name string, secret func() string, roots func() *x509.CertPool, log *slog.Logger) signin.Provider {
	p := i.Providers[name]
	scopes := p.Scopes
	if len(scopes) == 0 {
		scopes = []string{"profile", "email"}
	}
	out := signin.Provider{
		Provider: oidc.New(oidc.Config{
			Name: name, Issuer: p.Issuer, ClientID: p.ClientID, Secret: secret, Scopes: scopes, Parameters: p.Parameters, Graph: p.Graph, Client: oidc.NewClient(roots, log),
			GroupsClaim: cmp.Or(p.GroupsClaim, "groups"), UsernameClaim: cmp.Or(p.UsernameClaim, "preferred_username"),
		}),
		Title: cmp.Or(p.Title, name), Require: p.Require, ACR: p.ACR,
	}
	out.Session, out.Recheck, out.Unproved = p.Times()
	return out
}

// Has reports whether an identity provider of the name is set.
func (i Identity) Has(name string) bool {
	_, ok := i.Providers[name]
	return ok
}

// Base is where browsers reach the server; empty where that is not set.
func (i Identity) Base() string { return strings.TrimRight(i.URL, "/") }

// Times of a provider: those that are set, else the defaults. The values are validated.
func (p Provider) Times() (session, recheck, unproved time.Duration) {
	session, _ = resource.ParseDuration(cmp.Or(p.Session, "12h"))
	recheck, _ = resource.ParseDuration(cmp.Or(p.Recheck, "5m"))
	unproved, _ = resource.ParseDuration(cmp.Or(p.Unproved, "24h"))
	return session, recheck, unproved
}

// validateIdentity says what is wrong with the values.
func (c Config) validateIdentity() error {
	if c.Identity.URL != "" || len(c.Identity.Providers) > 0 {
		u, err := url.Parse(c.Identity.URL)
		if err != nil || oidc.CheckURL(c.Identity.URL) != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return fault.New(fault.Invalid, "identity.url: %.100q is not https://host[:port]", c.Identity.URL).
				WithHint("Set the URL under which browsers reach this server. Plain HTTP is permitted only for loopback addresses.")
		}
		if host := strings.ToLower(u.Hostname()); !isLoopback(host) && !slices.Contains(c.HTTPHosts, host) {
			return fault.New(fault.Invalid, "identity.url: %s is not in http_hosts", host).WithHint("Add %s to http_hosts.", host)
		}
	}
	issuers := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Identity.Providers)) {
		p := c.Identity.Providers[name]
		if err := id.CheckName("provider name", name); err != nil {
			return err
		}
		at := "identity.providers." + name
		if err := oidc.CheckURL(p.Issuer); err != nil {
			return fault.New(fault.Invalid, "%s.issuer: %w", at, err).WithHint("Write the issuer as the provider's discovery document has it. Plain HTTP is permitted only for loopback addresses.")
		}
		if other := issuers[p.Issuer]; other != "" {
			return fault.New(fault.Invalid, "%s.issuer: %s is also the issuer of %s", at, p.Issuer, other).WithHint("A person is the same at both: configure the provider once.")
		}
		issuers[p.Issuer] = name
		if p.ClientID == "" {
			return fault.New(fault.Invalid, "%s.client_id is missing", at).WithHint("Register Falaj at the provider, with the redirect URL %s/auth/oidc/%s/callback.", strings.TrimRight(c.Identity.URL, "/"), name)
		}
		if p.Graph != "" && oidc.CheckURL(p.Graph) != nil {
			return fault.New(fault.Invalid, "%s.graph: %.100q is not an https URL, such as https://graph.microsoft.com/v1.0", at, p.Graph)
		}
		for key, path := range map[string]string{"client_secret_file": p.SecretFile, "ca": p.CA} {
			if path != "" && !filepath.IsAbs(path) {
				return fault.New(fault.Invalid, "%s.%s: %q is not an absolute path", at, key, path)
			}
		}
		for _, group := range p.Require {
			if err := project.CheckGroup(group); err != nil {
				return fault.Wrap(err, "%s.require", at)
			}
		}
		if err := p.validateTimes(at); err != nil {
			return err
		}
	}
	return nil
}

func (p Provider) validateTimes(at string) error {
	for _, t := range []struct {
		key, value  string
		least, most time.Duration
	}{
		{"session", p.Session, 5 * time.Minute, 30 * 24 * time.Hour},
		{"recheck", p.Recheck, 10 * time.Second, 24 * time.Hour},
		{"unproved", p.Unproved, 5 * time.Minute, 366 * 24 * time.Hour},
	} {
		if d, err := resource.ParseDuration(t.value); t.value != "" && (err != nil || d < t.least || d > t.most) {
			return fault.New(fault.Invalid, "%s.%s: %.40q is not a duration from %s to %s", at, t.key, t.value, t.least, t.most)
		}
	}
	if _, recheck, unproved := p.Times(); unproved < 2*recheck {
		return fault.New(fault.Invalid, "%s.unproved: %s is less than twice recheck, which is %s", at, unproved, recheck).
			WithHint("One answer of the provider that comes late would end all sessions.")
	}
	return nil
}
