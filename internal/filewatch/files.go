package filewatch

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxFile = 4 << 20 // bytes of a file of certificates or a secret

// Read reads a file of at most 4 MiB. It waits for nothing: whoever asks for a value, such as
// each new connection, would wait with it when somebody put a pipe in the file's place.
// Error: fault.Invalid for what is no plain file, is larger, or cannot be read.
func Read(path string) ([]byte, error) {
	b, _, err := read(path)
	return b, err
}

func read(path string) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "%w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "%w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fault.New(fault.Invalid, "%s is not a regular file", path).WithHint("Use a file, or a link to a file.")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "%w", err)
	}
	if len(b) > maxFile {
		return nil, nil, fault.New(fault.Invalid, "%s has more than %d bytes", path, maxFile).WithHint("Use a file of certificates or credentials.")
	}
	return b, info, nil
}

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
		return "", fault.New(fault.Invalid, "%s must contain exactly one line", path).WithHint("Write the secret, and nothing else, into the file.")
	}
	return text, nil
}

// ReadPrivate reads a file of secrets. Error: fault.Invalid for one that everybody may
// read, or that cannot be read.
func ReadPrivate(path string) (string, error) {
	b, info, err := read(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", fault.New(fault.Invalid, "all users can read %s (mode %04o)", path, info.Mode().Perm()).WithHint("Run: chmod 0400 %s", fault.ShellWord(path))
	}
	return string(b), nil
}

// Authorities follows a PEM bundle of certificates that are trusted. Error: fault.Invalid
// for a file without one, or in which all have expired.
func Authorities(path string) (*File[*x509.CertPool], error) {
	return Open(func() (*x509.CertPool, error) { return readAuthorities(path, time.Now()) }, path)
}

func readAuthorities(path string, now time.Time) (*x509.CertPool, error) {
	text, err := Read(path)
	if err != nil {
		return nil, err
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
			WithHint("Replace it with the CA's new certificate.")
	}
	return pool, nil
}
