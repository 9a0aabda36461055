// Package ocitest gives tests an image registry on loopback and images to push
// there.
package ocitest

import (
	"archive/tar"
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
)

// Registry is a real registry in this process.
type Registry struct {
	Host string // "127.0.0.1:port"
	// Intercept is called before each request; true means that it answered.
	Intercept atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	Asked     atomic.Int64 // requests so far
	server    *httptest.Server
}

// New starts a registry that ends with the test.
func New(tb testing.TB) *Registry {
	tb.Helper()
	r := &Registry{}
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)))
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.Asked.Add(1)
		if f := r.Intercept.Load(); f != nil && (*f)(w, q) {
			return
		}
		inner.ServeHTTP(w, q)
	}))
	tb.Cleanup(r.server.Close)
	r.Host = strings.TrimPrefix(r.server.URL, "http://")
	return r
}

// Stop ends it early.
func (r *Registry) Stop() { r.server.Close() }

// Entry is one of a layer's tar stream.
type Entry struct {
	tar.Header
	Content string
}

// File is a plain file.
func File(name, content string, mode int64) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, content}
}

// Dir is a directory.
func Dir(name string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

// Symlink is a symbolic link.
func Symlink(name, to string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, ""}
}

// Link is a hard link.
func Link(name, to string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, ""}
}

// Tar is the entries as a stream.
func Tar(tb testing.TB, entries ...Entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size, e.ModTime = int64(len(e.Content)), time.Unix(1_700_000_000, 0)
		if err := w.WriteHeader(&e.Header); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, e.Content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// Image has the layers, for this machine's platform.
func Image(tb testing.TB, env []string, layers ...[]byte) v1.Image {
	tb.Helper()
	img := empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err != nil {
			tb.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			tb.Fatal(err)
		}
	}
	return Configure(tb, img, func(c *v1.ConfigFile) { c.Config.Env = env })
}

// Configure changes an image's configuration; platform first.
func Configure(tb testing.TB, img v1.Image, change func(*v1.ConfigFile)) v1.Image {
	tb.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	change(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		tb.Fatal(err)
	}
	return img
}

// Push pushes an image under a name and the tag "latest", and gives its
// reference by digest.
func (r *Registry) Push(tb testing.TB, repository string, img v1.Image) string {
	tb.Helper()
	ref, err := name.ParseReference(r.Host + "/" + repository + ":latest")
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(tb.Context())); err != nil {
		tb.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return ref.Context().Digest(d.String()).String()
}

// Busybox is a layer with a shell.
func Busybox(tb testing.TB) []byte {
	tb.Helper()
	b, err := os.ReadFile(sandboxtest.Busybox(tb))
	if err != nil {
		tb.Fatal(err)
	}
	entries := []Entry{Dir("bin/"), Dir("usr/"), Dir("etc/"), Dir("tmp/"), File("bin/busybox", string(b), 0o755), Symlink("usr/bin", "../bin"), File("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)}
	for _, a := range sandboxtest.Applets {
		entries = append(entries, Symlink("bin/"+a, "busybox"))
	}
	return Tar(tb, entries...)
}
