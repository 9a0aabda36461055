package filewatch

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

func TestSecretFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
		err  string
	}{
		"a line":        {"s3cret\n", 0o600, "s3cret", ""},
		"no line break": {"s3cret", 0o400, "s3cret", ""},
		"of Windows":    {"s3cret\r\n", 0o400, "s3cret", ""},
		"spaces count":  {" s3cret \n", 0o440, " s3cret ", ""},
		"two lines":     {"s3cret\nother\n", 0o600, "", "must contain exactly one line"},
		"empty":         {"\n", 0o600, "", "must contain exactly one line"},
		"for everybody": {"s3cret\n", 0o644, "", "all users can read"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil { // whatever the umask
				t.Fatal(err)
			}
			f, err := Secret(path)
			if tt.err != "" {
				if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("%v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || f.Value() != tt.want {
				t.Errorf("%v, %v", f, err)
			}
		})
	}
	if _, err := Secret(filepath.Join(t.TempDir(), "none")); !fault.Is(err, fault.Invalid) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestAuthorities(t *testing.T) {
	may := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(to time.Time) string {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: may.AddDate(-1, 0, 0), NotAfter: to}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	good, over := certificate(may.AddDate(1, 0, 0)), certificate(may.AddDate(0, 0, -1))
	for name, tt := range map[string]struct{ text, err string }{
		"one":             {good, ""},
		"one has expired": {over + good, ""},
		"all are expired": {over, "has expired, the last on 2026-04-30"},
		"none":            {"not a certificate", "no PEM certificate"},
		"a key":           {strings.ReplaceAll(good, "CERTIFICATE", "PRIVATE KEY"), "no PEM certificate"},
	} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readAuthorities(path, may)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
}

// TestWhatIsNoPlainFile: a pipe in the place of a file is not waited for, nor is a directory,
// a device or half of a large file taken for its contents; the value before stays.
func TestWhatIsNoPlainFile(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"a pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link to a pipe": func(path string) error {
			return errors.Join(syscall.Mkfifo(path+".pipe", 0o600), os.Symlink(path+".pipe", path))
		},
		"a directory":   func(path string) error { return os.Mkdir(path, 0o700) },
		"a device":      func(path string) error { return os.Symlink("/dev/zero", path) },
		"a broken link": func(path string) error { return os.Symlink(path+".none", path) },
		"a huge file": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("other"), 0o600), os.Truncate(path, 1<<40))
		},
		"one byte too many": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), maxFile+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(path, []byte("first"), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Secret(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Remove(path), replace(path)); err != nil {
				t.Fatal(err)
			}
			if again, err := f.Refresh(true); again || !fault.Is(err, fault.Invalid) || f.Value() != "first" {
				t.Errorf("%v, %v, %q", again, err, f.Value())
			}
			if _, err := Authorities(path); !fault.Is(err, fault.Invalid) {
				t.Errorf("authorities: %v", err)
			}
		})
	}
}

// TestSameTimeAndSize: a file that was put in the place of another is read, although it has
// the time and the size of the one before.
func TestSameTimeAndSize(t *testing.T) {
	path, at := filepath.Join(t.TempDir(), "secret"), time.Unix(1, 0)
	put := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Chtimes(path+".new", at, at), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	put("first")
	f, err := Secret(path)
	if err != nil {
		t.Fatal(err)
	}
	if put("other"); f.Value() != "other" {
		t.Errorf("%q", f.Value())
	}
}
