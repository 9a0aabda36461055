package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/config/configtest"
)

// TestCheckFiles: files that a server could not use are refused by `falaj config check`.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	from := time.Now().AddDate(-1, 0, 0)
	good, _ := configtest.Certificate(t, t.TempDir(), "ca", from, time.Now().AddDate(1, 0, 0))
	over, overKey := configtest.Certificate(t, t.TempDir(), "ca", from, time.Now().AddDate(0, 0, -1))
	password, open := filepath.Join(dir, "password"), filepath.Join(dir, "open")
	for path, mode := range map[string]os.FileMode{password: 0o600, open: 0o644} {
		if err := os.WriteFile(path, []byte("secret\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"nothing is named":         {func(*Config) {}, ""},
		"an authority":             {func(c *Config) { c.Online.CA = good }, ""},
		"an expired authority":     {func(c *Config) { c.Blob.S3.CA = over }, "blob.s3.ca: every certificate in"},
		"an authority of engines":  {func(c *Config) { c.Engines = map[string]Engine{"hpc": {CA: over}} }, "engines.hpc.ca: every certificate in"},
		"an authority of remotes":  {func(c *Config) { c.Serving.Remotes = map[string]Remote{"gpu": {CA: "/nowhere"}} }, "serving.remotes.gpu.ca"},
		"an expired certificate":   {func(c *Config) { c.TLS.Cert, c.TLS.Key = over, overKey }, "expired on"},
		"a password":               {func(c *Config) { c.Store.PasswordFile = password }, ""},
		"a password for everybody": {func(c *Config) { c.Online.PasswordFile = open }, "online.password_file: all users can read"},
		"no password":              {func(c *Config) { c.Store.PasswordFile = "/nowhere" }, "store.password_file"},
	} {
		var cfg Config
		tt.change(&cfg)
		if err := cfg.CheckFiles(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
