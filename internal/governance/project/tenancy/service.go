// Package tenancy is the service of projects: it makes and deletes them and
// gives and takes roles.
//
// # Map
//
//   - service.go: projects. members.go: grants.
//   - roster.go: the cached answer to "which roles has X", for policy.
//   - store.go, events.go: what it needs of a database, what it tells others.
//
// # Guarantees
//
// A project is listed exactly for those who may read it. A project with
// anything in it is not deleted; deleting one ends the tokens bound to it, and no
// other project gets its name. The installation always keeps an administrator. A changed role counts at once in
// this process and within 5 s in others.
package tenancy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// Authorizer is asked before projects and members are shown or changed.
type Authorizer interface {
	Allow(ctx context.Context, action policy.Action, object policy.Object) error
}

// Config says what the service works with.
type Config struct {
	DB         *store.DB
	Store      Store
	Roster     *Roster
	Authorizer Authorizer
	Accounts   Accounts
	Zones      Zones
	TwoPeople  policy.TwoPeople // says when a grant takes two people; nil: never
	// Contents are asked before a project is deleted; see also Register.
	Contents []Contents
	// Provider reports whether an identity provider of the name is configured; nil: none is.
	Provider func(name string) bool
	Now      func() time.Time // default time.Now
}

// Service keeps projects and grants. Safe for concurrent use.
type Service struct {
	cfg Config

	mu       sync.Mutex
	contents []Contents
}

// New makes the service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{cfg: cfg, contents: slices.Clone(cfg.Contents)}
	if cfg.TwoPeople != nil {
		cfg.TwoPeople.Register("grant", s.approved)
	}
	return s
}

// Register adds a domain that may hold something of a project.
func (s *Service) Register(c Contents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contents = append(s.contents, c)
}

// Request is a manifest of kind Project.
type Request struct {
	Name project.Name
	Spec project.Spec
	// IfRevision refuses the change when the project has another revision; 0
	// does not look.
	IfRevision int64
	DryRun     bool // say what would happen, change nothing

	quota bool // it may be changed
}

// Apply makes the project as the manifest says. Making one needs project.create
// in the installation, changing one project.update. Errors: fault.Invalid;
// fault.Conflict for another revision.
func (s *Service) Apply(ctx context.Context, r Request) (project.Project, project.Change, error) {
	if err := r.Name.Validate(); err != nil {
		return project.Project{}, "", err
	}
	object := policy.Object{Project: string(r.Name), Kind: "project", Name: string(r.Name)}
	now, err := s.now(ctx, r.Name)
	create := fault.Is(err, fault.NotFound)
	if !create {
		err := s.cfg.Authorizer.Allow(ctx, "project.update", object)
		// Who may not know of the project hears what they would hear of any name.
		create = fault.Is(err, fault.NotFound)
		if err != nil && !create {
			return project.Project{}, "", err
		}
	}
	if create {
		object.Project = ""
		if err := s.cfg.Authorizer.Allow(ctx, "project.create", object); err != nil {
			return project.Project{}, "", err
		}
	}
	if err := r.Spec.Validate(); err != nil {
		return project.Project{}, "", err
	}
	if !create && r.Spec.Quota != now.Quota {
		// A project's own administrators keep within it.
		err := s.cfg.Authorizer.Allow(ctx, "project.quota", policy.Object{Kind: "project", Name: string(r.Name)})
		if err != nil {
			return project.Project{}, "", fault.Wrap(err, "spec.quota differs from that of project %s", r.Name)
		}
		r.quota = true
	}
	r.Spec = r.Spec.Complete()

	var p project.Project
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) (err error) {
		if err := s.cfg.Zones.Known(ctx, tx, r.Spec.Residency); err != nil {
			return err
		}
		p, change, err = s.plan(ctx, tx, r)
		if err != nil || change == project.Unchanged || r.DryRun {
			return err
		}
		if change == project.Created {
			if !create {
				return fault.New(fault.Conflict, "project %s was deleted meanwhile", r.Name).WithHint("Apply it again.")
			}
			err = s.cfg.Store.Insert(ctx, tx, p)
		} else {
			if create {
				return fault.New(fault.Conflict, "project %s was created meanwhile", r.Name).WithHint("Apply it again.")
			}
			err = s.cfg.Store.Update(ctx, tx, p)
		}
		if err != nil {
			return err
		}
		action, name := "project.update", ProjectUpdated
		if change == project.Created {
			action, name = "project.create", ProjectCreated
		}
		err = audit.Append(ctx, tx, audit.Entry{Project: string(p.Name), Action: action, Object: "project " + string(p.Name), Detail: map[string]any{
			"residency": p.Residency.Zones(), "classification": p.Classification, "quota": p.Quota, "revision": p.Revision,
		}})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(p.Name), name, p)
	}
	if r.DryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Name), apply)
	}
	if err != nil {
		return project.Project{}, "", err
	}
	return p, change, nil
}

