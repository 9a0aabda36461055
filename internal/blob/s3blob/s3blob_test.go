package s3blob_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/blob/s3blob"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/internal/fault"
)

const part = 5 << 20 // the least of S3

// A test runs this binary again as a child that puts and is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child-writer" {
		ca, err := os.ReadFile(os.Args[3])
		if err != nil {
			panic(err)
		}
		writer(config(os.Args[2], ca, "killed"))
		return
	}
	m.Run()
}

func config(endpoint string, ca []byte, prefix string) s3blob.Config {
	return s3blob.Config{
		Endpoint: endpoint, Bucket: "objects", Prefix: prefix, CA: ca, PartSize: part,
		AccessKey: sourcetest.S3User, SecretKey: sourcetest.S3Password,
	}
}

// server is a versitygw with a bucket.
func server(t *testing.T) (endpoint string, ca []byte, c *minio.Core) {
	t.Helper()
	at, ca := sourcetest.S3(t)
	c = sourcetest.S3Client(t, at, ca)
	if err := c.MakeBucket(t.Context(), "objects", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return "https://" + at, ca, c
}

func open(t *testing.T, cfg s3blob.Config) *s3blob.Driver {
	t.Helper()
	d, err := s3blob.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func read(d blob.Driver, key blob.Key) ([]byte, error) {
	o, err := d.Open(context.Background(), key)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(o)
}

func unfinished(t *testing.T, c *minio.Core) int {
	t.Helper()
	got, err := c.ListMultipartUploads(t.Context(), "objects", "", "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return len(got.Uploads)
}

func TestS3(t *testing.T) {
	endpoint, ca, c := server(t)
	var n atomic.Int64
	fresh := func(t *testing.T) s3blob.Config {
		t.Helper()
		return config(endpoint, ca, "in/"+strconv.FormatInt(n.Add(1), 10))
	}
	t.Run("suite", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Driver {
			t.Helper()
			return open(t, fresh(t))
		})
	})
	t.Run("without a prefix", func(t *testing.T) {
		d := open(t, config(endpoint, ca, ""))
		if err := d.Put(t.Context(), "alone", strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if got, err := read(d, "alone"); err != nil || string(got) != "x" {
			t.Error(string(got), err)
		}
		if err := d.Delete(t.Context(), "alone"); err != nil {
			t.Error(err)
		}
	})
	t.Run("sizes", func(t *testing.T) {
		store := blob.New(open(t, fresh(t)), blobtest.NewSealer())
		ref := blob.Ref{Project: "wind", Key: "a/b"}
		for _, size := range []int{0, 1, 64 << 10, 1<<20 + 1, part - 300, part, 2 * part, 2*part + 1, 6*part + 7} {
			body := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
			info, err := store.Put(t.Context(), ref, bytes.NewReader(body))
			if err != nil {
				t.Fatal(size, err)
			}
			r, err := store.Open(t.Context(), ref)
			if err != nil {
				t.Fatal(size, err)
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, body) || r.Info() != info {
				t.Errorf("%d bytes: %d, %v", size, len(got), err)
			}
			_ = r.Close()
		}
	})
	t.Run("any place, by many at once", func(t *testing.T) {
		d := open(t, fresh(t))
		body := make([]byte, 3*part)
		for i := range body {
			body[i] = byte(i * 31 >> 3)
		}
		if err := d.Put(t.Context(), "k", bytes.NewReader(body)); err != nil {
			t.Fatal(err)
		}
		o, err := d.Open(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		done := make(chan error)
		for start := range 4 {
			go func() {
				b := make([]byte, 700_001)
				for off := start * 1000; off < len(body); off += len(b) {
					n, err := o.ReadAt(b, int64(off))
					if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(b[:n], body[off:min(off+len(b), len(body))]) {
						done <- fmt.Errorf("at %d: %d bytes, %w", off, n, err)
						return
					}
				}
				done <- nil
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("replaced while it is read", func(t *testing.T) {
		d := open(t, fresh(t))
		put := func(c byte) {
			t.Helper()
			if err := d.Put(t.Context(), "k", bytes.NewReader(bytes.Repeat([]byte{c}, 2*part))); err != nil {
				t.Fatal(err)
			}
		}
		put('a')
		o, err := d.Open(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if _, err := io.ReadFull(o, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		put('b')
		if got, err := io.ReadAll(o); !fault.Is(err, fault.Conflict) || bytes.Contains(got, []byte("b")) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	t.Run("a broken body of many parts leaves no upload", func(t *testing.T) {
		d := open(t, fresh(t))
		broken := fault.New(fault.TooLarge, "enough")
		body := io.MultiReader(bytes.NewReader(make([]byte, 3*part)), failing{broken})
		if err := d.Put(t.Context(), "k", body); !fault.Is(err, fault.TooLarge) {
			t.Error(err)
		}
		if n := unfinished(t, c); n != 0 {
			t.Errorf("%d uploads are left", n)
		}
	})
	t.Run("claims", func(t *testing.T) {
		cfg := fresh(t)
		d := open(t, cfg)
		if who, err := d.Owner(t.Context()); err != nil || who != "" {
			t.Fatal(who, err)
		}
		for range 2 {
			if err := d.Claim(t.Context(), "us"); err != nil {
				t.Fatal(err)
			}
		}
		if err := open(t, cfg).Claim(t.Context(), "them"); !fault.Is(err, fault.Conflict) {
			t.Errorf("a second owner: %v", err)
		}
		if who, err := d.Owner(t.Context()); err != nil || who != "us" {
			t.Error(who, err)
		}
		if err := d.List(t.Context(), "", func(k blob.Key) error { return errors.New("listed: " + string(k)) }); err != nil {
			t.Error(err)
		}
	})
	t.Run("prefixes within prefixes", func(t *testing.T) {
		outer := fresh(t)
		outer.Prefix = strings.Trim(outer.Prefix+"/outer", "/")
		inner, beside := outer, outer
		inner.Prefix += "/inner"
		beside.Prefix += "-beside"
		if err := open(t, inner).Claim(t.Context(), "us"); err != nil {
			t.Fatal(err)
		}
		if _, err := s3blob.Open(t.Context(), outer); !fault.Is(err, fault.Conflict) {
			t.Errorf("around another's: %v", err)
		}
		if err := open(t, beside).Claim(t.Context(), "them"); err != nil {
			t.Error(err)
		}
		deeper := beside
		deeper.Prefix += "/a/b"
		if _, err := s3blob.Open(t.Context(), deeper); !fault.Is(err, fault.Conflict) {
			t.Errorf("within another's: %v", err)
		}
	})
	t.Run("lost answers", func(t *testing.T) { lostAnswers(t, endpoint, ca) })
	t.Run("kill -9", func(t *testing.T) { killed(t, endpoint, ca, c) })
	for name, w := range map[string]struct {
		kind   fault.Kind
		change func(c *s3blob.Config)
	}{
		"no bucket":                  {fault.Unavailable, func(c *s3blob.Config) { c.Bucket = "nix" }},
		"no bucket's name":           {fault.Invalid, func(c *s3blob.Config) { c.Bucket = "No Name" }},
		"a wrong key":                {fault.Unavailable, func(c *s3blob.Config) { c.SecretKey = "wrong" }},
		"an unknown user":            {fault.Unavailable, func(c *s3blob.Config) { c.AccessKey = "nobody" }},
		"an authority not trusted":   {fault.Unavailable, func(c *s3blob.Config) { c.CA = nil }},
		"a CA that is none":          {fault.Invalid, func(c *s3blob.Config) { c.CA = []byte("x") }},
		"nobody listens":             {fault.Unavailable, func(c *s3blob.Config) { c.Endpoint = "https://127.0.0.1:1" }},
		"without TLS over a network": {fault.Invalid, func(c *s3blob.Config) { c.Endpoint = "http://s3.example" }},
		"a path":                     {fault.Invalid, func(c *s3blob.Config) { c.Endpoint += "/objects" }},
		"a prefix that is no key":    {fault.Invalid, func(c *s3blob.Config) { c.Prefix = "a//b" }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fresh(t)
			w.change(&cfg)
			if err := s3blob.Check(t.Context(), cfg); !fault.Is(err, w.kind) || strings.Contains(err.Error(), sourcetest.S3Password) {
				t.Errorf("%v, want %v", err, w.kind)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// lostAnswers puts a proxy before the server that loses the first answers to each
// kind of request after the server has acted.
func lostAnswers(t *testing.T, endpoint string, ca []byte) {
	t.Helper()
	at, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	var lose atomic.Int64
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(at)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}},
		ModifyResponse: func(r *http.Response) error {
			completes := r.Request.Method == http.MethodPost && r.Request.URL.Query().Has("uploadId")
			if (completes || r.Request.Method == http.MethodPut || r.Request.Method == http.MethodGet) && lose.Add(-1) >= 0 {
				_, _ = io.Copy(io.Discard, r.Body)
				return errors.New("lost")
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	d := open(t, config(front.URL, nil, "lossy"))
	for _, size := range []int{10, 2*part + 5} {
		body := bytes.Repeat([]byte{7}, size)
		for _, n := range []int64{1, 3} {
			lose.Store(n)
			if err := d.Put(t.Context(), "k", bytes.NewReader(body)); err != nil {
				t.Errorf("%d bytes, %d answers lost: %v", size, n, err)
			}
			lose.Store(n)
			if got, err := read(d, "k"); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %d answers lost: read %d, %v", size, n, len(got), err)
			}
		}
	}
	lose.Store(1 << 40)
	if err := d.Put(t.Context(), "k", strings.NewReader("x")); !fault.Is(err, fault.Unavailable) && err != nil {
		t.Errorf("all answers are lost: %v", err)
	}
	if _, err := read(d, "k"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("all answers are lost: %v", err)
	}
}

const objectSize = 2*part + 8*1000

// writer puts version after version until it is killed.
func writer(cfg s3blob.Config) {
	ctx := context.Background()
	d, err := s3blob.Open(ctx, cfg)
	if err != nil {
		panic(err)
	}
	for version := 1; ; version++ {
		fmt.Fprintln(os.Stdout, "begin", version)
		body := bytes.Repeat(fmt.Appendf(nil, "%08d", version), objectSize/8)
		if err := d.Put(ctx, "deep/in/object", bytes.NewReader(body)); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stdout, "put", version)
	}
}

// killed kills a writer of large objects, some of them before it has an answer.
func killed(t *testing.T, endpoint string, ca []byte, c *minio.Core) {
	t.Helper()
	file := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for round := range 4 {
		cmd := exec.CommandContext(t.Context(), self, "child-writer", endpoint, file)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked := round / 2 // it is killed in its first put, or in its second
		lines := bufio.NewReader(out)
		for line := ""; line != fmt.Sprintf("begin %d\n", acked+1); {
			if line, err = lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		for unfinished(t, c) == 0 { // it is in the middle of an upload
		}
		_ = cmd.Process.Kill()
		rest, _ := io.ReadAll(lines)
		acked += bytes.Count(rest, []byte("put"))
		_ = cmd.Wait()
		left += unfinished(t, c)

		d := open(t, config(endpoint, ca, "killed"))
		if n := unfinished(t, c); n != 0 {
			t.Errorf("%d uploads are left", n)
		}
		got, err := read(d, "deep/in/object")
		switch {
		case fault.Is(err, fault.NotFound) && acked == 0 && round < 2: // nothing was there before
		case err != nil:
			t.Fatalf("after version %d: %v", acked, err)
		case len(got) != objectSize || !bytes.Equal(got, bytes.Repeat(got[:8], objectSize/8)):
			t.Fatalf("torn: %d bytes", len(got))
		}
	}
	if left == 0 {
		t.Error("no upload was ever killed")
	}
}

// TestKeysAndAuthoritiesAreAskedAnew: new keys are used by the next request, and a new
// authority by the next connection.
func TestKeysAndAuthoritiesAreAskedAnew(t *testing.T) {
	at, ca, _ := server(t)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate")
	}
	var secret, trusted atomic.Value
	secret.Store(sourcetest.S3Password)
	trusted.Store(roots)
	cfg := config(at, nil, "renewed")
	cfg.Keys = func() (string, string) { return sourcetest.S3User, secret.Load().(string) }
	cfg.Roots = func() *x509.CertPool { return trusted.Load().(*x509.CertPool) }
	d := open(t, cfg)
	for _, step := range []struct {
		secret string
		roots  *x509.CertPool
		err    string
	}{
		{sourcetest.S3Password, roots, ""},
		{"another secret", roots, "denied the request"},
		{sourcetest.S3Password, roots, ""},
		{sourcetest.S3Password, x509.NewCertPool(), "not trusted"},
		{sourcetest.S3Password, roots, ""},
	} {
		secret.Store(step.secret)
		trusted.Store(step.roots)
		if err := d.Close(); err != nil { // the idle connections
			t.Fatal(err)
		}
		err := d.Ask(t.Context())
		if (err == nil) != (step.err == "") || err != nil && (!strings.Contains(err.Error(), step.err) || !fault.Is(err, fault.Unavailable) || strings.Contains(err.Error(), strings.TrimPrefix(at, "https://"))) {
			t.Errorf("%v, want %q", err, step.err)
		}
	}
}
