package request

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// firstDay is how long after its first account an installation is being set up: a role that
// was given in that time counts from when it was given.
const firstDay = 24 * time.Hour

// Second refuses the caller as the second person (policy.SecondPerson): it is a person,
// none of those who want the act, with no account, token or role from one of these, whose
// role was there long enough before the request.
func (s *Service) Second(ctx context.Context, tx *store.Tx, r policy.Requested) error {
	p := identity.From(ctx)
	if p.Kind != identity.User {
		return fault.New(fault.PermissionDenied, "%s is no person, and the second of two people is one", p).WithHint("Sign in as yourself.")
	}
	refused := func(format string, args ...any) error {
		return fault.New(fault.PermissionDenied, format, args...).
			WithHint("Ask another person who has the right %s, or let another person request it and approve that.", words(r.Actions))
	}
	if slices.Contains(r.By, p.ID) {
		return refused("it takes two people, and you are one of those who want it")
	}
	a, err := s.cfg.Accounts.Account(ctx, tx, p.ID)
	if err != nil {
		return fault.Wrap(err, "reading the account of %s", p)
	}
	if slices.Contains(r.By, a.CreatedBy) {
		return refused("it takes two people, and your account was made by who wants it")
	}
	if p.Token != "" {
		t, err := s.cfg.Accounts.Token(ctx, tx, p.Token)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if slices.Contains(r.By, t.CreatedBy) {
			return refused("it takes two people, and your token was made by who wants it")
		}
	}
	grants, err := s.cfg.Grants.GrantsOf(ctx, tx, p.ID)
	if err != nil {
		return err
	}
	first, err := s.cfg.Accounts.FirstAccount(ctx, tx)
	if err != nil {
		return err
	}
	lent, young := false, false
	for _, g := range grants {
		if !carries(g, r.Actions, r.Object) {
			continue
		}
		switch since := r.At.Sub(g.CreatedAt); {
		case slices.Contains(r.By, g.CreatedBy):
			lent = true
		case since < 0, since < s.cfg.RoleAge && g.CreatedAt.Sub(first) >= firstDay:
			young = true
		default:
			return nil
		}
	}
	switch {
	case young:
		return refused("the second person must have had their role %s before the request, and you have not", s.cfg.RoleAge)
	case lent:
		return refused("it takes two people, and your role was given by who wants it")
	}
	return refused("no role of yours has the right %s", words(r.Actions))
}

// carries reports whether a grant gives one of the rights over an object.
func carries(g project.Grant, actions []policy.Action, o policy.Object) bool {
	if g.Project != "" && string(g.Project) != o.Project || g.Object != "" && !g.Names(o.Kind, o.Name) {
		return false
	}
	return slices.ContainsFunc(actions, func(a policy.Action) bool {
		def, ok := policy.Lookup(a)
		return ok && def.Has(g.Role) && (!def.Installation || g.Project == "")
	})
}

// others reports whether another person than by has one of the rights.
func (s *Service) others(ctx context.Context, tx *store.Tx, by string, actions []policy.Action, o policy.Object) (bool, error) {
	places := []project.Name{""}
	if o.Project != "" {
		places = append(places, project.Name(o.Project))
	}
	const page = 500
	for _, in := range places {
		for after := ""; ; {
			grants, err := s.cfg.Grants.Members(ctx, tx, in, after, page)
			if err != nil {
				return false, err
			}
			for _, g := range grants {
				if g.Principal != by && strings.HasPrefix(g.Principal, "usr_") && carries(g, actions, o) {
					return true, nil
				}
			}
			if len(grants) < page {
				break
			}
			after = grants[page-1].Name
		}
	}
	return false, nil
}

func words(actions []policy.Action) string {
	list := make([]string, len(actions))
	for i, a := range actions {
		list[i] = string(a)
	}
	return strings.Join(list, " or ")
}
