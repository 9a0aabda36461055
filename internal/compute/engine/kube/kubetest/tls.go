package kubetest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Certificate makes one for a server that pods reach at Address, and has this
// process trust it.
func Certificate(tb testing.TB) (cert, key string) {
	tb.Helper()
	dir := tb.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	out, err := exec.CommandContext(tb.Context(), "openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", "-subj", "/CN=falaj",
		"-addext", "subjectAltName=IP:127.0.0.1,IP:"+Address, "-keyout", key, "-out", cert).CombinedOutput()
	if err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	tb.Setenv("SSL_CERT_FILE", cert)
	return cert, key
}
