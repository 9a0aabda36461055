// Package oci keeps OCI images: it pulls them from the registries that the
// configuration lists, checks every byte by its digest, and unpacks them into
// root directories in which containers run.
//
// Parts: oci.go (Config, Store, List, Prune), reference.go (names and who may be
// asked), pull.go (from a registry to a root directory), layer.go (one layer's
// tar stream, which is somebody else's), remove.go (trees whose modes are
// somebody else's).
//
//	DIR/blobs/sha256-HEX     a layer as the registry gave it; shared by images
//	DIR/images/sha256-HEX/   image.json and rootfs/; appears by one rename
//	DIR/stage/               what is being made; emptied at the start
//
// Guarantees: what Pull returned survives a power loss; an image is there whole
// or not at all; its root holds nothing but directories, plain files and links
// without set-id bits, all owned by us; nothing outside of it is touched
// whatever a layer says. Links inside may point anywhere: whoever opens paths of
// a root must resolve them in it.
//
// Safe for concurrent use. One Store per directory.
package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/archive"
)

// Config of a Store.
type Config struct {
	Dir string // made, for our user only
	// Registries may be asked: "host" or "host:port". Empty is none.
	Registries []string
	// Insecure are those of them that speak plain HTTP.
	Insecure []string
	// CA is a PEM file of authorities that are trusted beside the system's.
	CA string
	// Auth is a file in the format of Docker's config.json; only its "auths" are
	// read, again for each pull.
	Auth string
	// MaxBytes bounds one unpacked image; 0 is 64 GiB. MaxFiles likewise;
	// 0 is 2,000,000.
	MaxBytes resource.Bytes
	MaxFiles int
	// Timeout bounds one pull; 0 is an hour.
	Timeout time.Duration
	// Admit is asked before bytes are written; nil admits all.
	Admit func() error
	Log   *slog.Logger
	Now   func() time.Time
}

const (
	imageFile = "image.json"
	rootDir   = "rootfs"

	defaultBytes   = 64 * resource.GiB
	defaultFiles   = 2_000_000
	defaultTimeout = time.Hour
	maxImageFile   = 1 << 20
)

// Image is one that is here, unpacked.
type Image struct {
	Ref      string         `json:"ref"`      // "registry/name@sha256:…" as it was asked for
	Digest   string         `json:"digest"`   // of Ref
	Manifest string         `json:"manifest"` // of the platform's manifest, where Digest is an index
	Platform string         `json:"platform"` // "linux/amd64"
	Env      []string       `json:"env"`      // "NAME=value"
	Layers   []string       `json:"layers"`   // digests of the blobs
	Size     resource.Bytes `json:"size"`     // unpacked
	Files    int            `json:"files"`
	Left     int            `json:"left_out"` // devices and pipes that were not made
	Pulled   time.Time      `json:"pulled_at"`
	Used     time.Time      `json:"used_at"`
	Root     string         `json:"-"` // the root directory
}

// Variables are those of the image's configuration.
func (i Image) Variables() map[string]string {
	all := make(map[string]string, len(i.Env))
	for _, kv := range i.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			all[k] = v
		}
	}
	return all
}

// Store holds images.
type Store struct {
	c        Config
	platform string
	client   http.RoundTripper

	mu      sync.Mutex
	held    map[string]int           // digests in use
	pulling map[string]chan struct{} // closed when the pull of a digest ends
}

// New opens the directory and removes what a pull that died has left.
func New(c Config) (*Store, error) {
	if c.MaxBytes <= 0 {
		c.MaxBytes = defaultBytes
	}
	if c.MaxFiles <= 0 {
		c.MaxFiles = defaultFiles
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Admit == nil {
		c.Admit = func() error { return nil }
	}
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, err
	}
	for _, h := range c.Insecure {
		if !slices.Contains(c.Registries, h) {
			return nil, fault.New(fault.Invalid, "images.insecure names %s, which images.registries does not", h)
		}
	}
	s := &Store{c: c, platform: "linux/" + runtime.GOARCH, held: map[string]int{}, pulling: map[string]chan struct{}{}}
	if s.client, err = newTransport(c.CA); err != nil {
		return nil, err
	}
	if err := archive.Remove(s.path("stage")); err != nil {
		return nil, fault.Wrap(err, "removing what a pull has left")
	}
	for _, dir := range []string{"", "blobs", "images", "stage"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fault.Wrap(err, "making the directory of images")
		}
	}
	return s, nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.c.Dir}, elem...)...)
}

