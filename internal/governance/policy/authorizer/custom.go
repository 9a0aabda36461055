package authorizer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/cedar-policy/cedar-go"

	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
)

// customTTL is how late another process sees a change of policies.
const customTTL = 4 * time.Second

// customSize bounds the projects whose compiled policies are remembered.
const customSize = 1024

type custom struct {
	rules rules
	read  time.Time
}

// customOf is a project's own policies, compiled.
func (s *Service) customOf(ctx context.Context, in project.Name) (rules, error) {
	s.mu.RLock()
	c, ok := s.custom[in]
	generation := s.generation
	s.mu.RUnlock()
	if ok && (time.Since(c.read) < customTTL || s.cfg.DB.Bridges(c.read)) {
		return c.rules, nil
	}
	former := c
	c = custom{read: time.Now()}
	var list []Policy
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = s.cfg.Store.List(ctx, tx, in)
		return err
	})
	if err != nil && ok && s.cfg.DB.Bridges(former.read) {
		return former.rules, nil
	}
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		c.rules = rules{}
	}
	for _, p := range list {
		// A text that was valid when it was applied and is not any more (an
		// action left the list) refuses everything of the project until it is
		// mended: dropping it could drop a forbid.
		sliced, err := s.compile(p.Name, p.Cedar)
		if err != nil {
			return nil, err
		}
		for a, r := range sliced {
			c.rules[a] = append(c.rules[a], r...)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation == generation {
		if len(s.custom) >= customSize {
			clear(s.custom)
		}
		s.custom[in] = c
	}
	return c.rules, nil
}

func (s *Service) forget(in project.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	delete(s.custom, in)
}

// PolicyRequest asks for a policy of a project.
type PolicyRequest struct {
	Project project.Name `json:"project"`
	Name    string       `json:"name"`
	Spec    Spec         `json:"spec"`
	DryRun  bool         `json:"-"`
}

// ApplyPolicy makes or changes a policy of a project. Needs project.update.
// Errors: fault.Invalid or fault.TooLarge for the text, with the line;
// fault.NotFound for the project; fault.Exhausted when the project has too many.
func (s *Service) ApplyPolicy(ctx context.Context, r PolicyRequest) (Policy, project.Change, error) {
	if err := r.Project.Validate(); err != nil {
		return Policy{}, "", err
	}
	if err := s.Allow(ctx, "project.update", policy.Object{Project: string(r.Project), Kind: "policy", Name: r.Name}); err != nil {
		return Policy{}, "", err
	}
	if err := id.CheckName("policy name", r.Name); err != nil {
		return Policy{}, "", err
	}
	if len(r.Spec.Description) > 2000 {
		return Policy{}, "", fault.New(fault.Invalid, "description has %d bytes, at most 2000 are allowed", len(r.Spec.Description))
	}
	if _, err := s.compile(r.Name, r.Spec.Cedar); err != nil {
		return Policy{}, "", err
	}
	if err := s.takesTwo(ctx, r, false); err != nil {
		return Policy{}, "", err
	}
	var p Policy
	var change project.Change
	apply := func(ctx context.Context, tx *store.Tx) error {
		now := s.cfg.Now().UTC().Truncate(time.Microsecond)
		p = Policy{Project: r.Project, Name: r.Name, Spec: r.Spec, UpdatedAt: now, UpdatedBy: identity.From(ctx).ID, Revision: 1}
		change = project.Created
		if err := s.cfg.Roster.Exists(ctx, tx, r.Project); err != nil {
			return err
		}
		was, err := s.cfg.Store.One(ctx, tx, r.Project, r.Name)
		switch {
		case err == nil && was.Spec == r.Spec:
			p, change = was, project.Unchanged
			return nil
		case err == nil:
			p.Revision, change = was.Revision+1, project.Updated
		case !fault.Is(err, fault.NotFound):
			return err
		}
		if change == project.Created {
			all, err := s.cfg.Store.List(ctx, tx, r.Project)
			if err != nil {
				return err
			}
			if len(all) >= maxTexts {
				return fault.New(fault.Exhausted, "project %s has %d policies, at most %d are allowed", r.Project, len(all), maxTexts)
			}
		}
		if r.DryRun {
			return nil
		}
		if err := s.cfg.Store.Put(ctx, tx, p); err != nil {
			return err
		}
		return s.record(ctx, tx, "policy.apply", PolicyApplied, p)
	}
	var err error
	if r.DryRun {
		err = s.cfg.DB.View(ctx, apply)
	} else {
		err = s.cfg.DB.Update(ctx, string(r.Project), apply)
	}
	if err != nil {
		return Policy{}, "", err
	}
	return p, change, nil
}

// change is what is kept of a policy's change until another person approves it.
type change struct {
	PolicyRequest
	Delete bool  `json:"delete,omitempty"`
	Base   int64 `json:"base"` // revision of the policy that both people saw; 0: there was none
}

// takesTwo refuses a change that permits more, or forbids less, until another person has
// approved it.
func (s *Service) takesTwo(ctx context.Context, r PolicyRequest, remove bool) error {
	if s.two == nil || r.DryRun {
		return nil
	}
	var was Policy
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		was, err = s.cfg.Store.One(ctx, tx, r.Project, r.Name)
		return err
	})
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if was.Cedar == r.Spec.Cedar || !s.has(was, cedar.Forbid) && (remove || !s.has(Policy{Name: r.Name, Spec: r.Spec}, cedar.Permit)) {
		return nil
	}
	what := "change"
	if remove {
		what = "remove"
	}
	return s.two.Ask(ctx, policy.Act{
		Kind: "policy", Action: "project.update", Object: policy.Object{Project: string(r.Project), Kind: "policy", Name: r.Name},
		Summary: what + " policy " + r.Name + ", which could permit more than now", Payload: change{r, remove, was.Revision},
		Change: "now:\n" + was.Cedar + "\nthen:\n" + r.Spec.Cedar,
	})
}

