package compute

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// WarnUnknownAccelerators warns of accelerators, of a queue or a job, that no pool has: of a queue
// they limit nothing, and a job waits for them. It is no error, because a pool may
// come later.
func (s *Pools) WarnUnknownAccelerators(ctx context.Context, of ...resource.Amount) []string {
	have := s.knownAccelerators(ctx, "")
	var out []string
	for _, name := range acceleratorNames(of) {
		if slices.Contains(have, name) {
			continue
		}
		text := fmt.Sprintf("no pool has the accelerator %q", name)
		if near := resource.Nearest(name, have); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		out = append(out, text)
	}
	return out
}

// WarnUnknownPoolAccelerators is WarnUnknownAccelerators for a pool, which may be the first that has an accelerator: it
// warns only of a name that is nearly one that other pools have, or that there are.
// Names with digits are models and slices, near each other by nature.
func (s *Pools) WarnUnknownPoolAccelerators(ctx context.Context, pool PoolName, spec PoolSpec) []string {
	digits := func(name string) bool { return strings.ContainsAny(name, "0123456789") }
	have := s.knownAccelerators(ctx, pool)
	common := slices.DeleteFunc(append(slices.Clone(have), "nvidia.com/gpu", "amd.com/gpu"), digits)
	var amounts []resource.Amount
	for _, n := range spec.Nodes {
		amounts = append(amounts, resource.Amount{Accelerators: n.Accelerators})
	}
	if spec.Elastic != nil {
		amounts = append(amounts, resource.Amount{Accelerators: spec.Elastic.Node.Accelerators})
	}
	var out []string
	for _, name := range acceleratorNames(amounts) {
		if digits(name) || slices.Contains(have, name) || slices.Contains(common, name) {
			continue
		}
		if near := resource.Nearest(name, common); near != "" {
			out = append(out, fmt.Sprintf("no other pool has the accelerator %q; did you mean %q?", name, near))
		}
	}
	return out
}

// acceleratorNames are the accelerators that amounts name.
func acceleratorNames(of []resource.Amount) []string {
	all := map[string]bool{}
	for _, a := range of {
		for name := range a.Accelerators {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// knownAccelerators are those that pools have, or would rent, but for one pool.
func (s *Pools) knownAccelerators(ctx context.Context, but PoolName) []string {
	var have []resource.Amount
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		pools, _, err := s.all(ctx, tx)
		for _, p := range pools {
			if p.Name == but {
				continue
			}
			have = append(have, p.Capacity)
			if p.Elastic != nil {
				have = append(have, p.nodeToCome().Room())
			}
		}
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "reading the accelerators of the pools failed", slog.Any("error", err))
	}
	return acceleratorNames(have)
}
