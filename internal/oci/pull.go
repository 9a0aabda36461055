package oci

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

const maxLayers = 256

// Info is what the registry says of an image.
type Info struct {
	Ref        string         `json:"ref"`        // "registry/name@sha256:…"
	Platform   string         `json:"platform"`   // that would be pulled
	Compressed resource.Bytes `json:"compressed"` // of all layers
	Layers     int            `json:"layers"`
	Here       bool           `json:"here"` // unpacked already
	Env        []string       `json:"-"`    // "NAME=value"
}

// Inspect asks the registry for an image by tag or digest, and pins it, without
// pulling it. What is here already is not asked for.
//
// Errors: fault.Invalid for what is no name, fault.PermissionDenied for a
// registry that is not listed or wants other credentials, fault.NotFound,
// fault.Unsupported without an image for this platform, fault.Unavailable.
func (s *Store) Inspect(ctx context.Context, ref string) (Info, error) {
	if i, err := s.Find(ref); err == nil {
		return Info{Ref: i.Ref, Platform: i.Platform, Layers: len(i.Layers), Here: true, Env: i.Env}, nil
	}
	img, pinned, err := s.fetch(ctx, ref)
	if err != nil {
		return Info{}, err
	}
	m, err := img.Manifest()
	if err != nil {
		return Info{}, registryError(err, ref)
	}
	c, err := img.ConfigFile()
	if err != nil {
		return Info{}, registryError(err, ref)
	}
	info := Info{Ref: pinned, Platform: s.platform, Layers: len(m.Layers), Env: c.Config.Env}
	for _, l := range m.Layers {
		info.Compressed += resource.Bytes(l.Size)
	}
	return info, nil
}

// Resolve pins a reference: "registry/name@sha256:…". Errors as Inspect's.
func (s *Store) Resolve(ctx context.Context, ref string) (string, error) {
	i, err := s.Inspect(ctx, ref)
	return i.Ref, err
}

// fetch gets the manifest and the configuration of the platform's image.
func (s *Store) fetch(ctx context.Context, ref string) (v1.Image, string, error) {
	r, err := s.parse(ref)
	if err != nil {
		return nil, "", err
	}
	keys, err := s.keychain()
	if err != nil {
		return nil, "", err
	}
	osName, arch, _ := strings.Cut(s.platform, "/")
	platform := v1.Platform{OS: osName, Architecture: arch}
	d, err := remote.Get(r, remote.WithContext(ctx), remote.WithTransport(s.client), remote.WithAuthFromKeychain(keys), remote.WithPlatform(platform), remote.WithUserAgent("falaj"))
	if err != nil {
		return nil, "", registryError(err, ref)
	}
	pinned := r.Context().Digest(d.Digest.String()).String()
	if d.MediaType.IsIndex() {
		if err := offers(d, platform, ref); err != nil {
			return nil, "", err
		}
	}
	img, err := d.Image()
	if err != nil {
		return nil, "", registryError(err, ref)
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, "", registryError(err, ref)
	}
	if len(m.Layers) > maxLayers {
		return nil, "", fault.New(fault.TooLarge, "image %s has %d layers; at most %d", ref, len(m.Layers), maxLayers)
	}
	var size int64
	for _, l := range m.Layers {
		// Whoever may push an image does not choose whom the server calls.
		if len(l.URLs) > 0 {
			return nil, "", fault.New(fault.Unsupported, "image %s has a layer that lies outside of its registry", ref).
				WithHint("Push it with all its layers, and without urls in its manifest.")
		}
		size += max(l.Size, 0)
	}
	if resource.Bytes(size) > s.c.MaxBytes {
		return nil, "", fault.New(fault.TooLarge, "image %s has %s of layers; at most %s", ref, resource.Bytes(size).Words(), s.c.MaxBytes.Words())
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, "", registryError(err, ref)
	}
	if has := c.OS + "/" + c.Architecture; has != s.platform {
		return nil, "", fault.New(fault.Unsupported, "image %s is for %s; this machine is %s", ref, has, s.platform)
	}
	return img, pinned, nil
}