// has reports whether a policy has a rule of the effect; a text that does not compile has.
func (s *Service) has(p Policy, effect cedar.Effect) bool {
	if p.Cedar == "" {
		return false
	}
	rules, err := s.compile(p.Name, p.Cedar)
	if err != nil {
		return true
	}
	for _, list := range rules {
		if slices.ContainsFunc(list, func(r rule) bool { return r.Effect() == effect }) {
			return true
		}
	}
	return false
}

// approved changes a policy as a second person has approved.
func (s *Service) approved(ctx context.Context, payload []byte) error {
	var c change
	if err := json.Unmarshal(payload, &c); err != nil {
		return err
	}
	var now Policy
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		now, err = s.cfg.Store.One(ctx, tx, c.Project, c.Name)
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound) && c.Delete:
		return nil // it was removed before, as by this request before a crash
	case err != nil && !fault.Is(err, fault.NotFound):
		return err
	case !c.Delete && err == nil && now.Spec == c.Spec:
		return nil
	case now.Revision != c.Base:
		return fault.New(fault.Conflict, "policy %s was changed meanwhile", c.Name).WithHint("Read it again and apply your change to the current version.")
	case c.Delete:
		return s.DeletePolicy(ctx, c.Project, c.Name)
	}
	_, _, err = s.ApplyPolicy(ctx, c.PolicyRequest)
	return err
}

// DeletePolicy removes a policy of a project. Needs project.update. Error:
// fault.NotFound.
func (s *Service) DeletePolicy(ctx context.Context, in project.Name, name string) error {
	if err := s.Allow(ctx, "project.update", policy.Object{Project: string(in), Kind: "policy", Name: name}); err != nil {
		return err
	}
	if err := s.takesTwo(ctx, PolicyRequest{Project: in, Name: name}, true); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(in), func(ctx context.Context, tx *store.Tx) error {
		p, err := s.cfg.Store.One(ctx, tx, in, name)
		if err != nil {
			return err
		}
		if err := s.cfg.Store.Delete(ctx, tx, in, name); err != nil {
			return err
		}
		return s.record(ctx, tx, "policy.delete", PolicyDeleted, p)
	})
}

// Policies lists a project's policies by name. Needs project.read.
func (s *Service) Policies(ctx context.Context, in project.Name) (list []Policy, err error) {
	if err := s.Allow(ctx, "project.read", policy.Object{Project: string(in), Kind: "policy"}); err != nil {
		return nil, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		list, err = s.cfg.Store.List(ctx, tx, in)
		return err
	})
	return list, err
}

// Policy is one policy of a project. Needs project.read. Error: fault.NotFound.
func (s *Service) Policy(ctx context.Context, in project.Name, name string) (p Policy, err error) {
	if err := s.Allow(ctx, "project.read", policy.Object{Project: string(in), Kind: "policy", Name: name}); err != nil {
		return Policy{}, err
	}
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		p, err = s.cfg.Store.One(ctx, tx, in, name)
		return err
	})
	return p, err
}

// Contents implements tenancy.Contents: policies go with their project, on
// record, so they never keep it from being deleted.
func (s *Service) Contents(ctx context.Context, tx *store.Tx, in project.Name) (string, error) {
	list, err := s.cfg.Store.List(ctx, tx, in)
	if err != nil {
		return "", err
	}
	for _, p := range list {
		if err := s.cfg.Store.Delete(ctx, tx, in, p.Name); err != nil {
			return "", err
		}
		if err := s.record(ctx, tx, "policy.delete", PolicyDeleted, p); err != nil {
			return "", err
		}
	}
	return "", nil
}

func (s *Service) record(ctx context.Context, tx *store.Tx, action, name string, p Policy) error {
	tx.OnCommit(func() { s.forget(p.Project) })
	digest := sha256.Sum256([]byte(p.Cedar))
	err := audit.Append(ctx, tx, audit.Entry{Project: string(p.Project), Action: action, Object: "policy " + p.Name, Detail: map[string]any{
		"sha256": hex.EncodeToString(digest[:]), "revision": p.Revision, "cedar": p.Cedar,
	}})
	if err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(p.Project), name, p)
}
