package app

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

// TestStoresSayWhichIsAway: /readyz, the metric and the log name a store that does not
// answer; the address is in the log alone.
func TestStoresSayWhichIsAway(t *testing.T) {
	var log strings.Builder
	var outage error
	s := &stores{log: slog.New(slog.NewTextHandler(&log, nil)), away: map[string]error{}, database: func() error { return outage }}
	s.set(t.Context(), onlineStore, nil)
	if err := s.ready(); err != nil {
		t.Errorf("all are there: %v", err)
	}
	away := &fault.Error{Kind: fault.Unavailable, Message: "Redis is unavailable", Err: errors.New("dial tcp 10.0.0.7:6379: refused")}
	for range 2 { // it is told of once
		s.set(t.Context(), onlineStore, away)
	}
	outage = fault.New(fault.Unavailable, "the database does not answer")
	if err := s.ready(); !fault.Is(err, fault.Unavailable) || err.Error() != "away: database, online store" {
		t.Errorf("%v", err)
	}
	if strings.Count(log.String(), "a store is unavailable") != 1 || !strings.Contains(log.String(), "10.0.0.7") {
		t.Errorf("the log says: %s", &log)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "falaj_store_up" {
		t.Fatal(families, err)
	}
	up := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		up[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if want := map[string]float64{databaseStore: 0, onlineStore: 0}; !maps.Equal(up, want) {
		t.Errorf("falaj_store_up is %v, want %v", up, want)
	}
	outage = nil
	s.set(t.Context(), onlineStore, nil)
	if err := s.ready(); err != nil || !strings.Contains(log.String(), "a store is available again") {
		t.Errorf("%v; the log says: %s", err, &log)
	}
}

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
		_, err := LoadConfig("", nil, tt.set)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") || !fault.Is(err, fault.Invalid)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	var cfg Config
	cfg.Store.URL, cfg.Online.URL = "postgres://falaj:x@localhost/falaj", "redis://localhost?password=x"
	if got := cfg.passwordsInURLs(); len(got) != 2 {
		t.Errorf("passwords are found in the URLs of %q", got)
	}
}

// TestCheckFiles: files that a server could not use are refused by `falaj config check`.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	from := time.Now().AddDate(-1, 0, 0)
	good, _ := putCertificate(t, t.TempDir(), "ca", from, time.Now().AddDate(1, 0, 0))
	over, overKey := putCertificate(t, t.TempDir(), "ca", from, time.Now().AddDate(0, 0, -1))
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
		"an authority of engines":  {func(c *Config) { c.Engines = map[string]EngineConfig{"hpc": {CA: over}} }, "engines.hpc.ca: every certificate in"},
		"an authority of remotes":  {func(c *Config) { c.Serving.Remotes = map[string]RemoteConfig{"gpu": {CA: "/nowhere"}} }, "serving.remotes.gpu.ca"},
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

// TestDoctorAsksPostgres: version, locale and rights are lines of the doctor.
func TestDoctorAsksPostgres(t *testing.T) {
	var cfg Config
	if found := databaseFindings(t.Context(), cfg); found != nil {
		t.Errorf("of SQLite it says %v", found)
	}
	cfg.Store.URL = storetest.Postgres(t)
	found := databaseFindings(t.Context(), cfg)
	if len(found) != 1 || found[0].mark != "✓" || !strings.Contains(found[0].text, "locale C, which the user postgres may change") {
		t.Errorf("%v", found)
	}
	cfg.Store.URL = "postgres://falaj@/falaj?host=" + t.TempDir()
	found = databaseFindings(context.Background(), cfg)
	if len(found) != 1 || found[0].mark != "✗" || !strings.Contains(found[0].text, "PostgreSQL: open database") {
		t.Errorf("%v", found)
	}
}

// TestDoctorAsksWhetherNodesTrust: engines whose nodes would refuse the certificate are
// found before a job is.
func TestDoctorAsksWhetherNodesTrust(t *testing.T) {
	from, to := time.Now().AddDate(-1, 0, 0), time.Now().AddDate(1, 0, 0)
	cert, key := putCertificate(t, t.TempDir(), "falaj.example", from, to)
	other, _ := putCertificate(t, t.TempDir(), "other", from, to)
	for name, tt := range map[string]struct {
		engine EngineConfig
		marks  int
	}{
		"it signed itself":      {EngineConfig{URL: "https://falaj.example:7070"}, 0},
		"and has another name":  {EngineConfig{URL: "https://10.0.0.7:7070"}, 1},
		"its authority":         {EngineConfig{URL: "https://falaj.example:7070", CA: cert}, 0},
		"another authority":     {EngineConfig{URL: "https://falaj.example:7070", CA: other}, 1},
		"at its own address":    {EngineConfig{}, 0},
		"in the clear, locally": {EngineConfig{URL: "http://127.0.0.1:7070"}, 0},
	} {
		var cfg Config
		cfg.TLS.Cert, cfg.TLS.Key = cert, key
		cfg.Engines = map[string]EngineConfig{"hpc": tt.engine}
		if found := enginesFindings(cfg); len(found) != tt.marks || tt.marks > 0 && (found[0].mark != "!" || !strings.Contains(found[0].todo, "engines.hpc.ca")) {
			t.Errorf("%s: %v", name, found)
		}
	}
}
