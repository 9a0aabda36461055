package tracking

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// Origins says what a job's attempt passes on to what it makes. Its callers are the registry,
// tuning and sweeps, for what attempts make there.
type Origins struct{ *core }

// Admit refuses a read that would narrow the label of what the reading job attempt makes: its
// outputs carry the zones and classification it was started with. Other principals pass.
func (s *Origins) Admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error {
	return s.admit(ctx, p, what, label, classification)
}

// OriginOf is what the context's principal passes on to what it makes: for a job attempt the
// origin of its run, for others the zero Origin.
func (s *Origins) OriginOf(ctx context.Context, p project.Name) (Origin, error) {
	return s.originOf(ctx, p)
}

// origin is what a new run or logged model carries.
func (s *core) origin(ctx context.Context, p project.Name, given Origin) (Origin, error) {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return given, given.validate()
	}
	if given.Attempt != "" || given.Job != "" || given.Residency != nil || given.Classification != "" {
		return Origin{}, fault.New(fault.PermissionDenied, "%s may not set an origin; it inherits the origin of its run", who)
	}
	return s.originOf(ctx, p)
}

// admit is Origins.Admit.
func (s *core) admit(ctx context.Context, p project.Name, what string, label residency.Label, classification string) error {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return nil
	}
	own, err := s.originOf(ctx, p)
	if err != nil {
		return err
	}
	for _, z := range own.Residency.Zones() {
		if !label.Allows(z) {
			return fault.New(fault.PermissionDenied, "%s has the residency %s, and the outputs of %s have %s", what, label, who, own.Residency).
				WithHint("Declare it as an input of the job, so that its outputs inherit the label.")
		}
	}
	if classifications[classification] > classifications[own.Classification] {
		return fault.New(fault.PermissionDenied, "%s is %s, and the outputs of %s have a lower classification", what, classification, who).
			WithHint("Declare it as an input of the job, so that its outputs inherit the classification.")
	}
	return nil
}

// originOf is Origins.OriginOf.
func (s *core) originOf(ctx context.Context, p project.Name) (Origin, error) {
	who := identity.From(ctx)
	if who.Kind != identity.Attempt {
		return Origin{}, nil
	}
	var r Run
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		r, err = s.store.RunOfAttempt(ctx, tx, p, who.ID)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return Origin{}, fault.New(fault.PermissionDenied, "%s has no run whose label its outputs could inherit", who)
	}
	return r.Origin, err
}
