package app

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var may = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// putCertificate writes a certificate of a name, and its key, into two files.
func putCertificate(t *testing.T, dir, name string, from, to time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: bare}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestCertificateIsChecked(t *testing.T) {
	other := t.TempDir()
	_, otherKey := putCertificate(t, other, "other", may.AddDate(0, -1, 0), may.AddDate(1, 0, 0))
	for name, tt := range map[string]struct {
		from, to   time.Time
		key        string
		text, mark string
	}{
		"good":       {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), "", "", "✓"},
		"ends soon":  {may.AddDate(0, -1, 0), may.AddDate(0, 0, 3), "", "", "!"},
		"expired":    {may.AddDate(-1, 0, 0), may.AddDate(0, 0, -1), "", "expired on 2026-04-30", "✗"},
		"not yet":    {may.AddDate(0, 0, 1), may.AddDate(1, 0, 0), "", "valid from 2026-05-02", "✗"},
		"wrong key":  {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), otherKey, "private key does not match", "✗"},
		"no key":     {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), filepath.Join(other, "none"), "no such file", "✗"},
		"not a file": {may.AddDate(0, -1, 0), may.AddDate(0, 3, 0), filepath.Join(other, "cert.pem"), "tls.cert and tls.key", "✗"},
	} {
		t.Run(name, func(t *testing.T) {
			cert, key := putCertificate(t, t.TempDir(), "falaj.example", tt.from, tt.to)
			if tt.key != "" {
				key = tt.key
			}
			_, err := loadCertificate(cert, key, may)
			if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
			var cfg Config
			cfg.TLS.Cert, cfg.TLS.Key = cert, key
			if found := certificateFinding(cfg, may); len(found) != 1 || found[0].mark != tt.mark {
				t.Errorf("the doctor says %v, want %s", found, tt.mark)
			}
		})
	}
	if found := certificateFinding(Config{}, may); found != nil {
		t.Errorf("without a certificate the doctor says %v", found)
	}
}

// TestCertificateIsReadAgain: a new one is used without a restart, and a bad one never.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	from, to := may.AddDate(0, -1, 0), may.AddDate(0, 3, 0)
	cert, key := putCertificate(t, dir, "first", from, to)
	var log strings.Builder
	c, err := newCertificate(cert, key, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return may })
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	c.soon = func(_ context.Context, subject string, ends time.Time) {
		told = append(told, subject+" "+ends.Format(time.DateOnly))
	}
	a := &App{log: c.log}
	a.follow("tls.cert", c.files)
	uses := func(want string) {
		t.Helper()
		got, err := c.config().GetCertificate(&tls.ClientHelloInfo{})
		if err != nil || got.Leaf.Subject.CommonName != want {
			t.Errorf("the certificate of %v is used, want %s: %v", got.Leaf.Subject, want, err)
		}
	}
	look := func(fails bool) {
		t.Helper()
		if err := a.refresh(context.Background(), false); (err != nil) != fails {
			t.Errorf("%v, fails: %v", err, fails)
		}
	}
	look(false)
	uses("first")
	putCertificate(t, dir, "second", from, to)
	look(false)
	uses("second")
	putCertificate(t, dir, "expired", from, may.AddDate(0, 0, -1))
	look(true)
	look(true) // told each time until it is mended
	uses("second")
	if err := os.WriteFile(cert, []byte("half of a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	look(true)
	a.reread(context.Background())
	uses("second")
	if !strings.Contains(log.String(), "the previous one stays in use") {
		t.Errorf("SIGHUP with a bad file says: %s", &log)
	}
	putCertificate(t, dir, "third", from, may.AddDate(0, 0, 2))
	a.reread(context.Background())
	uses("third")
	for range 2 { // it is told of once a day
		if err := c.look(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"CN=third 2026-05-03"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if !strings.Contains(log.String(), "the certificate expires soon") {
		t.Errorf("a certificate of two days is not warned of: %s", &log)
	}
}