// file is how a digest names a file.
func file(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// Find gives an image that is here; fault.NotFound.
func (s *Store) Find(ref string) (Image, error) {
	pinned, err := Digest(ref)
	if err != nil {
		return Image{}, err
	}
	return s.read(pinned)
}

func (s *Store) read(digest string) (Image, error) {
	dir := s.path("images", file(digest))
	b, err := readFile(filepath.Join(dir, imageFile), maxImageFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fault.New(fault.NotFound, "image %s has not been pulled", digest)
	}
	if err != nil {
		return Image{}, fault.Wrap(err, "reading image %s", digest)
	}
	var i Image
	if err := json.Unmarshal(b, &i); err != nil {
		return Image{}, fault.Wrap(err, "reading image %s", digest)
	}
	i.Root = filepath.Join(dir, rootDir)
	return i, nil
}

// Hold keeps Prune away from an image until release is called. It may be
// called for an image that is not here.
func (s *Store) Hold(ref string) (release func()) {
	digest, err := Digest(ref)
	if err != nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[digest]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[digest]--; s.held[digest] == 0 {
			delete(s.held, digest)
		}
	})
}

// List gives the images that are here, by digest.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, fault.Wrap(err, "listing images")
	}
	var all []Image
	for _, e := range entries {
		i, err := s.read(strings.Replace(e.Name(), "-", ":", 1))
		if err != nil {
			s.c.Log.Warn("an image cannot be read", slog.String("image", e.Name()), slog.Any("err", err))
			continue
		}
		all = append(all, i)
	}
	return all, nil
}

// Prune removes the images that nobody holds, that keep does not want and that
// were last used before the time, with the layers that no image has any more.
// It gives the images it removed, or with dry those that it would.
func (s *Store) Prune(ctx context.Context, before time.Time, keep func(Image) bool, dry bool) ([]Image, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	var removed []Image
	for _, i := range all {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		if !i.Used.Before(before) || keep != nil && keep(i) {
			continue
		}
		gone, err := s.remove(i, dry)
		if err != nil {
			return removed, err
		}
		if gone {
			removed = append(removed, i)
		}
	}
	if dry {
		return removed, nil
	}
	return removed, s.pruneBlobs()
}

// remove takes the image away by a rename, under the lock that Hold and Pull
// take, so that nobody gets what is being removed.
func (s *Store) remove(i Image, dry bool) (bool, error) {
	away := s.path("stage", "removed-"+file(i.Digest))
	s.mu.Lock()
	if s.held[i.Digest] > 0 || s.pulling[i.Digest] != nil {
		s.mu.Unlock()
		return false, nil
	}
	if dry {
		s.mu.Unlock()
		return true, nil
	}
	err := os.Rename(s.path("images", file(i.Digest)), away)
	s.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(err, "removing image %s", i.Digest)
	}
	return true, fault.Wrap(archive.Remove(away), "removing image %s", i.Digest)
}

// pruneBlobs removes the layers of no image. A pull that is going on may need
// any of them.
func (s *Store) pruneBlobs() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pulling) > 0 {
		return nil
	}
	all, err := s.List()
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, i := range all {
		for _, l := range i.Layers {
			wanted[file(l)] = true
		}
	}
	blobs, err := os.ReadDir(s.path("blobs"))
	if err != nil {
		return fault.Wrap(err, "listing layers")
	}
	for _, b := range blobs {
		if !wanted[b.Name()] {
			err = errors.Join(err, os.Remove(s.path("blobs", b.Name())))
		}
	}
	return fault.Wrap(err, "removing layers")
}

// keychain reads credentials anew for each pull.
func (s *Store) keychain() (authn.Keychain, error) {
	if s.c.Auth == "" {
		return anonymous{}, nil
	}
	b, err := readFile(s.c.Auth, maxImageFile)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "reading the credentials of registries: %w", err).WithHint("Look at images.auth.")
	}
	return parseAuths(b)
}
