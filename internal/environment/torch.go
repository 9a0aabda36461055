package environment

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/governance/identity"
)

const (
	// torchHost is where uv finds the builds of torch_backend.
	torchHost = "download.pytorch.org:443"
	// autoBackend is the torch_backend that the pools decide.
	autoBackend = "auto"
	cpuBackend  = "cpu"
)

// chooseBackend is the build of PyTorch that fits all pools, as they are now: for CPUs
// where none has a GPU, else that of the package index, which brings CUDA.
func (s *Service) chooseBackend(ctx context.Context) (string, error) {
	pools, err := s.cfg.Compute.ListPools(identity.With(ctx, identity.Loop("environment")))
	if err == nil && withoutGPU(pools) {
		return cpuBackend, nil
	}
	return "", err
}

// withoutGPU reports that no node of any pool has an accelerator. Of a pool whose nodes are
// not known, or are rented as they are needed, it is not known.
func withoutGPU(pools []compute.Pool) bool {
	return len(pools) > 0 && !slices.ContainsFunc(pools, func(p compute.Pool) bool {
		return len(p.Nodes) == 0 || p.Elastic != nil || slices.ContainsFunc(p.Nodes, func(n compute.PoolNode) bool {
			for _, count := range n.Accelerators {
				if count > 0 {
					return true
				}
			}
			return false
		})
	})
}

// idleCUDA is what to do about a CUDA that no pool has a GPU for; nothing where one may
// have.
func (s *Service) idleCUDA(ctx context.Context, e Environment) string {
	n := e.needs()
	if n.CUDA == "" {
		return ""
	}
	pools, err := s.cfg.Compute.ListPools(identity.With(ctx, identity.Loop("environment")))
	if err != nil {
		s.log.WarnContext(ctx, "whether a pool has a GPU is not known", slog.Any("error", err))
		return ""
	}
	if !withoutGPU(pools) {
		return ""
	}
	hint := fmt.Sprintf("It brings CUDA %s (of %s), and no pool has a GPU.", n.CUDA, n.By)
	if n.torch() {
		hint += " torch_backend: cpu locks builds of PyTorch without it, which are gigabytes smaller."
	}
	return hint
}
