// Package deploy checks what installs the server: the unit of systemd and the packages.
package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/falaj-ml/falaj/internal/repotest"
)

func read(t *testing.T, path string) (file, text string) {
	t.Helper()
	root, err := repotest.Root()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(root, path)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, string(b)
}

const unit = "deploy/systemd/falaj.service"

// TestUnit: the unit holds what the guide promises, and nothing that breaks sandboxes.
func TestUnit(t *testing.T) {
	_, text := read(t, unit)
	has := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			has[name] = value
		}
	}
	for name, want := range map[string]string{
		"User": "falaj", "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "KillMode": "process", "Delegate": "yes",
		"DelegateSubgroup": "server", "OOMPolicy": "continue", "UMask": "0077", "StateDirectory": "falaj", "Type": "exec",
		"ExecReload": "/bin/kill -HUP $MAINPID", // the server alone; `systemctl kill` signals the jobs too
	} {
		if got, ok := has[name]; !ok || got != want {
			t.Errorf("%s=%s, want %q", name, got, want)
		}
	}
	for name, why := range map[string]string{
		"RestrictNamespaces": "no user namespaces, no sandboxes", "ProtectHostname": "a sandbox sets its host name", "ProtectKernelTunables": "a covered /proc cannot be mounted again",
		"ProtectKernelLogs": "a covered /proc cannot be mounted again", "ProtectProc": "a covered /proc cannot be mounted again", "ProcSubset": "a covered /proc cannot be mounted again",
		"ProtectControlGroups": "limits of jobs are control groups", "MemoryDenyWriteExecute": "jobs compile while they run", "DynamicUser": "jobs outlive the server", "PrivateUsers": "its map has no room for more",
		"ProtectClock": "it closes all devices, GPUs too",
	} {
		if _, ok := has[name]; ok {
			t.Errorf("%s is set: %s", name, why)
		}
	}
	for set := range strings.FieldsSeq(has["SystemCallFilter"]) {
		if needed := strings.TrimPrefix(set, "~"); needed == "@mount" || needed == "@debug" || needed == "@privileged" || needed == "@process" {
			t.Errorf("the unit refuses %s, which sandboxes and profiles use", needed)
		}
	}
}

// TestSystemdReadsTheUnit: where systemd is installed, it has no objection, and its own
// measure of exposure stays low.
func TestSystemdReadsTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		missing(t, "systemd-analyze is not installed")
	}
	file, text := read(t, unit)
	// It looks for the program, which is not installed here.
	dir := t.TempDir()
	copied := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(copied, []byte(strings.ReplaceAll(text, "/opt/falaj/bin/falaj", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", copied).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "falaj.service") && !strings.Contains(line, "DelegateSubgroup") { // new in systemd 254
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil && !strings.Contains(string(out), "DelegateSubgroup") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", copied).CombinedOutput()
	if err != nil {
		missing(t, fmt.Sprintf("this systemd cannot measure a file: %v\n%s", err, out))
	}
	m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("no exposure level:\n%s", out)
	}
	if level, err := strconv.ParseFloat(string(m[1]), 64); err != nil || level > 4.5 {
		t.Errorf("the exposure level is %s:\n%s", m[1], out)
	}
}

// missing skips where what a test needs is not installed; in CI it is.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// TestPackages: the packages hold what the unit starts, keep a changed configuration, and
// none of their scripts deletes anything.
func TestPackages(t *testing.T) {
	_, text := read(t, "deploy/packages/nfpm.yaml")
	var packages struct {
		Contents []struct {
			Dst  string `yaml:"dst"`
			Type string `yaml:"type"`
		} `yaml:"contents"`
		Scripts map[string]string `yaml:"scripts"`
	}
	if err := yaml.Unmarshal([]byte(text), &packages); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, c := range packages.Contents {
		kinds[c.Dst] = c.Type
	}
	want := map[string]string{
		"/opt/falaj/bin/": "tree", "/opt/falaj/lib/": "tree", "/opt/falaj/doc/": "tree", "/usr/bin/falaj": "symlink",
		"/usr/lib/systemd/system/falaj.service": "", "/etc/falaj.yaml": "config|noreplace",
	}
	if !maps.Equal(kinds, want) {
		t.Errorf("the packages hold %v, not %v", kinds, want)
	}
	if len(packages.Scripts) != 3 {
		t.Errorf("%d scripts", len(packages.Scripts))
	}
	for _, name := range packages.Scripts {
		file, text := read(t, name)
		if regexp.MustCompile(`\b(rm|userdel|groupdel|purge)\b`).MatchString(text) {
			t.Errorf("%s deletes something", name)
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	file, _ := read(t, "deploy/packages/falaj.yaml")
	falaj := filepath.Join(filepath.Dir(file), "../../bin/falaj")
	if out, err := exec.CommandContext(t.Context(), falaj, "config", "show", "--config", file).CombinedOutput(); err != nil || !strings.Contains(string(out), "/var/lib/falaj") {
		t.Errorf("the configuration of the packages: %v\n%s", err, out)
	}
}
