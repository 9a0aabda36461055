package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// TestStoppedBeforeItJoined: an agent that its engine stops before there is
// anything to run ends as if it had been killed, which says nothing of the job.
func TestStoppedBeforeItJoined(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done() // the gang is not complete
	}))
	t.Cleanup(server.Close)
	a := &agent{
		env: map[string]string{
			protocol.EnvIndex: "0", protocol.EnvURL: server.URL + "/worker/", protocol.EnvAddr: "127.0.0.1", protocol.EnvNode: "n1",
		},
		stderr: io.Discard, halting: make(chan struct{}), killing: make(chan struct{}), notes: map[string]string{},
	}
	go func() {
		<-asked
		a.halt("stopped", "its engine sent SIGTERM", 0)
	}()
	if code, err := a.run(t.Context()); code != 128+15 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
}

// TestUntrustedServer: a server that TLS refuses ends the agent at once, with what to do;
// one that answered before may be renewing its certificate.
func TestUntrustedServer(t *testing.T) {
	t.Parallel()
	var answers atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answers.Add(1)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{}`))
	}))
	t.Cleanup(server.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ url, ca, text, hint string }{
		"unknown authority": {server.URL, "", "does not trust the certificate of " + server.Listener.Addr().String(), "engines.NAME.ca"},
		"another name":      {"https://localhost:" + port, ca, "not localhost", "engines.NAME.url"},
		"no TLS":            {strings.Replace(plain.URL, "http:", "https:", 1), ca, "does not speak TLS", "engines.NAME.url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &agent{
				env: map[string]string{
					protocol.EnvIndex: "0", protocol.EnvURL: tt.url + "/worker/", protocol.EnvCA: tt.ca, protocol.EnvAddr: "127.0.0.1", protocol.EnvNode: "n1",
				},
				stderr: io.Discard, halting: make(chan struct{}), killing: make(chan struct{}), notes: map[string]string{},
			}
			_, err := a.run(t.Context()) // with the lease of five minutes it would end by the test's deadline
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(fault.HintOf(err), tt.hint) {
				t.Errorf("%v (%s)", err, fault.HintOf(err))
			}
		})
	}
	c, err := newClient(server.URL+"/worker/", "", ca, 0, "start-0001", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.join(t.Context(), protocol.Join{}, &protocol.Order{}, &protocol.Waiting{}); err != nil || answers.Load() == 0 {
		t.Fatalf("%v after %d answers", err, answers.Load())
	}
	c.http.CloseIdleConnections()
	c.http.Transport.(*http.Transport).TLSClientConfig.RootCAs = x509.NewCertPool()
	if _, err := c.join(t.Context(), protocol.Join{}, &protocol.Order{}, &protocol.Waiting{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after an answer: %v", err)
	}
}

// TestExpiredServer: of an expired certificate, the agent says to renew it.
func TestExpiredServer(t *testing.T) {
	t.Parallel()
	err := untrusted("falaj:7070", &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}})
	if err == nil || !strings.Contains(err.Hint, "tls.cert") {
		t.Errorf("%v", err)
	}
	if err := untrusted("falaj:7070", io.ErrUnexpectedEOF); err != nil {
		t.Errorf("of a connection that broke: %v", err)
	}
}
