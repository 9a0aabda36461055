package border

import (
	"context"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// zoneKind is the kind of widenings that change the law of a zone.
const zoneKind = "zone"

// LawChange asks for another law of a zone.
type LawChange struct {
	Zone residency.Zone `json:"-"`
	residency.Law
	Reason string `json:"reason" doc:"Reason, at least 10 characters; recorded in the audit log"`
}

// Validate refuses what cannot be a change. Error: fault.Invalid.
func (c LawChange) Validate() error {
	if err := c.Zone.Validate(); err != nil {
		return err
	}
	if c.Law == (residency.Law{}) {
		return fault.New(fault.Invalid, "neither jurisdiction, provider nor trust is given").WithHint("Set at least one of them.")
	}
	if err := checkReason(c.Reason); err != nil {
		return err
	}
	return residency.ZoneSpec{Jurisdiction: c.Jurisdiction, Provider: c.Provider, Trust: c.Trust}.Validate()
}

// ChangeLaw gives a zone another law. What widens nothing takes effect at once, and what
// comes back is Approved. All else is a request, which waits for a second person (see
// Approve), whether a label names the zone now or not: backups, records and gateways name it,
// too. Needs zone.apply in the installation. Errors: fault.Invalid; fault.NotFound;
// fault.Conflict when the law is so already.
func (s *Service) ChangeLaw(ctx context.Context, c LawChange) (Widening, error) {
	if err := s.cfg.Authorizer.Allow(ctx, "zone.apply", policy.Object{Kind: zoneKind, Name: string(c.Zone)}); err != nil {
		return Widening{}, err
	}
	if err := c.Validate(); err != nil {
		return Widening{}, err
	}
	p := identity.From(ctx)
	var w Widening
	err := s.cfg.DB.Update(ctx, "", func(ctx context.Context, tx *store.Tx) error {
		place, err := s.cfg.Store.Zone(ctx, tx, c.Zone)
		if err != nil {
			return err
		}
		from, to := place.Law(), c.Or(place.Law())
		if from == to {
			return fault.New(fault.Conflict, "zone %s already has %s", c.Zone, to)
		}
		now := s.now()
		w = Widening{
			ID: id.New("wid"), Kind: zoneKind, Name: string(c.Zone), FromLaw: &from, ToLaw: &to, Reason: c.Reason,
			State: Requested, RequestedBy: p.ID, RequestedAt: now, ExpiresAt: now.Add(s.cfg.Answer),
		}
		if !to.Widens(from) {
			w.State, w.DecidedBy, w.DecidedAt = Approved, p.ID, now
			return s.changeLaw(ctx, tx, w)
		}
		if err := person(p); err != nil {
			return err
		}
		return s.record(ctx, tx, w)
	})
	if err != nil {
		return Widening{}, err
	}
	return w, nil
}

// changeLaw gives a zone the law of a widening if it still has the one before.
func (s *Service) changeLaw(ctx context.Context, tx *store.Tx, w Widening) error {
	p, err := s.cfg.Store.Zone(ctx, tx, residency.Zone(w.Name))
	if err != nil {
		return err
	}
	if was := p.Law(); was != *w.FromLaw {
		return fault.New(fault.Conflict, "zone %s now has %s, not %s as at the time of the request", w.Name, was, w.FromLaw).
			WithHint("Request it again, so that both people see the current state.")
	}
	p.Jurisdiction, p.Provider, p.Trust = w.ToLaw.Jurisdiction, w.ToLaw.Provider, w.ToLaw.Trust
	p.UpdatedAt = s.now()
	p.Revision++
	if err := s.putZone(ctx, tx, p, *w.FromLaw); err != nil {
		return err
	}
	return s.record(ctx, tx, w)
}

// command is what asks for a law on the command line.
func command(z residency.Zone, to, was residency.Law) string {
	words := []string{"falaj zone change", string(z)}
	for _, f := range [][3]string{
		{"--jurisdiction", to.Jurisdiction, was.Jurisdiction}, {"--provider", to.Provider, was.Provider}, {"--trust", string(to.Trust), string(was.Trust)},
	} {
		if f[1] != f[2] {
			words = append(words, f[0], fault.ShellWord(f[1]))
		}
	}
	return strings.Join(append(words, "--reason 'WHY'"), " ")
}
