package border

import (
	"context"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// Register lends the labels of a kind of objects. A domain does this once,
// before requests are served.
func (s *Service) Register(kind string, l Labels) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.labels[kind] = l
}

func (s *Service) labelsOf(kind string) (Labels, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.labels[kind]; ok {
		return l, nil
	}
	return nil, fault.New(fault.Invalid, "objects of kind %.40q have no label of their own", kind)
}

// Relabel gives an object another label. Fewer zones take effect at once, and
// what comes back is Approved. Any new zone makes it a request, which waits for
// a second person (see Approve). Needs dataset.relabel on the object. Errors:
// fault.Invalid; fault.NotFound; fault.Conflict when the label is so already.
func (s *Service) Relabel(ctx context.Context, r Relabelling) (Widening, error) {
	if err := s.cfg.Authorizer.Allow(ctx, "dataset.relabel", policy.Object{Project: string(r.Project), Kind: r.Kind, Name: r.Name}); err != nil {
		return Widening{}, err
	}
	if err := r.Validate(); err != nil {
		return Widening{}, err
	}
	labels, err := s.labelsOf(r.Kind)
	if err != nil {
		return Widening{}, err
	}
	classes, _ := labels.(Classes)
	if r.Classification != "" && classes == nil {
		return Widening{}, fault.New(fault.Invalid, "objects of kind %.40q have no classification of their own", r.Kind)
	}
	p := identity.From(ctx)
	var w Widening
	err = s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		var from, to residency.Label
		if len(r.Label) > 0 {
			at, err := labels.Label(ctx, tx, r.Project, r.Name)
			if err != nil {
				return err
			}
			from, to = residency.Of(at.Zones()...), residency.Of(r.Label...)
			if err := s.Known(ctx, tx, to); err != nil {
				return err
			}
		}
		var class project.Classification
		if r.Classification != "" {
			var err error
			if class, err = classes.Class(ctx, tx, r.Project, r.Name); err != nil {
				return err
			}
		}
		if from.Same(to) && class == r.Classification {
			return fault.New(fault.Conflict, "%s %s already has this label", r.Kind, r.Name)
		}
		now := s.now()
		w = Widening{
			ID: id.New("wid"), Project: r.Project, Kind: r.Kind, Name: r.Name, From: from, To: to, FromClass: class, ToClass: r.Classification, Reason: r.Reason,
			State: Requested, RequestedBy: p.ID, RequestedAt: now, ExpiresAt: now.Add(s.cfg.Answer),
		}
		lower := r.Classification != "" && project.Strictest(class, r.Classification) != r.Classification
		if to.Within(from) && !lower {
			w.State, w.DecidedBy, w.DecidedAt = Approved, p.ID, now
			return s.carryOut(ctx, tx, labels, w)
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

// Approve carries out a widening. The caller must be a person, another one than
// who asked, and needs dataset.relabel on the object. Errors: fault.NotFound;
// fault.PermissionDenied for the same person; fault.Conflict when it is decided,
// expired, or the label has changed since.
func (s *Service) Approve(ctx context.Context, widening string) (Widening, error) {
	return s.decide(ctx, widening, Approved)
}

// Reject ends a widening without effect; for who asked it is a withdrawal. Needs
// what Approve needs, save that it may be the same person.
func (s *Service) Reject(ctx context.Context, widening string) (Widening, error) {
	return s.decide(ctx, widening, Rejected)
}

func (s *Service) decide(ctx context.Context, widening string, to State) (Widening, error) {
	if err := id.Check("wid", widening); err != nil {
		return Widening{}, err
	}
	var w Widening
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		w, err = s.cfg.Store.Widening(ctx, tx, widening)
		return err
	})
	if err != nil {
		return Widening{}, err
	}
	err = s.cfg.Authorizer.Allow(ctx, w.action(), policy.Object{Project: string(w.Project), Kind: w.Kind, Name: w.Name})
	if fault.Is(err, fault.NotFound) {
		err = unknown(widening)
	}
	if err != nil {
		return Widening{}, err
	}
	p := identity.From(ctx)
	if err := person(p); err != nil {
		return Widening{}, err
	}
	apply := s.changeLaw
	if w.Kind != zoneKind {
		labels, err := s.labelsOf(w.Kind)
		if err != nil {
			return Widening{}, err
		}
		apply = func(ctx context.Context, tx *store.Tx, w Widening) error { return s.carryOut(ctx, tx, labels, w) }
	}
	expired := false
	err = s.cfg.DB.Update(ctx, string(w.Project), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if w, err = s.cfg.Store.Widening(ctx, tx, widening); err != nil {
			return err
		}
		now := s.now()
		expired = w.State == Requested && !now.Before(w.ExpiresAt)
		switch {
		case w.State != Requested:
			return fault.New(fault.Conflict, "the widening of %s %s is already %s", w.Kind, w.Name, w.State)
		case expired:
			w.State, w.DecidedAt = Expired, now
			return s.record(ctx, tx, w) // the refusal follows once this is durable
		case to == Rejected && w.RequestedBy == p.ID:
			w.State = Withdrawn
		case to == Approved && s.cfg.Second != nil:
			asked := policy.Requested{By: []string{w.RequestedBy}, At: w.RequestedAt, Actions: []policy.Action{w.action()}, Object: policy.Object{Project: string(w.Project), Kind: w.Kind, Name: w.Name}}
			if err := s.cfg.Second(ctx, tx, asked); err != nil {
				return audit.Describe(fault.Wrap(err, "widening %s %s", w.Kind, w.Name), audit.Entry{Project: string(w.Project), Action: string(w.action()), Object: w.Kind + " " + w.Name})
			}
			w.State = to
		case to == Approved && w.RequestedBy == p.ID:
			return fault.New(fault.PermissionDenied, "%s takes two people, and %s requested it", w.takes(), p).
				WithHint("Ask another admin of %s to approve %s.", w.whose(), w.ID)
		default:
			w.State = to
		}
		w.DecidedBy, w.DecidedAt = p.ID, now
		if w.State == Approved {
			return apply(ctx, tx, w)
		}
		return s.record(ctx, tx, w)
	})
	if err == nil && expired {
		err = fault.New(fault.Conflict, "the widening of %s %s expired at %s", w.Kind, w.Name, w.ExpiresAt.Format("2006-01-02 15:04 MST")).
			WithHint("Request it again.")
	}
	if err != nil {
		return Widening{}, err
	}
	return w, nil
}

