package client

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// two is a server of HTTP/2 without TLS, and a transport to such.
func two(t *testing.T, h http.Handler) (url string, transport *http.Transport) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	transport = &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return s.URL, transport
}

// TestStorage: calls go on with the token, again while nobody answers and by the same
// key; what comes is what the server said.
func TestStorage(t *testing.T) {
	const away, done, nobody = "away", "done", "nobody"
	for name, x := range map[string]struct {
		call    string
		answers []string // of the server, the last one repeated
		code    string
		tries   int
	}{
		"at once":                  {"GetTrials", []string{done}, "0", 1},
		"after two":                {"CreateNewTrial", []string{away, "503", done}, "0", 3},
		"nobody knows":             {"GetTrial", []string{nobody}, "5", 1},
		"deleted by the first try": {"DeleteStudy", []string{away, nobody}, "0", 2},
		"never there":              {"DeleteStudy", []string{nobody}, "5", 1},
		"cut off":                  {"GetTrials", []string{"half", done}, "0", 2},
		"another server":           {"GetTrials", []string{"404"}, "12", 1},
		"not ours":                 {"x/y", []string{done}, "12", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			url, _ := two(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Falaj-Project") != "nyc" || r.Header.Get("Grpc-Timeout") != "9S" || r.ProtoMajor != 2 || string(b) != "ask" || err != nil {
					t.Errorf("it gets %q %v %v", b, r.Header, err)
				}
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				w.Header().Set("Content-Type", "application/grpc")
				switch what := x.answers[min(len(keys), len(x.answers))-1]; what {
				case away:
					panic(http.ErrAbortHandler)
				case nobody:
					w.Header().Set("Grpc-Status", "5")
					w.Header().Set("Falaj-Problem-Bin", "eA")
				case "503", "404":
					w.WriteHeader(map[string]int{"503": 503, "404": 404}[what])
				default:
					w.Header().Set("Trailer", "Grpc-Status")
					_, _ = w.Write([]byte{0, 0, 0, 0, 2, 'o'})
					if what == done {
						_, _ = w.Write([]byte("k"))
					}
					w.Header().Set("Grpc-Status", "0")
				}
			}))
			c, err := New(url, "secret")
			if err != nil {
				t.Fatal(err)
			}
			here, transport := two(t, c.Storage("nyc", time.Minute))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, here+"/optuna.StorageService/"+x.call, bytes.NewReader([]byte("ask")))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer of another")
			req.Header.Set("Grpc-Timeout", "9S")
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			code := resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status")
			if code != x.code || len(keys) != x.tries || err != nil {
				t.Errorf("code %q after %d tries, want %q after %d; %v", code, len(keys), x.code, x.tries, err)
			}
			if len(keys) > 0 && (keys[0] == "" || len(slices.Compact(keys)) != 1) {
				t.Errorf("keys %q", keys)
			}
			if x.code == "5" && resp.Header.Get("Falaj-Problem-Bin") != "eA" {
				t.Errorf("the hint is lost: %v", resp.Header)
			}
			if code == "0" && x.call != "DeleteStudy" && string(b) != "\x00\x00\x00\x00\x02ok" {
				t.Errorf("it says %q", b)
			}
		})
	}
}

// TestStorageGivesUp when its patience is over.
func TestStorageGivesUp(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "secret")
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	c.Storage("nyc", 0).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/optuna.StorageService/GetTrial", bytes.NewReader(nil)))
	if w.Header().Get("Grpc-Status") != "14" || w.Header().Get("Grpc-Message") == "" {
		t.Errorf("it says %v", w.Header())
	}
}
