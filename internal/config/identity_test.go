package config

import (
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestProviders: identity providers are read from the file, and what is wrong there is named.
func TestProviders(t *testing.T) {
	c, err := configured(t, `
http_hosts: [falaj.example]
identity:
  url: https://falaj.example:7070/
  providers:
    bank: {issuer: "https://sso.example/realms/bank", client_id: falaj, client_secret_file: /etc/falaj/secret, recheck: 1m, parameters: {access_type: offline, "x.y": z}, require: [/ml]}
    plain: {issuer: "http://127.0.0.1:8080", client_id: falaj}
`)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Identity.Has("bank") || c.Identity.Has("other") || c.Identity.Base() != "https://falaj.example:7070" {
		t.Errorf("%+v", c.Identity)
	}
	p := c.Identity.Login("bank", nil, nil, nil)
	if p.Title != "bank" || p.Session != 12*time.Hour || p.Recheck != time.Minute || p.Unproved != 24*time.Hour || len(p.Require) != 1 {
		t.Errorf("%+v", p)
	}
	if got := c.Identity.Providers["bank"].Parameters; got["access_type"] != "offline" {
		t.Errorf("parameters %v", got)
	}
	if shown := c.Show(); !strings.Contains(shown, "bank (issuer=https://sso.example/realms/bank client_id=falaj client_secret_file=/etc/falaj/secret") {
		t.Errorf("shown as %s", shown)
	}
	const good = `issuer: "https://sso.example", client_id: falaj`
	for name, tt := range map[string]struct{ url, providers, want string }{
		"no url":            {"", "{p: {" + good + "}}", "identity.url"},
		"plain HTTP":        {"http://falaj.example", "{p: {" + good + "}}", "identity.url"},
		"a path":            {"https://falaj.example/falaj", "{p: {" + good + "}}", "identity.url"},
		"unknown host":      {"https://other.example", "{p: {" + good + "}}", "other.example is not in http_hosts"},
		"key":               {"https://falaj.example", "{p: {" + good + ", isuer: x}}", `"identity.providers.p.isuer" does not exist`},
		"no settings":       {"https://falaj.example", "{p: x}", "identity.providers.p must be a mapping"},
		"name":              {"https://falaj.example", "{P!: {" + good + "}}", "provider name"},
		"no issuer":         {"https://falaj.example", "{p: {client_id: falaj}}", "identity.providers.p.issuer"},
		"issuer by HTTP":    {"https://falaj.example", `{p: {issuer: "http://sso.example", client_id: falaj}}`, "identity.providers.p.issuer"},
		"one issuer twice":  {"https://falaj.example", "{p: {" + good + "}, q: {" + good + "}}", "is also the issuer of p"},
		"no client":         {"https://falaj.example", `{p: {issuer: "https://sso.example"}}`, "client_id is missing"},
		"relative":          {"https://falaj.example", "{p: {" + good + ", client_secret_file: x}}", "not an absolute path"},
		"graph":             {"https://falaj.example", "{p: {" + good + `, graph: "http://graph.example"}}`, "graph"},
		"empty group":       {"https://falaj.example", "{p: {" + good + `, require: [""]}}`, "require"},
		"session":           {"https://falaj.example", "{p: {" + good + ", session: 1s}}", "session"},
		"recheck":           {"https://falaj.example", "{p: {" + good + ", recheck: soon}}", "recheck"},
		"unproved too soon": {"https://falaj.example", "{p: {" + good + ", recheck: 10m, unproved: 15m}}", "less than twice recheck"},
	} {
		_, err := configured(t, "http_hosts: [falaj.example]\nidentity:\n  url: "+tt.url+"\n  providers: "+tt.providers+"\n")
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
