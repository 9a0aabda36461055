package config

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/runtime/remote"
)

// TestRemotes: remotes are read from the file, and what is wrong there is named.
func TestRemotes(t *testing.T) {
	c, err := configured(t, `
serving:
  remotes:
    triton: {url: "https://triton.example:8001", protocol: oip-grpc, zone: DE, token_file: /etc/falaj/triton, timeout: 2s, connections: 4, runs: 16, projects: [nyc]}
    kserve: {url: "http://127.0.0.1:8080/base", protocol: oip-http, zone: home}
    plain: {url: "https://triton.example", protocol: oip-http, zone: home}
`)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	got := s["triton"]
	if got.TLS == nil || got.TLS.MinVersion != tls.VersionTLS13 || got.TLS.ServerName != "triton.example" || got.Address != "triton.example:8001" || got.Protocol != remote.GRPC || got.Timeout != 2*time.Second || got.Connections != 4 {
		t.Errorf("%+v", got)
	}
	if got := s["kserve"]; got.TLS != nil || got.Address != "127.0.0.1:8080" || got.Path != "/base" || got.Timeout != 10*time.Second || got.Connections != 64 {
		t.Errorf("%+v", got)
	}
	if got := s["plain"]; got.Address != "triton.example:443" {
		t.Errorf("%+v", got)
	}
	if r := c.ServingRemotes()["triton"]; r.Zone != residency.Zone("DE") || r.Runs != 16 || len(r.Projects) != 1 {
		t.Errorf("%+v", r)
	}
	if shown := c.Show(); !strings.Contains(shown, "triton (url=https://triton.example:8001 protocol=oip-grpc zone=DE") {
		t.Errorf("shown as %s", shown)
	}
	const good = `url: "https://h:1", protocol: oip-grpc, zone: home`
	for name, tt := range map[string]struct{ text, want string }{
		"key":           {"{t: {" + good + ", tokn: x}}", `"serving.remotes.t.tokn" does not exist`},
		"no settings":   {"{t: x}", "serving.remotes.t must be a mapping"},
		"name":          {"{T!: {" + good + "}}", "remote name"},
		"no zone":       {`{t: {url: "https://h:1", protocol: oip-grpc}}`, "serving.remotes.t.zone is missing"},
		"zone":          {`{t: {url: "https://h:1", protocol: oip-grpc, zone: "A E"}}`, "serving.remotes.t.zone"},
		"no url":        {"{t: {protocol: oip-grpc, zone: home}}", "is not https://host:port"},
		"in the clear":  {`{t: {url: "http://triton.example:8001", protocol: oip-grpc, zone: home}}`, "is not https://host:port"},
		"password":      {`{t: {url: "https://a:hidden@h:1", protocol: oip-grpc, zone: home}}`, "is not https://host:port"},
		"path of calls": {`{t: {url: "https://h:1/x", protocol: oip-grpc, zone: home}}`, "is not https://host:port"},
		"protocol":      {`{t: {url: "https://h:1", protocol: tfserving, zone: home}}`, `protocol: "tfserving" must be one of`},
		"relative":      {"{t: {" + good + ", token_file: x}}", "not an absolute path"},
		"timeout":       {"{t: {" + good + ", timeout: 1h}}", "must be a duration from 10ms to 10m"},
		"connections":   {"{t: {" + good + ", connections: 999}}", "connections must be at most"},
	} {
		_, err := configured(t, "serving: {remotes: "+tt.text+"}")
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = configured(t, "serving: {remotes: {t: {"+good+", ca: "+file+"}}}")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Servers(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "contains no PEM certificate") {
		t.Errorf("a bundle of nothing: %v", err)
	}
}
