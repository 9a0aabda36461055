// Package authorizer answers policy's question with Cedar.
//
// # Map
//
//   - service.go: Allow and Permits; how a request becomes Cedar entities, and a
//     decision becomes words.
//   - policies.cedar: the policies of every installation, to be read by people.
//   - rules.go: the schema, and policies sliced by action, so that a decision
//     costs microseconds however many there are.
//   - custom.go, store.go, events.go: the policies that a project adds.
//
// # Guarantees
//
// Closed by default: an error on the way to a decision is a refusal, and so is
// an error within a forbid. A refusal is in the synced journal before Allow
// returns. Who has no role in a project cannot tell it from one that does not
// exist. Changed roles and policies count at once in this process and within
// 5 s in others. Safe for concurrent use.
package authorizer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// journalTime is how long a refusal may wait to be on record.
const journalTime = 10 * time.Second

// Roster says who has which roles; tenancy.Roster does.
type Roster interface {
	// GrantsOf lists the principal's grants in all projects and in the
	// installation. It may lag 5 s behind changes of other processes.
	GrantsOf(ctx context.Context, principal string) ([]project.Grant, error)
	// Exists is nil for a project that there is in the transaction, else fault.NotFound.
	Exists(ctx context.Context, tx *store.Tx, name project.Name) error
	// Known is Exists, which may lag 5 s behind the end of a project in another process.
	Known(ctx context.Context, name project.Name) error
}

// Config says what the service works with.
type Config struct {
	DB      *store.DB
	Store   Store
	Roster  Roster
	Journal audit.Journal
	// Class is the classification of a source of an object ("dataset", "cards@1"), for
	// Object.Sources. Nil takes every source for restricted. Error: fault.NotFound for
	// one that there is no more, which counts as restricted.
	Class func(ctx context.Context, in project.Name, kind, name string) (project.Classification, error)
	Log   *slog.Logger
	Now   func() time.Time // default time.Now
}

// Service implements policy.Authorizer.
type Service struct {
	cfg       Config
	validator *validate.Validator
	builtin   rules
	actions   map[policy.Action]cedar.Entity
	roleSets  [1 << 5]cedar.EntityUIDSet // by bit of project.Roles

	mu         sync.RWMutex
	generation uint64 // grows with each change of a project's policies
	custom     map[project.Name]custom

	answered answers
	two      policy.TwoPeople
}

var _ policy.Authorizer = (*Service)(nil)

// New makes the service. An error is a defect in the embedded policies.
func New(cfg Config) (*Service, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{cfg: cfg, actions: map[policy.Action]cedar.Entity{}, custom: map[project.Name]custom{}}
	var err error
	if s.validator, err = newValidator(); err != nil {
		return nil, fault.Wrap(err, "read the policy schema")
	}
	if s.builtin, err = compileBuiltin(); err != nil {
		return nil, fault.Wrap(err, "read the built-in policies")
	}
	for _, d := range policy.Actions() {
		var parents []cedar.EntityUID
		for _, g := range groups(d) {
			parents = append(parents, actionUID(g))
		}
		s.actions[d.Action] = cedar.Entity{UID: actionUID(string(d.Action)), Parents: cedar.NewEntityUIDSet(parents...)}
	}
	for set := range s.roleSets {
		var uids []cedar.EntityUID
		for i, r := range project.Roles {
			if set&(1<<i) != 0 {
				uids = append(uids, cedar.NewEntityUID(typeRole, cedar.String(r)))
			}
		}
		s.roleSets[set] = cedar.NewEntityUIDSet(uids...)
	}
	return s, nil
}

// TakeTwoPeople says when changing a policy takes two people; without it, it never does.
// Call it before requests are served.
func (s *Service) TakeTwoPeople(t policy.TwoPeople) {
	s.two = t
	t.Register("policy", s.approved)
}

