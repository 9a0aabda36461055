package request

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// firstDay is how long after its first account an installation is being set up: a role that
// was given in that time counts from when it was given.
const firstDay = 24 * time.Hour

// maxParents bounds how many tokens made one another.
const maxParents = 100

// Second refuses the caller as the second person (policy.SecondPerson): it is a person,
// none of those who want the act, with no account, token or role from one of these, whose
// role was there long enough before the request.
func (s *Service) Second(ctx context.Context, tx *store.Tx, r policy.Requested) error {
	p := identity.From(ctx)
	if p.Kind != identity.User {
		return fault.New(fault.PermissionDenied, "it takes two people, and %s is not a user", p).WithHint("Sign in as yourself.")
	}
	refused := func(format string, args ...any) error {
		return fault.New(fault.PermissionDenied, format, args...).
			WithHint("Ask another person with the right %s, or let another person request it and approve that.", words(r.Actions))
	}
	if slices.Contains(r.By, p.ID) {
		return refused("it takes two people, and you are one of the requesters")
	}
	a, err := s.cfg.Accounts.Account(ctx, tx, p.ID)
	if err != nil {
		return fault.Wrap(err, "reading the account of %s", p)
	}
	made := func(by string) (bool, error) {
		maker, err := s.maker(ctx, tx, by)
		return slices.Contains(r.By, by) || slices.Contains(r.By, maker), err
	}
	if theirs, err := made(a.CreatedBy); err != nil || theirs {
		return cmp.Or(err, refused("it takes two people, and your account was created by the requester"))
	}
	// A token that a token of the requester's made is the requester's, too.
	for token, depth := p.Token, 0; token != "" && depth < maxParents; depth++ {
		t, err := s.cfg.Accounts.Token(ctx, tx, token)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if theirs, err := made(t.CreatedBy); err != nil || theirs {
			return cmp.Or(err, refused("it takes two people, and your token was created by the requester"))
		}
		token = t.Parent
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
		theirs, err := made(g.CreatedBy)
		if err != nil {
			return err
		}
		switch since := r.At.Sub(g.CreatedAt); {
		case theirs:
			lent = true
		case since < 0, since < s.cfg.RoleAge && g.CreatedAt.Sub(first) >= firstDay:
			young = true
		default:
			return nil
		}
	}
	switch {
	case young:
		return refused("the second person must have the role for %s before the request", s.cfg.RoleAge)
	case lent:
		return refused("it takes two people, and your role was granted by the requester")
	}
	return refused("none of your roles grants %s", words(r.Actions))
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

func (s *Service) maker(ctx context.Context, tx *store.Tx, principal string) (string, error) {
	return account.Maker(ctx, tx, s.cfg.Accounts, principal)
}

// others reports whether another person than these has one of the rights, or had it a
// moment ago: who takes it from the other one is not alone at once.
func (s *Service) others(ctx context.Context, tx *store.Tx, by []string, actions []policy.Action, o policy.Object, now time.Time) (bool, error) {
	have := func(grants []project.Grant) bool {
		for _, g := range grants {
			if !carries(g, actions, o) {
				continue
			}
			// Who is in a group is the provider's business, and may be said at their first login only.
			if g.From() != "" || !slices.Contains(by, g.Principal) && strings.HasPrefix(g.Principal, "usr_") {
				return true
			}
		}
		return false
	}
	places := []project.Name{""}
	if o.Project != "" {
		places = append(places, project.Name(o.Project))
	}
	const page = 500
	for _, in := range places {
		former, err := s.cfg.Grants.Former(ctx, tx, in, now.Add(-s.cfg.RoleAge))
		if err != nil {
			return false, err
		}
		if have(former) {
			return true, nil
		}
		for after := ""; ; {
			grants, err := s.cfg.Grants.Members(ctx, tx, in, after, page)
			if err != nil {
				return false, err
			}
			if have(grants) {
				return true, nil
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
