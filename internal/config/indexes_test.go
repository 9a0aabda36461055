package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestPackageIndex(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(exe), "lib", "package-index.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(file)) })
	var own Config
	own.Environments.Index, own.Environments.Hosts = "https://mirror.example/simple", []string{"mirror.example:443"}
	for name, c := range map[string]struct {
		file string // its content; empty is no file
		in   Config
		want string
		none bool
	}{
		"no file":           {none: true},
		"the file":          {file: `{"index":"https://index.example/simple","hosts":["index.example:443"]}`, want: "https://index.example/simple"},
		"the configuration": {file: "broken", in: own, want: "https://mirror.example/simple"},
	} {
		_ = os.Remove(file)
		if c.file != "" {
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := PackageIndexOf(c.in); err != nil || got.Index != c.want || got.None() != c.none {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for content, want := range map[string]string{"broken": "cannot be read", `{"index":"https://a:b@index.example/simple"}`: "credentials"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := PackageIndexOf(Config{}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "lib/package-index.json") {
			t.Errorf("%s: %v", content, err)
		}
	}
}