// Allow implements policy.Authorizer. Errors: fault.Unauthenticated for the zero
// principal; fault.PermissionDenied, or fault.NotFound for who has no role in
// the project, both on record; fault.Unavailable when the record could not be
// written, and others when roles could not be read, which all are refusals.
func (s *Service) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	v, err := s.evaluate(ctx, action, object)
	if err != nil {
		return err
	}
	if v.allowed {
		if v.afar {
			return s.cfg.Roster.Known(ctx, project.Name(object.Project))
		}
		return nil
	}
	p := identity.From(ctx)
	detail := map[string]any{}
	if object.Classification != "" {
		detail["classification"] = object.Classification
	}
	// The refused caller cannot escape the record by hanging up.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTime)
	defer cancel()
	err = s.cfg.Journal.Record(record, audit.Entry{
		Actor: p, Project: clip(object.Project), Action: string(action), Object: object.String(),
		Outcome: audit.Refused, Reason: v.because, Detail: detail,
	})
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "refused, and the refusal could not be recorded", Hint: "Check the server's log, and free disk space.", Err: err}
	}
	return audit.OnRecord(v.refusal(p, action, object))
}

// Permits is Allow without a record, for what decides only what to show: lists
// and menus. An act on its word must still ask Allow.
func (s *Service) Permits(ctx context.Context, action policy.Action, object policy.Object) (bool, error) {
	v, err := s.evaluate(ctx, action, object)
	return v.allowed, err
}

// verdict is a decision with its reason.
type verdict struct {
	allowed bool
	because string // why not, in words
	forbids []rule // that refuse it
	known   bool   // the caller may know that the project exists
	afar    bool   // by a role in the installation only: the project need not exist
	def     policy.Definition
}

func (s *Service) evaluate(ctx context.Context, action policy.Action, object policy.Object) (verdict, error) {
	p := identity.From(ctx)
	def, ok := policy.Lookup(action)
	if !ok {
		// A defect of ours, not of the caller.
		return verdict{}, fault.New(fault.Internal, "action %s is not in policy/actions.go", action)
	}
	v := verdict{def: def}
	if p.Kind == "" || p.ID == "" {
		v.because = "the request has no authenticated caller"
		return v, nil
	}
	grants, err := s.grantsOf(ctx, p)
	if err != nil {
		return v, fault.Wrap(err, "read the roles of %s", p)
	}
	q := question{p, action, object}
	asks := asksContents(def, object)
	if asks && class(def, object) == project.Restricted {
		if q.object.Sources, err = s.restricted(ctx, object); err != nil {
			return v, fault.Wrap(err, "read the classification of the inputs of %s", object)
		}
	} else {
		q.object.Sources = nil
	}
	var submitter []project.Grant
	if asks && p.Kind == identity.Attempt && p.Behalf != "" {
		if submitter, err = s.cfg.Roster.GrantsOf(ctx, p.Behalf); err != nil {
			return v, fault.Wrap(err, "read the roles of %s", p.Behalf)
		}
	}
	rules := slice{builtin: s.builtin[action]}
	if object.Project != "" && p.Kind != identity.System && def.Customisable() {
		own, err := s.customOf(ctx, project.Name(object.Project))
		if err != nil {
			return v, fault.Wrap(err, "read the policies of project %s", clip(object.Project))
		}
		rules.project = own[action]
	}
	if p.Kind == identity.Attempt && asks { // what its submitter may is decided each time
		return s.decide(ctx, q, v, grants, submitter, rules), nil
	}
	if v, ok := s.answered.find(q, grants, rules.project); ok {
		return v, nil
	}
	v = s.decide(ctx, q, v, grants, nil, rules)
	if v.allowed {
		s.answered.keep(q, grants, rules.project, v)
	}
	return v, nil
}

