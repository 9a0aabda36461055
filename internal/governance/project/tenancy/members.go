package tenancy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// maxMembers bounds the grants of one project.
const maxMembers = 10_000

// GrantRequest is a manifest of kind Grant.
type GrantRequest struct {
	Project project.Name      `json:"project,omitempty"` // empty: the whole installation
	Name    string            `json:"name,omitempty"`    // empty: made from the role, the principal and the object
	Spec    project.GrantSpec `json:"spec"`
	DryRun  bool              `json:"-"`
}

// Grant gives a role, or changes the grant of that name. Needs member.grant.
// Errors: fault.Invalid; fault.NotFound for an unknown account or project;
// fault.Conflict where that would take the installation's last administrator.
func (s *Service) Grant(ctx context.Context, r GrantRequest) (project.Grant, project.Change, error) {
	if err := s.mayGrant(ctx, r); err != nil {
		return project.Grant{}, "", err
	}
	if err := s.takesTwo(ctx, r); err != nil {
		return project.Grant{}, "", err
	}
	var g project.Grant
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) (err error) {
		g, change, err = s.grantIn(ctx, tx, r)
		return err
	}
	var err error
	if r.DryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Project), apply)
	}
	if err != nil {
		return project.Grant{}, "", err
	}
	return g, change, nil
}

// takesTwo refuses to open one object, which is what restricted data need, to who grants it
// or to an account that they made: another person approves that.
func (s *Service) takesTwo(ctx context.Context, r GrantRequest) error {
	if s.cfg.TwoPeople == nil || r.Spec.Object == "" || r.DryRun {
		return nil
	}
	p := identity.From(ctx)
	own := false
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, _, ok := project.CutGroup(r.Spec.Principal); ok {
			own = true // who grants it may be in the group, or get there
			return nil
		}
		a, err := s.cfg.Accounts.Resolve(ctx, tx, r.Project, r.Spec.Principal)
		if err != nil {
			return err
		}
		maker, err := s.cfg.Accounts.Maker(ctx, tx, p.ID)
		own = a.ID == p.ID || a.ID == maker || a.CreatedBy == p.ID || a.CreatedBy == maker
		return err
	})
	if err != nil || !own {
		return err
	}
	return s.cfg.TwoPeople.Ask(ctx, policy.Act{
		Kind: "grant", Action: "member.grant", Object: policy.Object{Project: string(r.Project), Kind: "grant", Name: r.Name}, Payload: r,
		Summary: "open " + r.Spec.Object + " to " + r.Spec.Principal + " as " + string(r.Spec.Role) + ", an account or group of the requester",
	})
}

// approved makes a grant that a second person approved.
func (s *Service) approved(ctx context.Context, payload []byte) error {
	var r GrantRequest
	if err := json.Unmarshal(payload, &r); err != nil {
		return err
	}
	_, _, err := s.Grant(ctx, r)
	return err
}

// mayGrant permits and checks a request.
func (s *Service) mayGrant(ctx context.Context, r GrantRequest) error {
	if err := s.cfg.Authorizer.Allow(ctx, "member.grant", policy.Object{Project: string(r.Project), Kind: "grant", Name: r.Name}); err != nil {
		return err
	}
	if err := r.Spec.Validate(r.Project); err != nil {
		return err
	}
	if r.Name == "" {
		return nil
	}
	return id.CheckName("grant name", r.Name)
}

