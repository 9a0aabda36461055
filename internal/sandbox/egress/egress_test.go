package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/egress"
)

// world is a network in which names are what the test says, and every address
// that is dialled is the test's server.
type world struct {
	t       *testing.T
	names   map[string][]string
	server  *httptest.Server
	mu      sync.Mutex
	dialled []string
	refused []string
	client  *http.Client
}

func newWorld(t *testing.T, allow ...string) *world {
	t.Helper()
	w := &world{t: t, names: map[string][]string{}}
	w.server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s %s", r.Host, r.URL.Path)
	}))
	t.Cleanup(w.server.Close)
	list, err := egress.ParseAllow(allow)
	if err != nil {
		t.Fatal(err)
	}
	p := egress.New(egress.Config{
		Allow: list, Timeout: 20 * time.Millisecond,
		OnRefused: func(target string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, target)
		},
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			var ips []netip.Addr
			for _, s := range w.names[host] {
				ips = append(ips, netip.MustParseAddr(s))
			}
			if ips == nil {
				return nil, errors.New("no such host")
			}
			return ips, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			w.dialled = append(w.dialled, address)
			w.mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, w.server.Listener.Addr().String())
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.Serve(l) }()
	t.Cleanup(func() { _ = p.Close() })
	proxy := &url.URL{Scheme: "http", Host: l.Addr().String()}
	w.client = &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

func (w *world) get(target string) (int, string) {
	w.t.Helper()
	r, err := w.client.Get(target)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func (w *world) seen() (dialled, refused []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialled), slices.Clone(w.refused)
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "index.example:443", "*.files.example:443", "93.184.216.34:443", "mirror.corp:443", "10.0.0.0/8:443", "public.corp:443")
	w.names = map[string][]string{
		"index.example": {"151.101.0.223"}, "files.files.example": {"151.101.1.63"}, "mirror.corp": {"10.1.2.3"},
		"public.corp": {"127.0.0.1", "8.8.8.8"}, "files.example": {"151.101.1.63"},
	}
	for target, address := range map[string]string{
		"index.example": "151.101.0.223:443", "INDEX.example": "151.101.0.223:443", "files.files.example": "151.101.1.63:443",
		"93.184.216.34": "93.184.216.34:443", "mirror.corp": "10.1.2.3:443", "10.9.9.9": "10.9.9.9:443",
		"public.corp": "8.8.8.8:443", // the private one of its two addresses is passed over
	} {
		if status, body := w.get("https://" + target + "/x"); status != 200 || !strings.HasSuffix(body, " /x") {
			t.Errorf("%s: %d %s", target, status, body)
		}
		if dialled, _ := w.seen(); !slices.Contains(dialled, address) {
			t.Errorf("%s: dialled %v, not %s", target, dialled, address)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "index.example:443", "*.corp:443", "metadata.internal:80", "nowhere.org:443")
	w.names = map[string][]string{
		"index.example": {"151.101.0.223"}, "metadata.internal": {"169.254.169.254"}, "evil.org": {"8.8.8.8"},
		"a.corp": {"10.0.0.1"}, "b.corp": {"127.0.0.1"}, "c.corp": {"::1"}, "d.corp": {"::ffff:127.0.0.1"}, "e.corp": {"fd00::1"},
		"f.corp": {"100.64.0.1"}, "g.corp": {"0.0.0.0"}, "h.corp": {"fe80::1"}, "i.corp": {"64:ff9b::7f00:1"}, "j.corp": {"224.0.0.1"}, "corp": {"8.8.8.8"},
		"k.corp": {"192.168.1.1", "172.16.0.1"},
	}
	for _, target := range []string{
		"https://evil.org/", "https://index.example:8443/", "http://index.example/", "https://8.8.8.8/", "https://notindex.example/", "https://index.example.evil.org/",
		"https://corp/", "https://[::1]/", "https://127.0.0.1/",
	} {
		_, before := w.seen()
		status, body := w.get(target)
		if status == 200 || !strings.Contains(body, "Forbidden") && !strings.Contains(body, "allow-list") {
			t.Errorf("%s: %d %s", target, status, body)
		}
		if _, after := w.seen(); len(after) == len(before) {
			t.Errorf("%s: not reported", target)
		}
	}
	// What is on the list by name answers the same whether the name is unknown or
	// private, and is reported neither way: the submitter reads the reports.
	_, before := w.seen()
	for _, target := range []string{
		"https://a.corp/", "https://b.corp/", "https://c.corp/", "https://d.corp/", "https://e.corp/", "https://f.corp/", "https://g.corp/", "https://h.corp/",
		"https://i.corp/", "https://j.corp/", "https://k.corp/", "https://nowhere.org/",
	} {
		if status, body := w.get(target); status == 200 || !strings.Contains(body, "Bad Gateway") {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
	if status, body := w.get("http://metadata.internal/latest/"); status != http.StatusBadGateway || !strings.Contains(body, "metadata.internal:80 cannot be connected to") || strings.Contains(body, "169.254") {
		t.Errorf("%d %s", status, body)
	}
	dialled, after := w.seen()
	if len(dialled) > 0 || len(after) != len(before) {
		t.Errorf("dialled %v, reported %v", dialled, after[len(before):])
	}
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "plain "+r.Host) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	list, err := egress.ParseAllow([]string{l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	p := egress.New(egress.Config{Allow: list})
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	proxy, err := url.Parse(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return proxy, nil }}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://" + l.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "plain "+l.Addr().String() {
		t.Errorf("%q %v", b, err)
	}
	// Not a proxy request.
	r, err = http.Get(front.URL + "/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusBadRequest {
		t.Errorf("%d", r.StatusCode)
	}
}

// TestClose checks that tunnels end with the proxy.
func TestClose(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	list, err := egress.ParseAllow([]string{l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	p := egress.New(egress.Config{Allow: list})
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.Serve(front) }()
	c, err := net.Dial("tcp", front.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", l.Addr()); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q %v", line, err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("the tunnel ended with %v", err)
	}
}

func TestParseAllow(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "index.example", "index.example:", "index.example:0", "index.example:65536", "index.example:https", ":443", "a b:443", "*:443", "*.*.org:443", "a..b:443", "http://index.example:443", "index.example:443/simple", "*.:443"} {
		if _, err := egress.ParseAllow([]string{bad}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := egress.ParseAllow(make([]string, 1000)); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v", err)
	}
	a, err := egress.ParseAllow([]string{"B.org:443", "a.org:443", "a.org:80", "1.2.3.4:80"})
	if err != nil || !slices.Equal(a.Hosts(), []string{"a.org", "b.org"}) {
		t.Errorf("%v %v", a.Hosts(), err)
	}
}

func FuzzParseAllow(f *testing.F) {
	for _, s := range []string{"index.example:443", "*.index.example:443", "10.0.0.0/8:443", "[::1]:80", "[2001:db8::/32]:443", "a:b:c", "%:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		a, err := egress.ParseAllow([]string{entry})
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", entry, err)
		}
		_ = a.Hosts()
	})
}
