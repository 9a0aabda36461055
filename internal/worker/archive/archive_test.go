package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

func fill(t interface{ Fatal(...any) }, dir string, files map[string]string) {
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t interface{ Fatal(...any) }, dir string) map[string]string {
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if e.Type() == fs.ModeSymlink {
			to, err := os.Readlink(path)
			got[rel] = "-> " + to
			return err
		}
		b, err := os.ReadFile(path)
		got[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestRoundTrip: what was packed is what is unpacked, and what was scanned is
// what is received.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-z][a-zA-Z0-9 ._é☃-]{0,20}`).Filter(func(s string) bool { return !strings.HasSuffix(s, "falaj-part") })
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "archive") //nolint:usetesting // One each round.
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		files := map[string]string{}
		for range rapid.IntRange(0, 8).Draw(t, "files") {
			path := rapid.SampledFrom([]string{"D1/D2/", "D1/", ""}).Draw(t, "dir") + name.Draw(t, "name")
			files[path] = rapid.StringN(0, 100, 5000).Draw(t, "content")
		}
		from := filepath.Join(dir, "from")
		if err := os.Mkdir(from, 0o700); err != nil {
			t.Fatal(err)
		}
		fill(t, from, files)
		var b bytes.Buffer
		if err := archive.Pack(&b, from, nil); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, "to")
		if err := archive.Unpack(&b, to, archive.Limits{}); err != nil {
			t.Fatal(err)
		}
		if got := read(t, to); !maps.Equal(got, files) {
			t.Fatalf("%q, want %q", got, files)
		}
		m, left, err := archive.Scan(from, archive.Limits{})
		if err == nil {
			err = archive.Check(m, archive.Limits{})
		}
		if err == nil {
			err = archive.PackFiles(&b, from, m.Files)
		}
		if err != nil || len(left) > 0 {
			t.Fatal(err, left)
		}
		received := filepath.Join(dir, "received")
		if err := os.Mkdir(received, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(received)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		want := map[string]protocol.File{}
		for _, f := range m.Files {
			want[f.Path] = f
		}
		if err := archive.Receive(&b, root, want); err != nil || len(want) > 0 {
			t.Fatal(err, want)
		}
		if got := read(t, received); !maps.Equal(got, files) {
			t.Fatalf("received %q, want %q", got, files)
		}
	})
}

// TestOneFile: a mount may be a file.
func TestOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, dir, map[string]string{"uv": "program"})
	if err := os.Chmod(filepath.Join(dir, "uv"), 0o755); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := errors.Join(archive.Pack(&b, filepath.Join(dir, "uv"), nil), archive.Unpack(&b, filepath.Join(dir, "copy"), archive.Limits{})); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "copy"))
	if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 7 {
		t.Errorf("%v %v", info, err)
	}
}

// TestPackLeaves: links go as links, pipes and what is to be left not at all.
func TestPackLeaves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	fill(t, from, map[string]string{"a": "1", ".hidden/b": "2", "sub/.kept": "3"})
	if err := errors.Join(os.Symlink("a", filepath.Join(from, "link")), os.Symlink("/outside", filepath.Join(from, "sub", "out"))); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err := archive.Pack(&b, from, func(name string) bool { return strings.HasPrefix(name, ".") })
	if err := errors.Join(err, archive.Unpack(&b, to, archive.Limits{})); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "1", "sub/.kept": "3", "link": "-> a", "sub/out": "-> /outside"}
	if got := read(t, to); !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func stream(t interface{ Fatal(...any) }, headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestUnpackRefuses: nothing is made outside, and nothing without bound.
func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		headers []tar.Header
		kind    fault.Kind
	}{
		"a path that leaves":     {[]tar.Header{{Name: "../x", Typeflag: tar.TypeReg}}, fault.Invalid},
		"an absolute path":       {[]tar.Header{{Name: "/tmp/x", Typeflag: tar.TypeReg}}, fault.Invalid},
		"a device":               {[]tar.Header{{Name: "x", Typeflag: tar.TypeChar}}, fault.Invalid},
		"a hard link":            {[]tar.Header{{Name: "x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}}, fault.Invalid},
		"too many bytes":         {[]tar.Header{{Name: "x", Typeflag: tar.TypeReg, Size: 2000}}, fault.TooLarge},
		"too many files":         {[]tar.Header{{Name: "a", Typeflag: tar.TypeDir}, {Name: "b", Typeflag: tar.TypeDir}, {Name: "c", Typeflag: tar.TypeDir}, {Name: "d", Typeflag: tar.TypeDir}}, fault.TooLarge},
		"through a link":         {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "l/falaj-was-here", Typeflag: tar.TypeReg}}, fault.Internal},
		"over a link":            {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp/falaj-was-here"}, {Name: "l", Typeflag: tar.TypeReg}}, fault.Internal},
		"through a link upwards": {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/x", Typeflag: tar.TypeReg}}, fault.Internal},
	} {
		dir := t.TempDir()
		err := archive.Unpack(bytes.NewReader(stream(t, c.headers...)), filepath.Join(dir, "to"), archive.Limits{Files: 3, Bytes: 1000})
		if err == nil || fault.KindOf(err) != c.kind {
			t.Errorf("%s: %v", what, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 1 {
			t.Errorf("%s: made %v", what, entries)
		}
	}
	if _, err := os.Lstat("/tmp/falaj-was-here"); err == nil {
		t.Error("something was made outside")
	}
	whole := stream(t, tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 600})
	if err := archive.Unpack(bytes.NewReader(whole[:700]), filepath.Join(t.TempDir(), "to"), archive.Limits{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("half a stream: %v", err)
	}
}

// FuzzUnpack: whatever comes, nothing is made beside the directory, and nothing
// panics.
func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 10}))
	f.Add(stream(f, tar.Header{Name: ".", Typeflag: tar.TypeReg, Size: 10}))
	f.Add(stream(f, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x"}, tar.Header{Name: "l/y", Typeflag: tar.TypeReg, Size: 1}))
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		_ = archive.Unpack(bytes.NewReader(b), filepath.Join(dir, "to"), archive.Limits{Files: 50, Bytes: 1 << 16})
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "to" {
			t.Errorf("%v %v", entries, err)
		}
	})
}

// FuzzReceive: only files of the manifest are made, each as the manifest says.
func FuzzReceive(f *testing.F) {
	f.Add(stream(f, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 3}))
	f.Add(stream(f, tar.Header{Name: "../a", Typeflag: tar.TypeReg, Size: 3}))
	zero3 := "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c"
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_ = archive.Receive(bytes.NewReader(b), root, map[string]protocol.File{"a": {Path: "a", Size: 3, Mode: 0o644, SHA256: zero3}})
		for name, content := range read(t, dir) {
			if name != "a" || content != "\x00\x00\x00" {
				t.Errorf("%q is %q", name, content)
			}
		}
	})
}
