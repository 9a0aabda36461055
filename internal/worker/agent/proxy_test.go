package agent

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A call of gRPC goes through the proxy with its trailers, over plain and over
// sealed connections; other requests go as they did.
func TestForward(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Seen", r.Proto+" "+r.Header.Get("Te")+" "+r.Header.Get("Authorization")+" "+string(b))
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "rows")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Late-Bin", "AA")
	})
	for _, secure := range []bool{false, true} {
		server := httptest.NewUnstartedServer(answer)
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetHTTP2(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		if secure {
			server.EnableHTTP2 = true
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		base, err := url.Parse(server.URL + "/api/v1/worker/")
		if err != nil {
			t.Fatal(err)
		}
		plain := &http.Transport{}
		if secure {
			pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			plain.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
		}
		proxy := httptest.NewUnstartedServer(forward(base, plain))
		proxy.Config.Protocols = new(http.Protocols)
		proxy.Config.Protocols.SetHTTP1(true)
		proxy.Config.Protocols.SetUnencryptedHTTP2(true)
		proxy.Start()
		t.Cleanup(proxy.Close)

		ask := func(contentType string, two bool) (header, trailer http.Header) {
			t.Helper()
			client := &http.Transport{Protocols: new(http.Protocols)}
			client.Protocols.SetHTTP1(!two)
			client.Protocols.SetUnencryptedHTTP2(two)
			t.Cleanup(client.CloseIdleConnections)
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.URL+"/x", strings.NewReader("ticket"))
			r.Header.Set("Content-Type", contentType)
			r.Header.Set("Te", "trailers")
			r.Header.Set("Authorization", "Bearer t")
			got, err := client.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(got.Body)
			_ = got.Body.Close()
			if err != nil || string(b) != "rows" {
				t.Fatalf("%q, %v", b, err)
			}
			return got.Header, got.Trailer
		}
		header, trailer := ask("application/grpc", true)
		if header.Get("Seen") != "HTTP/2.0 trailers Bearer t ticket" || trailer.Get("Grpc-Status") != "0" || trailer.Get("Late-Bin") != "AA" {
			t.Errorf("TLS %v: %v, trailers %v", secure, header, trailer)
		}
		if header, _ := ask("application/json", false); !strings.HasPrefix(header.Get("Seen"), "HTTP/1.1 ") {
			t.Errorf("TLS %v: %v", secure, header)
		}
	}
}
