package environment

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/store"
)

// fromImage is the origin of what an image's variables say.
const fromImage = "image"

// pin asks for an image's digest, and what it says of itself.
func (s *Service) pin(ctx context.Context, e *Environment) error {
	pinned, err := s.images.Pin(ctx, e.Spec.Image)
	if err != nil {
		return err
	}
	e.Image, e.Platform = pinned.Ref, pinned.Platform
	e.Digest = Digest(sum("falaj environment 3", pinned.Ref, e.Spec.Python))
	e.SBOM = nil
	for _, c := range pinned.Content {
		e.SBOM = append(e.SBOM, Package{Name: c.Name, Version: c.Version, From: fromImage})
	}
	e.Packages = len(e.SBOM)
	return nil
}

// prefetch begins to pull an image that was just applied.
func (s *Service) prefetch(ref string) {
	if ref == "" || s.cfg.Containers != nil && s.cfg.Containers() != nil {
		return // no job runs it here
	}
	s.images.Prefetch(ref)
}

// Close ends pulls that were begun ahead.
func (s *Service) Close() error { return s.images.Close() }

// Fetch returns when an environment is where a pool on this machine finds it:
// an image may have to be pulled first, which takes its time. Elsewhere nodes
// fetch for themselves. Errors: those of image.Store.Pull.
func (s *Service) Fetch(ctx context.Context, u Usable, p compute.Pool) error {
	if u.Image == "" || s.kind(p.Engine) != "local" {
		return nil
	}
	return s.images.Pull(ctx, u.Image)
}

// pruneImages is Prune for images.
func (s *Service) pruneImages(ctx context.Context, before time.Time, held []Digest, names map[Digest][]string, dry bool) ([]Pruned, error) {
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
	keep := func(digest string) bool {
		return slices.ContainsFunc(of[digest], func(d Digest) bool { return slices.Contains(held, d) })
	}
	gone, err := s.images.Prune(ctx, before, keep, dry)
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
