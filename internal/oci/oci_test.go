package oci_test

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
)

func open(t *testing.T, r *ocitest.Registry, change func(*oci.Config)) *oci.Store {
	t.Helper()
	c := oci.Config{Dir: filepath.Join(t.TempDir(), "images"), Registries: []string{r.Host}, Insecure: []string{r.Host}, MaxBytes: 1 << 20, MaxFiles: 1000}
	if change != nil {
		change(&c)
	}
	s, err := oci.New(c)
	check(t, err)
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a root as text, a line for each path.
func tree(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		b.WriteString(fi.Mode().String() + " " + rel)
		switch {
		case fi.Mode().IsRegular():
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b.WriteString(" = " + string(content))
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			b.WriteString(" -> " + to)
		}
		b.WriteString("\n")
		return nil
	}))
	return b.String()
}

func TestPull(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	ref := r.Push(t, "team/base", ocitest.Image(t, []string{"PATH=/bin", "A=b=c"},
		ocitest.Tar(t, ocitest.Dir("etc/"), ocitest.File("etc/a", "1", 0o644), ocitest.File("etc/b", "1", 0o4755), ocitest.Dir("gone/"), ocitest.File("gone/x", "", 0o644),
			ocitest.Dir("opaque/"), ocitest.File("opaque/old", "", 0o644), ocitest.Symlink("lib", "/usr/lib"), ocitest.File("kind", "file", 0o600)),
		ocitest.Tar(t, ocitest.File("etc/a", "2", 0o644), ocitest.File("etc/.wh.b", "", 0), ocitest.File(".wh.gone", "", 0), ocitest.Link("etc/c", "etc/a"),
			ocitest.File("opaque/new", "n", 0o644), ocitest.File("opaque/.wh..wh..opq", "", 0), ocitest.File("lib/x.so", "so", 0o755), ocitest.Dir("kind"), ocitest.File("kind/in", "", 0o644)),
	))
	s := open(t, r, nil)
	pinned, err := s.Resolve(t.Context(), r.Host+"/team/base:latest")
	if err != nil || pinned != ref {
		t.Fatalf("%s %v, want %s", pinned, err, ref)
	}
	i, release, err := s.Pull(t.Context(), ref)
	check(t, err)
	defer release()
	const want = `drwxr-xr-x etc
-rw-r--r-- etc/a = 2
-rw-r--r-- etc/c = 2
drwxr-xr-x kind
-rw-r--r-- kind/in = 
Lrwxrwxrwx lib -> /usr/lib
drwxr-xr-x opaque
-rw-r--r-- opaque/new = n
drwxr-xr-x usr
drwxr-xr-x usr/lib
-rwxr-xr-x usr/lib/x.so = so
`
	if got := tree(t, i.Root); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if v := i.Variables(); v["PATH"] != "/bin" || v["A"] != "b=c" || i.Ref != ref || len(i.Layers) != 2 || i.Size == 0 {
		t.Errorf("%+v", i)
	}
	if fi, err := os.Stat(filepath.Join(i.Root, "etc/a")); err != nil || fi.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("%v %v", fi, err)
	}
	// What is here is not asked for again, by a new store either.
	r.Stop()
	if again, release, err := s.Pull(t.Context(), ref); err != nil || again.Root != i.Root {
		t.Errorf("%+v %v", again, err)
	} else {
		release()
	}
	if info, err := s.Inspect(t.Context(), ref); err != nil || !info.Here || info.Ref != ref {
		t.Errorf("%+v %v", info, err)
	}
}

