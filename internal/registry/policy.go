package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionGovern changes what is asked of models; ActionApprove says that a version is
// good, or is not.
const (
	ActionGovern  policy.Action = "model.govern"
	ActionApprove policy.Action = "model.approve"
)

// DefaultPolicy is the name of the policy of models that have none of their own.
const DefaultPolicy = "default"

// PolicySpec is what is asked of a model's versions, as a manifest of kind ModelPolicy
// says it.
type PolicySpec struct {
	Description string    `json:"description,omitempty" doc:"Description, at most 2000 characters"`
	Content     string    `json:"content,omitempty" doc:"Highest risk allowed for loading a version's files: data, known (pickles that import only well-known libraries), unknown, code, or any; default code"`
	Signers     []string  `json:"signers,omitempty" doc:"Public keys, PEM; a version must have a file model.sig, a signature of its files by one of them"`
	SignedAs    string    `json:"signed_as,omitempty" doc:"With signers: the model name that the signature must contain, which is the name of the signed folder; empty: any name, so a signature for another of their models also passes"`
	Promotion   Promotion `json:"promotion,omitzero" doc:"Requirements of a version before promotion"`
}

// Promotion is what a version needs before a protected alias or stage names it, or it
// takes traffic.
type Promotion struct {
	Approvals int      `json:"approvals,omitempty" doc:"Number of people, other than the authors, who must approve the version; at most 10"`
	Gates     []string `json:"gates,omitempty" doc:"Conditions on the metrics of the version's run, such as metrics.auc >= 0.8 or metrics.auc >= champion - 0.01"`
	Aliases   []string `json:"aliases,omitempty" doc:"Aliases that need this; default champion"`
	Stages    []string `json:"stages,omitempty" doc:"Stages that need this; default Production"`
	Traffic   *bool    `json:"traffic,omitempty" doc:"Whether deployments also require this before they serve the version; default true"`
}

// ModelPolicy is a stored PolicySpec.
type ModelPolicy struct {
	Project   project.Name `json:"project"`
	Name      string       `json:"name" doc:"Name of the model, or default"`
	Spec      PolicySpec   `json:"spec"`
	Revision  int64        `json:"revision"`
	UpdatedAt time.Time    `json:"updated_at"`
	UpdatedBy string       `json:"updated_by"`
}

// champion is the alias that gates compare with.
const champion = "champion"

const maxGates, maxSigners, maxProtected, maxApprovals = 20, 20, 20, 10

// Validate refuses a policy that could not be held.
func (s PolicySpec) Validate() error {
	if err := checkText("description", s.Description, 2000); err != nil {
		return err
	}
	if _, ok := scan.ParseLevel(s.Content); s.Content != "" && s.Content != "any" && (!ok || s.Content == string(scan.Danger)) {
		return fault.New(fault.Invalid, "spec.content is %.40q, which is not a content level", s.Content).WithHint("Write data, known, unknown, code or any.")
	}
	p := s.Promotion
	switch {
	case len(s.Signers) > maxSigners, len(p.Gates) > maxGates, len(p.Aliases) > maxProtected, len(p.Stages) > maxProtected:
		return fault.New(fault.TooLarge, "a policy may have at most %d signers, gates, aliases and stages each", maxGates)
	case p.Approvals < 0 || p.Approvals > maxApprovals:
		return fault.New(fault.Invalid, "spec.promotion.approvals is %d, and must be 0 to %d", p.Approvals, maxApprovals)
	}
	if err := checkText("spec.signed_as", s.SignedAs, MaxName); err != nil {
		return err
	}
	if s.SignedAs != "" && len(s.Signers) == 0 {
		return fault.New(fault.Invalid, "spec.signed_as requires spec.signers")
	}
	for i, key := range s.Signers {
		if _, err := parsePublic(key); err != nil {
			return fault.Wrap(err, "spec.signers[%d]", i)
		}
	}
	for i, text := range p.Gates {
		if _, err := parseGate(text); err != nil {
			return fault.Wrap(err, "spec.promotion.gates[%d]", i)
		}
	}
	for _, a := range p.Aliases {
		if err := checkAlias(a); err != nil {
			return err
		}
	}
	for _, text := range p.Stages {
		if _, err := ParseStage(text); err != nil {
			return err
		}
	}
	return nil
}

