package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image writes an OCI layout with an image for each architecture to the folder out,
// which must not exist.
func image(out, version, commit string, at time.Time, arches []string) error {
	if _, err := os.Lstat(out); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already, or cannot be read: %v", out, err)
	}
	if len(arches) == 0 {
		return errors.New("no -arch is given")
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    "Falaj",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.revision": commit,
		"org.opencontainers.image.created":  at.Format(time.RFC3339),
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, a := range arches {
		arch, rest, ok := strings.Cut(a, "=")
		base, folder, both := strings.Cut(rest, ",")
		if !ok || !both {
			return fmt.Errorf("-arch %s: write ARCH=BASE.tar,DIRECTORY", a)
		}
		one, err := imageOf(arch, base, folder, at, labels)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	p, err := layout.Write(out, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version}))
}

func imageOf(arch, base, folder string, at time.Time, labels map[string]string) (v1.Image, error) {
	ours, err := archive(folder, "opt/falaj", at)
	if err != nil {
		return nil, err
	}
	layers := []struct {
		by   string
		open tarball.Opener
	}{
		{"Debian packages: " + filepath.Base(base), func() (io.ReadCloser, error) { return os.Open(base) }},
		{"Falaj in /opt/falaj", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(ours)), nil }},
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(l.open, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: at}, CreatedBy: l.by}})
		if err != nil {
			return nil, err
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: at}
	// The user is a number, so that Kubernetes sees that it is not root (runAsNonRoot). The
	// configuration is mounted at /etc/falaj.yaml, with data: /var/lib/falaj.
	file.Config = v1.Config{
		User:         "10001:10001",
		Env:          []string{"PATH=/opt/falaj/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/var/lib/falaj"},
		WorkingDir:   "/var/lib/falaj",
		Volumes:      map[string]struct{}{"/var/lib/falaj": {}},
		ExposedPorts: map[string]struct{}{"7070/tcp": {}},
		StopSignal:   "SIGTERM",
		Entrypoint:   []string{"/opt/falaj/bin/falaj"},
		Cmd:          []string{"up", "--config", "/etc/falaj.yaml"},
		Labels:       labels,
	}
	return mutate.ConfigFile(img, file)
}

// archive is a folder as a tar in which it lies at prefix: sorted, of root, of one time.
func archive(folder, prefix string, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dir := ""
	for part := range strings.SplitSeq(prefix, "/") {
		dir = path.Join(dir, part)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path.Join(prefix, name), Mode: 0o644, ModTime: at, Format: tar.FormatPAX}
		if info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
		switch {
		case d.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			return w.WriteHeader(h)
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is no regular file", name)
		}
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