// TestHostileLayers: whatever a layer says, nothing outside the root changes.
func TestHostileLayers(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	check(t, os.WriteFile(victim, []byte("mine"), 0o600))
	up := strings.Repeat("../", 12)
	special := func(name string, kind byte) ocitest.Entry {
		return ocitest.Entry{Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: 8}}
	}
	for title, c := range map[string]struct {
		layers [][]ocitest.Entry
		kind   fault.Kind // of the refusal; Internal for none
	}{
		"a name that leads upwards":        {[][]ocitest.Entry{{ocitest.File(up+outside+"/new", "x", 0o644)}}, fault.Invalid},
		"an absolute name":                 {[][]ocitest.Entry{{ocitest.File(outside+"/new", "x", 0o644)}}, fault.Internal},
		"through an absolute link":         {[][]ocitest.Entry{{ocitest.Symlink("l", outside), ocitest.File("l/new", "x", 0o644)}}, fault.Internal},
		"through a relative link":          {[][]ocitest.Entry{{ocitest.Symlink("l", up+outside), ocitest.File("l/new", "x", 0o644)}}, fault.Internal},
		"through a link of an older layer": {[][]ocitest.Entry{{ocitest.Symlink("l", outside)}, {ocitest.File("l/victim", "x", 0o644)}}, fault.Internal},
		"over a link":                      {[][]ocitest.Entry{{ocitest.Symlink("l", victim), ocitest.File("l", "x", 0o644)}}, fault.Internal},
		"a hard link outwards":             {[][]ocitest.Entry{{ocitest.Link("l", up+victim)}}, fault.Invalid},
		"an absolute hard link":            {[][]ocitest.Entry{{ocitest.Link("l", victim)}}, fault.Invalid},
		"a hard link through a link":       {[][]ocitest.Entry{{ocitest.Symlink("d", outside), ocitest.Link("l", "d/victim"), ocitest.File("l", "x", 0o644)}}, fault.Invalid},
		"a hard link to a directory":       {[][]ocitest.Entry{{ocitest.Dir("d"), ocitest.Link("l", "d")}}, fault.Invalid},
		"a whiteout through a link":        {[][]ocitest.Entry{{ocitest.Symlink("l", outside)}, {ocitest.File("l/.wh.victim", "", 0)}}, fault.Internal},
		"a whiteout of the parent":         {[][]ocitest.Entry{{ocitest.File("d/.wh...", "", 0)}}, fault.Invalid},
		"an opaque link":                   {[][]ocitest.Entry{{ocitest.Symlink("l", outside)}, {ocitest.File("l/.wh..wh..opq", "", 0)}}, fault.Internal},
		"devices":                          {[][]ocitest.Entry{{special("sda", tar.TypeBlock), special("mem", tar.TypeChar), special("pipe", tar.TypeFifo)}}, fault.Internal},
		"a loop of links":                  {[][]ocitest.Entry{{ocitest.Symlink("a", "b"), ocitest.Symlink("b", "a"), ocitest.File("a/x", "", 0o644)}}, fault.Invalid},
		"through the process":              {[][]ocitest.Entry{{ocitest.Symlink("l", "/proc/self/root"+outside), ocitest.File("l/new", "x", 0o644)}}, fault.Internal},
		"a long name":                      {[][]ocitest.Entry{{ocitest.File(strings.Repeat("n", 300), "", 0o644)}}, fault.Invalid},
		"a big file":                       {[][]ocitest.Entry{{ocitest.File("big", strings.Repeat("x", 2<<20), 0o644)}}, fault.TooLarge},
		"many small ones":                  {[][]ocitest.Entry{many(2000)}, fault.TooLarge},
		"many directories by few names":    {[][]ocitest.Entry{{ocitest.File(strings.Repeat("a/", 600)+"f", "", 0o644), ocitest.File(strings.Repeat("b/", 600)+"f", "", 0o644)}}, fault.TooLarge},
		"an unknown kind":                  {[][]ocitest.Entry{{special("x", 'Z')}}, fault.Invalid},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, ocitest.Tar(t, l...))
			}
			r := ocitest.New(t)
			s := open(t, r, nil)
			i, release, err := s.Pull(t.Context(), r.Push(t, "evil", ocitest.Image(t, nil, layers...)))
			release()
			if c.kind == fault.Internal && err != nil || c.kind != fault.Internal && !fault.Is(err, c.kind) {
				t.Errorf("%v (%v), want %v", err, fault.KindOf(err), c.kind)
			}
			if got := tree(t, outside); got != "-rw------- victim = mine\n" {
				t.Errorf("outside:\n%s", got)
			}
			if err == nil {
				for line := range strings.Lines(tree(t, i.Root)) {
					if !strings.ContainsRune("d-L", rune(line[0])) || strings.Contains(line, "mine") {
						t.Errorf("inside: %s", line)
					}
				}
			}
		})
	}
}

func many(n int) []ocitest.Entry {
	var all []ocitest.Entry
	for i := range n {
		all = append(all, ocitest.File("f"+string(rune('a'+i%26))+strings.Repeat("x", i/26), "", 0o644))
	}
	return all
}

