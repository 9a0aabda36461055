package environment

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/oci"
	"github.com/falaj-ml/falaj/internal/store"
)

// Images are the OCI images of this machine; *oci.Store keeps them.
type Images interface {
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

// fromImage is the origin of what an image's variables say.
const fromImage = "image"

// pin asks for an image's digest, and what it says of itself.
func (s *Service) pin(ctx context.Context, e *Environment) error {
	if s.cfg.Images == nil {
		return fault.New(fault.Unsupported, "this installation takes no images").
			WithHint("List the registries that they may come from under images.registries in the configuration.")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := s.cfg.Images.Inspect(ctx, e.Spec.Image)
	if err != nil {
		return fault.Wrap(err, "image %s", e.Spec.Image)
	}
	e.Image, e.Platform = info.Ref, info.Platform
	e.Digest = Digest(sum("falaj environment 3", info.Ref, e.Spec.Python))
	e.SBOM = said(info.Env)
	e.Packages = len(e.SBOM)
	return nil
}

// said is what the variables of an image say is in it.
func said(env []string) []Package {
	var all []Package
	for _, kv := range env {
		name, v, _ := strings.Cut(kv, "=")
		v, _, _ = strings.Cut(v, "-") // Debian's revision
		if what := variables[name]; what != "" && v != "" && len(v) <= 64 && !slices.ContainsFunc(all, func(p Package) bool { return p.Name == what }) {
			all = append(all, Package{Name: what, Version: v, From: fromImage})
		}
	}
	slices.SortFunc(all, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// prefetch begins to pull an image that was just applied, so that the first job
// need not wait for it. That it fails, or that the server stops, does no harm:
// Fetch pulls what is not here.
func (s *Service) prefetch(ref string) {
	if ref == "" || s.cfg.Containers != nil && s.cfg.Containers() != nil {
		return // no job runs it here
	}
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

func (s *Service) pull(ctx context.Context, ref string) error {
	_, release, err := s.cfg.Images.Pull(ctx, ref)
	release()
	return err
}

// Close ends pulls that were begun ahead.
func (s *Service) Close() error {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.pulls.Wait()
	return nil
}

// Fetch returns when an environment is where a pool on this machine finds it:
// an image may have to be pulled first, which takes its time. Elsewhere nodes
// fetch for themselves. Errors: those of Images.Pull.
func (s *Service) Fetch(ctx context.Context, u Usable, p compute.Pool) error {
	if u.Image == "" || s.kind(p.Engine) != "local" || s.cfg.Images == nil {
		return nil
	}
	return fault.Wrap(s.pull(ctx, u.Image), "image %s", u.Image)
}

// pruneImages is Prune for images.
func (s *Service) pruneImages(ctx context.Context, before time.Time, held []Digest, names map[Digest][]string, dry bool) ([]Pruned, error) {
	if s.cfg.Images == nil {
		return nil, nil
	}
	of := map[string][]Digest{} // the environments of an image's digest
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.cfg.Store.Images(ctx, tx)
		for ref, digests := range all {
			_, digest, _ := strings.Cut(ref, "@")
			of[digest] = append(of[digest], digests...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	keep := func(i oci.Image) bool {
		return slices.ContainsFunc(of[i.Digest], func(d Digest) bool { return slices.Contains(held, d) })
	}
	gone, err := s.cfg.Images.Prune(ctx, before, keep, dry)
	var pruned []Pruned
	for _, i := range gone {
		p := Pruned{Digest: Digest(i.Digest), Image: i.Ref, Size: i.Size, Used: i.Used}
		for _, d := range of[i.Digest] {
			p.Names = append(p.Names, names[d]...)
		}
		pruned = append(pruned, p)
	}
	return pruned, err
}