// carryOut changes the label if it is still what it was, and tells.
func (s *Service) carryOut(ctx context.Context, tx *store.Tx, labels Labels, w Widening) error {
	if len(w.To) > 0 {
		now, err := labels.Label(ctx, tx, w.Project, w.Name)
		if err != nil {
			return err
		}
		if !now.Same(w.From) {
			return fault.New(fault.Conflict, "%s %s is now allowed in %s, not in %s as at the time of the request", w.Kind, w.Name, now, w.From).
				WithHint("Request it again, so that both people see the current state.")
		}
		if err := s.unchanged(ctx, tx, w); err != nil {
			return err
		}
		if err := labels.Relabel(ctx, tx, w.Project, w.Name, w.To); err != nil {
			return err
		}
	}
	if classes, ok := labels.(Classes); ok && w.ToClass != "" {
		now, err := classes.Class(ctx, tx, w.Project, w.Name)
		if err != nil {
			return err
		}
		if now != w.FromClass {
			return fault.New(fault.Conflict, "%s %s is now %s, not %s as at the time of the request", w.Kind, w.Name, now, w.FromClass).
				WithHint("Request it again, so that both people see the current state.")
		}
		if err := classes.Reclassify(ctx, tx, w.Project, w.Name, w.ToClass); err != nil {
			return err
		}
	}
	if err := event.Publish(ctx, tx, string(w.Project), LabelChanged, LabelEvent{Project: w.Project, Kind: w.Kind, Name: w.Name, From: w.From, To: w.To, FromClass: w.FromClass, ToClass: w.ToClass}); err != nil {
		return err
	}
	return s.record(ctx, tx, w)
}

// unchanged refuses zones that the installation does not know, and new ones that were
// changed since a widening was asked for: their law may be another one than both looked at.
func (s *Service) unchanged(ctx context.Context, tx *store.Tx, w Widening) error {
	if err := s.Known(ctx, tx, w.To); err != nil {
		return err
	}
	for _, z := range w.To.Zones() {
		place, err := s.cfg.Store.Zone(ctx, tx, z)
		if err != nil {
			return err
		}
		if !w.From.Allows(z) && place.UpdatedAt.After(w.RequestedAt) {
			return fault.New(fault.Conflict, "zone %s was changed after this request, and now has %s", z, place.Law()).
				WithHint("Request it again, so that both people see the current state.")
		}
	}
	return nil
}

// record writes a widening's state, on the audit log too.
func (s *Service) record(ctx context.Context, tx *store.Tx, w Widening) error {
	if err := s.cfg.Store.PutWidening(ctx, tx, w); err != nil {
		return err
	}
	detail := map[string]any{"widening": w.ID, "state": w.State, "requested_by": w.RequestedBy, "decided_by": w.DecidedBy}
	if w.Kind == zoneKind {
		detail["from_law"], detail["to_law"] = w.FromLaw, w.ToLaw
	} else {
		detail["from"], detail["to"], detail["from_classification"], detail["to_classification"] = w.From.Zones(), w.To, w.FromClass, w.ToClass
	}
	err := audit.Append(ctx, tx, audit.Entry{Project: string(w.Project), Action: string(w.action()), Object: w.Kind + " " + w.Name, Reason: w.Reason, Detail: detail})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(w.Project), WideningChanged, w)
}

// Widenings lists a project's, or without one those of zones, the newest first, 100 by 100;
// next is the page token of the following page. An empty state means all. Needs dataset.read;
// without a project zone.apply.
func (s *Service) Widenings(ctx context.Context, in project.Name, state State, pageToken string) (list []Widening, next string, err error) {
	action := policy.Action("dataset.read")
	if in == "" {
		action = "zone.apply"
	}
	if err := s.cfg.Authorizer.Allow(ctx, action, policy.Object{Project: string(in), Kind: "widening"}); err != nil {
		return nil, "", err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = s.cfg.Store.Widenings(ctx, tx, in, state, pageToken, 101)
		return err
	})
	if len(list) > 100 {
		list = list[:100]
		next = list[99].ID
	}
	return list, next, err
}

// action is what asking for a widening, and deciding it, needs.
func (w Widening) action() policy.Action {
	if w.Kind == zoneKind {
		return "zone.apply"
	}
	return "dataset.relabel"
}

func (w Widening) takes() string {
	if w.Kind == zoneKind {
		return "changing a zone's jurisdiction, provider or trust"
	}
	return "widening a label"
}

func (w Widening) whose() string {
	if w.Project == "" {
		return "the installation"
	}
	return "project " + string(w.Project)
}

// person refuses services, attempts and loops where people must decide.
func person(p identity.Principal) error {
	if p.Kind == identity.User {
		return nil
	}
	return fault.New(fault.PermissionDenied, "this takes two people, and %s is not a user", p).
		WithHint("Use the token of a user.")
}

func unknown(widening string) error {
	return fault.New(fault.NotFound, "widening %s does not exist", widening)
}