// now is a project as it is. Error: fault.NotFound.
func (s *Service) now(ctx context.Context, name project.Name) (p project.Project, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.cfg.Store.One(ctx, tx, name)
		return err
	})
	return p, err
}

// Quota is how much a project may store, for who stores it; of a project that is no more
// there is no limit.
func (s *Service) Quota(ctx context.Context, name project.Name) (project.Quota, error) {
	p, err := s.now(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return project.Quota{}, nil
	}
	return p.Quota, err
}

// ReachQuota records that something was refused at a quota of the project: QuotaReached, and an audit
// entry. Of a project that is no more it does nothing.
func (s *Service) ReachQuota(ctx context.Context, r ReachedQuota) error {
	return s.cfg.DB.Update(ctx, string(r.Project), func(ctx context.Context, tx *store.Tx) error {
		if _, err := s.cfg.Store.One(ctx, tx, r.Project); err != nil {
			if fault.Is(err, fault.NotFound) {
				return nil
			}
			return err
		}
		err := audit.Append(ctx, tx, audit.Entry{
			Actor: identity.Loop("quota"), Project: string(r.Project), Action: QuotaReached, Object: "project " + string(r.Project),
			Detail: map[string]any{"kind": r.Kind, "quota": r.Quota, "stored_bytes": r.StoredBytes, "stored_objects": r.StoredObjects},
		})
		if err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(r.Project), QuotaReached, r)
	})
}

// plan is the project as it will be, and what that changes.
func (s *Service) plan(ctx context.Context, tx *store.Tx, r Request) (project.Project, project.Change, error) {
	now := s.cfg.Now().UTC().Truncate(time.Microsecond)
	p, err := s.cfg.Store.One(ctx, tx, r.Name)
	if fault.Is(err, fault.NotFound) {
		if r.IfRevision != 0 {
			return p, "", fault.New(fault.Conflict, "project %s does not exist, revision %d was expected", r.Name, r.IfRevision)
		}
		at, err := s.cfg.Store.Buried(ctx, tx, r.Name)
		if err != nil {
			return p, "", err
		}
		if !at.IsZero() {
			return p, "", fault.New(fault.Conflict, "project %s was deleted on %s, and its name cannot be used again", r.Name, at.Format(time.DateOnly)).
				WithHint("Records of the old project keep its name. Choose another one.")
		}
		return project.Project{
			Name: r.Name, DisplayName: r.Spec.DisplayName, Description: r.Spec.Description, Residency: r.Spec.Residency,
			Classification: r.Spec.Classification, Quota: r.Spec.Quota, CreatedAt: now, CreatedBy: identity.From(ctx).ID, UpdatedAt: now, Revision: 1,
		}, project.Created, nil
	}
	if err != nil {
		return p, "", err
	}
	if r.IfRevision != 0 && r.IfRevision != p.Revision {
		return p, "", fault.New(fault.Conflict, "project %s has revision %d, not %d", r.Name, p.Revision, r.IfRevision).
			WithHint("Read it again and apply your change to the current version.")
	}
	was := p.Spec()
	if was.Quota != r.Spec.Quota && !r.quota {
		return p, "", fault.New(fault.Conflict, "the quota of project %s was changed meanwhile", p.Name).WithHint("Read it again and apply your change to the current version.")
	}
	if was.Quota == r.Spec.Quota && was.DisplayName == r.Spec.DisplayName && was.Description == r.Spec.Description &&
		was.Classification == r.Spec.Classification && was.Residency.Same(r.Spec.Residency) {
		return p, project.Unchanged, nil
	}
	if project.Strictest(was.Classification, r.Spec.Classification) != r.Spec.Classification && was.Classification.Journalled() {
		return p, "", fault.New(fault.PermissionDenied, "project %s is %s, and the manifest says %s", p.Name, was.Classification, r.Spec.Classification).
			WithHint("Lowering a classification takes two people and a reason: POST /api/v1/projects/%s/widenings with kind project.", p.Name)
	}
	p.DisplayName, p.Description, p.Residency, p.Classification = r.Spec.DisplayName, r.Spec.Description, r.Spec.Residency, r.Spec.Classification
	p.Quota = r.Spec.Quota
	p.UpdatedAt = now
	p.Revision++
	return p, project.Updated, nil
}

