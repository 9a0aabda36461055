// Package console serves the web console's static files.
//
// # Map
//
//   - console.go: Handler and what it answers.
//   - index.html: the committed plain page, served when the console was not
//     built (`make console` needs Node). It says what runs here and which
//     commands to use.
//   - dist/: what `make console` built from console/, not in the repository.
//
// The files hold nothing secret and need no credentials; what they show comes
// from the API with the token that the reader pasted. Nothing is loaded from
// another origin, no inline script or style runs, and no other page may frame
// them: see policy.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/coding"
)

//go:embed index.html
var plain []byte

//go:embed all:dist
var built embed.FS

// Prefix is the path under which the console's files are.
const Prefix = "/console/"

// policy is the Content-Security-Policy of the built console. Styles are files,
// too: scripts set single properties of elements, which needs no permission.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// plainPolicy is that of the plain page, which has its one style in it: that text
// is allowed, by its digest.
func plainPolicy() string {
	_, rest, _ := strings.Cut(string(plain), "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// forever is the caching of a file whose name holds its digest.
const forever = "public, max-age=31536000, immutable"

// A page is one file as it is sent.
type page struct {
	kind, cache, policy string
	bodies              map[string]body // by content encoding; "" is always there
}

type body struct {
	bytes []byte
	etag  string
}

// Handler serves the console: the page at "/" and at every path under /console/
// that is not a file, so that a link into it works; the files beside it.
func Handler() http.Handler {
	files, err := fs.Sub(built, "dist")
	if err != nil {
		panic(err) // the name is a constant
	}
	return handler(files)
}

// Plain serves the page of a binary without the built console.
func Plain() http.Handler { return handler(none{}) }

// none is a file system with nothing in it.
type none struct{}

func (none) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func handler(files fs.FS) http.Handler {
	pages, index := load(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := index
		name, below := strings.CutPrefix(r.URL.Path, Prefix)
		if file, ok := pages[name]; ok && below {
			p = file
		} else if below && path.Ext(name) != "" {
			http.NotFound(w, r)
			return
		}
		p.serve(w, r)
	})
}

// load reads what was built; index is the plain page if nothing was.
func load(files fs.FS) (pages map[string]page, index page) {
	index = page{kind: "text/html; charset=utf-8", cache: "no-cache", policy: plainPolicy(), bodies: map[string]body{"": bodyOf(plain)}}
	pages = map[string]page{}
	_ = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") || strings.HasSuffix(name, ".br") || strings.HasSuffix(name, ".gz") {
			return err
		}
		p := page{kind: mime.TypeByExtension(path.Ext(name)), cache: "no-cache", policy: policy, bodies: map[string]body{}}
		if strings.HasPrefix(name, "assets/") {
			p.cache = forever
		}
		for encoding, suffix := range map[string]string{"": "", "br": ".br", "gzip": ".gz"} {
			if b, err := fs.ReadFile(files, name+suffix); err == nil {
				p.bodies[encoding] = bodyOf(b)
			}
		}
		pages[name] = p
		return nil
	})
	if p, ok := pages["index.html"]; ok {
		index = p
	}
	return pages, index
}

func bodyOf(b []byte) body {
	sum := sha256.Sum256(b)
	return body{bytes: b, etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
}

func (p page) serve(w http.ResponseWriter, r *http.Request) {
	offered := slices.DeleteFunc([]string{coding.Brotli, coding.Gzip}, func(e string) bool { _, ok := p.bodies[e]; return !ok })
	encoding := coding.Accepted(strings.Join(r.Header.Values("Accept-Encoding"), ","), offered...)
	b := p.bodies[encoding]
	h := w.Header()
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", p.cache)
	h.Set("ETag", b.etag)
	h.Add("Vary", "Accept-Encoding")
	if matches(r.Header.Get("If-None-Match"), b.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", p.kind)
	if encoding != "" {
		h.Set("Content-Encoding", encoding)
	}
	h.Set("Content-Length", strconv.Itoa(len(b.bytes)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(b.bytes) // the client went away: nobody to tell
	}
}

// matches compares weakly, as If-None-Match does (RFC 9110, 13.1.2).
func matches(header, etag string) bool {
	for item := range strings.SplitSeq(header, ",") {
		item = strings.TrimPrefix(strings.TrimSpace(item), "W/")
		if item == "*" || item == etag {
			return true
		}
	}
	return false
}
