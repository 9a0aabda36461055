package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var at = time.Unix(1_700_000_000, 0).UTC()

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// made is an image of two architectures, from files that are written in this order.
func made(t *testing.T, files ...string) (v1.ImageIndex, string) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		mode := os.FileMode(0o600)
		if strings.HasPrefix(f, "bin/") {
			mode = 0o700
		}
		write(t, filepath.Join(dir, "stage", f), "of "+f, mode)
	}
	var base bytes.Buffer
	w := tar.NewWriter(&base)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "base.tar"), base.String(), 0o600)
	from := filepath.Join(dir, "base.tar") + "," + filepath.Join(dir, "stage")
	out := filepath.Join(dir, "image")
	if err := run([]string{"image", "-version", "1.2.3", "-commit", "abc", "-epoch", "1700000000", "-out", out, "-arch", "amd64=" + from, "-arch", "arm64=" + from}); err != nil {
		t.Fatal(err)
	}
	top, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	m, err := top.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, m.Manifests[0].Digest.String()
}

// TestImage: an image is whole, is of a user with a number, holds the files with one
// owner and time, and is the same however and whenever its files were written.
func TestImage(t *testing.T) {
	index, digest := made(t, "bin/falaj", "lib/libonnxruntime.so", "doc/a.md")
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	if _, again := made(t, "doc/a.md", "lib/libonnxruntime.so", "bin/falaj"); again != digest {
		t.Errorf("%s, and then %s", digest, again)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var arches []string
	for _, d := range m.Manifests {
		arches = append(arches, d.Platform.Architecture)
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if c.Config.User != "10001:10001" || c.Architecture != d.Platform.Architecture || c.OS != "linux" || !c.Created.Equal(at) ||
			!slices.Equal(c.Config.Entrypoint, []string{"/opt/falaj/bin/falaj"}) || c.Config.Labels["org.opencontainers.image.revision"] != "abc" {
			t.Errorf("%+v", c)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 2 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		got := map[string]int64{}
		r, err := layers[1].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for files := tar.NewReader(r); ; {
			h, err := files.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(at) {
				t.Errorf("%+v", h)
			}
			got[h.Name] = h.Mode
		}
		for name, mode := range map[string]int64{"opt/falaj/bin/falaj": 0o755, "opt/falaj/doc/a.md": 0o644, "opt/falaj/lib/": 0o755} {
			if got[name] != mode {
				t.Errorf("%s has mode %o, not %o", name, got[name], mode)
			}
		}
	}
	if !slices.Equal(arches, []string{"amd64", "arm64"}) {
		t.Error(arches)
	}
}

func TestBillOfMaterials(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		write(t, filepath.Join(dir, name), text, 0o600)
		return filepath.Join(dir, name)
	}
	modules := file("modules.json", `{"bomFormat":"CycloneDX","specVersion":"1.6","version":1,
		"metadata":{"component":{"type":"application","name":"falaj"}},
		"components":[{"type":"library","name":"golang.org/x/sys","version":"v0.1.0","purl":"pkg:golang/golang.org/x/sys@v0.1.0"}]}`)
	lock := file("package-lock.json", `{"packages":{"":{"version":"0.0.0"},
		"node_modules/react":{"version":"19.3.1","license":"MIT"},
		"node_modules/a/node_modules/@mantine/core":{"version":"9.7.4","license":"MIT"},
		"node_modules/vite":{"version":"8.0.0","dev":true}}}`)
	packages := file("base.txt", "libc6 2.36-9+deb12u14 amd64\n")
	out := filepath.Join(dir, "out.json")
	args := []string{"sbom", "-version", "1.2.3", "-epoch", "1700000000", "-out", out, "-component", "pkg:pypi/uv@0.13.9"}
	if err := run(append(args, "-modules", modules, "-lock", lock, "-packages", packages)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range *bom.Components {
		got = append(got, c.PackageURL+" "+c.Name+" "+c.Version)
	}
	want := []string{
		"pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64 libc6 2.36-9+deb12u14",
		"pkg:golang/golang.org/x/sys@v0.1.0 golang.org/x/sys v0.1.0",
		"pkg:npm/%40mantine/core@9.7.4 @mantine/core 9.7.4",
		"pkg:npm/react@19.3.1 react 19.3.1",
		"pkg:pypi/uv@0.13.9 uv 0.13.9",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if bom.Metadata.Component.Version != "1.2.3" || bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("%+v", bom.Metadata)
	}
	for name, bad := range map[string][]string{
		"no modules":       {"-modules", file("empty.json", `{"bomFormat":"CycloneDX","specVersion":"1.6"}`)},
		"no file":          {"-modules", filepath.Join(dir, "nope")},
		"a part":           {"-modules", modules, "-component", "uv"},
		"nothing shipped":  {"-modules", modules, "-lock", file("none.json", `{"packages":{}}`)},
		"a list of others": {"-modules", modules, "-packages", file("bad.txt", "libc6\n")},
	} {
		if err := run(append(slices.Clone(args), bad...)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