// offers refuses an index that has nothing for the platform, naming what it has.
func offers(d *remote.Descriptor, want v1.Platform, ref string) error {
	index, err := d.ImageIndex()
	if err != nil {
		return registryError(err, ref)
	}
	m, err := index.IndexManifest()
	if err != nil {
		return registryError(err, ref)
	}
	has := map[string]bool{}
	for _, e := range m.Manifests {
		if e.Platform == nil || e.Platform.Satisfies(want) {
			return nil
		}
		has[e.Platform.OS+"/"+e.Platform.Architecture] = true
	}
	return fault.New(fault.Unsupported, "image %s is for %s; this machine is %s/%s", ref,
		strings.Join(slices.Sorted(maps.Keys(has)), ", "), want.OS, want.Architecture)
}

// Pull gives an image by its digest, from the registry when it is not here. It
// is held until release is called, which is never nil; see Hold.
//
// Errors as Inspect's; fault.Invalid also for content that does not match its
// digest or that no image may hold, fault.TooLarge over the limits,
// fault.Exhausted when the disk is full: nothing is left then but whole layers.
func (s *Store) Pull(ctx context.Context, ref string) (_ Image, release func(), err error) {
	none := func() {}
	digest, err := Digest(ref)
	if err != nil {
		return Image{}, none, err
	}
	release = s.Hold(ref)
	defer func() {
		if err != nil {
			release()
			release = none
		}
	}()
	for {
		if i, err := s.read(digest); err == nil {
			s.touch(&i)
			return i, release, nil
		} else if !fault.Is(err, fault.NotFound) {
			return Image{}, release, err
		}
		s.mu.Lock()
		other := s.pulling[digest]
		if other == nil {
			mine := make(chan struct{})
			s.pulling[digest] = mine
			s.mu.Unlock()
			i, err := s.pull(ctx, ref, digest)
			s.mu.Lock()
			delete(s.pulling, digest)
			s.mu.Unlock()
			close(mine)
			return i, release, err
		}
		s.mu.Unlock()
		select {
		case <-other: // look again; when it failed we try ourselves
		case <-ctx.Done():
			return Image{}, release, ctx.Err()
		}
	}
}

// touch records the use, at most once a minute; that it is lost is no harm.
func (s *Store) touch(i *Image) {
	const often = 60
	now := s.c.Now()
	if now.Sub(i.Used).Seconds() < often {
		return
	}
	i.Used = now
	_ = s.describe(*i, s.path("images", file(i.Digest)))
}

func (s *Store) pull(ctx context.Context, ref, digest string) (Image, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	if err := s.c.Admit(); err != nil {
		return Image{}, err
	}
	start := s.c.Now()
	img, pinned, err := s.fetch(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Image{}, registryError(err, ref)
	}
	manifest, err := img.Digest()
	if err != nil {
		return Image{}, registryError(err, ref)
	}
	layers, err := img.Layers()
	if err != nil {
		return Image{}, registryError(err, ref)
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return Image{}, fault.New(fault.Invalid, "image %s: its configuration has %d layers, its manifest %d", ref, len(config.RootFS.DiffIDs), len(layers))
	}
	stage := s.path("stage", rand.Text())
	defer func() { _ = archive.Remove(stage) }()
	if err := os.MkdirAll(filepath.Join(stage, rootDir), 0o755); err != nil { //nolint:gosec // The container's user passes; the parent is private.
		return Image{}, fault.Wrap(err, "unpacking image %s", ref)
	}
	u, err := newUnpacker(filepath.Join(stage, rootDir), s.c.MaxBytes, s.c.MaxFiles)
	if err != nil {
		return Image{}, fault.Wrap(err, "unpacking image %s", ref)
	}
	defer u.close()
	i := Image{
		Ref: pinned, Digest: digest, Manifest: manifest.String(), Platform: s.platform, Env: config.Config.Env,
		Pulled: start, Used: start,
	}
	for n, l := range layers {
		blob, err := s.blob(ctx, l, ref)
		if err != nil {
			return Image{}, err
		}
		if err := s.unpack(ctx, u, blob, config.RootFS.DiffIDs[n]); err != nil {
			return Image{}, fault.Wrap(err, "layer %d of image %s", n+1, ref)
		}
		i.Layers = append(i.Layers, blob)
	}
	i.Size, i.Files, i.Left = resource.Bytes(u.bytes), u.files, u.left
	if err := s.describe(i, stage); err != nil {
		return Image{}, fault.Wrap(err, "describing image %s", ref)
	}
	if err := syncTree(stage); err != nil {
		return Image{}, fault.Wrap(err, "writing image %s", ref)
	}
	at := s.path("images", file(digest))
	if err := errors.Join(os.Rename(stage, at), fsync.Dir(s.path("images"))); err != nil {
		return Image{}, fault.Wrap(err, "writing image %s", ref)
	}
	i.Root = filepath.Join(at, rootDir)
	s.c.Log.InfoContext(ctx, "an image was pulled", slog.String("image", pinned), slog.String("size", i.Size.String()), slog.Duration("took", s.c.Now().Sub(start)))
	return i, nil
}