// accepts is the most that loading a version's files may do.
func (s PolicySpec) accepts() scan.Level {
	switch s.Content {
	case "":
		return scan.Code
	case "any":
		return scan.Danger
	}
	return scan.Level(s.Content)
}

// asks is whether a version needs anything before it counts.
func (p Promotion) asks() bool { return p.Approvals > 0 || len(p.Gates) > 0 }

// compares is whether a gate compares with the champion.
func (p Promotion) compares() bool {
	return slices.ContainsFunc(p.Gates, func(text string) bool {
		g, err := parseGate(text)
		return err == nil && g.champion != ""
	})
}

// protected are the aliases that need what is asked. The champion is one of them where
// gates compare with it, for a bad one would let anything pass.
func (p Promotion) protected() []string {
	out := orDefault(p.Aliases, champion)
	if p.compares() && !slices.Contains(out, champion) {
		out = append(slices.Clip(out), champion)
	}
	return out
}

// keepsChampion refuses to take a model's champion away where gates compare with it, for
// without one they let anything pass, unless the caller says what is asked of models.
func (s *Service) keepsChampion(ctx context.Context, tx *store.Tx, m Model) error {
	if m.aliased(champion) == 0 {
		return nil
	}
	asked, err := s.policyOf(ctx, tx, m.Project, m.Name)
	if err != nil || !asked.Spec.Promotion.compares() {
		return err
	}
	if s.authz.Allow(ctx, ActionGovern, policyObject(m.Project, asked.Name)) == nil {
		return nil
	}
	return audit.OnRecord(fault.New(fault.PermissionDenied, "policy %s compares versions with the champion of model %s, so removing the champion requires the permission %s", asked.Name, m.Name, ActionGovern).
		WithHint("Move the alias %s to another version, or ask a user with that permission.", champion))
}

func checkPolicyName(name string) error {
	if err := CheckName(name); err != nil {
		return fault.Wrap(err, "the name of a model policy must be the model's name or %s", DefaultPolicy)
	}
	return nil
}

func policyObject(p project.Name, name string) policy.Object {
	return policy.Object{Project: string(p), Kind: "model policy", Name: clip(name)}
}

// ApplyPolicy sets what is asked of a model's versions, or, by the name DefaultPolicy, of
// those of all models of the project that have no policy of their own. It holds for what
// is registered and promoted from then on. Errors: fault.Invalid; fault.TooLarge.
func (s *Service) ApplyPolicy(ctx context.Context, p project.Name, name string, spec PolicySpec, dryRun bool) (ModelPolicy, project.Change, error) {
	if err := s.authz.Allow(ctx, ActionGovern, policyObject(p, name)); err != nil {
		return ModelPolicy{}, "", err
	}
	if err := checkPolicyName(name); err != nil {
		return ModelPolicy{}, "", err
	}
	if err := spec.Validate(); err != nil {
		return ModelPolicy{}, "", err
	}
	base := int64(-1)
	if !dryRun {
		var err error
		if base, err = s.takesTwo(ctx, p, name, &spec); err != nil {
			return ModelPolicy{}, "", err
		}
	}
	var now ModelPolicy
	change := project.Unchanged
	apply := func(ctx context.Context, tx *store.Tx) error {
		old, err := s.store.Policy(ctx, tx, p, name)
		switch {
		case fault.Is(err, fault.NotFound):
			change = project.Created
		case err != nil:
			return err
		case sameSpec(old.Spec, spec):
			now, change = old, project.Unchanged
			return nil
		default:
			change = project.Updated
		}
		if base >= 0 && old.Revision != base {
			return changedMeanwhile(name)
		}
		now = ModelPolicy{Project: p, Name: name, Spec: spec, Revision: old.Revision + 1, UpdatedAt: s.now(), UpdatedBy: identity.From(ctx).ID}
		if dryRun {
			return nil
		}
		if err := s.store.PutPolicy(ctx, tx, now); err != nil {
			return err
		}
		return s.audit(ctx, tx, ActionGovern, p, "model policy "+name, map[string]any{"act": string(change), "from": old.Spec, "to": spec})
	}
	var err error
	if dryRun {
		err = s.db.View(ctx, apply)
	} else {
		err = s.db.Update(ctx, string(p), apply)
	}
	return now, change, err
}