// grantIn gives the role that mayGrant let pass.
func (s *Service) grantIn(ctx context.Context, tx *store.Tx, r GrantRequest) (project.Grant, project.Change, error) {
	var none project.Grant
	if r.Project != "" {
		if _, err := s.cfg.Store.One(ctx, tx, r.Project); err != nil {
			return none, "", err
		}
	}
	principal, err := s.principal(ctx, tx, r)
	if err != nil {
		return none, "", err
	}
	g := project.Grant{
		Project: r.Project, Name: r.Name, Principal: principal, Role: r.Spec.Role, Object: r.Spec.Object,
		CreatedAt: s.cfg.Now().UTC().Truncate(time.Microsecond), CreatedBy: identity.From(ctx).ID,
	}
	if g.Name == "" {
		g.Name = grantName(g)
	}
	change := project.Updated
	was, err := s.cfg.Store.Grant(ctx, tx, g.Project, g.Name)
	switch {
	case fault.Is(err, fault.NotFound):
		change = project.Created
		n, err := s.cfg.Store.CountMembers(ctx, tx, g.Project)
		if err != nil {
			return none, "", err
		}
		if n >= maxMembers {
			return none, "", fault.New(fault.Exhausted, "%d grants already exist there, at most %d are allowed", n, maxMembers)
		}
	case err != nil:
		return none, "", err
	case was.Principal == g.Principal && was.Role == g.Role && was.Object == g.Object:
		return was, project.Unchanged, nil
	}
	if r.DryRun {
		return g, change, nil
	}
	if err := s.cfg.Store.Put(ctx, tx, g); err != nil {
		return none, "", err
	}
	if change == project.Updated {
		if err := s.keepAdmin(ctx, tx, was); err != nil {
			return none, "", err
		}
		if err := s.record(ctx, tx, "member.revoke", MemberRevoked, "", was); err != nil {
			return none, "", err
		}
	}
	return g, change, s.record(ctx, tx, "member.grant", MemberGranted, "", g)
}

// principal is who a request gives the role to: an account's id, or a group as it is
// written. A group need not have a member yet.
func (s *Service) principal(ctx context.Context, tx *store.Tx, r GrantRequest) (string, error) {
	if provider, _, ok := project.CutGroup(r.Spec.Principal); ok {
		if s.cfg.Provider == nil || !s.cfg.Provider(provider) {
			return "", fault.New(fault.NotFound, "identity provider %s is not configured", provider).
				WithHint("Name one of identity.providers in the server's configuration.")
		}
		return r.Spec.Principal, nil
	}
	a, err := s.cfg.Accounts.Resolve(ctx, tx, r.Project, r.Spec.Principal)
	if err != nil {
		return "", err
	}
	if a.Project != "" && a.Project != r.Project {
		return "", fault.New(fault.Invalid, "service %s belongs to project %s and can have roles there only", a.Name, a.Project)
	}
	return a.ID, nil
}

// Enrolment is what a program or a colleague needs to begin.
type Enrolment struct {
	Token account.TokenSpec // For names the account
	Role  project.Role      // that the account gets in the project In; empty: none
	In    project.Name
}

// Enrol makes a token, its account where that is asked for, and the account's
// role, all of it or nothing. Needs what CreateToken and Grant need. Errors: as
// theirs.
func (s *Service) Enrol(ctx context.Context, e Enrolment) (t account.Token, secret string, err error) {
	draft, err := s.cfg.Accounts.Draft(ctx, e.Token)
	if err != nil {
		return account.Token{}, "", err
	}
	r := GrantRequest{Project: e.In, Spec: project.GrantSpec{Principal: e.Token.For, Role: e.Role}}
	if e.Role != "" {
		if err := s.mayGrant(ctx, r); err != nil {
			return account.Token{}, "", err
		}
	}
	err = s.cfg.DB.Update(ctx, string(e.In), func(ctx context.Context, tx *store.Tx) (err error) {
		if t, secret, err = s.cfg.Accounts.IssueIn(ctx, tx, draft); err != nil || e.Role == "" {
			return err
		}
		_, _, err = s.grantIn(ctx, tx, r)
		return err
	})
	if err != nil {
		return account.Token{}, "", err
	}
	return t, secret, nil
}

// Revoke takes a grant away. Needs member.revoke. Errors: fault.NotFound;
// fault.Conflict for the installation's last administrator.
func (s *Service) Revoke(ctx context.Context, in project.Name, name string) error {
	if err := s.cfg.Authorizer.Allow(ctx, "member.revoke", policy.Object{Project: string(in), Kind: "grant", Name: name}); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(in), func(ctx context.Context, tx *store.Tx) error {
		g, err := s.cfg.Store.Grant(ctx, tx, in, name)
		if err != nil {
			return err
		}
		if err := s.cfg.Store.Remove(ctx, tx, in, name); err != nil {
			return err
		}
		if err := s.keepAdmin(ctx, tx, g); err != nil {
			return err
		}
		return s.record(ctx, tx, "member.revoke", MemberRevoked, "", g)
	})
}