// decide answers a question from what is given: the same again, the same answer.
func (s *Service) decide(ctx context.Context, q question, v verdict, grants, submitter []project.Grant, rules slice) verdict {
	p, def, object := q.principal, v.def, q.object
	req, entities, named := s.request(p, def, object, grants, submitter)
	v.known = p.Kind == identity.System || object.Project == "" || named.role || p.Project == project.Name(object.Project)
	if p.Project != "" && p.Project != project.Name(object.Project) && object.Project != "" {
		v.known = false // a bound token knows its project only
	}

	v.afar = object.Project != "" && !def.Installation && named.role && !named.local

	if object.Gate() {
		// A project's policies look at objects; the domain asks again about one.
		permits := slices.ContainsFunc(rules.project, func(r rule) bool { return r.Effect() == cedar.Permit })
		rules.project = nil
		decision, diagnostic := cedar.Authorize(rules, entities, req)
		v.allowed = decision == cedar.Allow || permits && len(diagnostic.Reasons) == 0
		v.forbids, v.because = because(rules, diagnostic, v, object)
		return v
	}
	decision, diagnostic := cedar.Authorize(rules, entities, req)
	v.allowed = decision == cedar.Allow
	for _, failed := range diagnostic.Errors {
		if rules.find(failed.PolicyID).Effect() == cedar.Forbid {
			s.cfg.Log.WarnContext(ctx, "a forbid could not be evaluated and refuses", slog.String("policy", string(failed.PolicyID)), slog.String("error", failed.Message))
			v.allowed, v.because, v.forbids = false, "policy "+string(failed.PolicyID)+" could not be evaluated", []rule{rules.find(failed.PolicyID)}
			return v
		}
	}
	v.forbids, v.because = because(rules, diagnostic, v, object)
	return v
}

// grantsOf asks the roster about those who can have roles.
func (s *Service) grantsOf(ctx context.Context, p identity.Principal) ([]project.Grant, error) {
	if p.Kind != identity.User && p.Kind != identity.Service {
		return nil, nil
	}
	return s.cfg.Roster.GrantsOf(ctx, p.ID)
}

// facts are what a principal's grants say about an object.
type facts struct {
	role   bool // a role in the project or the installation, or on an object of the project
	local  bool // a role in the project, or on an object of it
	member bool // a role anywhere
	named  bool // a grant that has the action names the object
	roles  int  // bit set of project.Roles that count for the object
}

func weigh(grants []project.Grant, def policy.Definition, object policy.Object) facts {
	var f facts
	open := make([]bool, len(object.Sources)) // by source: some grant names it
	for _, g := range grants {
		f.member = true
		here := g.Project == "" || g.Project == project.Name(object.Project)
		f.role = f.role || here
		f.local = f.local || here && g.Project != ""
		if !here || def.Installation && g.Project != "" {
			continue
		}
		names := g.Names(object.Kind, object.Name)
		f.named = f.named || names && def.Has(g.Role)
		for i, source := range object.Sources {
			kind, name, _ := strings.Cut(source, "/")
			open[i] = open[i] || g.Names(kind, name) && readsData.Has(g.Role)
		}
		if g.Object == "" || names || object.Gate() {
			f.roles |= 1 << slices.Index(project.Roles, g.Role)
		}
	}
	f.named = f.named || len(open) > 0 && !slices.Contains(open, false)
	return f
}

// readsData is the action that a grant on a source must have to open what was made of it.
var readsData, _ = policy.Lookup("dataset.query")

// asksContents reports whether the object's class decides.
func asksContents(def policy.Definition, o policy.Object) bool {
	return !o.Gate() && (def.Data || def.Contents && o.Contents)
}

// class is the classification that counts for the question.
func class(def policy.Definition, o policy.Object) project.Classification {
	c := project.Classification(o.Classification)
	if !asksContents(def, o) {
		return c
	}
	switch {
	case c == "" && def.Data:
		return project.Confidential
	case c == "":
		return project.Internal
	case c.Validate() != nil:
		return project.Restricted
	}
	return c
}

