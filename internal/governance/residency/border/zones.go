package border

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/store"
)

// maxPlaces bounds the zones of an installation.
const maxPlaces = 1000

// Authorizer is asked before zones and labels are shown or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config says what the service works with; the zero of a setting is its default.
type Config struct {
	DB         *store.DB
	Store      Store
	Authorizer Authorizer
	// Second decides whether the caller may approve another person's request; nil: whoever
	// is not the one who requested it.
	Second policy.SecondPerson
	Answer time.Duration // how long a widening waits for the second person; default 7 days
	Now    func() time.Time
}

// Service keeps zones and widenings. Safe for concurrent use.
type Service struct {
	cfg Config

	mu     sync.Mutex
	labels map[string]Labels // by kind
}

// New makes the service.
func New(cfg Config) *Service {
	if cfg.Answer <= 0 {
		cfg.Answer = 7 * 24 * time.Hour
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg, labels: map[string]Labels{}}
}

func (s *Service) now() time.Time { return s.cfg.Now().UTC().Truncate(time.Microsecond) }

// ZoneRequest is a manifest of kind Zone.
type ZoneRequest struct {
	Zone   residency.Zone
	Spec   residency.ZoneSpec
	DryRun bool
}

// Apply makes the zone as the manifest says. Needs zone.apply in the
// installation. Errors: fault.Invalid; fault.Conflict for a law that takes two people (see
// ChangeLaw) or a name that differs from another zone's in case only.
func (s *Service) Apply(ctx context.Context, r ZoneRequest) (residency.Place, project.Change, error) {
	if err := s.cfg.Authorizer.Allow(ctx, "zone.apply", policy.Object{Kind: "zone", Name: string(r.Zone)}); err != nil {
		return residency.Place{}, "", err
	}
	if err := r.Zone.Validate(); err != nil {
		return residency.Place{}, "", err
	}
	if err := r.Spec.Validate(); err != nil {
		return residency.Place{}, "", err
	}
	var p residency.Place
	var was residency.Law
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) (err error) {
		if p, was, change, err = s.plan(ctx, tx, r); err != nil || change == project.Unchanged || r.DryRun {
			return err
		}
		return s.putZone(ctx, tx, p, was)
	}
	var err error
	if r.DryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, "", apply)
	}
	if err != nil {
		return residency.Place{}, "", err
	}
	return p, change, nil
}

// putZone writes a zone, with its law before and after on record.
func (s *Service) putZone(ctx context.Context, tx *store.Tx, p residency.Place, was residency.Law) error {
	if err := s.cfg.Store.PutZone(ctx, tx, p); err != nil {
		return err
	}
	err := audit.Append(ctx, tx, audit.Entry{Action: "zone.apply", Object: "zone " + string(p.Zone), Detail: map[string]any{
		"jurisdiction": p.Jurisdiction, "provider": p.Provider, "trust": p.Trust, "revision": p.Revision, "from_law": was, "to_law": p.Law(),
	}})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, "", ZoneApplied, p)
}

// plan is the zone as it will be, its law before, and what that changes.
func (s *Service) plan(ctx context.Context, tx *store.Tx, r ZoneRequest) (p residency.Place, was residency.Law, change project.Change, err error) {
	p, err = s.cfg.Store.Zone(ctx, tx, r.Zone)
	if fault.Is(err, fault.NotFound) {
		all, err := s.cfg.Store.Zones(ctx, tx)
		if err != nil {
			return p, was, "", err
		}
		if len(all) >= maxPlaces {
			return p, was, "", fault.New(fault.Exhausted, "there are %d zones, at most %d are allowed", len(all), maxPlaces)
		}
		for _, other := range all {
			if strings.EqualFold(string(other.Zone), string(r.Zone)) {
				return p, was, "", fault.New(fault.Conflict, "zone %s exists", other.Zone).WithHint("Spell it as %s.", other.Zone)
			}
		}
		now := s.now()
		r.Spec.Trust = cmp.Or(r.Spec.Trust, residency.Shared)
		return residency.Place{Zone: r.Zone, ZoneSpec: r.Spec, CreatedAt: now, UpdatedAt: now, Revision: 1}, was, project.Created, nil
	}
	if err != nil {
		return p, was, "", err
	}
	was = p.Law()
	law := r.Spec.Law().Or(was)
	if law.Widens(was) {
		err := fault.New(fault.Conflict, "zone %s has %s, and labels rely on that; %s takes two people and a reason", p.Zone, was, law).
			WithHint("Request it with: %s. Or create another zone.", command(p.Zone, law, was))
		return p, was, "", audit.Refuse(err, audit.Entry{Action: "zone.apply", Object: "zone " + string(p.Zone)})
	}
	r.Spec.Jurisdiction, r.Spec.Provider, r.Spec.Trust = law.Jurisdiction, law.Provider, law.Trust
	if p.ZoneSpec == r.Spec {
		return p, was, project.Unchanged, nil
	}
	p.ZoneSpec = r.Spec
	p.UpdatedAt = s.now()
	p.Revision++
	return p, was, project.Updated, nil
}

// Zones lists all zones by name. Needs zone.read.
func (s *Service) Zones(ctx context.Context) (places []residency.Place, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, "zone.read", policy.Object{Kind: "zone"}); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		places, err = s.cfg.Store.Zones(ctx, tx)
		return err
	})
	return places, err
}

// Known refuses a label with a zone that the installation does not know. It is
// for the transaction that writes the label. Error: fault.Invalid.
func (s *Service) Known(ctx context.Context, tx *store.Tx, l residency.Label) error {
	if err := l.Validate(); err != nil {
		return err
	}
	places, err := s.cfg.Store.Zones(ctx, tx)
	if err != nil {
		return err
	}
	for _, z := range l.Zones() {
		if !slices.ContainsFunc(places, func(p residency.Place) bool { return p.Zone == z }) {
			return fault.New(fault.Invalid, "zone %s does not exist", z).
				WithHint("\"falaj get zones\" lists them; an admin of the installation applies a manifest of kind Zone.")
		}
	}
	return nil
}