// TestWrongContent: what does not have its digest is not kept.
func TestWrongContent(t *testing.T) {
	t.Parallel()
	img := ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("a", "content", 0o644)))
	lies := ocitest.Configure(t, img, func(c *v1.ConfigFile) { c.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64) })
	other := ocitest.Configure(t, img, func(c *v1.ConfigFile) { c.Architecture = "riscv64" })
	for title, c := range map[string]struct {
		img       v1.Image
		intercept func(w http.ResponseWriter, r *http.Request) bool
		ref       func(ref string) string
		kind      fault.Kind
	}{
		"a layer that is another": {img: img, kind: fault.Invalid, intercept: func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet {
				return false
			}
			_, _ = w.Write([]byte(strings.Repeat("x", 100)))
			return true
		}},
		"a manifest that is another": {img: img, kind: fault.Invalid, intercept: func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = w.Write([]byte(`{"schemaVersion":2}`))
			return true
		}},
		"a configuration that lies": {img: lies, kind: fault.Invalid},
		"another platform":          {img: other, kind: fault.Unsupported},
		"an absent image": {img: img, kind: fault.NotFound, ref: func(ref string) string {
			return strings.Replace(ref, "@sha256:", "@sha256:0000", 1)[:len(ref)]
		}},
		"an absent name":       {img: img, kind: fault.NotFound, ref: func(ref string) string { return strings.Replace(ref, "img", "none", 1) }},
		"a tag":                {img: img, kind: fault.Invalid, ref: func(ref string) string { n, _, _ := strings.Cut(ref, "@"); return n + ":latest" }},
		"another registry":     {img: img, kind: fault.PermissionDenied, ref: func(ref string) string { return "registry.invalid/" + ref[strings.Index(ref, "/")+1:] }},
		"no name":              {img: img, kind: fault.Invalid, ref: func(string) string { return "Not A Name" }},
		"a registry that asks": {img: img, kind: fault.PermissionDenied, intercept: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true }},
		"a registry that fails": {img: img, kind: fault.Unavailable, intercept: func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusInsufficientStorage)
			return true
		}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			r := ocitest.New(t)
			ref := r.Push(t, "img", c.img)
			if c.intercept != nil {
				r.Intercept.Store(&c.intercept)
			}
			if c.ref != nil {
				ref = c.ref(ref)
			}
			s := open(t, r, nil)
			_, release, err := s.Pull(t.Context(), ref)
			release()
			if !fault.Is(err, c.kind) {
				t.Errorf("%v (%v), want %v", err, fault.KindOf(err), c.kind)
			}
			if all, err := s.List(); err != nil || len(all) > 0 {
				t.Errorf("%v %v", all, err)
			}
		})
	}
}

// TestLayersElsewhere: a manifest may name other places for its layers, which
// whoever pushes it chooses: the server does not ask there.
func TestLayersElsewhere(t *testing.T) {
	t.Parallel()
	r, elsewhere := ocitest.New(t), ocitest.New(t)
	img := ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("a", "content", 0o644)))
	layers, err := img.Layers()
	check(t, err)
	img, err = mutate.Append(empty.Image, mutate.Addendum{Layer: layers[0], URLs: []string{"http://" + elsewhere.Host + "/metadata"}})
	check(t, err)
	ref := r.Push(t, "img", ocitest.Configure(t, img, func(*v1.ConfigFile) {}))
	gone := func(w http.ResponseWriter, q *http.Request) bool {
		if !strings.Contains(q.URL.Path, "/blobs/") || strings.HasPrefix(q.Header.Get("Accept"), "application/vnd") {
			return false
		}
		d, err := layers[0].Digest()
		if err != nil || !strings.HasSuffix(q.URL.Path, d.Hex) {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	r.Intercept.Store(&gone)
	s := open(t, r, nil)
	_, release, err := s.Pull(t.Context(), ref)
	release()
	if !fault.Is(err, fault.Unsupported) {
		t.Errorf("%v (%v)", err, fault.KindOf(err))
	}
	if n := elsewhere.Asked.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

func TestRegistryAway(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	ref := r.Push(t, "img", ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("a", "", 0o644))))
	r.Stop()
	s := open(t, r, nil)
	if _, _, err := s.Pull(t.Context(), ref); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Pull(ctx, ref); err == nil {
		t.Error("a pull without time succeeded")
	}
}

