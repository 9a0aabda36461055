package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// certified writes a certificate of 127.0.0.1 that signed itself, and its key.
func certified(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, roots = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), x509.NewCertPool()
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: bare}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return cert, key, roots
}

// TestPrivateAuthorityAndNewPassword: Redis is trusted by a private authority, and a new
// password is used by the next connection.
func TestPrivateAuthorityAndNewPassword(t *testing.T) {
	cert, key, roots := certified(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	startServer(t, append([]string{"--tls-port", strconv.Itoa(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no", "--requirepass", "one"}, durable...)...)
	at := "rediss://127.0.0.1:" + strconv.Itoa(port)
	var password atomic.Value
	password.Store("one")
	with := Config{URL: at, Password: func() string { return password.Load().(string) }, Roots: func() *x509.CertPool { return roots }}

	unknown := with
	unknown.Roots = nil
	if _, err := Open(t.Context(), unknown); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "online.ca") {
		t.Errorf("of an authority that is not known: %v (%s)", err, fault.HintOf(err))
	}
	if version, err := Look(t.Context(), with); err != nil || version == "" {
		t.Errorf("looking: %q, %v", version, err)
	}
	db, err := Open(t.Context(), with)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	again := func() error { // closes all connections, and asks on new ones
		kill := db.client.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no").Build()
		_ = db.client.Do(t.Context(), kill).Error() // ours goes with them
		return db.Ask(t.Context())
	}
	set := db.client.B().ConfigSet().ParameterValue().ParameterValue("requirepass", "two").Build()
	if err := db.client.Do(t.Context(), set).Error(); err != nil {
		t.Fatal(err)
	}
	password.Store("two")
	if err := again(); err != nil {
		t.Errorf("with the new password: %v (%v)", err, errors.Unwrap(err))
	}
	if _, err := Open(t.Context(), Config{URL: at, Roots: with.Roots, Password: func() string { return "one" }}); !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.HintOf(err), "online.password_file") {
		t.Errorf("with the former password: %v (%s)", err, fault.HintOf(err))
	}
}

// TestErrorsNameNoAddress: callers are not told where Redis is; whoever starts the server is.
func TestErrorsNameNoAddress(t *testing.T) {
	s := startServer(t, durable...)
	db := open(t, s, "")
	defer db.Close()
	s.kill(t)
	if err := db.Ask(t.Context()); !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), s.dir) {
		t.Errorf("%v", err)
	}
	if _, err := Open(t.Context(), Config{URL: s.url()}); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), s.dir) {
		t.Errorf("at the start: %v", err)
	}
}
