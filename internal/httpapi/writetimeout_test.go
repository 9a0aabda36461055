package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/share"
)

// hurried is an edge whose readers have little time, over HTTP/2 or not, with
// two more routes: endless answers for ever and says how it ended, and late
// answers after twice the time that its readers have.
func hurried(t *testing.T, two bool) (listener *httptest.Server, w *world, ended chan error) {
	t.Helper()
	w = open(t)
	w.server.cfg.WriteTime = 500 * time.Millisecond
	ended = make(chan error, 1)
	w.server.mux.HandleFunc("GET /test/endless", func(rw http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 1<<20); ; {
			if _, err := rw.Write(b); err != nil {
				ended <- err
				return
			}
		}
	})
	w.server.mux.HandleFunc("GET /test/late", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "first")
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-time.After(2 * w.server.cfg.WriteTime):
			_, _ = io.WriteString(rw, ", then")
		case <-r.Context().Done():
		}
	})
	listener = httptest.NewUnstartedServer(w.server)
	listener.EnableHTTP2 = two
	if two {
		listener.StartTLS()
	} else {
		listener.Start()
	}
	t.Cleanup(listener.Close)
	return listener, w, ended
}

func ask(t *testing.T, listener *httptest.Server, w *world, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, listener.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.Secret)
	resp, err := listener.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestReadersWhoDoNotRead are cut off, and hold nothing.
func TestReadersWhoDoNotRead(t *testing.T) {
	for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			listener, w, ended := hurried(t, two)
			resp := ask(t, listener, w, "/test/endless") //nolint:bodyclose // ask does
			if (resp.ProtoMajor == 2) != two {
				t.Fatalf("it speaks %s", resp.Proto)
			}
			select {
			case err := <-ended:
				if !two && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(patience):
				t.Fatal("the handler still writes")
			}
		})
	}
}

// TestSlowHandlers: a handler may think for longer than a reader may, and so may
// a client between two requests of one connection.
func TestSlowHandlers(t *testing.T) {
	for name, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			listener, w, _ := hurried(t, two)
			for range 2 {
				resp := ask(t, listener, w, "/test/late") //nolint:bodyclose // ask does
				if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "first, then" {
					t.Errorf("%q, %v", b, err)
				}
				<-time.After(2 * w.server.cfg.WriteTime)
			}
		})
	}
	// 100 Continue on a connection whose last answer is long over.
	listener, w, _ := hurried(t, false)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(listener.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	for range 2 {
		_, err := io.WriteString(conn, "POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+w.Secret+"\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
		if _, err := io.ReadFull(conn, line); err != nil || !strings.Contains(string(line), "100 Continue") {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = io.WriteString(conn, "x")
		answer := make([]byte, 16<<10)
		if n, err := conn.Read(answer); err != nil || !strings.Contains(string(answer[:n]), "400 Bad Request") {
			t.Fatalf("%q, %v", answer[:n], err)
		}
		<-time.After(2 * w.server.cfg.WriteTime)
	}
}

// TestFollow: who follows a log and may no longer is cut off, whatever the log
// does, and does not take what came for the whole.
func TestFollow(t *testing.T) {
	w := open(t)
	begun := make(chan io.Writer, 1)
	w.server.mux.HandleFunc("GET /test/follow", func(rw http.ResponseWriter, r *http.Request) {
		may := func(ctx context.Context) error {
			return w.Authority.Allow(ctx, "job.logs", policy.Object{Project: "flights", Kind: "job"})
		}
		w.server.follow(rw, r, may, func(ctx context.Context, _ bool) (io.ReadCloser, error) {
			switch r.URL.Query().Get("log") {
			case "waits": // for an attempt that never comes
				<-ctx.Done()
				return nil, ctx.Err()
			case "ends":
				return io.NopCloser(strings.NewReader("all of it")), nil
			case "fails":
				return io.NopCloser(io.MultiReader(strings.NewReader("some"), broken{})), nil
			case "talks":
				return io.NopCloser(talker{}), nil
			}
			out, in := io.Pipe()
			context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
			begun <- in
			return out, nil
		})
	})
	follow := func(secret, log string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/test/follow?log="+log, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		return (&http.Client{Timeout: patience}).Do(req)
	}
	for log, want := range map[string]error{"ends": nil, "fails": io.ErrUnexpectedEOF} {
		resp, err := follow(w.Secret, log)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if !errors.Is(err, want) || len(b) == 0 {
			t.Errorf("a log that %s: %q, %v", log, b, err)
		}
	}
	for _, log := range []string{"is silent", "talks", "waits"} {
		t.Run(log, func(t *testing.T) {
			secret, id := w.member(t, "flights", "reader"+log[:2], project.Engineer)
			revoke := func() {
				if got := w.do(t, w.Secret, "DELETE", "/api/v1/tokens/"+id, ""); got.status != http.StatusNoContent {
					t.Error(got)
				}
			}
			switch log {
			case "waits":
				go func() {
					eventually(t, "it follows", func() bool { return w.server.follows.Held() > 0 })
					revoke()
				}()
			case "is silent":
				go func() { _, _ = io.WriteString(<-begun, "first") }()
			}
			resp, err := follow(secret, strings.ReplaceAll(log, " ", "+"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if log == "waits" {
				if resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("it answers %d", resp.StatusCode)
				}
				return
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			revoke()
			if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
	eventually(t, "nothing is followed", func() bool { return w.server.follows.Held() == 0 })
	for range maxPrincipalStreams {
		if _, err := w.server.follows.Take(t.Context(), share.Owner{Principal: w.adminID(t)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.do(t, w.Secret, "GET", "/test/follow?log=ends", ""); got.status != http.StatusTooManyRequests {
		t.Errorf("one more log than one may follow: %d", got.status)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fault.New(fault.Unavailable, "the engine stops") }

type talker struct{}

func (talker) Read(b []byte) (int, error) { return copy(b, "and again "), nil }

// adminID is the id of who has w.Secret.
func (w *world) adminID(t *testing.T) string {
	t.Helper()
	p, err := w.Accounts.Authenticate(t.Context(), w.Secret)
	if err != nil {
		t.Fatal(err)
	}
	return p.ID
}
