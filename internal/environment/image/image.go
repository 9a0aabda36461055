// Package image is the OCI images of environments on this machine: it pins one to its digest and
// reads what its variables say is in it, pulls it ahead of the first job, and removes those that
// nothing uses.
package image

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Store keeps the images of this machine. It is *oci.Store.
type Store interface {
	// Inspect asks a registry for an image by tag or digest, and pins it.
	// Errors: fault.Invalid, fault.NotFound, fault.PermissionDenied,
	// fault.Unsupported without one for this platform, fault.Unavailable.
	Inspect(ctx context.Context, ref string) (oci.Info, error)
	// Pull gets an image by its digest, which stays until release is called.
	Pull(ctx context.Context, ref string) (_ oci.Image, release func(), err error)
	// Prune removes images that nobody uses and that keep does not want.
	Prune(ctx context.Context, before time.Time, keep func(oci.Image) bool, dry bool) ([]oci.Image, error)
}

// variables of images that say what is in them: NVIDIA's and Python's own, and
// those of images that are made from these.
var variables = map[string]string{
	"CUDA_VERSION": "cuda", "NV_CUDNN_VERSION": "cudnn", "CUDNN_VERSION": "cudnn",
	"PYTORCH_VERSION": "torch", "TENSORFLOW_VERSION": "tensorflow", "PYTHON_VERSION": "python",
}

// Pinned is an image by its digest.
type Pinned struct {
	Ref      string // "registry/name@sha256:…"
	Platform string // "linux/amd64"
	Content  []Content
}

// Content is what an image's variables say is in it, such as cuda 12.4.1.
type Content struct{ Name, Version string }

// Unused is an image that was removed, or would be.
type Unused struct {
	Ref    string
	Digest string
	Size   resource.Bytes
	Used   time.Time // last
}

// Images are those of one store. Safe for concurrent use.
type Images struct {
	store Store
	log   *slog.Logger

	mu         sync.Mutex
	background context.Context //nolint:containedctx // The life of pulls that nobody waits for.
	stop       context.CancelFunc
	pulls      sync.WaitGroup
}

// New gives the images of a store; without one, there are none. Close it.
func New(store Store, log *slog.Logger) *Images {
	s := &Images{store: store, log: log}
	s.background, s.stop = context.WithCancel(context.Background())
	return s
}

// Pin asks for an image's digest, and what it says of itself. Error: fault.Unsupported without a
// store; those of Store.Inspect.
func (s *Images) Pin(ctx context.Context, ref string) (Pinned, error) {
	if s.store == nil {
		return Pinned{}, fault.New(fault.Unsupported, "this installation takes no images").
			WithHint("List the registries that they may come from under images.registries in the configuration.")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := s.store.Inspect(ctx, ref)
	if err != nil {
		return Pinned{}, fault.Wrap(err, "image %s", ref)
	}
	return Pinned{Ref: info.Ref, Platform: info.Platform, Content: content(info.Env)}, nil
}

// content is what the variables of an image say is in it, by name.
func content(env []string) []Content {
	var all []Content
	for _, kv := range env {
		name, v, _ := strings.Cut(kv, "=")
		v, _, _ = strings.Cut(v, "-") // Debian's revision
		if what := variables[name]; what != "" && v != "" && len(v) <= 64 && !slices.ContainsFunc(all, func(c Content) bool { return c.Name == what }) {
			all = append(all, Content{what, v})
		}
	}
	slices.SortFunc(all, func(a, b Content) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Prefetch begins to pull an image, so that the first job need not wait for it. That it fails,
// or that the server stops, does no harm: Pull gets what is not here.
func (s *Images) Prefetch(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.background.Err() != nil {
		return
	}
	s.pulls.Go(func() {
		if err := s.pull(s.background, ref); err != nil && s.background.Err() == nil {
			s.log.Warn("pulling an image ahead failed", slog.String("image", ref), slog.Any("error", err))
		}
	})
}

// Pull returns when an image is here, which takes its time. Without a store, it does nothing.
// Errors: those of Store.Pull.
func (s *Images) Pull(ctx context.Context, ref string) error {
	if s.store == nil {
		return nil
	}
	return fault.Wrap(s.pull(ctx, ref), "image %s", ref)
}

func (s *Images) pull(ctx context.Context, ref string) error {
	_, release, err := s.store.Pull(ctx, ref)
	release()
	return err
}

// Prune removes the images that were last used before a time, but for those whose digest is to
// be kept; dry only says what it would remove.
func (s *Images) Prune(ctx context.Context, before time.Time, keep func(digest string) bool, dry bool) ([]Unused, error) {
	if s.store == nil {
		return nil, nil
	}
	gone, err := s.store.Prune(ctx, before, func(i oci.Image) bool { return keep(i.Digest) }, dry)
	var unused []Unused
	for _, i := range gone {
		unused = append(unused, Unused{Ref: i.Ref, Digest: i.Digest, Size: i.Size, Used: i.Used})
	}
	return unused, err
}

// Close ends pulls that were begun ahead.
func (s *Images) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.pulls.Wait()
	return nil
}

// Runs says why this machine runs no images; nil is that it does.
func Runs() error {
	if os.Geteuid() != 0 {
		return fault.New(fault.Unsupported, "it runs no images: the server is not root there")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return fault.New(fault.Unsupported, "it runs no images: runc is not installed there (Debian: apt-get install runc)")
	}
	return nil
}
