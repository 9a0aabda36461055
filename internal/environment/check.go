package environment

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Checked is what every pool says to an environment.
type Checked struct {
	Environment string `json:"environment"`
	Digest      Digest `json:"digest,omitempty"`
	State       State  `json:"state"`
	Needs       Needs  `json:"needs"`
	Pools       []Fit  `json:"pools"`
}

// kind of an engine by its name.
func (s *Service) kind(engine string) string { return cmp.Or(s.cfg.Kinds[engine], engine) }

// fit compares an environment with a pool.
func (s *Service) fit(n Needs, p compute.Pool) Fit {
	kind := s.kind(p.Engine)
	if n.Kind == ImageKind && kind == "local" && s.cfg.Containers != nil {
		if err := s.cfg.Containers(); err != nil {
			return Fit{Pool: string(p.Name), Reasons: []string{err.Error()}}
		}
	}
	return fit(n, p, kind)
}

// Fits says for each pool whether an environment fits it, and why not, before
// anything queues. Needs environment.read and pool.read. Error: fault.NotFound.
func (s *Service) Fits(ctx context.Context, p project.Name, ref string) (Checked, error) {
	name, digest, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return Checked{}, err
	}
	e, err := s.named(ctx, p, name, Digest(digest))
	if err != nil {
		return Checked{}, err
	}
	c := Checked{Environment: name, Digest: e.Digest, State: e.State, Needs: e.needs()}
	pools, err := s.cfg.Compute.ListPools(ctx)
	if err != nil {
		return c, err
	}
	for _, pool := range pools {
		f := s.fit(c.Needs, pool)
		if f.Fits && e.State != Failed && e.State != Ready {
			f.Unknown = append(f.Unknown, "what its packages need: it is still being built")
		}
		if e.State == Failed {
			f.Fits, f.Reasons = false, []string{"it could not be built: " + e.Reason}
		}
		c.Pools = append(c.Pools, f)
	}
	return c, nil
}

// Admit refuses an environment that none of the pools fits, with what each says;
// no names are all pools. Whoever asks needs environment.read only. Errors:
// fault.Invalid; fault.NotFound.
func (s *Service) Admit(ctx context.Context, p project.Name, ref string, pools []string) error {
	name, _, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return err
	}
	c, err := s.Fits(identity.With(ctx, identity.Loop("environment")), p, ref)
	if err != nil || c.State == Failed { // Use says why
		return err
	}
	asked := slices.DeleteFunc(c.Pools, func(f Fit) bool { return len(pools) > 0 && !slices.Contains(pools, f.Pool) })
	if len(asked) == 0 || slices.ContainsFunc(asked, func(f Fit) bool { return f.Fits }) {
		return nil
	}
	return misfit(name, asked)
}

// misfit is the error of pools that an environment does not fit.
func misfit(name string, pools []Fit) error {
	words := make([]string, 0, len(pools))
	for _, f := range pools[:min(len(pools), 10)] {
		words = append(words, "pool "+f.Pool+": "+strings.Join(f.Reasons, "; "))
	}
	return fault.New(fault.Invalid, "environment %s fits no pool that was asked for: %s", name, strings.Join(words, ". ")).
		WithHint("`falaj env check %s` shows every pool; choose one that fits, or an environment that fits these.", name)
}

var _ interface {
	Check(u Usable, p compute.Pool) error
} = (*Service)(nil)
