package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	certificateEvery = 10 * time.Second // between looks at the files
)

// certificate is the server's own. It is read again when its files change and at SIGHUP;
// one that cannot be used is reported, and the previous one stays in use.
type certificate struct {
	path string
	log  *slog.Logger
	now  func() time.Time
	// soon is told, at most once a day, that the certificate expires soon.
	soon func(ctx context.Context, subject string, ends time.Time)

	files  *filewatch.File[*tls.Certificate]
	told   *tls.Certificate // whose end was told of
	toldAt time.Time
}

// openCertificate reads the configured certificate and begins to follow its files.
func (a *App) openCertificate() error {
	if a.cfg.TLS.Cert == "" {
		return nil
	}
	c, err := newCertificate(a.cfg.TLS.Cert, a.cfg.TLS.Key, a.log, time.Now)
	if err != nil {
		return err
	}
	c.soon = a.tellExpiring
	a.certificate = c
	a.follow("tls.cert", c.files)
	a.every(certificateEvery, "end of the certificate", c.look)
	return nil
}

func newCertificate(cert, key string, log *slog.Logger, now func() time.Time) (*certificate, error) {
	c := &certificate{path: cert, log: log, now: now, soon: func(context.Context, string, time.Time) {}}
	var err error
	c.files, err = filewatch.Open(func() (*tls.Certificate, error) { return config.LoadCertificate(cert, key, now()) }, cert, key)
	return c, err
}

// look tells of a certificate that ends soon.
func (c *certificate) look(ctx context.Context) error {
	used := c.files.Value()
	if end := config.CertificateEnd(used); c.now().After(end.Add(-config.CertificateSoon)) && (c.told != used || c.now().Sub(c.toldAt) > 24*time.Hour) {
		c.told, c.toldAt = used, c.now()
		c.log.WarnContext(ctx, "the certificate expires soon", slog.String("file", c.path), slog.Time("ends", end))
		c.soon(ctx, used.Leaf.Subject.String(), end)
	}
	return nil
}

// config is how listeners use it.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.files.Value(), nil },
	}
}

// CertificateExpiring is published once a day while the server's certificate ends soon.
const CertificateExpiring = "certificate.expiring"

// tellExpiring tells of a certificate that ends soon: an event, and a CloudEvent to the
// URL that the configuration names for alerts. One that is not delivered is logged; the
// next is sent a day later.
func (a *App) tellExpiring(ctx context.Context, subject string, end time.Time) {
	what := map[string]any{"file": a.cfg.TLS.Cert, "subject": subject, "ends": end.UTC().Format(time.RFC3339)}
	err := a.db.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		return event.Publish(ctx, tx, "", CertificateExpiring, what)
	})
	if a.cfg.Audit.Alert != "" {
		err = errors.Join(err, postAlert(ctx, a.cfg.Audit.Alert, CertificateExpiring, what))
	}
	if err != nil {
		a.log.ErrorContext(ctx, "the alert about the certificate was not delivered", slog.Any("error", err))
	}
}

// certificateEnd is when the certificate ends, as a Prometheus series.
var certificateEnd = prometheus.NewDesc("falaj_tls_certificate_end_timestamp_seconds", "Expiry of the server's certificate, or the earliest expiry in its chain.", nil, nil)

// Describe implements prometheus.Collector.
func (c *certificate) Describe(out chan<- *prometheus.Desc) { out <- certificateEnd }

// Collect implements prometheus.Collector.
func (c *certificate) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(certificateEnd, prometheus.GaugeValue, float64(config.CertificateEnd(c.files.Value()).Unix()))
}