// policyChange is what is kept of a looser policy until another person approves it.
type policyChange struct {
	Project project.Name `json:"project"`
	Name    string       `json:"name"`
	Spec    *PolicySpec  `json:"spec,omitempty"` // nil: removed
	Base    int64        `json:"base"`           // revision of the policy that both people saw; 0: there was none
}

func changedMeanwhile(name string) error {
	return fault.New(fault.Conflict, "model policy %s was changed by another request", name).WithHint("Read the current policy, and apply your change to it.")
}

// takesTwo refuses a policy that asks for less than the one that counts now, until another
// person who may govern or approve models has approved it. It gives the revision of the
// policy that it looked at, 0 where there is none, and -1 where it did not look.
func (s *Service) takesTwo(ctx context.Context, p project.Name, name string, spec *PolicySpec) (base int64, err error) {
	if s.two == nil {
		return -1, nil
	}
	var less []string
	var was ModelPolicy
	var next PolicySpec
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if was, err = s.policyOf(ctx, tx, p, name); err != nil {
			return err
		}
		if was.Name == name {
			base = was.Revision
		}
		next = PolicySpec{}
		switch {
		case spec != nil:
			next = *spec
		case was.Name != name: // there is none of that name
			return nil
		case name != DefaultPolicy:
			d, err := s.store.Policy(ctx, tx, p, DefaultPolicy)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			next = d.Spec
		}
		less = was.Spec.less(next)
		return nil
	})
	if err != nil || len(less) == 0 {
		return base, err
	}
	return base, s.two.Ask(ctx, policy.Act{
		Kind: "model policy", Action: ActionGovern, Approve: []policy.Action{ActionGovern, ActionApprove}, Object: policyObject(p, name),
		Summary: "model policy " + name + " is relaxed: " + strings.Join(less, "; "), Payload: policyChange{p, name, spec, base},
		Change: "now: " + textOf(was.Spec) + "\nthen: " + textOf(next),
	})
}

func textOf(s PolicySpec) string {
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// less says what a policy asks for that another one does not.
func (s PolicySpec) less(next PolicySpec) (out []string) {
	missing := func(what string, was, now []string) {
		for _, w := range was {
			if !slices.Contains(now, w) {
				out = append(out, what+" "+clip(w)+" is removed")
			}
		}
	}
	if next.accepts().Over(s.accepts()) {
		out = append(out, fmt.Sprintf("content changes from %s to %s", cmp.Or(s.Content, string(scan.Code)), cmp.Or(next.Content, string(scan.Code))))
	}
	switch {
	case len(s.Signers) > 0 && len(next.Signers) == 0:
		out = append(out, "no signature is required")
	case len(s.Signers) > 0:
		for _, key := range next.Signers {
			if !slices.Contains(s.Signers, key) {
				out = append(out, "signer "+fingerprint(key)+" is added")
			}
		}
		if s.SignedAs != "" && next.SignedAs != s.SignedAs {
			out = append(out, fmt.Sprintf("signed_as changes from %s to %s", clip(s.SignedAs), cmp.Or(clip(next.SignedAs), "anything")))
		}
	}
	was, now := s.Promotion, next.Promotion
	if !was.asks() {
		return out
	}
	if now.Approvals < was.Approvals {
		out = append(out, fmt.Sprintf("approvals decrease from %d to %d", was.Approvals, now.Approvals))
	}
	missing("gate", was.Gates, now.Gates) // also one that a stricter gate replaces: people compare them
	missing("protected alias", was.protected(), now.protected())
	missing("protected stage", orDefault(was.Stages, string(StageProduction)), orDefault(now.Stages, string(StageProduction)))
	if (was.Traffic == nil || *was.Traffic) && now.Traffic != nil && !*now.Traffic {
		out = append(out, "deployments no longer require clearance")
	}
	return out
}

// approvedPolicy sets or removes a policy as a second person has approved.
func (s *Service) approvedPolicy(ctx context.Context, payload []byte) error {
	var c policyChange
	if err := json.Unmarshal(payload, &c); err != nil {
		return err
	}
	var now ModelPolicy
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		now, err = s.store.Policy(ctx, tx, c.Project, c.Name)
		return err
	})
	switch {
	case fault.Is(err, fault.NotFound) && c.Spec == nil:
		return nil // it was removed before, as by this request before a crash
	case err != nil && !fault.Is(err, fault.NotFound):
		return err
	case c.Spec != nil && err == nil && sameSpec(now.Spec, *c.Spec):
		return nil
	case now.Revision != c.Base:
		return changedMeanwhile(c.Name)
	case c.Spec == nil:
		return s.DeletePolicy(ctx, c.Project, c.Name)
	}
	_, _, err = s.ApplyPolicy(ctx, c.Project, c.Name, *c.Spec, false)
	return err
}

