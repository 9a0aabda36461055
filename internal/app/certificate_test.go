package app

import (
	"context"
	"crypto/tls"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/config/configtest"
)

var may = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// TestCertificateIsReadAgain: a new one is used without a restart, and a bad one never.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	from, to := may.AddDate(0, -1, 0), may.AddDate(0, 3, 0)
	cert, key := configtest.Certificate(t, dir, "first", from, to)
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
	configtest.Certificate(t, dir, "second", from, to)
	look(false)
	uses("second")
	configtest.Certificate(t, dir, "expired", from, may.AddDate(0, 0, -1))
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
	configtest.Certificate(t, dir, "third", from, may.AddDate(0, 0, 2))
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
