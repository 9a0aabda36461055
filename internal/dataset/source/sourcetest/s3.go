package sourcetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/falaj-ml/falaj/internal/repotest"
)

// The user that the server of S3 has.
const (
	S3User     = "reader"
	S3Password = "canary-s3-password" //nolint:gosec // G101: of a server that a test starts
)

// S3 starts a private versitygw, a server that speaks S3 and keeps objects in a
// directory. It gives host:port and the certificate it is trusted by. Where it is
// not built the test is skipped, or fails under CI=true.
func S3(t *testing.T) (address string, ca []byte) {
	t.Helper()
	return S3In(t, t.TempDir())
}

// S3In is S3 with its objects below data in the directory: a bucket is a directory.
func S3In(t *testing.T, dir string) (address string, ca []byte) {
	t.Helper()
	server, ok := versitygw()
	if !ok {
		absent(t, "versitygw")
	}
	data, meta := filepath.Join(dir, "data"), filepath.Join(dir, "meta")
	for _, d := range []string{data, meta} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ca, key := certificate(t)
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string][]byte{certFile: ca, keyFile: key} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	log := begin(t, []string{"ROOT_ACCESS_KEY=" + S3User, "ROOT_SECRET_KEY=" + S3Password}, server,
		"--port", address, "--cert", certFile, "--key", keyFile, "--keep-alive", "posix", "--sidecar", meta, data)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	eventually(t, log, func() error {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return address, ca
}

// S3Client is a client of the server that S3 started.
func S3Client(t *testing.T, address string, ca []byte) *minio.Core {
	t.Helper()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	c, err := minio.NewCore(address, &minio.Options{
		Creds: credentials.NewStaticV4(S3User, S3Password, ""), Region: "us-east-1", Secure: true,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// HasS3 reports whether its server is built.
func HasS3() bool { _, ok := versitygw(); return ok }

func versitygw() (string, bool) {
	root, err := repotest.Root()
	if err != nil {
		return "", false
	}
	server := filepath.Join(root, ".tmp", "bin", "versitygw")
	_, err = os.Stat(server)
	return server, err == nil
}

// certificate is one for 127.0.0.1, and its key.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &pair.PublicKey, pair)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}
