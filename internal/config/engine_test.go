package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func configured(t *testing.T, text string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "falaj.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file, nil, nil)
}

// TestEngines: engines are read from the file, and what is wrong there is named.
func TestEngines(t *testing.T) {
	c, err := configured(t, `
engines:
  hpc: {kind: slurm, url: "https://falaj.example:7070", ca: /etc/falaj/ca.pem, lease: 2m, bin: /opt/slurm/bin, users: {flights: alice}, default_user: ml}
  cloud: {kind: kube, kubeconfig: /etc/kube, context: a, namespace: ml, worker_image: "registry/worker@sha256:00"}
  head: {kind: ray, address: "http://head:8265"}
`)
	if err != nil {
		t.Fatal(err)
	}
	if e := c.Engines["hpc"]; e.Users["flights"] != "alice" || e.Lease != "2m" || e.DefaultUser != "ml" {
		t.Errorf("%+v", e)
	}
	if hosts := c.EngineHosts(); len(hosts) != 1 || hosts[0] != "falaj.example" {
		t.Errorf("hosts %q", hosts)
	}
	if shown := c.Show(); !strings.Contains(shown, "head (ray address=http://head:8265), hpc (slurm url=https://falaj.example:7070") {
		t.Errorf("shown as %s", shown)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"kind":           {"engines: {hpc: {kind: slurn}}", `"slurn" must be one of kube, ray, slurm; did you mean "slurm"?`},
		"no kind":        {"engines: {hpc: {bin: /x}}", "engines.hpc.kind"},
		"key":            {"engines: {hpc: {kind: slurm, usrs: {}}}", `"engines.hpc.usrs" does not exist; did you mean "users"?`},
		"other kind's":   {"engines: {hpc: {kind: slurm, namespace: ml}}", `"engines.hpc.namespace" does not exist`},
		"no settings":    {"engines: {hpc: slurm}", "engines.hpc must be a mapping"},
		"no map":         {"engines: 5", "engines"},
		"name":           {"engines: {HPC!: {kind: slurm}}", "engine name"},
		"local":          {"engines: {local: {kind: slurm}}", "always there"},
		"plain http":     {"engines: {hpc: {kind: slurm, url: 'http://falaj.example:7070'}}", "is not https://host:port"},
		"path":           {"engines: {hpc: {kind: slurm, url: 'https://falaj.example/x'}}", "is not https://host:port"},
		"relative":       {"engines: {hpc: {kind: slurm, bin: bin}}", "not an absolute path"},
		"lease":          {"engines: {hpc: {kind: slurm, lease: 1s}}", "not a duration between"},
		"no image":       {"engines: {c: {kind: kube}}", "worker_image is missing"},
		"no address":     {"engines: {r: {kind: ray}}", "address is missing"},
		"user's project": {"engines: {hpc: {kind: slurm, users: [a]}}", "users"},
	} {
		if _, err := configured(t, tt.text); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Load("", []string{"FALAJ_ENGINES=x"}, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("by variable: %v", err)
	}
}