func sameSpec(a, b PolicySpec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// DeletePolicy removes a policy. Error: fault.NotFound.
func (s *Service) DeletePolicy(ctx context.Context, p project.Name, name string) error {
	if err := s.authz.Allow(ctx, ActionGovern, policyObject(p, name)); err != nil {
		return err
	}
	base, err := s.takesTwo(ctx, p, name, nil)
	if err != nil {
		return err
	}
	return s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		old, err := s.store.Policy(ctx, tx, p, name)
		if err != nil {
			return err
		}
		if base >= 0 && old.Revision != base {
			return changedMeanwhile(name)
		}
		if err := s.store.DeletePolicy(ctx, tx, p, name); err != nil {
			return err
		}
		return s.audit(ctx, tx, ActionGovern, p, "model policy "+name, map[string]any{"act": "delete", "from": old.Spec})
	})
}

// Policies lists a project's policies by name.
func (s *Service) Policies(ctx context.Context, p project.Name) (all []ModelPolicy, err error) {
	if err := s.authz.Allow(ctx, ActionRead, policyObject(p, "")); err != nil {
		return nil, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = s.store.Policies(ctx, tx, p)
		return err
	})
	return all, err
}

// Policy is one policy by its name. Error: fault.NotFound.
func (s *Service) Policy(ctx context.Context, p project.Name, name string) (out ModelPolicy, err error) {
	if err := s.authz.Allow(ctx, ActionRead, policyObject(p, name)); err != nil {
		return out, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out, err = s.store.Policy(ctx, tx, p, name)
		return err
	})
	return out, err
}

// policyOf is what is asked of a model's versions: its own policy, else the project's
// default, else nothing.
func (s *Service) policyOf(ctx context.Context, tx *store.Tx, p project.Name, model string) (ModelPolicy, error) {
	for _, name := range []string{model, DefaultPolicy} {
		out, err := s.store.Policy(ctx, tx, p, name)
		if err == nil || !fault.Is(err, fault.NotFound) {
			return out, err
		}
	}
	return ModelPolicy{Project: p}, nil
}

// renamePolicy takes a model's own policy along, which is for who may set policies: the
// old name would be free for a model of which nothing is asked, and the new one may be of
// whose models more is asked. Errors: fault.PermissionDenied; fault.Conflict when the new
// name has a policy.
func (s *Service) renamePolicy(ctx context.Context, tx *store.Tx, p project.Name, from, to string) error {
	old, err := s.store.Policy(ctx, tx, p, from)
	if fault.Is(err, fault.NotFound) || from == DefaultPolicy {
		// Without one of its own it must not slip under another's.
		_, err = s.store.Policy(ctx, tx, p, to)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err == nil && to == DefaultPolicy {
			return nil
		}
	} else if err == nil {
		_, err = s.store.Policy(ctx, tx, p, to)
		if fault.Is(err, fault.NotFound) {
			if err := s.authz.Allow(ctx, ActionGovern, policyObject(p, from)); err != nil {
				return fault.Wrap(err, "model %s has its own policy, which a rename would move", from)
			}
			if err := s.store.DeletePolicy(ctx, tx, p, from); err != nil {
				return err
			}
			old.Name = to
			return s.store.PutPolicy(ctx, tx, old)
		}
	}
	if err != nil {
		return err
	}
	return fault.New(fault.Conflict, "model policy %s already exists", to).WithHint("Ask a user with permission to govern models to delete one of the two policies.")
}

// fingerprint is the beginning of the SHA-256 of a public key, in hexadecimal.
func fingerprint(key string) string {
	sum := sha256.Sum256([]byte(strings.TrimSpace(key)))
	return hex.EncodeToString(sum[:8])
}
