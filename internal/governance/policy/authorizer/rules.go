package authorizer

import (
	_ "embed"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go"
	cedarast "github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

//go:embed policies.cedar
var builtin []byte

// rule is one compiled policy.
type rule struct {
	id      cedar.PolicyID
	because string // why it refuses, for people
	*cedar.Policy
}

// rules is some policies by the action they are about, because Cedar evaluates
// every policy that it is given.
type rules map[policy.Action][]rule

// slice is what one request is judged by.
type slice struct{ builtin, project []rule }

// All implements cedar.PolicyIterator.
func (s slice) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, r := range s.builtin {
			if !yield(r.id, r.Policy) {
				return
			}
		}
		for _, r := range s.project {
			if !yield(r.id, r.Policy) {
				return
			}
		}
	}
}

func (s slice) find(id cedar.PolicyID) rule {
	for _, list := range [][]rule{s.builtin, s.project} {
		for _, r := range list {
			if r.id == id {
				return r
			}
		}
	}
	return rule{}
}

// groups are the action groups of an action: the roles that have it and the
// flags that it carries.
func groups(d policy.Definition) []string {
	var names []string
	for _, r := range d.Roles {
		names = append(names, string(r))
	}
	for name, set := range map[string]bool{"own": d.Own, "attempt": d.Attempt, "data": d.Data, "contents": d.Data || d.Contents, "common": d.Common} {
		if set {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

var allGroups = func() []string {
	names := []string{"own", "attempt", "data", "contents", "common"}
	for _, r := range project.Roles {
		names = append(names, string(r))
	}
	return names
}()

const (
	typeAction = cedar.EntityType("Action")
	typeRole   = cedar.EntityType("Role")
	typeObject = cedar.EntityType("Object")
)

func actionUID(name string) cedar.EntityUID {
	return cedar.NewEntityUID(typeAction, cedar.String(name))
}

// schemaText is what policies may speak of. Every attribute is always there, so
// no condition fails for want of one.
func schemaText() string {
	var b strings.Builder
	b.WriteString(`entity Role;
entity User, Service, Attempt, System in [Role] { id: String, name: String, project: String };
entity Object { project: String, kind: String, name: String, owner: String, classification: String, residency: Set<String> };
`)
	for _, g := range allGroups {
		fmt.Fprintf(&b, "action %q;\n", g)
	}
	for _, d := range policy.Actions() {
		fmt.Fprintf(&b, "action %q in [", d.Action)
		for i, g := range groups(d) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%q", g)
		}
		b.WriteString("] appliesTo { principal: [User, Service, Attempt, System], resource: Object, context: { contents: Bool, gate: Bool, member: Bool, scoped: Bool, named: Bool } };\n")
	}
	return b.String()
}

func newValidator() (*validate.Validator, error) {
	var s schema.Schema
	if err := s.UnmarshalCedar([]byte(schemaText())); err != nil {
		return nil, err
	}
	resolved, err := s.Resolve()
	if err != nil {
		return nil, err
	}
	return validate.New(resolved), nil
}

// compileBuiltin slices the policies of every installation.
func compileBuiltin() (rules, error) {
	list, err := cedar.NewPolicyListFromBytes("policies.cedar", builtin)
	if err != nil {
		return nil, err
	}
	sliced := rules{}
	for _, p := range list {
		id := p.Annotations()["id"]
		r := rule{id: cedar.PolicyID(id), because: string(p.Annotations()["because"]), Policy: p}
		if id == "" || (p.Effect() == cedar.Forbid) != (r.because != "") {
			return nil, fmt.Errorf("policies.cedar:%d: a policy needs @id, and a forbid @because", p.Position().Line)
		}
		for _, d := range policy.Actions() {
			if about(p, d) {
				sliced[d.Action] = append(sliced[d.Action], r)
			}
		}
	}
	return sliced, nil
}

// about reports whether the policy's head lets it speak of the action.
func about(p *cedar.Policy, d policy.Definition) bool {
	in := func(uid cedar.EntityUID) bool {
		return uid == actionUID(string(d.Action)) || slices.Contains(groups(d), string(uid.ID))
	}
	switch s := p.AST().Action.(type) {
	case cedarast.ScopeTypeEq:
		return s.Entity == actionUID(string(d.Action))
	case cedarast.ScopeTypeIn:
		return in(s.Entity)
	case cedarast.ScopeTypeInSet:
		return slices.ContainsFunc(s.Entities, in)
	}
	return true
}

// Limits of a project's own policies.
const (
	maxText     = 16 << 10
	maxPolicies = 50 // in one text
	maxTexts    = 32 // in one project
)

// compile checks a project's policy text and slices it. Error: fault.Invalid,
// with the line.
func (s *Service) compile(name, text string) (rules, error) {
	if len(text) > maxText {
		return nil, fault.New(fault.TooLarge, "policy %s has %d bytes, at most %d are allowed", name, len(text), maxText)
	}
	list, err := cedar.NewPolicyListFromBytes(name, []byte(text))
	if err != nil {
		return nil, fault.New(fault.Invalid, "policy %s is not Cedar: %s", name, brief(err)).
			WithHint("The language is described at docs.cedarpolicy.com; docs/reference/permissions.md lists the actions.")
	}
	if len(list) == 0 || len(list) > maxPolicies {
		return nil, fault.New(fault.Invalid, "policy %s has %d statements, from 1 to %d are allowed", name, len(list), maxPolicies)
	}
	sliced := rules{}
	for i, p := range list {
		at := fmt.Sprintf("policy %s, line %d", name, p.Position().Line)
		named, err := namedActions(p)
		if err != nil {
			return nil, fault.Wrap(err, "%s", at)
		}
		if err := s.validator.Policy(name, (*cedarast.Policy)(p.AST())); err != nil {
			return nil, fault.New(fault.Invalid, "%s: %s", at, brief(err)).
				WithHint("Principals have id, name and project; objects have project, kind, name, owner, classification and residency.")
		}
		r := rule{id: cedar.PolicyID(fmt.Sprintf("%s#%d", name, i+1)), because: string(p.Annotations()["because"]), Policy: p}
		if r.because == "" {
			r.because = "policy " + name + " of the project forbids it"
		}
		for _, a := range named {
			sliced[a] = append(sliced[a], r)
		}
	}
	return sliced, nil
}

// brief cuts what Cedar says: a type error spells out both types, however deep.
func brief(err error) string {
	text := strings.ToValidUTF8(err.Error(), "?")
	if len(text) > 300 {
		return strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}

// namedActions lists the actions that a project's policy is about. It must name
// each, and only such as cannot lock the project's administrators out or make
// lists show other things than are allowed.
func namedActions(p *cedar.Policy) ([]policy.Action, error) {
	var uids []cedar.EntityUID
	switch s := p.AST().Action.(type) {
	case cedarast.ScopeTypeEq:
		uids = []cedar.EntityUID{s.Entity}
	case cedarast.ScopeTypeInSet:
		uids = s.Entities
	}
	if len(uids) == 0 {
		return nil, fault.New(fault.Invalid, "the policy names no action").
			WithHint("Write action == Action::\"job.submit\" or action in [Action::\"job.submit\", …].")
	}
	var named []policy.Action
	for _, uid := range uids {
		a := policy.Action(uid.ID)
		d, ok := policy.Lookup(a)
		if !ok || uid.Type != typeAction {
			return nil, fault.New(fault.Invalid, "%s is no action", uid).WithHint("Did you mean %s?", policy.Nearest(string(uid.ID)))
		}
		if !d.Customisable() {
			return nil, fault.New(fault.Invalid, "a project's policy cannot be about %s", a).
				WithHint("It can be about the actions of datasets, features, environments, jobs, runs, models, deployments and monitors, except reading what exists.")
		}
		if !slices.Contains(named, a) {
			named = append(named, a)
		}
	}
	return named, nil
}
