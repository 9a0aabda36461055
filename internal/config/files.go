package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
)

// CheckFiles says what is wrong with the files that a configuration names.
func (c Config) CheckFiles() error {
	if c.TLS.Cert != "" {
		if _, err := LoadCertificate(c.TLS.Cert, c.TLS.Key, time.Now()); err != nil {
			return err
		}
	}
	return c.CheckCredentials()
}

// CheckCredentials says what is wrong with the files of authorities and passwords.
func (c Config) CheckCredentials() error {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(c.authorities())) {
		_, err := filewatch.Authorities(c.authorities()[name])
		wrong = append(wrong, fault.Wrap(err, "%s", name))
	}
	secrets := map[string]string{"store.password_file": c.Store.PasswordFile, "online.password_file": c.Online.PasswordFile}
	for name, p := range c.Identity.Providers {
		secrets["identity.providers."+name+".client_secret_file"] = p.SecretFile
	}
	for name, path := range secrets {
		if path != "" {
			_, err := filewatch.Secret(path)
			wrong = append(wrong, fault.Wrap(err, "%s", name))
		}
	}
	if c.Blob.S3.Endpoint != "" {
		_, err := ReadCredentials(c.Blob.S3.Credentials)
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
	for name, p := range c.Identity.Providers {
		out["identity.providers."+name+".ca"] = p.CA
	}
	maps.DeleteFunc(out, func(_, path string) bool { return path == "" })
	return out
}

// LoadCertificate reads a certificate chain and its key. Error: fault.Invalid for what no
// client would take, which is also one that has ended.
func LoadCertificate(cert, key string, now time.Time) (*tls.Certificate, error) {
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
			return nil, fault.New(fault.Invalid, "tls.cert: the certificate of %s is not valid before %s", one.Subject, one.NotBefore.UTC().Format(time.RFC3339)).
				WithHint("Check the clock of this machine.")
		}
	}
	return &c, nil
}

// CertificateEnd is when the first certificate of a chain ends.
func CertificateEnd(c *tls.Certificate) time.Time {
	end := c.Leaf.NotAfter
	for _, der := range c.Certificate[1:] {
		if one, err := x509.ParseCertificate(der); err == nil && one.NotAfter.Before(end) {
			end = one.NotAfter
		}
	}
	return end
}

// CertificateSoon is how long before its end a certificate is warned of.
const CertificateSoon = 14 * 24 * time.Hour

// OwnAuthority is the file of a certificate that signed itself; empty of others.
func OwnAuthority(path string) string {
	b, err := filewatch.Read(path)
	if err != nil {
		return ""
	}
	if block, _ := pem.Decode(b); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && slices.Equal(c.RawIssuer, c.RawSubject) {
			return string(b)
		}
	}
	return ""
}
