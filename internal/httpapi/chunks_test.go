package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// panics is a log that remembers whether a handler panicked.
type panics struct {
	slog.Handler
	seen atomic.Bool
}

func (*panics) Enabled(context.Context, slog.Level) bool { return true }

func (p *panics) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "handler panicked" {
		p.seen.Store(true)
	}
	return nil
}

// panicked reports whether one did since the last call.
func (p *panics) panicked() bool { return p.seen.Swap(false) }

// TestBrokenChunks: a body that is not what its encoding says is the caller's fault, in every
// protocol.
func TestBrokenChunks(t *testing.T) {
	w := open(t)
	log := &panics{Handler: slog.DiscardHandler}
	w.server.log = slog.New(log)
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	blamed := 0
	for _, r := range w.server.Routes() {
		if r.Method != http.MethodPost && r.Method != http.MethodPut && r.Method != http.MethodPatch {
			continue
		}
		path := parameter.ReplaceAllString(strings.ReplaceAll(r.Path, "{project}", "flights"), "x")
		for _, body := range []string{"zz\r\n", "5\r\n{\"a\"", "5;\x01\r\n{", strings.Repeat("a", 5000)} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%s", r.Method, path, w.Secret, body)
			_ = conn.(*net.TCPConn).CloseWrite()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%s %s: %v", r.Method, path, err)
			}
			b := make([]byte, 300)
			n, _ := resp.Body.Read(b)
			_, _ = resp.Body.Close(), conn.Close()
			if resp.StatusCode == http.StatusBadRequest {
				blamed++
			}
			if panicked := log.panicked(); resp.StatusCode == http.StatusInternalServerError && !panicked { // by a domain that this test has not opened
				t.Errorf("%s %s %.4q: %d %.200s", r.Method, path, body, resp.StatusCode, b[:n])
			}
		}
	}
	if blamed < 100 {
		t.Errorf("only %d requests were blamed for their bodies: this test does not see enough", blamed)
	}
}