// One is a project. Needs project.read. Error: fault.NotFound.
func (s *Service) One(ctx context.Context, name project.Name) (p project.Project, err error) {
	if err := name.Validate(); err != nil {
		return p, err
	}
	if err := s.cfg.Authorizer.Allow(ctx, "project.read", policy.Object{Project: string(name), Kind: "project", Name: string(name)}); err != nil {
		return p, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.cfg.Store.One(ctx, tx, name)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		err = project.Unknown(string(name))
	}
	return p, err
}

// List lists the projects that the caller may read, by name; next is the page
// token of the following page. It refuses no caller: without readable projects the list is empty.
func (s *Service) List(ctx context.Context, pageSize int, pageToken string) (projects []project.Project, next string, err error) {
	v, none := visible(identity.From(ctx))
	if none {
		return nil, "", nil
	}
	if pageSize <= 0 {
		pageSize = 100
	}
	pageSize = min(pageSize, 1000)
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		projects, err = s.cfg.Store.List(ctx, tx, v, project.Name(pageToken), pageSize+1)
		return err
	})
	if len(projects) > pageSize {
		projects = projects[:pageSize]
		next = string(projects[pageSize-1].Name)
	}
	return projects, next, err
}

// visible is project.read as a condition on rows. It must say what policy
// says; TestListedIsAllowed holds the two together.
func visible(p identity.Principal) (v Visible, none bool) {
	if p.ID == "" {
		return v, true
	}
	v.Only = p.Project
	switch p.Kind {
	case identity.System:
		return v, false
	case identity.User, identity.Service:
		v.Member = p.ID
	case identity.Attempt:
		none = p.Project == ""
	default:
		return v, true
	}
	if p.Narrowed() {
		names, every := p.Objects("project.read")
		if !every {
			v.Names = names
			none = none || len(names) == 0
		}
	}
	return v, none
}

// Delete removes an empty project with its grants, service accounts and tokens.
// Its name is not given to another one: records, events and what is left in
// backups bear it. Needs project.delete. Errors: fault.NotFound; fault.Conflict naming what is
// left in it.
func (s *Service) Delete(ctx context.Context, name project.Name) error {
	if err := name.Validate(); err != nil {
		return err
	}
	if err := s.cfg.Authorizer.Allow(ctx, "project.delete", policy.Object{Project: string(name), Kind: "project", Name: string(name)}); err != nil {
		return err
	}
	s.mu.Lock()
	contents := slices.Clone(s.contents)
	s.mu.Unlock()
	return s.cfg.DB.Update(ctx, string(name), func(ctx context.Context, tx *store.Tx) error {
		p, err := s.cfg.Store.One(ctx, tx, name)
		if err != nil {
			return err
		}
		var left []string
		for _, c := range contents {
			what, err := c.Contents(ctx, tx, name)
			if err != nil {
				return err
			}
			if what != "" {
				left = append(left, what)
			}
		}
		if len(left) > 0 {
			return fault.New(fault.Conflict, "project %s still holds %s", name, strings.Join(left, ", ")).
				WithHint("Delete these first.")
		}
		if err := s.cfg.Accounts.RevokeBoundIn(ctx, tx, name); err != nil {
			return err
		}
		if err := s.revokeAll(ctx, tx, name); err != nil {
			return err
		}
		if err := s.cfg.Store.Delete(ctx, tx, name, s.cfg.Now().UTC(), identity.From(ctx).ID); err != nil {
			return err
		}
		tx.OnCommit(func() { s.cfg.Roster.Forget("") })
		if err := audit.Append(ctx, tx, audit.Entry{Project: string(name), Action: "project.delete", Object: "project " + string(name)}); err != nil {
			return err
		}
		return event.Publish(ctx, tx, string(name), ProjectDeleted, p)
	})
}

// revokeAll puts on record that the project's grants go with it.
func (s *Service) revokeAll(ctx context.Context, tx *store.Tx, in project.Name) error {
	for after := ""; ; {
		grants, err := s.cfg.Store.Members(ctx, tx, in, after, 500)
		if err != nil || len(grants) == 0 {
			return err
		}
		for _, g := range grants {
			if err := s.record(ctx, tx, "member.revoke", MemberRevoked, "project deleted", g); err != nil {
				return err
			}
		}
		after = grants[len(grants)-1].Name
	}
}
