package filewatch

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxFile = 4 << 20 // bytes of a file of certificates or a secret

// Secret follows a file that holds one secret, such as a password; a line break at its end
// is not part of it. Error: fault.Invalid for a file that is empty or that everybody may
// read; none has a byte of it.
func Secret(path string) (*File[string], error) {
	return Open(func() (string, error) { return readSecret(path) }, path)
}

func readSecret(path string) (string, error) {
	text, err := ReadPrivate(path)
	if err != nil {
		return "", err
	}
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	if text == "" || strings.ContainsAny(text, "\n\x00") {
		return "", fault.New(fault.Invalid, "%s does not hold one line", path).WithHint("Write the secret, and nothing else, into the file.")
	}
	return text, nil
}

// ReadPrivate reads a file of secrets. Error: fault.Invalid for one that everybody may
// read, or that cannot be read.
func ReadPrivate(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", fault.New(fault.Invalid, "everybody may read %s (mode %04o)", path, info.Mode().Perm()).WithHint("Run: chmod 0400 %s", fault.ShellWord(path))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	return string(b), nil
}

// Authorities follows a PEM bundle of certificates that are trusted. Error: fault.Invalid
// for a file without one, or in which all have expired.
func Authorities(path string) (*File[*x509.CertPool], error) {
	return Open(func() (*x509.CertPool, error) { return readAuthorities(path, time.Now()) }, path)
}

func readAuthorities(path string, now time.Time) (*x509.CertPool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	pool, found, last := x509.NewCertPool(), 0, time.Time{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		one, err := x509.ParseCertificate(block.Bytes)
		if block.Type != "CERTIFICATE" || err != nil {
			continue // as others pass over it
		}
		pool.AddCert(one)
		found++
		if one.NotAfter.After(last) {
			last = one.NotAfter
		}
	}
	switch {
	case found == 0:
		return nil, fault.New(fault.Invalid, "there is no PEM certificate in %s", path)
	case now.After(last):
		return nil, fault.New(fault.Invalid, "every certificate in %s has expired, the last on %s", path, last.UTC().Format(time.RFC3339)).
			WithHint("Put the authority's new certificate into the file.")
	}
	return pool, nil
}