// restricted lists those of an object's sources that are restricted, or gone.
func (s *Service) restricted(ctx context.Context, o policy.Object) ([]string, error) {
	var found []string
	for _, source := range o.Sources {
		kind, name, ok := strings.Cut(source, "/")
		of := project.Restricted
		if ok && s.cfg.Class != nil {
			var err error
			of, err = s.cfg.Class(ctx, project.Name(o.Project), kind, name)
			switch {
			case fault.Is(err, fault.NotFound) || fault.Is(err, fault.Gone) || fault.Is(err, fault.Invalid):
				of = project.Restricted
			case err != nil:
				return nil, err
			}
		}
		if of == project.Restricted {
			found = append(found, source)
		}
	}
	return found, nil
}

// submitterMay reports whether a job's submitter may read contents of the class now. A job
// that Falaj submitted is held by its scopes alone.
func (s *Service) submitterMay(p identity.Principal, def policy.Definition, object policy.Object, submitter []project.Grant) bool {
	if p.Behalf == "" {
		return true
	}
	f := weigh(submitter, def, object)
	switch class(def, object) {
	case project.Restricted:
		return f.named
	case project.Confidential:
		return f.roles&(1<<slices.Index(project.Roles, project.Engineer)|1<<slices.Index(project.Roles, project.Admin)) != 0
	case project.Public, project.Internal:
	}
	return f.roles != 0
}

// sourcesScoped reports whether the token's scopes name each restricted source.
func sourcesScoped(p identity.Principal, object policy.Object) bool {
	for _, source := range object.Sources {
		_, name, _ := strings.Cut(source, "/")
		if _, names := p.Admits("dataset.query", name); !names {
			return false
		}
	}
	return len(object.Sources) > 0
}

// request translates the question into Cedar's words.
func (s *Service) request(p identity.Principal, def policy.Definition, object policy.Object, grants, submitter []project.Grant) (cedar.Request, *entities, facts) {
	f := weigh(grants, def, object)
	scoped := true
	if p.Narrowed() && p.Kind != identity.System {
		var names bool
		if object.Gate() {
			scoped = p.Touches(string(def.Action))
		} else {
			scoped, names = p.Admits(string(def.Action), object.Name)
		}
		if p.Kind == identity.Attempt {
			f.named = names
			if asksContents(def, object) {
				may := s.submitterMay(p, def, object, submitter)
				switch {
				case def.Data: // its inputs, and nothing else
				case p.Behalf != "" || class(def, object) != project.Restricted:
					f.named = true
				default:
					f.named = names || sourcesScoped(p, object)
				}
				f.named, scoped = f.named && may, scoped && may
			}
		}
	}
	zones := object.Residency.Zones()
	residency := make([]cedar.Value, len(zones))
	for i, z := range zones {
		residency[i] = cedar.String(z)
	}
	e := &entities{
		action: s.actions[def.Action],
		principal: cedar.Entity{
			UID:     cedar.NewEntityUID(entityType(p.Kind), cedar.String(p.ID)),
			Parents: s.roleSets[f.roles],
			Attributes: cedar.NewRecord(cedar.RecordMap{
				"id": cedar.String(p.ID), "name": cedar.String(p.Name), "project": cedar.String(p.Project),
			}),
		},
		object: cedar.Entity{
			UID: cedar.NewEntityUID(typeObject, cedar.String(object.Kind+"/"+object.Name)),
			Attributes: cedar.NewRecord(cedar.RecordMap{
				"project": cedar.String(object.Project), "kind": cedar.String(object.Kind), "name": cedar.String(object.Name),
				"owner": cedar.String(object.Owner), "classification": cedar.String(class(def, object)), "residency": cedar.NewSet(residency...),
			}),
		},
	}
	return cedar.Request{
		Principal: e.principal.UID, Action: e.action.UID, Resource: e.object.UID,
		Context: cedar.NewRecord(cedar.RecordMap{
			"contents": cedar.Boolean(asksContents(def, object)), "gate": cedar.Boolean(object.Gate()), "member": cedar.Boolean(f.member),
			"scoped": cedar.Boolean(scoped), "named": cedar.Boolean(f.named),
		}),
	}, e, f
}

func entityType(k identity.Kind) cedar.EntityType {
	switch k {
	case identity.Service:
		return "Service"
	case identity.Attempt:
		return "Attempt"
	case identity.System:
		return "System"
	case identity.User:
	}
	return "User"
}

