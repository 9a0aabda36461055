package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/lifecycle"
)

const (
	certificateEvery = 10 * time.Second    // between looks at the files
	certificateSoon  = 14 * 24 * time.Hour // a certificate that ends within it is warned of
)

// certificate is the server's own. It is read again when its files change and at SIGHUP;
// one that cannot be used is told of, and the former one goes on.
type certificate struct {
	cert, key string
	log       *slog.Logger
	now       func() time.Time

	used   atomic.Pointer[tls.Certificate]
	stamp  string    // of the files that were read last
	warned time.Time // of its end
}

// loadCertificate reads a certificate chain and its key. Error: fault.Invalid for what no
// client would take, which is also one that has ended.
func loadCertificate(cert, key string, now time.Time) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fault.New(fault.Invalid, "tls.cert and tls.key: %w", err).
			WithHint("Both are PEM files that the server may read, and the key is that of the first certificate in the chain.")
	}
	for i, der := range c.Certificate {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fault.New(fault.Invalid, "tls.cert: certificate %d of the chain: %w", i+1, err)
		}
		if i == 0 {
			c.Leaf = one
		}
		switch {
		case now.After(one.NotAfter):
			return nil, fault.New(fault.Invalid, "tls.cert: the certificate of %s expired on %s", one.Subject, one.NotAfter.UTC().Format(time.RFC3339)).
				WithHint("Have it renewed, and put the new chain and key into the files.")
		case now.Before(one.NotBefore):
			return nil, fault.New(fault.Invalid, "tls.cert: the certificate of %s is valid from %s on only", one.Subject, one.NotBefore.UTC().Format(time.RFC3339)).
				WithHint("Look at the clock of this machine.")
		}
	}
	return &c, nil
}

// ends is when the first certificate of a chain ends.
func ends(c *tls.Certificate) time.Time {
	end := c.Leaf.NotAfter
	for _, der := range c.Certificate[1:] {
		if one, err := x509.ParseCertificate(der); err == nil && one.NotAfter.Before(end) {
			end = one.NotAfter
		}
	}
	return end
}

// stampOf tells files from others that were put in their place.
func stampOf(paths ...string) string {
	stamp := ""
	for _, path := range paths {
		info, err := os.Stat(path) // through links, as those of mounted secrets are
		if err != nil {
			return stamp + path + ": " + err.Error()
		}
		stamp += fmt.Sprintf("%s %d %d\n", path, info.ModTime().UnixNano(), info.Size())
	}
	return stamp
}

// openCertificate reads the configured certificate and begins to follow its files.
func (a *App) openCertificate() error {
	if a.cfg.TLS.Cert == "" {
		return nil
	}
	c := &certificate{cert: a.cfg.TLS.Cert, key: a.cfg.TLS.Key, log: a.log, now: time.Now, stamp: stampOf(a.cfg.TLS.Cert, a.cfg.TLS.Key)}
	first, err := loadCertificate(c.cert, c.key, c.now())
	if err != nil {
		return err
	}
	c.used.Store(first)
	a.certificate = c
	loop := &lifecycle.Loop{Name: "certificate", Every: certificateEvery, Run: c.look, Logger: a.log}
	a.group.Add(loop.Service())
	return nil
}

// look reads the files again if they changed.
func (c *certificate) look(ctx context.Context) error {
	if stamp := stampOf(c.cert, c.key); stamp != c.stamp {
		next, err := loadCertificate(c.cert, c.key, c.now())
		if err != nil {
			return fault.Wrap(err, "the new certificate is not used") // again the next time: its key may follow
		}
		c.stamp, c.warned = stamp, time.Time{}
		c.used.Store(next)
		c.log.InfoContext(ctx, "the certificate was read again", slog.String("subject", next.Leaf.Subject.String()), slog.Time("ends", ends(next)))
	}
	if end := ends(c.used.Load()); c.now().After(end.Add(-certificateSoon)) && c.now().Sub(c.warned) > 24*time.Hour {
		c.warned = c.now()
		c.log.WarnContext(ctx, "the certificate ends soon", slog.String("file", c.cert), slog.Time("ends", end))
	}
	return nil
}

// reread reads the files at once, whether they look changed or not.
func (c *certificate) reread(ctx context.Context) {
	next, err := loadCertificate(c.cert, c.key, c.now())
	if err != nil {
		c.log.ErrorContext(ctx, "the certificate was not read again, and the former one goes on", slog.Any("error", err), slog.String("hint", fault.HintOf(err)))
		return
	}
	c.used.Store(next)
	c.log.InfoContext(ctx, "the certificate was read again", slog.String("subject", next.Leaf.Subject.String()), slog.Time("ends", ends(next)))
}

// config is how listeners use it.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.used.Load(), nil },
	}
}

// certificateEnd is when the certificate ends, as a Prometheus series.
var certificateEnd = prometheus.NewDesc("falaj_tls_certificate_end_timestamp_seconds", "When the server's certificate, or the first of its chain, ends.", nil, nil)

// Describe implements prometheus.Collector.
func (c *certificate) Describe(out chan<- *prometheus.Desc) { out <- certificateEnd }

// Collect implements prometheus.Collector.
func (c *certificate) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(certificateEnd, prometheus.GaugeValue, float64(ends(c.used.Load()).Unix()))
}

// CheckFiles says what is wrong with the files that a configuration names.
func (c Config) CheckFiles() error {
	if c.TLS.Cert == "" {
		return nil
	}
	_, err := loadCertificate(c.TLS.Cert, c.TLS.Key, time.Now())
	return err
}

// certificateFinding is what the doctor says of the certificate.
func certificateFinding(cfg Config, now time.Time) []finding {
	if cfg.TLS.Cert == "" {
		return nil
	}
	c, err := loadCertificate(cfg.TLS.Cert, cfg.TLS.Key, now)
	if err != nil {
		return []finding{{"✗", err.Error(), fault.HintOf(err)}}
	}
	end := ends(c)
	text := fmt.Sprintf("certificate of %s, ends on %s", c.Leaf.Subject, end.UTC().Format(time.RFC3339))
	if now.After(end.Add(-certificateSoon)) {
		return []finding{{"!", text, "Have it renewed: the server reads the new files by itself."}}
	}
	return []finding{{"✓", text, ""}}
}
