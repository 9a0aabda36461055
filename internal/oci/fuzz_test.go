package oci

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
)

// FuzzLayer: no stream of bytes makes the unpacker write outside its root, make
// something else than plain files, directories and links, or exceed its limits.
func FuzzLayer(f *testing.F) {
	for _, h := range []tar.Header{
		{Name: "../x", Typeflag: tar.TypeReg},
		{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/tmp"},
		{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o4755},
		{Name: "d/.wh.x", Typeflag: tar.TypeReg},
		{Name: ".wh..wh..opq", Typeflag: tar.TypeReg},
		{Name: "l", Typeflag: tar.TypeLink, Linkname: "../../x"},
		{Name: "n", Typeflag: tar.TypeChar},
		{Name: "d", Typeflag: tar.TypeDir},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&h)
		_ = w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		const most = 64 * resource.KiB
		top := t.TempDir()
		root := filepath.Join(top, "root")
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		u, err := newUnpacker(root, most, 50)
		if err != nil {
			t.Fatal(err)
		}
		defer u.close()
		for range 2 { // once more over itself, as the next layer would
			_ = u.apply(bytes.NewReader(stream))
		}
		var size int64
		err = filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := e.Info()
			if err != nil {
				return err
			}
			if fi.Mode()&^(fs.ModeDir|fs.ModeSymlink|fs.ModePerm) != 0 {
				t.Errorf("%s is %s", p, fi.Mode())
			}
			if fi.Mode().IsRegular() {
				size += fi.Size()
			}
			return nil
		})
		if err != nil || size > int64(most) {
			t.Errorf("%d bytes, %v", size, err)
		}
		if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 {
			t.Errorf("outside: %v %v", entries, err)
		}
	})
}

func FuzzAuths(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://h/v1/":{"auth":"YTpi"}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseAuths(b)
		if err != nil && all != nil {
			t.Error("credentials with an error")
		}
	})
}