// Members lists a project's grants by name; next is the page token of the
// following page. Needs member.read. The empty project lists those in the
// installation.
func (s *Service) Members(ctx context.Context, in project.Name, pageToken string) (grants []project.Grant, next string, err error) {
	if err := s.cfg.Authorizer.Allow(ctx, "member.read", policy.Object{Project: string(in), Kind: "grant"}); err != nil {
		return nil, "", err
	}
	const page = 200
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		grants, err = s.cfg.Store.Members(ctx, tx, in, pageToken, page+1)
		return err
	})
	if len(grants) > page {
		grants = grants[:page]
		next = grants[page-1].Name
	}
	return grants, next, err
}

// Standing is an account with what it may do, and why.
type Standing struct {
	account.Account
	Groups []string        `json:"groups,omitempty" doc:"Groups at the identity provider, as grants name them"`
	Grants []project.Grant `json:"grants" doc:"Grants to the account and to its groups; principal says to which"`
}

// Standing is an account, named as for account.Resolve, with its groups and grants. Needs
// member.read where the account is; one's own needs none. Error: fault.NotFound.
func (s *Service) Standing(ctx context.Context, in project.Name, ref string) (Standing, error) {
	var out Standing
	who := identity.From(ctx)
	if own := ref == string(who.Kind)+"/"+who.Name && who.Project == "" && in == ""; !own {
		a, err := s.cfg.Accounts.Account(ctx, in, ref)
		if err != nil {
			return out, err
		}
		out.Account = a
	}
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if out.ID == "" {
			if out.Account, err = s.cfg.Accounts.Resolve(ctx, tx, "", who.ID); err != nil {
				return err
			}
		}
		if out.Groups, err = s.cfg.Store.GroupsOf(ctx, tx, out.ID); err != nil {
			return err
		}
		out.Grants, err = s.cfg.Store.GrantsOf(ctx, tx, out.ID)
		return err
	})
	if out.Grants == nil {
		out.Grants = []project.Grant{}
	}
	return out, err
}

// keepAdmin refuses to lose the last administrator, after was is gone.
func (s *Service) keepAdmin(ctx context.Context, tx *store.Tx, was project.Grant) error {
	if was.Project != "" || was.Role != project.Admin {
		return nil
	}
	return s.cfg.Accounts.KeepAdmin(ctx, tx)
}

func (s *Service) record(ctx context.Context, tx *store.Tx, action, name, reason string, g project.Grant) error {
	whose := g.Principal
	if g.From() != "" {
		whose = "" // everybody in it
	}
	tx.OnCommit(func() { s.cfg.Roster.Forget(whose) })
	detail := map[string]any{"principal": g.Principal, "role": g.Role}
	if g.Object != "" {
		detail["object"] = g.Object
	}
	if err := audit.Append(ctx, tx, audit.Entry{Project: string(g.Project), Action: action, Object: "grant " + g.Name, Reason: reason, Detail: detail}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(g.Project), name, g)
}

// grantName is "engineer-usr_01j…", or "engineer-group-keycloak-1a2b3c4d" for a group, with the object's kind and name between
// where there is one, cut to what a name may have.
func grantName(g project.Grant) string {
	who := strings.ToLower(g.Principal)
	if provider, _, ok := project.CutGroup(g.Principal); ok { // whose name may be long, and hardly a name of ours
		sum := sha256.Sum256([]byte(g.Principal))
		who = "group-" + provider[:min(len(provider), 20)] + "-" + hex.EncodeToString(sum[:4])
	}
	if g.Object == "" {
		return string(g.Role) + "-" + who
	}
	object := strings.ReplaceAll(g.Object, "/", "-")
	if room := 63 - len(g.Role) - len(who) - 2; len(object) > room {
		object = strings.TrimRight(object[:room], "-_")
	}
	return string(g.Role) + "-" + object + "-" + who
}