// describe writes image.json by stage and rename.
func (s *Store) describe(i Image, dir string) error {
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.path("stage"), imageFile)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, imageFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// blob gives the digest of a layer that is here afterwards, checked as it came.
func (s *Store) blob(ctx context.Context, l v1.Layer, ref string) (string, error) {
	d, err := l.Digest()
	if err != nil {
		return "", registryError(err, ref)
	}
	kind, err := l.MediaType()
	if err != nil {
		return "", registryError(err, ref)
	}
	if !kind.IsLayer() && kind != types.OCILayerZStd {
		return "", fault.New(fault.Invalid, "image %s has a layer of type %s", ref, kind)
	}
	size, err := l.Size()
	if err != nil {
		return "", registryError(err, ref)
	}
	at := s.path("blobs", file(d.String()))
	if fi, err := os.Stat(at); err == nil && fi.Size() == size {
		return d.String(), nil
	}
	r, err := l.Compressed() // verifies digest and size
	if err != nil {
		return "", registryError(err, ref)
	}
	defer r.Close()
	f, err := os.CreateTemp(s.path("stage"), "blob.*")
	if err != nil {
		return "", fault.Wrap(err, "writing a layer")
	}
	defer os.Remove(f.Name()) // gone when it got its name
	// The registry's connection ends with the pull's time.
	stop := context.AfterFunc(ctx, func() { _ = r.Close() })
	_, rerr := copyTo(f, r)
	stop()
	werr := errors.Join(f.Sync(), f.Close())
	switch {
	case ctx.Err() != nil:
		return "", registryError(ctx.Err(), ref)
	case errors.Is(rerr, unix.ENOSPC) || errors.Is(werr, unix.ENOSPC) || errors.Is(rerr, unix.EDQUOT):
		return "", diskFull(errors.Join(rerr, werr))
	case rerr != nil:
		return "", registryError(rerr, ref)
	case werr != nil:
		return "", fault.Wrap(werr, "writing a layer")
	}
	if err := errors.Join(os.Rename(f.Name(), at), fsync.Dir(s.path("blobs"))); err != nil {
		return "", fault.Wrap(err, "writing a layer")
	}
	return d.String(), nil
}

// copyTo is io.Copy without the fast paths, so that an error is the reader's or
// the writer's own.
func copyTo(w io.Writer, r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{r})
}

// unpack puts a layer over the root and checks what came out of it.
func (s *Store) unpack(ctx context.Context, u *unpacker, blob string, want v1.Hash) error {
	f, err := os.Open(s.path("blobs", file(blob)))
	if err != nil {
		return fault.Wrap(err, "reading it")
	}
	defer f.Close()
	plain, err := decompress(f)
	if err != nil {
		return fault.New(fault.Invalid, "reading it: %w", err)
	}
	defer plain.Close()
	// The tar's own headers and padding are bounded too.
	limited := &bounded{ctx: ctx, r: plain, left: 2*(u.maxBytes-u.bytes) + 1<<30, sum: sha256.New()}
	if err := u.apply(limited); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, limited); err != nil { // what follows the end of the tar
		return fault.New(fault.Invalid, "reading it: %w", err)
	}
	if got := hex.EncodeToString(limited.sum.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		// The file here may be damaged: the next pull takes it anew.
		_ = os.Remove(s.path("blobs", file(blob)))
		return fault.New(fault.Invalid, "its content has digest sha256:%s, and the image's configuration says %s", got, want)
	}
	return nil
}

// bounded hashes what is read, up to a limit and while the context lasts.
type bounded struct {
	ctx  context.Context //nolint:containedctx // The life of one layer's reading.
	r    io.Reader
	left int64
	sum  hash.Hash
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	b.sum.Write(p[:n])
	if b.left -= int64(n); b.left < 0 {
		return n, fault.New(fault.TooLarge, "the layer unpacks to more than an image may have")
	}
	return n, err
}

// decompress tells by the first bytes how a layer is compressed.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 1<<20)
	head, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(br), nil
}

// syncTree writes the whole file system that the directory is on: one call for
// many files.
func syncTree(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
