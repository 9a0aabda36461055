package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/store"
)

const (
	certificateEvery = 10 * time.Second    // between looks at the files
	certificateSoon  = 14 * 24 * time.Hour // a certificate that ends within it is warned of
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

// loadCertificate reads a certificate chain and its key. Error: fault.Invalid for what no
// client would take, which is also one that has ended.
func loadCertificate(cert, key string, now time.Time) (*tls.Certificate, error) {
	chain, err := filewatch.Read(cert)
	private, keyErr := filewatch.Read(key)
	var c tls.Certificate
	if err = errors.Join(err, keyErr); err == nil {
		c, err = tls.X509KeyPair(chain, private)
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "tls.cert and tls.key: %w", err).
			WithHint("Both must be readable PEM files, and the key must match the first certificate of the chain.")
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
				WithHint("Check the clock of this machine.")
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
	loop := &lifecycle.Loop{Name: "end of the certificate", Every: certificateEvery, Run: c.look, Logger: a.log}
	a.group.Add(loop.Service())
	return nil
}

func newCertificate(cert, key string, log *slog.Logger, now func() time.Time) (*certificate, error) {
	c := &certificate{path: cert, log: log, now: now, soon: func(context.Context, string, time.Time) {}}
	var err error
	c.files, err = filewatch.Open(func() (*tls.Certificate, error) { return loadCertificate(cert, key, now()) }, cert, key)
	return c, err
}

// look tells of a certificate that ends soon.
func (c *certificate) look(ctx context.Context) error {
	used := c.files.Value()
	if end := ends(used); c.now().After(end.Add(-certificateSoon)) && (c.told != used || c.now().Sub(c.toldAt) > 24*time.Hour) {
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
	out <- prometheus.MustNewConstMetric(certificateEnd, prometheus.GaugeValue, float64(ends(c.files.Value()).Unix()))
}

// CheckFiles says what is wrong with the files that a configuration names.
func (c Config) CheckFiles() error {
	if c.TLS.Cert != "" {
		if _, err := loadCertificate(c.TLS.Cert, c.TLS.Key, time.Now()); err != nil {
			return err
		}
	}
	return c.checkCredentials()
}

// checkCredentials says what is wrong with the files of authorities and passwords.
func (c Config) checkCredentials() error {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(c.authorities())) {
		_, err := filewatch.Authorities(c.authorities()[name])
		wrong = append(wrong, fault.Wrap(err, "%s", name))
	}
	for name, path := range map[string]string{"store.password_file": c.Store.PasswordFile, "online.password_file": c.Online.PasswordFile} {
		if path != "" {
			_, err := filewatch.Secret(path)
			wrong = append(wrong, fault.Wrap(err, "%s", name))
		}
	}
	if c.Blob.S3.Endpoint != "" {
		_, err := readCredentials(c.Blob.S3.Credentials)
		wrong = append(wrong, err)
	}
	for _, err := range wrong { // one at a time, with its hint
		if err != nil {
			return err
		}
	}
	return nil
}

// authorities are the files of trusted certificates, by setting.
func (c Config) authorities() map[string]string {
	out := map[string]string{
		"blob.s3.ca": c.Blob.S3.CA, "online.ca": c.Online.CA, "environments.ca": c.Environments.CA, "images.ca": c.Images.CA, "gateway.ca": c.Gateway.CA,
	}
	for name, e := range c.Engines {
		out["engines."+name+".ca"] = e.CA
	}
	for name, r := range c.Serving.Remotes {
		out["serving.remotes."+name+".ca"] = r.CA
	}
	maps.DeleteFunc(out, func(_, path string) bool { return path == "" })
	return out
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
	text := fmt.Sprintf("certificate of %s, expires on %s", c.Leaf.Subject, end.UTC().Format(time.RFC3339))
	if now.After(end.Add(-certificateSoon)) {
		return []finding{{"!", text, "Renew it: the server reloads the files automatically."}}
	}
	return []finding{{"✓", text, ""}}
}