// entities are the three that a request is about; roles and groups are known by
// being parents.
type entities struct{ principal, action, object cedar.Entity }

// Get implements cedar.EntityGetter.
func (e *entities) Get(uid cedar.EntityUID) (cedar.Entity, bool) {
	switch uid {
	case e.principal.UID:
		return e.principal, true
	case e.action.UID:
		return e.action, true
	case e.object.UID:
		return e.object, true
	}
	return cedar.Entity{}, false
}

// because says why a refused request is refused, and by which policies.
func because(rules slice, diagnostic cedar.Diagnostic, v verdict, object policy.Object) (forbids []rule, text string) {
	if v.allowed {
		return nil, ""
	}
	var reasons []string
	for _, r := range diagnostic.Reasons { // of a refusal they are all forbids
		forbid := rules.find(r.PolicyID)
		forbids, reasons = append(forbids, forbid), append(reasons, forbid.because)
	}
	if len(reasons) > 0 {
		return forbids, strings.Join(reasons, "; ")
	}
	roles := make([]string, len(v.def.Roles))
	for i, r := range v.def.Roles {
		roles[i] = string(r)
	}
	where := "the installation"
	if !v.def.Installation && object.Project != "" {
		where = "project " + clip(object.Project)
	}
	return nil, "it requires the role " + strings.Join(roles, " or ") + " in " + where
}

// refusal is what the caller hears.
func (v verdict) refusal(p identity.Principal, action policy.Action, object policy.Object) error {
	switch {
	case p.Kind == "" || p.ID == "":
		return fault.New(fault.Unauthenticated, "the request has no authenticated caller").WithHint("Send a token; \"falaj login\" stores one.")
	case !v.known:
		return project.Unknown(clip(object.Project))
	}
	where := ""
	if object.Project != "" && object.String() != "project "+object.Project {
		where = " in project " + clip(object.Project)
	}
	return fault.New(fault.PermissionDenied, "%s does not have the permission %s on %s%s: %s", p, action, object, where, v.because).
		WithHint("%s", v.hint(p, action, object))
}

// hint says what would allow a refused request. No role lifts a forbid, so of several
// reasons the first forbid decides, a project's own before all.
func (v verdict) hint(p identity.Principal, action policy.Action, object policy.Object) string {
	in := "project " + clip(object.Project)
	if object.Project == "" || v.def.Installation {
		in = "the installation"
	}
	for _, r := range v.forbids {
		if name, number, _ := strings.Cut(string(r.id), "#"); number != "" {
			return fmt.Sprintf("No role lifts it. `falaj describe policy %s -p %s` shows the policy, which an admin of %s can change.", fault.ShellWord(name), fault.ShellWord(clip(object.Project)), in)
		}
	}
	if p.Kind == identity.Attempt { // which no grant can name
		return "A job's token may do what its own work takes. For more, give the job a service account's token as a secret (spec.secrets)."
	}
	for _, r := range v.forbids {
		switch r.id {
		case "bound":
			if object.Project != "" {
				return fmt.Sprintf("Use a token that is bound to project %s or to none: `falaj token create -p %s` makes one.", clip(object.Project), fault.ShellWord(clip(object.Project)))
			}
			return "Use a token that is bound to no project: `falaj token create --user NAME --all-projects` makes one for a person."
		case "scopes":
			return fmt.Sprintf("Use a token without scopes, or one with the scope %s.", action)
		case "restricted":
			return fmt.Sprintf("An admin of %s can apply a Grant that names the object.", in)
		case "confidential":
			return fmt.Sprintf("An admin of %s can grant the role engineer.", in)
		}
	}
	if in == "the installation" {
		return "An admin of the installation can grant a role."
	}
	return fmt.Sprintf("An admin of %s can apply a Grant.", in)
}

// clip bounds what a caller's names can put into messages and the journal.
func clip(s string) string { return fault.Clip(s, 80) }
