package config

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

// TestStoresOfConfig: what no server would open, or only in the clear, is refused before.
func TestStoresOfConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		set  map[string]any
		want string
	}{
		"another database":       {map[string]any{"store.url": "mysql://x"}, "store.url: the store URL is neither"},
		"PostgreSQL elsewhere":   {map[string]any{"store.url": "postgres://falaj@db.example/falaj"}, "store.url: store URL: the connection to PostgreSQL at db.example is not protected by TLS"},
		"PostgreSQL with TLS":    {map[string]any{"store.url": "postgres://falaj@db.example/falaj?sslmode=verify-full"}, ""},
		"PostgreSQL here":        {map[string]any{"store.url": "postgres://falaj@localhost/falaj"}, ""},
		"Redis elsewhere":        {map[string]any{"online.url": "redis://cache.example"}, "online.url: the connection to Redis at cache.example would not use TLS"},
		"Redis with TLS":         {map[string]any{"online.url": "rediss://cache.example", "online.ca": "/etc/ca.pem"}, ""},
		"no Redis":               {map[string]any{"online.url": "memcached://cache.example"}, "online.url: the URL of Redis is invalid"},
		"an authority for none":  {map[string]any{"online.url": "redis://localhost", "online.ca": "/etc/ca.pem"}, "online.ca"},
		"two passwords":          {map[string]any{"store.url": "postgres://falaj:secret@localhost/falaj", "store.password_file": "/etc/pw"}, "store.url has a password, too"},
		"two passwords, Redis":   {map[string]any{"online.url": "redis://:secret@localhost", "online.password_file": "/etc/pw"}, "online.url has a password, too"},
		"a password for SQLite":  {map[string]any{"store.password_file": "/etc/pw"}, "has no server with passwords"},
		"a password for nothing": {map[string]any{"online.password_file": "/etc/pw"}, "has no server with passwords"},
	} {
		_, err := Load("", nil, tt.set)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") || !fault.Is(err, fault.Invalid)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	var cfg Config
	cfg.Store.URL, cfg.Online.URL = "postgres://falaj:x@localhost/falaj", "redis://localhost?password=x"
	if got := cfg.PasswordsInURLs(); len(got) != 2 {
		t.Errorf("passwords are found in the URLs of %q", got)
	}
}
