package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
)

func pack(headers ...tar.Header) []byte {
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	t := tar.NewWriter(gz)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = 2
		}
		if err := t.WriteHeader(&h); err != nil {
			panic(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := t.Write(make([]byte, h.Size)); err != nil {
				panic(err)
			}
		}
	}
	t.Close()
	gz.Close()
	return b.Bytes()
}

func gzipped(text string) []byte {
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	if _, err := g.Write([]byte(text)); err != nil {
		panic(err)
	}
	g.Close()
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	good := pack(
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./train.py", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "pkg/run.sh", Typeflag: tar.TypeReg, Mode: 0o755})
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if n, size, err := Unpack(bytes.NewReader(good), root); n != 2 || size != 4 || err != nil {
		t.Fatalf("%d files, %d bytes, %v", n, size, err)
	}
	if info, err := root.Stat("pkg/run.sh"); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("%v, %v", info, err)
	}
	if info, err := root.Stat("train.py"); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	for name, archive := range map[string][]byte{
		"not gzip":  []byte("hello"),
		"not tar":   gzipped("hello"),
		"cut":       good[:len(good)/2],
		"symlink":   pack(tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
		"hard link": pack(tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "train.py"}),
		"device":    pack(tar.Header{Name: "a", Typeflag: tar.TypeChar}),
		"fifo":      pack(tar.Header{Name: "a", Typeflag: tar.TypeFifo}),
		"dotdot":    pack(tar.Header{Name: "../a", Typeflag: tar.TypeReg}),
		"hidden":    pack(tar.Header{Name: "a/../../b", Typeflag: tar.TypeReg}),
		"inner":     pack(tar.Header{Name: "a/../b", Typeflag: tar.TypeReg}),
		"absolute":  pack(tar.Header{Name: "/etc/x", Typeflag: tar.TypeReg}),
		"backslash": pack(tar.Header{Name: `..\a`, Typeflag: tar.TypeReg}),
	} {
		if _, _, err := Unpack(bytes.NewReader(archive), nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzUnpack unpacks anything: nothing may appear beside the directory, and
// what is refused by the check is refused by the extraction too.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(tar.Header{Name: "a/b", Typeflag: tar.TypeReg}))
	f.Add(pack(tar.Header{Name: "../a", Typeflag: tar.TypeReg}))
	f.Add(pack(tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: ".."}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) > 1<<16 {
			t.Skip()
		}
		_, size, checked := Unpack(bytes.NewReader(archive), nil)
		if size > 1<<22 {
			t.Skip() // a bomb within the limits takes too long here
		}
		parent := t.TempDir()
		inside := filepath.Join(parent, "in")
		if err := os.Mkdir(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(inside)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if _, _, err := Unpack(bytes.NewReader(archive), root); err == nil && checked != nil {
			t.Errorf("extracted what the check refused: %v", checked)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Errorf("beside the directory: %v, %v", entries, err)
		}
	})
}