// TestIndex: an image for several platforms; the digest of the index names it.
func TestIndex(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	push := func(repository string, add ...mutate.IndexAddendum) string {
		index := mutate.AppendManifests(empty.Index, add...)
		ref, err := name.ParseReference(r.Host + "/" + repository + ":latest")
		check(t, err)
		check(t, remote.WriteIndex(ref, index))
		d, err := index.Digest()
		check(t, err)
		return ref.Context().Digest(d.String()).String()
	}
	foreign := ocitest.Configure(t, ocitest.Image(t, nil), func(c *v1.ConfigFile) { c.Architecture = "s390x" })
	ours := ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("ours", "", 0o644)))
	config, err := ours.ConfigFile()
	check(t, err)
	theirs := mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}
	s := open(t, r, nil)
	i, release, err := s.Pull(t.Context(), push("both", theirs,
		mutate.IndexAddendum{Add: ours, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: config.Architecture}}}))
	release()
	if err != nil || i.Manifest == i.Digest || tree(t, i.Root) != "-rw-r--r-- ours = \n" {
		t.Errorf("%+v %v", i, err)
	}
	_, release, err = s.Pull(t.Context(), push("theirs", theirs))
	release()
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "linux/s390x") {
		t.Errorf("%v", err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	ref := r.Push(t, "img", ocitest.Image(t, nil, ocitest.Tar(t, ocitest.File("a", "", 0o644))))
	asks := func(w http.ResponseWriter, q *http.Request) bool {
		if user, password, _ := q.BasicAuth(); user == "robot" && password == "s:ecret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	r.Intercept.Store(&asks)
	file := filepath.Join(t.TempDir(), "config.json")
	s := open(t, r, func(c *oci.Config) { c.Auth = file })
	pull := func() error {
		_, release, err := s.Pull(t.Context(), ref)
		release()
		return err
	}
	if err := pull(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without the file: %v", err)
	}
	for content, kind := range map[string]fault.Kind{
		`{"auths":`: fault.Invalid,
		`{"auths":{"` + r.Host + `":{"auth":"!"}}}`:                                                                 fault.Invalid,
		`{"auths":{"other.invalid":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("robot:s:ecret")) + `"}}}`: fault.PermissionDenied,
	} {
		check(t, os.WriteFile(file, []byte(content), 0o600))
		if err := pull(); !fault.Is(err, kind) || strings.Contains(err.Error(), "ecret") {
			t.Errorf("%s: %v", content, err)
		}
	}
	check(t, os.WriteFile(file, []byte(`{"auths":{"`+r.Host+`":{"auth":"`+base64.StdEncoding.EncodeToString([]byte("robot:s:ecret"))+`"}},"credsStore":"desktop"}`), 0o600))
	check(t, pull())
}

// TestTogether: many who want one image pull it once; a layer that two images
// share is pulled once.
func TestTogether(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	base := ocitest.Tar(t, ocitest.File("base", "b", 0o644))
	one := r.Push(t, "one", ocitest.Image(t, nil, base))
	two := r.Push(t, "two", ocitest.Image(t, nil, base, ocitest.Tar(t, ocitest.File("more", "", 0o644))))
	var mu sync.Mutex
	blobs := map[string]int{}
	count := func(_ http.ResponseWriter, q *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/") {
			blobs[q.URL.Path[strings.LastIndex(q.URL.Path, "/"):]]++
		}
		return false
	}
	r.Intercept.Store(&count)
	s := open(t, r, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for _, ref := range []string{one, two} {
				_, release, err := s.Pull(t.Context(), ref)
				release()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for blob, n := range blobs {
		if n != 1 {
			t.Errorf("%s was fetched %d times", blob, n)
		}
	}
	if len(blobs) != 4 { // two layers, two configurations
		t.Errorf("%v", blobs)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	dir := filepath.Join(t.TempDir(), "images")
	change := func(c *oci.Config) { c.Dir, c.Now = dir, func() time.Time { return now } }
	s := open(t, r, change)
	base := ocitest.Tar(t, ocitest.File("base", "b", 0o644))
	refs := map[string]string{}
	for _, n := range []string{"old", "held", "kept", "new"} {
		refs[n] = r.Push(t, n, ocitest.Image(t, nil, base, ocitest.Tar(t, ocitest.File(n, "", 0o644))))
		if n == "new" {
			now = now.Add(48 * time.Hour)
		}
		_, release, err := s.Pull(t.Context(), refs[n])
		check(t, err)
		release()
	}
	check(t, os.MkdirAll(filepath.Join(dir, "stage", "half", "rootfs"), 0o750))
	release := s.Hold(refs["held"])
	keep := func(i oci.Image) bool { return i.Ref == refs["kept"] }
	for _, dry := range []bool{true, false} {
		gone, err := s.Prune(t.Context(), now.Add(-time.Hour), keep, dry)
		if err != nil || len(gone) != 1 || gone[0].Ref != refs["old"] {
			t.Fatalf("dry %v: %+v %v", dry, gone, err)
		}
	}
	if _, err := s.Find(refs["old"]); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if blobs, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(blobs) != 4 {
		t.Errorf("%v %v", blobs, err)
	}
	release()
	release() // twice is once
	if gone, err := s.Prune(t.Context(), now.Add(time.Hour), nil, false); err != nil || len(gone) != 3 {
		t.Errorf("%+v %v", gone, err)
	}
	open(t, r, change)
	for _, sub := range []string{"blobs", "images", "stage"} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) > 0 {
			t.Errorf("%s: %v %v", sub, left, err)
		}
	}
}
